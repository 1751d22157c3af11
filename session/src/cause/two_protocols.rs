//! Ranks of one job that use MPI libraries of two families. They wait for each other indefinitely.
//!
//! ```text
//! lattice launch -n 2 ./of_mpich : -n 2 ./of_open_mpi      each library expects all four ranks
//! ```

use pmi_core::ids::Rank;

use super::{CauseKind, RankList};
use crate::event::{RankProgress, SpokenProtocol};

/// Ranks that have spoken only this protocol.
pub(crate) type Speakers = (Vec<Rank>, SpokenProtocol);

/// Returns the cause if ranks of a job that have been stuck for long can never proceed. Some ranks wait, and other ranks begin MPI by the
/// other protocol. A rank that has spoken both protocols is not counted: a library other than MPI may speak the second one.
pub fn in_two_protocols(ranks: &[&RankProgress]) -> Option<CauseKind> {
    let begins = |rank: &&&RankProgress| rank.exit.is_none() && (rank.waiting || rank.in_init);
    let speakers = |protocol| {
        let speaks = |rank: &&&RankProgress| rank.protocol == Some(protocol);
        (ranks.iter().filter(begins).filter(speaks).map(|rank| rank.rank).collect(), protocol)
    };
    let [pmi, pmix]: [Speakers; 2] = [speakers(SpokenProtocol::Pmi), speakers(SpokenProtocol::Pmix)];
    let anyone_waits = ranks.iter().filter(begins).any(|rank| rank.waiting && rank.protocol.is_some());
    (anyone_waits && !pmi.0.is_empty() && !pmix.0.is_empty()).then(|| cause(&pmi, &pmix))
}

/// Returns the cause, with the ranks of each protocol.
pub(crate) fn cause(one: &Speakers, other: &Speakers) -> CauseKind {
    let speak = |(ranks, protocol): &Speakers| {
        let verb = if ranks.len() == 1 { "speaks" } else { "speak" };
        format!("{} {verb} {protocol}", RankList(ranks))
    };
    let reason = format!(
        "{}, and {}: each waits for a rank that never comes; build all programs of a launch with one MPI",
        speak(one),
        speak(other)
    );
    CauseKind::Fence { reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cause::RankExit;

    fn rank(rank: u32, protocol: Option<SpokenProtocol>, waiting: bool, in_init: bool) -> RankProgress {
        RankProgress { protocol, waiting, in_init, ..RankProgress::unknown(Rank(rank)) }
    }

    #[test]
    fn ranks_of_either_protocol_are_named_where_one_waits() {
        let (pmi, pmix) = (Some(SpokenProtocol::Pmi), Some(SpokenProtocol::Pmix));
        let reason = |ranks: &[RankProgress]| match in_two_protocols(&ranks.iter().collect::<Vec<_>>()) {
            Some(CauseKind::Fence { reason }) => Some(reason),
            other => {
                assert_eq!(other, None);
                None
            }
        };
        let expected = "rank 0 speaks PMI (MPICH and its kin), and ranks 1-2 speak PMIx (Open MPI): each waits for a rank that never comes; \
                        build all programs of a launch with one MPI";
        // MPICH waits in its shared memory, not in a fence.
        let [first, second, third] = [rank(0, pmi, false, true), rank(1, pmix, true, true), rank(2, pmix, true, false)];
        assert_eq!(reason(&[first.clone(), second.clone(), third.clone()]).as_deref(), Some(expected));

        let nobody_waits = RankProgress { waiting: false, ..second.clone() };
        assert_eq!(reason(&[first.clone(), nobody_waits]), None);
        let through = RankProgress { in_init: false, ..first.clone() };
        assert_eq!(reason(&[through, second.clone()]), None, "it has left its fence, and may begin MPI later");
        let ended = RankProgress { exit: Some(RankExit::Code(0)), ..first.clone() };
        assert_eq!(reason(&[ended, second.clone()]), None);
        let both = RankProgress { protocol: None, ..second };
        assert_eq!(reason(&[first, both.clone()]), None);
        assert_eq!(reason(&[both, third]), None);
    }
}
