//! Text about the ranks that failed in a launch that tolerates failures. Ranks with the same exit are listed together.

use std::fmt;

use pmi_core::ids::Rank;
use rank_spawner::RankExit;

use super::RankList;

/// Maximum number of different exits in the text.
const WAYS: usize = 8;

/// Text such as `ranks 1,3 on node[0-1] exited with status 3` or `rank 1 exited with status 3; ranks 2,4 exited with status 5,
/// on node[0-1]`.
pub(super) struct FailedRanksText<'a> {
    pub(super) failed: &'a [(Rank, RankExit)],
    /// The nodes of these ranks, as a list; empty if the text must not name them.
    pub(super) hosts: &'a str,
}

impl fmt::Display for FailedRanksText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ways: Vec<(RankExit, Vec<Rank>)> = Vec::new();
        let mut unnamed = 0;
        for &(rank, exit) in self.failed {
            match ways.iter().position(|(way, _)| *way == exit) {
                Some(way) => ways[way].1.push(rank),
                None if ways.len() < WAYS => ways.push((exit, vec![rank])),
                None => unnamed += 1,
            }
        }
        let hosts = self.hosts;
        if let ([(exit, ranks)], false) = (&*ways, hosts.is_empty()) {
            return write!(f, "{} on {hosts} {}", RankList(ranks), Ended { ranks, exit: *exit });
        }
        let mut separator = "";
        for (exit, ranks) in &ways {
            write!(f, "{separator}{} {}", RankList(ranks), Ended { ranks, exit: *exit })?;
            separator = "; ";
        }
        match unnamed {
            0 => {}
            1 => write!(f, "; 1 more rank failed")?,
            more => write!(f, "; {more} more ranks failed")?,
        }
        if hosts.is_empty() { Ok(()) } else { write!(f, ", on {hosts}") }
    }
}

/// The exit of these ranks.
struct Ended<'a> {
    ranks: &'a [Rank],
    exit: RankExit,
}

impl fmt::Display for Ended<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.ranks.len() == 1 { write!(f, "{}", self.exit) } else { write!(f, "{:#}", self.exit) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(failed: &[(u32, i32)]) -> String {
        text_on("", failed)
    }

    fn text_on(hosts: &str, failed: &[(u32, i32)]) -> String {
        let failed: Vec<_> = failed.iter().map(|&(rank, code)| (Rank(rank), RankExit::Code(code))).collect();
        FailedRanksText { failed: &failed, hosts }.to_string()
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
    fn several_ranks_were_killed_and_one_was() {
        let killed = RankExit::Signal { signal: 9, core_dumped: false };
        let failed = [(Rank(0), RankExit::Code(1)), (Rank(1), killed), (Rank(3), killed)];
        let text = |failed, hosts| FailedRanksText { failed, hosts }.to_string();
        assert_eq!(text(&failed[1..], "n1"), "ranks 1,3 on n1 were killed by signal 9 (SIGKILL)");
        assert_eq!(text(&failed[..2], ""), "rank 0 exited with status 1; rank 1 was killed by signal 9 (SIGKILL)");
    }

    #[test]
    fn their_nodes_are_named() {
        assert_eq!(text_on("n[0-1]", &[(1, 3), (2, 3)]), "ranks 1-2 on n[0-1] exited with status 3");
        assert_eq!(
            text_on("n[0-1]", &[(1, 3), (2, 5)]),
            "rank 1 exited with status 3; rank 2 exited with status 5, on n[0-1]"
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
