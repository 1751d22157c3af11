//! One allocation, and what happens to it: a state machine without I/O.
//!
//! ```text
//!  its nodes are ready          release, time limit    its launches have ended
//! ────────────────────> Running ─────────────────> Releasing ────────────────────> Released
//!                       │ ^   └──node lost, without a policy for it──> Failed
//!     requeue: as the   v │
//!          policy     Pending   until its nodes are ready again; without nodes: in the queue
//! ```
//! A node is ready when it is up and not drained. Pending and failed allocations can be released as well. An allocation for a batch job
//! ends with its script; queued again, it gives its nodes back when nothing runs on them any more, and gets others.

use std::num::NonZeroU64;

use bytes::Bytes;
use lattice_session::count::counted;
use pmi_transport::identity::{Caller, RevocationList};

use super::NodesNow;
use super::batch::{BatchEnd, BatchJob};
use super::queue::NodeChoice;
use crate::nodes::Registry;

/// Number of times that a batch job is queued again. A script that fails each time would go round for ever.
const BATCH_REQUEUES_MAX: u32 = 5;

/// Nodes that a user may launch on, for as long as it is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub id: String,
    pub state: AllocationState,
    /// The user whose it is.
    pub uid: u32,
    /// The names of its nodes, in node order; none in the queue.
    pub nodes: Vec<String>,
    pub requeue: RequeuePolicy,
    /// Time of its creation, in seconds since 1970.
    pub created_at: u64,
    /// Number of times that it was queued again.
    pub requeues: u32,
    /// The nodes that it was asked for.
    pub wanted: NodeChoice,
    /// Seconds that it may hold its nodes; `None` for no limit.
    pub time_limit: Option<NonZeroU64>,
    /// Time at which it got its nodes, in seconds since 1970.
    pub began_at: Option<u64>,
    /// Its turn in the queue: lower ones come first.
    pub turn: u64,
    /// The batch job that it was made for.
    pub batch: Option<BatchJob>,
    /// Certificate of whoever made it, in DER; empty for one who needed none.
    pub certificate: Bytes,
}

/// State of an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AllocationState {
    /// It does not run yet, or not again, for this reason.
    Pending { reason: String },
    /// Launches may begin.
    Running,
    /// Its launches are being ended. The reason says what it waits for beside them, if anything.
    Releasing { reason: Option<String> },
    /// Its nodes are free again.
    Released,
    /// A node was lost, and no policy says to go on; its nodes are kept until it is released.
    Failed { reason: String },
}

/// State of the launches of an allocation; the greater of two counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Busy {
    /// All are over, and the allocation has not answered all of their ends.
    Answering,
    /// One is not over.
    Running,
}

/// Response to a failure of a launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RequeuePolicy {
    /// The allocation stays as it is; without one of its nodes it fails.
    #[default]
    Never,
    /// The allocation is queued again when a node was lost.
    OnNodeFailure,
    /// The allocation is queued again when any launch failed.
    OnAnyFailure,
}

/// A launch that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LaunchFailure {
    /// Why, in words, with the launch's id.
    pub reason: String,
    pub kind: FailureKind,
}

/// Kind of a launch's failure, as far as requeue policies tell one from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// A node was lost.
    NodeLost,
    /// Anything else.
    Other,
}

impl LaunchFailure {
    /// The failure of a launch, with its cause in words, that has lost a node itself or has not.
    pub(crate) fn new(launch: &str, cause: &str, has_lost_a_node: bool) -> Self {
        let kind = if has_lost_a_node { FailureKind::NodeLost } else { FailureKind::Other };
        Self { reason: format!("launch {launch}: {cause}"), kind }
    }
}

impl AllocationState {
    /// The state as a word, without its reason; the same in messages of the server and in tables of the commands.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Pending { .. } => "pending",
            Self::Running => "running",
            Self::Releasing { .. } => "releasing",
            Self::Released => "released",
            Self::Failed { .. } => "failed",
        }
    }

    /// The reason of the state, where it is not obvious.
    pub(crate) fn reason(&self) -> Option<&str> {
        match self {
            Self::Pending { reason } | Self::Failed { reason } => Some(reason),
            Self::Releasing { reason } => reason.as_deref(),
            Self::Running | Self::Released => None,
        }
    }
}

impl Allocation {
    /// An allocation of these nodes that runs.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn running(id: &str, uid: u32, nodes: Vec<String>) -> Self {
        Self {
            id: id.to_owned(),
            state: AllocationState::Running,
            uid,
            wanted: NodeChoice::These(nodes.clone()),
            nodes,
            requeue: RequeuePolicy::Never,
            created_at: 1_700_000_000,
            requeues: 0,
            time_limit: None,
            began_at: None,
            turn: 0,
            batch: None,
            certificate: Bytes::new(),
        }
    }

    /// The allocation in another state.
    pub(crate) fn moved(&self, state: AllocationState) -> Self {
        Self { state, ..self.clone() }
    }

    /// Returns true if it waits for nodes.
    pub(crate) fn is_queued(&self) -> bool {
        matches!(self.state, AllocationState::Pending { .. }) && self.nodes.is_empty()
    }

    /// Returns true if it holds nodes, and will not give them back by itself.
    fn holds_nodes(&self) -> bool {
        match self.state {
            AllocationState::Running | AllocationState::Failed { .. } => true,
            AllocationState::Pending { .. } => !self.nodes.is_empty() && self.batch.is_none(),
            AllocationState::Releasing { .. } | AllocationState::Released => false,
        }
    }

    /// Time at which it has held its nodes as long as it may, in seconds since 1970; `None` if it holds none, or may for ever.
    pub(crate) fn ends_at(&self) -> Option<u64> {
        if !self.holds_nodes() {
            return None;
        }
        Some(self.began_at?.saturating_add(self.time_limit?.get()))
    }

    /// An allocation of the queue once it runs on these nodes, at the time `now`.
    pub(crate) fn begun_on(&self, nodes: Vec<String>, now: u64) -> Self {
        Self { nodes, began_at: Some(now), ..self.moved(AllocationState::Running) }
    }

    /// The allocation once its release has begun because it has held its nodes as long as it may. `None` if it may go on.
    pub(crate) fn timed_out(&self, now: u64) -> Option<Self> {
        let limit = self.time_limit?;
        self.ends_at().filter(|&end| end <= now)?;
        let reason = format!("its time limit of {} is over", counted(limit.get(), "second"));
        Some(self.moved(AllocationState::Releasing { reason: Some(reason) }))
    }

    /// An allocation of a batch job that waits again, because its script could not be started. `None` if it does not run.
    pub(crate) fn before_its_script(&self, reason: String) -> Option<Self> {
        let job = self.batch.as_ref().filter(|_| self.state == AllocationState::Running)?;
        Some(Self { batch: Some(job.anew()), ..self.moved(AllocationState::Pending { reason }) })
    }

    /// An allocation of a batch job that is queued again, without its nodes, when no launch is left in it. `None` if nothing changes, and
    /// as long as the end of its script is not noted: that would be taken for the end of the next one.
    pub(crate) fn given_back(&self) -> Option<Self> {
        let script_is_over = self.batch.as_ref().is_some_and(|job| job.launch.is_none());
        let is_over = script_is_over && matches!(self.state, AllocationState::Pending { .. });
        (is_over && !self.nodes.is_empty()).then(|| Self { nodes: Vec::new(), ..self.clone() })
    }

    /// The allocation once it runs again at the time `now`, if it is pending and all its nodes are ready; or with another reason why
    /// it does not. `None` if nothing changes, and for one that waits for other nodes.
    pub(crate) fn begun(&self, registry: &Registry, now: u64) -> Option<Self> {
        let is_pending = matches!(self.state, AllocationState::Pending { .. });
        if !is_pending || self.is_queued() || self.batch.is_some() {
            return None;
        }
        let absent: Vec<&String> = self.nodes.iter().filter(|node| registry.ready(node).is_err()).collect();
        if absent.is_empty() {
            // The nodes were not free meanwhile: its time goes on.
            return Some(Self { began_at: self.began_at.or(Some(now)), ..self.moved(AllocationState::Running) });
        }
        let next = self.moved(AllocationState::Pending { reason: format!("waits for {}", hostlist::fold(&absent)) });
        (next != *self).then_some(next)
    }

    /// The allocation after a launch in it failed; `None` if that changes nothing.
    pub(crate) fn after_failure(&self, failure: &LaunchFailure) -> Option<Self> {
        if self.state != AllocationState::Running {
            return None;
        }
        let LaunchFailure { reason, kind } = failure;
        let is_spent = self.batch.is_some() && self.requeues >= BATCH_REQUEUES_MAX;
        let policy = if is_spent { RequeuePolicy::Never } else { self.requeue };
        let requeued = || Self {
            requeues: self.requeues.saturating_add(1),
            ..self.moved(AllocationState::Pending { reason: format!("queued again: {reason}") })
        };
        match (policy, kind) {
            (RequeuePolicy::OnAnyFailure, _) | (RequeuePolicy::OnNodeFailure, FailureKind::NodeLost) => {
                Some(requeued())
            }
            (RequeuePolicy::Never, FailureKind::NodeLost) => {
                Some(self.moved(AllocationState::Failed { reason: reason.clone() }))
            }
            (RequeuePolicy::Never | RequeuePolicy::OnNodeFailure, FailureKind::Other) => None,
        }
    }

    /// The allocation once its release has begun because the certificate by which it was made is on this list. `None` if it is not, or
    /// the allocation is being released already.
    pub(crate) fn revoked(&self, list: &RevocationList) -> Option<Self> {
        let is_over = matches!(self.state, AllocationState::Releasing { .. } | AllocationState::Released);
        if is_over || !list.revokes(&self.certificate) {
            return None;
        }
        let reason = format!("the certificate of user {} by which it was made was revoked", self.uid);
        Some(self.moved(AllocationState::Releasing { reason: Some(reason) }))
    }

    /// The allocation once its release has begun; one that is being released already stays as it is.
    pub(crate) fn releasing(&self) -> Self {
        match self.state {
            AllocationState::Releasing { .. } => self.clone(),
            _ => self.moved(AllocationState::Releasing { reason: None }),
        }
    }

    /// The same for one that `caller` ends: a batch job whose script was not started has its end by that.
    pub(crate) fn released_by(&self, caller: &Caller) -> Self {
        let mut next = self.releasing();
        if let Some(job) = next.batch.as_mut().filter(|job| job.launch.is_none() && job.end.is_none()) {
            *job = job.ended(BatchEnd { exit_code: None, cause: format!("cancelled by {caller} before it began") });
        }
        next
    }

    /// The allocation of a batch job whose script has ended: it is released, unless it is queued again.
    pub(crate) fn after_batch(&self, job: BatchJob) -> Self {
        let next = Self { batch: Some(job), ..self.clone() };
        match self.state {
            AllocationState::Running | AllocationState::Failed { .. } => next.releasing(),
            _ => next,
        }
    }

    /// The allocation when no launch runs in it, and `busy` says what is left of those that did. `None` if nothing changes. One that is
    /// queued again waits until all ends are answered, which would be taken for failures of what begins.
    pub(crate) fn settled(&self, busy: Option<Busy>, now: &NodesNow<'_>) -> Option<Self> {
        match (&self.state, busy) {
            (_, Some(Busy::Running)) => None,
            (AllocationState::Releasing { .. }, _) => self.released(&now.unclean.among(&self.nodes)),
            (AllocationState::Pending { .. }, None) => self.given_back().or_else(|| self.begun(now.registry, now.time)),
            _ => None,
        }
    }

    /// An allocation that is being released, when no launch is left in it and something of one may be left on these of its nodes.
    /// `None` if nothing changes, or it is not being released.
    pub(crate) fn released(&self, unclean: &[String]) -> Option<Self> {
        if !matches!(self.state, AllocationState::Releasing { .. }) {
            return None;
        }
        let next = self.moved(match unclean {
            [] => AllocationState::Released,
            nodes => {
                let reason = format!("waits until nothing of a launch is left on {}", hostlist::fold(nodes));
                AllocationState::Releasing { reason: Some(reason) }
            }
        });
        (next != *self).then_some(next)
    }
}
