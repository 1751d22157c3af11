//! The map of a launch: which rank runs where, as `--show-map` and `--dry-run` print it.

use rank_spawner::CpuSet;

use crate::request::{LaunchRequest, Seat};

const HEAD: [&str; 5] = ["RANK", "NODE", "LOCAL", "CPUS", "PROGRAM"];

/// A table with one line for each rank.
pub(crate) fn table(request: &LaunchRequest) -> String {
    let mut rows = vec![HEAD.map(str::to_owned)];
    rows.extend(request.seats.iter().map(|seat| row(seat, &request.spec.hosts[seat.node.index()])));
    let mut widths = [0; HEAD.len()];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    rows.iter().map(|row| line(row, &widths)).collect()
}

fn row(seat: &Seat, host: &str) -> [String; HEAD.len()] {
    [
        seat.rank.to_string(),
        host.to_owned(),
        seat.local_rank.to_string(),
        seat.cpus.as_ref().map_or_else(|| "any".to_owned(), CpuSet::to_string),
        seat.program.display().to_string(),
    ]
}

/// Numbers to the right, names to the left, nothing behind the last column.
fn line(row: &[String; HEAD.len()], widths: &[usize; HEAD.len()]) -> String {
    let [rank, node, local, cpus, program] = row;
    let [w_rank, w_node, w_local, w_cpus, _] = *widths;
    format!("{rank:>w_rank$}  {node:<w_node$}  {local:>w_local$}  {cpus:<w_cpus$}  {program}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_has_its_line() {
        let request = crate::request::tests::checked("-n 10 true : -n 1 false").unwrap();
        let table = table(&request);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[0], "RANK  NODE   LOCAL  CPUS  PROGRAM");
        assert_eq!(lines[1], "   0  node3      0  any   /usr/bin/true");
        assert_eq!(lines[11], "  10  node3     10  any   /usr/bin/false");
        assert_eq!(lines.len(), 12);
    }
}
