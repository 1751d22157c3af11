//! What an end means: which exit, word or silence of a rank fails the launch.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use pmi_core::Phase;
use pmi_core::fence::FenceError;
use pmi_core::ids::{LocalRank, Rank};
use pmi_core::server::EndReason;
use pmix_core::JobIndex;
use rank_spawner::RankExit;
use tokio::sync::oneshot;

use super::{JobAtWork, RankSlot, Session};
use crate::cause::{Cause, CauseKind};

/// Whether the launch has failed, and where the first cause is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing has gone wrong.
    Open,
    /// Something has gone wrong on another node, which tells of it: what happens here only follows from it.
    Elsewhere,
    /// Here; this is it.
    Here(Cause),
}

impl Session {
    /// Judges the end of a rank's process. What the rank said last counts first: a client may abort and exit at once.
    pub(super) fn judge_exit(&mut self, local: LocalRank, exit: RankExit) {
        let job = self.ranks[local.index()].job;
        if self.jobs[job].disowned {
            return;
        }
        let (serving, own) = self.serving(local);
        serving.drain(own);
        let open = matches!(self.verdict, Verdict::Open);
        if exit.is_success() && open {
            serving.rank_exited(own);
        }
        if let Some(reason) = self.jobs[job].end_reason.as_mut().and_then(|receiver| receiver.try_recv().ok()) {
            self.jobs[job].end_reason = None;
            self.on_end_reason(self.jobs[job].show(reason));
        }
        if let Some((job, reason)) = self.pmix_end_reason.as_mut().and_then(|receiver| receiver.try_recv().ok()) {
            self.pmix_end_reason = None;
            self.on_pmix_end_reason(job, reason);
        }
        if !exit.is_success() {
            self.on_failure(local, exit);
        }
    }

    /// A rank failed; unless something ended the launch before, this does.
    fn on_failure(&mut self, local: LocalRank, exit: RankExit) {
        if matches!(self.verdict, Verdict::Open) {
            self.fail(CauseKind::Failed { rank: self.ranks[local.index()].rank, exit });
        }
    }

    /// The PMIx server, which knows jobs by numbers of its own, says that the launch must end.
    fn on_pmix_end_reason(&mut self, job: JobIndex, reason: EndReason) {
        if let Some(job) = self.jobs.iter().find(|known| known.serving.is_pmix_job(job)) {
            self.on_end_reason(job.show(reason));
        }
    }

    /// The PMI server says that the job must end.
    pub(super) fn on_end_reason(&mut self, reason: EndReason) {
        if let EndReason::Fence(error) = &reason
            && let FenceError::NodeLost { node, reason, .. } = &**error
        {
            return self.fail_on(*node, CauseKind::NodeLost { reason: reason.clone() });
        }
        self.fail(match reason {
            EndReason::Abort { rank, code, message, .. } => self
                .end_before(rank)
                .unwrap_or_else(|| CauseKind::Aborted { rank, code: abort_code(code, &message), message }),
            EndReason::Offence { rank, offence } => CauseKind::Offence { rank, offence: offence.to_string() },
            EndReason::NotOffered { rank, version } => {
                CauseKind::NotServed { rank, protocol: format!("PMI-{}", version.major) }
            }
            EndReason::LeftWithoutFinalize { rank } => CauseKind::LeftWithoutFinalize { rank },
            EndReason::LeftBeforeInit { rank, others } => {
                let slot = self.ranks.iter().find(|slot| slot.rank == rank);
                let exit = slot.and_then(|slot| slot.exit).unwrap_or(RankExit::Code(0));
                CauseKind::LeftBeforeInit { rank, exit, others }
            }
            EndReason::LeftFence { rank, waiting } => CauseKind::LeftFence { rank, waiting },
            EndReason::Fence(error) => CauseKind::Fence { reason: error.to_string() },
            other => CauseKind::Fence { reason: format!("{other:?}") },
        });
    }

    /// What another rank's end means that was there before this rank's abort was read, and is not judged yet: ranks abort over peers
    /// that are gone. One that returned a status of its own may have aborted as well, so that its end tells nothing.
    fn end_before(&self, aborting: Rank) -> Option<CauseKind> {
        let unjudged = |slot: &&RankSlot| slot.rank != aborting && slot.exit.is_none() && !self.jobs[slot.job].disowned;
        let cause = |slot: &RankSlot| match slot.process.as_ref()?.try_wait().ok()?? {
            exit @ RankExit::Signal { .. } => Some(CauseKind::Failed { rank: slot.rank, exit }),
            RankExit::Code(0) if self.jobs[slot.job].serving.phase(slot.local) == Some(Phase::Open) => {
                Some(CauseKind::LeftWithoutFinalize { rank: slot.rank })
            }
            RankExit::Code(_) => None,
        };
        self.ranks.iter().filter(unjudged).find_map(cause)
    }
}

/// Waits for a server's reason to end, for ever if no server has one.
pub(super) async fn end_reason(
    jobs: &mut [JobAtWork],
    pmix: &mut Option<oneshot::Receiver<(JobIndex, EndReason)>>,
) -> EndReason {
    poll_fn(|context| {
        // A disowned job has no say.
        for job in jobs.iter_mut().filter(|job| !job.disowned) {
            if let Some(Poll::Ready(reason)) = job.end_reason.as_mut().map(|receiver| Pin::new(receiver).poll(context))
            {
                job.end_reason = None;
                if let Ok(reason) = reason {
                    return Poll::Ready(job.show(reason));
                }
            }
        }
        if let Some(Poll::Ready(reason)) = pmix.as_mut().map(|receiver| Pin::new(receiver).poll(context)) {
            *pmix = None;
            if let Ok((job, reason)) = reason
                && let Some(job) = jobs.iter().find(|known| known.serving.is_pmix_job(job))
            {
                return Poll::Ready(job.show(reason));
            }
        }
        Poll::Pending
    })
    .await
}

/// The code of an abort. PMI-2 clients send none, or -1, and MPI's text with the code in it:
/// `application called MPI_Abort(MPI_COMM_WORLD, 42) - process 0`.
fn abort_code(code: Option<i32>, message: &str) -> i32 {
    let written = || {
        let (_, arguments) = message.split_once("MPI_Abort(")?;
        let (arguments, _) = arguments.split_once(')')?;
        arguments.rsplit(',').next()?.trim().parse().ok()
    };
    match code {
        Some(code) if code != -1 => code,
        told => written().or(told).unwrap_or(1),
    }
}

#[cfg(test)]
mod tests {
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
}
