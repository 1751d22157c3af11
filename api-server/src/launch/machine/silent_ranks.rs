//! Merges the notices of silent ranks: every node reports its own silent ranks, and clients receive one notice for all.

use std::time::Duration;

use lattice_session::event::{MpiLibrary, Notice};
use pmi_core::ids::Rank;
use tokio::time::Instant;

/// Time for nodes to report after the first report.
const COLLECT: Duration = Duration::from_millis(500);

/// Report of one node on its silent ranks: the fields of [`Notice::Silent`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SilentReport {
    pub ranks: Vec<Rank>,
    pub size: u32,
    pub ended: bool,
    pub after: Duration,
    pub library: Option<MpiLibrary>,
}

/// Reports that were not forwarded yet: of running ranks, and of ended ranks.
#[derive(Debug, Default)]
pub(crate) struct SilentRanks {
    collected: [Option<(Instant, SilentReport)>; 2],
}

/// The reports to forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passing {
    /// Reports at the end of their collection time.
    Due,
    /// All, because the launch ends.
    All,
}

impl SilentRanks {
    /// Adds a node's report.
    pub(crate) fn add(&mut self, report: SilentReport, now: Instant) {
        match &mut self.collected[usize::from(report.ended)] {
            Some((_, all)) => {
                all.ranks.extend(&report.ranks);
                all.library = all.library.take().or(report.library);
            }
            none => *none = Some((now, report)),
        }
    }

    /// Removes and returns the notices that are due.
    pub(crate) fn take(&mut self, now: Instant, passing: Passing) -> Vec<Notice> {
        let due = |slot: &mut Option<(Instant, SilentReport)>| {
            slot.take_if(|(since, _)| passing == Passing::All || now >= *since + COLLECT).map(|(_, report)| {
                let SilentReport { mut ranks, size, ended, after, library } = report;
                ranks.sort_unstable();
                ranks.dedup();
                Notice::Silent { ranks, size, ended, after, library }
            })
        };
        self.collected.iter_mut().filter_map(due).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_all_nodes_are_told_together() {
        let report = |ranks: &[u32], ended| SilentReport {
            ranks: ranks.iter().copied().map(Rank).collect(),
            size: 6,
            ended,
            after: COLLECT,
            library: None,
        };
        let notice = |ranks: &[u32], ended| {
            let SilentReport { ranks, size, ended, after, library } = report(ranks, ended);
            Notice::Silent { ranks, size, ended, after, library }
        };
        let (mut silent, now) = (SilentRanks::default(), Instant::now());
        silent.add(report(&[2, 3], true), now);
        silent.add(report(&[0, 1], true), now);
        silent.add(report(&[5], false), now + COLLECT);
        assert!(silent.take(now, Passing::Due).is_empty());
        assert_eq!(silent.take(now + COLLECT, Passing::Due), [notice(&[0, 1, 2, 3], true)]);
        assert_eq!(silent.take(now + COLLECT, Passing::All), [notice(&[5], false)]);
        assert!(silent.take(now + 2 * COLLECT, Passing::All).is_empty());
    }
}
