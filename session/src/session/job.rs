//! One job of a session: the one that was launched, or one that was spawned.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use pmi_core::ids::Rank;
use pmi_core::server::EndReason;
use tokio::sync::oneshot;

use super::serving::Serving;
use super::spawning::Awaited;
use crate::spec::SessionSpec;

/// A job at work. Its ranks are a run of the session's.
pub(super) struct JobAtWork {
    pub(super) spec: Arc<SessionSpec>,
    /// Under which number its rank 0 is shown: ranks of spawned jobs are counted on, after all that came before.
    first_shown: Rank,
    pub(super) serving: Serving,
    /// Tells why the job's PMI server wants an end.
    pub(super) end_reason: Option<oneshot::Receiver<EndReason>>,
    /// The file of each program that runs here, by app index.
    pub(super) programs: BTreeMap<usize, PathBuf>,
    /// Ranks whose start was neither reported as done nor as failed.
    pub(super) starting: usize,
    /// Who waits for all its ranks here to run.
    pub(super) awaited: Option<Awaited>,
    /// It did not start as a whole: how its ranks end says nothing.
    pub(super) disowned: bool,
}

impl JobAtWork {
    pub(super) fn new(spec: Arc<SessionSpec>, first_shown: Rank) -> Self {
        Self {
            spec,
            first_shown,
            serving: Serving::default(),
            end_reason: None,
            programs: BTreeMap::new(),
            starting: 0,
            awaited: None,
            disowned: false,
        }
    }

    /// The number under which a rank of this job is shown.
    pub(super) fn shown(&self, rank: Rank) -> Rank {
        Rank(self.first_shown.0.saturating_add(rank.0))
    }

    /// The ranks of this job that sit here, by local rank.
    pub(super) fn ranks_here(&self) -> Vec<Rank> {
        self.spec.job.placement.ranks_on(self.spec.node)
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
