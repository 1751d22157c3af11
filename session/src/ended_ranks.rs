//! Exits of ranks of finished jobs, for the report of a launch. Neighbours with the same exit share one entry.

use std::collections::BTreeMap;

use pmi_core::ids::Rank;
use rank_spawner::RankExit;

/// Effect of a rank's failure on its launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndMeaning {
    /// A failure is a failure of the launch.
    Counts,
    /// The job was disowned: a failure has no effect.
    Nothing,
}

/// Exits of ranks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EndedRanks {
    /// Number of neighbours and their exit, by the first rank.
    runs: BTreeMap<u32, (u32, RankExit)>,
    /// Failures that count, in rank order.
    failures: BTreeMap<Rank, RankExit>,
}

impl EndedRanks {
    /// Adds the exit of a rank that has no entry yet.
    pub fn add(&mut self, rank: Rank, exit: RankExit, meaning: EndMeaning) {
        let (mut first, mut count) = (rank.0, 1);
        let before = self.runs.range(..first).next_back().map(|(&start, &run)| (start, run));
        if let Some((start, (length, _))) =
            before.filter(|&(start, (length, same))| start + length == first && same == exit)
        {
            (first, count) = (start, length + 1);
        }
        let after = rank.0.saturating_add(1);
        if let Some(&(length, _)) = self.runs.get(&after).filter(|(_, same)| *same == exit) {
            self.runs.remove(&after);
            count += length;
        }
        self.runs.insert(first, (count, exit));
        if meaning == EndMeaning::Counts && !exit.is_success() {
            self.failures.insert(rank, exit);
        }
    }

    /// Returns the runs of neighbours with the same exit: the first rank, their number and their exit.
    pub fn runs(&self) -> impl Iterator<Item = (Rank, u32, RankExit)> {
        self.runs.iter().map(|(&first, &(count, exit))| (Rank(first), count, exit))
    }

    /// Returns all exits, in rank order.
    pub fn iter(&self) -> impl Iterator<Item = (Rank, RankExit)> {
        let ranks = |(&first, &(count, exit)): (&u32, &(u32, RankExit))| {
            (first..first.saturating_add(count)).map(move |rank| (Rank(rank), exit))
        };
        self.runs.iter().flat_map(ranks)
    }

    /// Returns the failures that count for the launch, in rank order.
    pub fn failures(&self) -> impl Iterator<Item = (Rank, RankExit)> {
        self.failures.iter().map(|(&rank, &exit)| (rank, exit))
    }

    /// Returns true if each rank returned status 0.
    pub fn are_all_successes(&self) -> bool {
        self.runs.values().all(|(_, exit)| exit.is_success())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_neighbours_that_ended_alike_are_one_entry() {
        let mut ended = EndedRanks::default();
        let code = RankExit::Code;
        for rank in (0..10_000).rev().step_by(2).chain((0..10_000).step_by(2)) {
            ended.add(Rank(rank), code(0), EndMeaning::Counts);
        }
        assert_eq!((ended.runs.len(), ended.iter().count()), (1, 10_000));
        assert!(ended.are_all_successes() && ended.iter().is_sorted_by_key(|(rank, _)| rank));
        ended.add(Rank(10_001), code(3), EndMeaning::Counts);
        ended.add(Rank(10_000), code(3), EndMeaning::Nothing);
        assert_eq!(ended.runs.len(), 2);
        assert!(!ended.are_all_successes());
        assert_eq!(ended.failures().collect::<Vec<_>>(), [(Rank(10_001), code(3))]);
    }
}
