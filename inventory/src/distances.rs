//! Groups of NUMA nodes that are nearer to each other than to the rest, as hwloc derives them from the distances between nodes.
//!
//! Nodes at the smallest distance make a group, also indirectly; a node without such a neighbour stays alone. Groups are grouped again, by
//! the mean distances of their nodes.

use crate::cpus::CpuSet;

/// Passes the CPUs of each group to `insert`, innermost groups first, until a call returns false. `cpus` are the CPUs of the nodes.
pub(crate) fn group(cpus: Vec<CpuSet>, distances: &[&[u32]], mut insert: impl FnMut(&CpuSet) -> bool) {
    if !make_sense(distances) {
        return;
    }
    let mut matrix: Vec<Vec<u64>> =
        distances.iter().map(|row| row.iter().map(|&value| value.into()).collect()).collect();
    let mut cpus = cpus;
    while matrix.len() > 2 {
        let groups = nearest(&matrix);
        cpus = groups.iter().map(|group| group.iter().flat_map(|&node| cpus[node].iter()).collect()).collect();
        // A failure leaves its level incomplete, and no further level is made.
        let failed = cpus.iter().filter(|cpus| cpus.is_empty() || !insert(cpus)).count();
        if failed > 0 {
            return;
        }
        matrix = means(&matrix, &groups);
    }
}

/// True for symmetric distances that are smallest from each node to itself.
fn make_sense(distances: &[&[u32]]) -> bool {
    let count = distances.len();
    distances.iter().all(|row| row.len() == count)
        && (0..count)
            .all(|i| (i + 1..count).all(|j| distances[i][j] == distances[j][i] && distances[i][j] > distances[i][i]))
}

/// Groups at the smallest distance; empty if one group would have all nodes.
fn nearest(matrix: &[Vec<u64>]) -> Vec<Vec<usize>> {
    let pairs = || (0..matrix.len()).flat_map(|i| (0..matrix.len()).filter(move |&j| j != i).map(move |j| (i, j)));
    let Some(least) = pairs().map(|(i, j)| matrix[i][j]).min() else { return Vec::new() };
    let mut is_in_group = vec![false; matrix.len()];
    let mut groups = Vec::new();
    for first in 0..matrix.len() {
        if is_in_group[first] {
            continue;
        }
        is_in_group[first] = true;
        let mut group = vec![first];
        let mut looked_at = 0;
        while let Some(&node) = group.get(looked_at) {
            looked_at += 1;
            for other in 0..matrix.len() {
                if !is_in_group[other] && matrix[node][other] == least {
                    is_in_group[other] = true;
                    group.push(other);
                }
            }
        }
        match group.len() {
            1 => is_in_group[first] = false,
            len if len == matrix.len() => return Vec::new(),
            _ => groups.push(group),
        }
    }
    groups
}

/// Distances between groups, rounded down.
fn means(matrix: &[Vec<u64>], groups: &[Vec<usize>]) -> Vec<Vec<u64>> {
    let mean = |from: &Vec<usize>, to: &Vec<usize>| {
        let sum: u64 = from.iter().flat_map(|&i| to.iter().map(move |&j| matrix[i][j])).sum();
        sum / (from.len() * to.len()).max(1) as u64
    };
    groups.iter().map(|from| groups.iter().map(|to| mean(from, to)).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Groups of nodes with one CPU each; `insert` fails for groups with the CPU `refused`.
    fn check(distances: &[&[u32]], refused: u16, expected: &[&str]) {
        let cpus = (0..distances.len() as u16).map(|node| [node].into_iter().collect()).collect();
        let mut groups = Vec::new();
        group(cpus, distances, |cpus| {
            groups.push(cpus.to_string());
            !cpus.contains(refused)
        });
        assert_eq!(groups, expected);
    }

    #[test]
    fn neighbours_are_grouped_and_their_groups_again() {
        let near: &[&[u32]] = &[&[10, 12, 20, 20], &[12, 10, 20, 20], &[20, 20, 10, 12], &[20, 20, 12, 10]];
        check(near, 9, &["0-1", "2-3"]);
        let row = |node: usize| -> Vec<u32> {
            (0..8)
                .map(|to| {
                    if to == node {
                        10
                    } else if to / 2 == node / 2 {
                        12
                    } else if to / 4 == node / 4 {
                        20
                    } else {
                        30
                    }
                })
                .collect()
        };
        let rows: Vec<Vec<u32>> = (0..8).map(row).collect();
        let rows: Vec<&[u32]> = rows.iter().map(Vec::as_slice).collect();
        check(&rows, 9, &["0-1", "2-3", "4-5", "6-7", "0-3", "4-7"]);
        check(&rows, 5, &["0-1", "2-3", "4-5", "6-7"]);
    }

    #[test]
    fn distances_that_say_nothing_make_no_group() {
        check(&[], 9, &[]);
        check(&[&[10, 20], &[20, 10]], 9, &[]);
        check(&[&[10, 20, 20], &[20, 10, 20], &[20, 20, 10]], 9, &[]);
        // Asymmetric; not smallest to itself; unknown.
        check(&[&[10, 12, 20], &[13, 10, 20], &[20, 20, 10]], 9, &[]);
        check(&[&[10, 10, 20], &[10, 10, 20], &[20, 20, 10]], 9, &[]);
        check(&[&[], &[], &[]], 9, &[]);
        // A chain is one group of all nodes. A node without a neighbour is in no group.
        check(&[&[10, 12, 20], &[12, 10, 12], &[20, 12, 10]], 9, &[]);
        check(&[&[10, 12, 20], &[12, 10, 20], &[20, 20, 10]], 9, &["0-1"]);
    }
}
