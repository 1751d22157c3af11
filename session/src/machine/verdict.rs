//! The verdict of this node on a launch, and the rules that turn an exit, a message or the silence of a rank into a cause.

use pmi_core::deaths::DeathKind;
use pmi_core::fence::FenceError;
use pmi_core::ids::{NodeIndex, Rank};
use pmi_core::server::EndReason;
use pmi_core::{DialoguePoint, Phase};
use rank_spawner::RankExit;

use super::ranks::{Ranks, SlotId};
use crate::cause::{Cause, CauseKind};

/// State of the search for the first cause. It is decided once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// No failure has occurred.
    Open,
    /// The cause is on another node, which reports it: failures here follow from it.
    Elsewhere,
    /// The cause is known here.
    Here(Cause),
}

/// Effect of a rank's exit on the launch, before its server has evaluated it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExitMeaning {
    /// It returned status 0.
    LeftInOrder,
    /// It failed, and the launch ends.
    Failed,
    /// It failed, and the other ranks continue unless they wait for it.
    Borne,
    /// The launch is already ending, or the rank's job was disowned.
    Nothing,
}

/// Kind of the death of a rank that failed.
pub(crate) fn death_kind(exit: RankExit) -> DeathKind {
    match exit {
        RankExit::Signal { .. } => DeathKind::Killed,
        RankExit::Code(_) => DeathKind::Exited,
    }
}

/// A reaped process with an exit that the machine has not received yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnreportedEnd {
    pub(crate) slot: SlotId,
    pub(crate) exit: RankExit,
    /// Progress of its dialogue with its PMI server.
    pub(crate) reached: Option<DialoguePoint>,
}

/// Returns the cause for a PMI server's reason to end, and its node if that is another node.
pub(crate) fn cause_of(
    reason: EndReason,
    ranks: &Ranks,
    unreported: &[UnreportedEnd],
) -> (Option<NodeIndex>, CauseKind) {
    let kind = match reason {
        EndReason::Fence(error) => match &*error {
            FenceError::NodeLost { node, reason, .. } => {
                return (Some(*node), CauseKind::NodeLost { reason: reason.clone() });
            }
            error => CauseKind::Fence { reason: error.to_string() },
        },
        EndReason::Abort { rank, code, message, .. } => {
            let aborting = ranks.slot_of(rank);
            let before = unreported.iter().filter(|end| Some(end.slot) != aborting);
            before.filter_map(|end| failure_before_abort(end, ranks)).next().unwrap_or_else(|| CauseKind::Aborted {
                rank,
                code: abort_code(code, &message),
                message,
            })
        }
        EndReason::Offence { rank, offence } => CauseKind::Offence { rank, offence: offence.to_string() },
        EndReason::NotOffered { rank, version } => {
            CauseKind::NotServed { rank, protocol: format!("PMI-{}", version.major) }
        }
        EndReason::LeftWithoutFinalize { rank } => CauseKind::LeftWithoutFinalize { rank },
        EndReason::LeftBeforeInit { rank, others } => {
            let exit = exit_of(rank, ranks).unwrap_or(RankExit::Code(0));
            CauseKind::LeftBeforeInit { rank, exit, others }
        }
        EndReason::LeftFence { rank, waiting } => match exit_of(rank, ranks) {
            Some(exit) if !exit.is_success() => CauseKind::Failed { rank, exit },
            _ => CauseKind::LeftFence { rank, waiting },
        },
        EndReason::Panicked { text } => {
            CauseKind::Fence { reason: format!("the PMI server or its host panicked: {text}") }
        }
        _ => CauseKind::Fence { reason: "the PMI server ended the job for a reason of a later version".to_owned() },
    };
    (None, kind)
}

fn exit_of(rank: Rank, ranks: &Ranks) -> Option<RankExit> {
    ranks.slot_of(rank).and_then(|slot| ranks.get(slot).state.exit())
}

/// Returns the cause of an exit that came before another rank's abort was read: ranks abort when peers are gone. A rank that
/// returned its own status may have aborted as well, so its exit proves nothing.
fn failure_before_abort(end: &UnreportedEnd, ranks: &Ranks) -> Option<CauseKind> {
    let rank = ranks.get(end.slot).rank;
    match end.exit {
        exit @ RankExit::Signal { .. } => Some(CauseKind::Failed { rank, exit }),
        RankExit::Code(0) if end.reached.is_some_and(|reached| reached.phase == Phase::Open) => {
            Some(CauseKind::LeftWithoutFinalize { rank })
        }
        RankExit::Code(_) => None,
    }
}

/// Returns the code of an abort. PMI-2 clients send no code or -1, and MPI's text with the code in it: `application called
/// MPI_Abort(MPI_COMM_WORLD, 42) - process 0`.
fn abort_code(code: Option<i32>, message: &str) -> i32 {
    let written = || {
        let (_, arguments) = message.split_once("MPI_Abort(")?;
        let (arguments, _) = arguments.split_once(')')?;
        arguments.rsplit(',').next()?.trim().parse().ok()
    };
    match code {
        Some(code) if code != -1 => code,
        sent => written().or(sent).unwrap_or(1),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use pmi_core::ids::{Epoch, LocalRank};

    use super::super::jobs::JobNumber;
    use super::*;

    #[test]
    fn the_code_of_an_abort_is_found_wherever_the_client_put_it() {
        let text = "application called MPI_Abort(MPI_COMM_WORLD, 42) - process 0";
        let check = |code, message, expected| assert_eq!(abort_code(code, message), expected, "{code:?} {message:?}");
        check(Some(42), "", 42);
        check(Some(738_814_479), text, 738_814_479);
        check(None, text, 42);
        check(Some(-1), text, 42);
        check(Some(-1), "bye; now", -1);
        check(None, "bye; now", 1);
        check(None, "MPI_Abort(", 1);
    }

    fn ranks(count: u32) -> Ranks {
        let mut ranks = Ranks::default();
        for rank in 0..count {
            let slot = ranks.add(Rank(rank), JobNumber(0), LocalRank(rank));
            ranks.started(slot, 100 + rank, 0, Instant::now());
        }
        ranks
    }

    #[test]
    fn an_abort_over_a_peer_that_is_gone_is_blamed_on_the_peer() {
        let killed = RankExit::Signal { signal: 9, core_dumped: false };
        let (failed, left) =
            (CauseKind::Failed { rank: Rank(1), exit: killed }, CauseKind::LeftWithoutFinalize { rank: Rank(1) });
        let aborted = CauseKind::Aborted { rank: Rank(0), code: 7, message: String::new() };
        let check = |slot, exit, phase: Option<Phase>, expected: &CauseKind| {
            let abort = EndReason::Abort { rank: Rank(0), code: Some(7), whole_job: true, message: String::new() };
            let reached = phase.map(|phase| DialoguePoint { phase, fences: 1 });
            let ends = [UnreportedEnd { slot: SlotId(slot), exit, reached }];
            assert_eq!(cause_of(abort, &ranks(2), &ends), (None, expected.clone()), "{slot} {exit:?} {phase:?}");
        };
        check(1, killed, None, &failed);
        check(1, RankExit::Code(0), Some(Phase::Open), &left);
        check(1, RankExit::Code(0), Some(Phase::Finalized), &aborted);
        check(1, RankExit::Code(1), Some(Phase::Open), &aborted);
        check(0, killed, None, &aborted);
    }

    #[test]
    fn a_rank_that_others_wait_for_is_blamed_for_its_failure_if_it_failed() {
        let mut ranks = ranks(3);
        let waiting = vec![Rank(0)];
        let reason = |rank| EndReason::LeftFence { rank: Rank(rank), waiting: waiting.clone() };
        ranks.ended(SlotId(1), RankExit::Code(5), None, Instant::now());
        ranks.ended(SlotId(2), RankExit::Code(0), None, Instant::now());
        let failed = CauseKind::Failed { rank: Rank(1), exit: RankExit::Code(5) };
        assert_eq!(cause_of(reason(1), &ranks, &[]), (None, failed));
        let left = CauseKind::LeftFence { rank: Rank(2), waiting: waiting.clone() };
        assert_eq!(cause_of(reason(2), &ranks, &[]), (None, left));
    }

    #[test]
    fn a_lost_node_is_the_place_of_its_loss() {
        let error = FenceError::NodeLost { node: NodeIndex(3), epoch: Epoch(1), reason: "reset".to_owned() };
        let lost = cause_of(EndReason::Fence(Arc::new(error)), &ranks(1), &[]);
        assert_eq!(lost, (Some(NodeIndex(3)), CauseKind::NodeLost { reason: "reset".to_owned() }));
    }

    #[test]
    fn a_rank_that_left_before_init_is_reported_with_its_exit() {
        let mut ranks = ranks(2);
        let reason = || EndReason::LeftBeforeInit { rank: Rank(1), others: vec![Rank(0)] };
        let cause = |exit| (None, CauseKind::LeftBeforeInit { rank: Rank(1), exit, others: vec![Rank(0)] });
        assert_eq!(cause_of(reason(), &ranks, &[]), cause(RankExit::Code(0)));
        ranks.ended(SlotId(1), RankExit::Code(5), None, Instant::now());
        assert_eq!(cause_of(reason(), &ranks, &[]), cause(RankExit::Code(5)));
    }
}
