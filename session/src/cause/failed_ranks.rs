//! Ranks that failed in a launch that bears it, in words: those together that ended alike.

use std::fmt;

use pmi_core::ids::Rank;
use rank_spawner::RankExit;

use super::RankList;

/// Most ways of ending that are named.
const WAYS: usize = 8;

/// `rank 1 exited with status 3; ranks 2,4 exited with status 5`.
pub(super) struct FailedRanksText<'a>(pub(super) &'a [(Rank, RankExit)]);

impl fmt::Display for FailedRanksText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ways: Vec<(RankExit, Vec<Rank>)> = Vec::new();
        let mut unnamed = 0;
        for &(rank, exit) in self.0 {
            match ways.iter().position(|(way, _)| *way == exit) {
                Some(way) => ways[way].1.push(rank),
                None if ways.len() < WAYS => ways.push((exit, vec![rank])),
                None => unnamed += 1,
            }
        }
        let mut separator = "";
        for (exit, ranks) in &ways {
            write!(f, "{separator}{} {exit}", RankList(ranks))?;
            separator = "; ";
        }
        match unnamed {
            0 => Ok(()),
            1 => write!(f, "; 1 more rank failed"),
            more => write!(f, "; {more} more ranks failed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(failed: &[(u32, i32)]) -> String {
        let failed: Vec<_> = failed.iter().map(|&(rank, code)| (Rank(rank), RankExit::Code(code))).collect();
        FailedRanksText(&failed).to_string()
    }

    #[test]
    fn ranks_that_ended_alike_are_named_together() {
        assert_eq!(text(&[(1, 3)]), "rank 1 exited with status 3");
        assert_eq!(
            text(&[(1, 3), (2, 5), (3, 3), (4, 5)]),
            "ranks 1,3 exited with status 3; ranks 2,4 exited with status 5"
        );
    }

    #[test]
    fn a_million_ranks_that_fail_in_many_ways_take_a_line_or_two() {
        let all: Vec<(u32, i32)> = (0..1 << 20).map(|rank| (rank, rank as i32 % 255 + 1)).step_by(255).collect();
        assert!(text(&all).len() < 40_000);
        let different: Vec<(u32, i32)> = (0..20).map(|rank| (rank, rank as i32 + 1)).collect();
        let seen = text(&different);
        assert!(seen.ends_with("; rank 7 exited with status 8; 12 more ranks failed"), "{seen}");
    }
}
