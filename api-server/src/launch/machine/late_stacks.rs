//! Merges the call stacks that nodes report for missing ranks; equal stacks are shown once. Also reports a missing rank that is in MPI while
//! another rank waits in `MPI_Finalize`.

use std::time::Duration;

use lattice_session::call_stacks::{CallStacks, RankStack};
use lattice_session::event::Notice;
use lattice_session::fence_wait::FenceWait;
use tokio::time::Instant;

use super::silent_ranks::Passing;

/// Time for nodes to report after the first report: debuggers differ in speed.
const COLLECT: Duration = Duration::from_secs(2);

/// Shortest interval between two searches for ranks that are in MPI: every node reports its long waits.
const SEARCH_AGAIN: Duration = Duration::from_secs(5);

/// Reports that were not forwarded yet.
#[derive(Debug, Default)]
pub(crate) struct LateStacks {
    collected: Option<(Instant, CallStacks)>,
    /// The wait for which the nodes inspect ranks.
    wait: Option<FenceWait>,
    searched: Option<Instant>,
    is_misuse_reported: bool,
}

impl LateStacks {
    /// Adds a node's report.
    pub(crate) fn add(&mut self, stacks: Vec<RankStack>, now: Instant) {
        let (_, all) = self.collected.get_or_insert_with(|| (now, CallStacks::default()));
        stacks.into_iter().for_each(|stack| all.add(stack.ranks, stack.text));
    }

    /// Returns true if a search for the cause of a long wait after the start-up is due. The search then counts as started.
    pub(crate) fn begin_search(&mut self, now: Instant) -> bool {
        let is_due = !self.is_misuse_reported && self.searched.is_none_or(|before| now >= before + SEARCH_AGAIN);
        if is_due {
            self.searched = Some(now);
        }
        is_due
    }

    /// Sets the wait for which the nodes now inspect the missing ranks.
    pub(crate) fn expect(&mut self, wait: FenceWait) {
        self.wait = Some(wait);
    }

    /// Returns the notices that are due. The stacks themselves are shown only for a late start.
    pub(crate) fn take(&mut self, now: Instant, passing: Passing) -> Vec<Notice> {
        let is_due = |(since, _): &mut (Instant, _)| passing == Passing::All || now >= *since + COLLECT;
        let Some((_, stacks)) = self.collected.take_if(is_due) else { return Vec::new() };
        let stacks = stacks.into_stacks();
        let seen: Vec<_> =
            stacks.iter().flat_map(|stack| stack.ranks.iter().map(|&rank| (rank, &*stack.text))).collect();
        let wait = self.wait.as_ref();
        let misuse = wait.filter(|_| !self.is_misuse_reported).and_then(|wait| wait.misuse(&seen));
        self.is_misuse_reported |= misuse.is_some();
        let is_shown = !stacks.is_empty() && wait.is_none_or(|wait| wait.at_start);
        is_shown.then_some(Notice::Stacks { stacks }).into_iter().chain(misuse).collect()
    }
}

#[cfg(test)]
mod tests {
    use pmi_core::ids::Rank;

    use super::*;

    #[test]
    fn equal_stacks_of_several_nodes_are_told_once() {
        let stack = |ranks: &[u32], text: &str| RankStack {
            ranks: ranks.iter().copied().map(Rank).collect(),
            text: text.to_owned(),
        };
        let (mut late, now) = (LateStacks::default(), Instant::now());
        late.add(vec![stack(&[2, 3], "solve"), stack(&[4], "wait")], now);
        late.add(vec![stack(&[0, 1], "solve")], now + COLLECT / 2);
        assert_eq!(late.take(now + COLLECT / 2, Passing::Due), []);
        let stacks = vec![stack(&[0, 1, 2, 3], "solve"), stack(&[4], "wait")];
        assert_eq!(late.take(now + COLLECT, Passing::Due), [Notice::Stacks { stacks }]);
        assert_eq!(late.take(now + COLLECT, Passing::All), []);
    }

    #[test]
    fn a_missing_rank_in_mpi_is_reported_once_and_stacks_of_a_late_start_alone_are_shown() {
        for at_start in [true, false] {
            let (mut late, now) = (LateStacks::default(), Instant::now());
            assert!(late.begin_search(now) && !late.begin_search(now + SEARCH_AGAIN / 2));
            late.expect(FenceWait { waiting: vec![Rank(0)], since: COLLECT, at_start });
            let mut take = |text: &str| {
                late.add(vec![RankStack { ranks: vec![Rank(2)], text: text.to_owned() }], now);
                let notices = late.take(now + COLLECT, Passing::Due);
                let is_stacks = |notice: &Notice| matches!(notice, Notice::Stacks { .. });
                (notices.iter().any(is_stacks), notices.iter().any(|notice| !is_stacks(notice)))
            };
            assert_eq!(take("#0 write ()\n#1 main ()\n"), (at_start, false));
            assert_eq!(take("#0 poll ()\n#1 PMPI_Barrier ()\n"), (at_start, true));
            assert_eq!(take("#0 poll ()\n#1 PMPI_Barrier ()\n"), (at_start, false));
            assert!(!late.begin_search(now + 2 * SEARCH_AGAIN));
        }
    }
}
