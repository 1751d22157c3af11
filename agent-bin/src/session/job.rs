//! One job of a session: the one that was launched, or one that was spawned.

use std::path::PathBuf;
use std::sync::Arc;

use pmi_core::ids::Rank;
use pmi_core::server::EndReason;
use tokio::sync::oneshot;

use super::serving::Serving;
use super::spawning::Reply;
use crate::spec::SessionSpec;

/// A job at work. Its ranks are a run of the session's.
pub(super) struct JobAtWork {
    pub(super) spec: Arc<SessionSpec>,
    /// The position of its first rank among the session's.
    pub(super) first: usize,
    pub(super) serving: Serving,
    /// Tells why the job's PMI server wants an end.
    pub(super) end_reason: Option<oneshot::Receiver<EndReason>>,
    /// The file of each program, by app index.
    pub(super) programs: Vec<PathBuf>,
    /// Ranks whose start was neither reported as done nor as failed.
    pub(super) starting: usize,
    /// Who waits for all its ranks to run.
    pub(super) awaited: Option<Reply>,
    /// It did not start as a whole: how its ranks end says nothing.
    pub(super) disowned: bool,
}

impl JobAtWork {
    pub(super) fn new(spec: Arc<SessionSpec>, first: usize) -> Self {
        Self {
            spec,
            first,
            serving: Serving::default(),
            end_reason: None,
            programs: Vec::new(),
            starting: 0,
            awaited: None,
            disowned: false,
        }
    }

    /// The number under which a rank of this job is shown: ranks of spawned jobs are counted on, after all that came before.
    pub(super) fn shown(&self, rank: Rank) -> Rank {
        if self.spec.job.spawner.is_some() { Rank(rank.0 + self.first as u32) } else { rank }
    }

    /// A reason to end, in the numbers that are shown.
    pub(super) fn show(&self, reason: EndReason) -> EndReason {
        let all = |ranks: Vec<Rank>| ranks.into_iter().map(|rank| self.shown(rank)).collect();
        match reason {
            EndReason::Abort { rank, code, whole_job, message } => {
                EndReason::Abort { rank: self.shown(rank), code, whole_job, message }
            }
            EndReason::Offence { rank, offence } => EndReason::Offence { rank: self.shown(rank), offence },
            EndReason::LeftWithoutFinalize { rank } => EndReason::LeftWithoutFinalize { rank: self.shown(rank) },
            EndReason::LeftBeforeInit { rank, others } => {
                EndReason::LeftBeforeInit { rank: self.shown(rank), others: all(others) }
            }
            EndReason::LeftFence { rank, waiting } => {
                EndReason::LeftFence { rank: self.shown(rank), waiting: all(waiting) }
            }
            other => other,
        }
    }
}
