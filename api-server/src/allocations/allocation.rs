//! One allocation and its transitions: a state machine without I/O.
//!
//! ```text
//!  its nodes are ready          release, time limit    its launches have ended
//! ────────────────────> Running ─────────────────> Releasing ────────────────────> Released
//!                       │ ^   └──node lost, without a policy for it──> Failed
//!     requeue: as the   v │
//!          policy     Pending   until its nodes are ready again; without nodes: in the queue
//! ```
//! A node is ready when it is up and not drained. Pending and failed allocations can be released as well. An allocation for a batch job
//! ends with its script. When it is queued again, it returns its nodes once no launch runs on them, and gets other nodes.

use std::num::NonZeroU64;

use bytes::Bytes;
use lattice_session::count::counted;
use pmi_transport::identity::{Caller, RevocationList};

use super::NodesNow;
use super::batch::{BatchEnd, BatchJob};
use super::queue::NodeChoice;
use crate::nodes::Registry;

/// Number of times that a batch job is queued again. Without this limit a script that always fails would repeat indefinitely.
const BATCH_REQUEUES_MAX: u32 = 5;

/// Nodes on which a user may launch until the allocation is released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub id: String,
    pub state: AllocationState,
    /// User that owns the allocation.
    pub uid: u32,
    /// The names of its nodes, in node order; empty in the queue.
    pub nodes: Vec<String>,
    pub requeue: RequeuePolicy,
    /// Time of its creation, in seconds since 1970.
    pub created_at: u64,
    /// Number of times that it was queued again.
    pub requeues: u32,
    /// The requested nodes.
    pub wanted: NodeChoice,
    /// Seconds for which it may hold its nodes; `None` for no limit.
    pub time_limit: Option<NonZeroU64>,
    /// Time at which it received its nodes, in seconds since 1970.
    pub began_at: Option<u64>,
    /// Its position in the queue: lower values come first.
    pub turn: u64,
    /// The batch job for which it was created.
    pub batch: Option<BatchJob>,
    /// Certificate of the caller that created it, in DER; empty if none was required.
    pub certificate: Bytes,
}

/// State of an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AllocationState {
    /// The allocation does not run yet, or not again, for this reason.
    Pending { reason: String },
    /// Launches may begin.
    Running,
    /// Its launches are ending. The reason names any other condition for which the release waits.
    Releasing { reason: Option<String> },
    /// Its nodes are free again.
    Released,
    /// A node was lost, and no policy lets the allocation continue. It keeps its nodes until it is released.
    Failed { reason: String },
}

/// State of the launches of an allocation. The greater of two states applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Busy {
    /// All launches are over, and the allocation has not processed all of their ends.
    Answering,
    /// A launch is not over.
    Running,
}

/// Response to a failure of a launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RequeuePolicy {
    /// The allocation stays as it is. If it loses one of its nodes, it fails.
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
    /// The cause in words, with the id of the launch.
    pub reason: String,
    pub kind: FailureKind,
}

/// Kind of a launch's failure, as far as requeue policies distinguish it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// A node was lost.
    NodeLost,
    /// Anything else.
    Other,
}

impl LaunchFailure {
    /// The failure of a launch with this cause. `has_lost_a_node` is true if a node of the launch was lost itself.
    pub(crate) fn new(launch: &str, cause: &str, has_lost_a_node: bool) -> Self {
        let kind = if has_lost_a_node { FailureKind::NodeLost } else { FailureKind::Other };
        Self { reason: format!("launch {launch}: {cause}"), kind }
    }
}

impl AllocationState {
    /// The state as a word, without its reason; used in messages of the server and in tables of the commands.
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
    /// A running allocation of these nodes.
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

    /// Returns true if it holds nodes, and does not return them without a release.
    fn holds_nodes(&self) -> bool {
        match self.state {
            AllocationState::Running | AllocationState::Failed { .. } => true,
            AllocationState::Pending { .. } => !self.nodes.is_empty() && self.batch.is_none(),
            AllocationState::Releasing { .. } | AllocationState::Released => false,
        }
    }

    /// Time at which its time limit has passed, in seconds since 1970; `None` if it holds no nodes or has no limit. One second is added,
    /// because the time at which it began is rounded down.
    pub(crate) fn ends_at(&self) -> Option<u64> {
        if !self.holds_nodes() {
            return None;
        }
        Some(self.began_at?.saturating_add(self.time_limit?.get()).saturating_add(1))
    }

    /// A queued allocation after it begins on these nodes, at the time `now`.
    pub(crate) fn begun_on(&self, nodes: Vec<String>, now: u64) -> Self {
        Self { nodes, began_at: Some(now), ..self.moved(AllocationState::Running) }
    }

    /// The allocation after its release begins because its time limit has passed. `None` if the limit has not passed.
    pub(crate) fn timed_out(&self, now: u64) -> Option<Self> {
        let limit = self.time_limit?;
        self.ends_at().filter(|&end| end <= now)?;
        let reason = format!("its time limit of {} is over", counted(limit.get(), "second"));
        Some(self.released_for(reason))
    }

    /// The allocation of a batch job after it returns to waiting, because its script could not be started. `None` if it does not run.
    pub(crate) fn before_its_script(&self, reason: String) -> Option<Self> {
        let job = self.batch.as_ref().filter(|_| self.state == AllocationState::Running)?;
        Some(Self { batch: Some(job.anew()), ..self.moved(AllocationState::Pending { reason }) })
    }

    /// The allocation of a batch job that is queued again, without its nodes, once no launch remains in it. `None` if nothing changes, and
    /// until the end of its script is recorded. An end recorded later would count as the end of the next script.
    pub(crate) fn given_back(&self) -> Option<Self> {
        let script_is_over = self.batch.as_ref().is_some_and(|job| job.launch.is_none());
        let is_over = script_is_over && matches!(self.state, AllocationState::Pending { .. });
        (is_over && !self.nodes.is_empty()).then(|| Self { nodes: Vec::new(), ..self.clone() })
    }

    /// The pending allocation after it runs again at the time `now`, if all its nodes are ready; otherwise the allocation with its new
    /// reason to wait. `None` if nothing changes, and for an allocation that waits for other nodes.
    pub(crate) fn begun(&self, registry: &Registry, now: u64) -> Option<Self> {
        let is_pending = matches!(self.state, AllocationState::Pending { .. });
        if !is_pending || self.is_queued() || self.batch.is_some() {
            return None;
        }
        let absent: Vec<&String> = self.nodes.iter().filter(|node| registry.ready(node).is_err()).collect();
        if absent.is_empty() {
            // The allocation held its nodes in the meantime, so that its time limit continues.
            return Some(Self { began_at: self.began_at.or(Some(now)), ..self.moved(AllocationState::Running) });
        }
        let next = self.moved(AllocationState::Pending { reason: format!("waits for {}", hostlist::fold(&absent)) });
        (next != *self).then_some(next)
    }

    /// The allocation after a launch in it failed; `None` if nothing changes.
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

    /// The allocation after its release begins because this list revokes the certificate by which it was created. `None` if the list does
    /// not, or if the release has already begun.
    pub(crate) fn revoked(&self, list: &RevocationList) -> Option<Self> {
        let is_over = matches!(self.state, AllocationState::Releasing { .. } | AllocationState::Released);
        if is_over || !list.revokes(&self.certificate) {
            return None;
        }
        Some(self.released_for(format!("the certificate of user {} by which it was made was revoked", self.uid)))
    }

    /// The allocation after its release begins. An allocation that is being released stays as it is.
    pub(crate) fn releasing(&self) -> Self {
        match self.state {
            AllocationState::Releasing { .. } => self.clone(),
            _ => self.moved(AllocationState::Releasing { reason: None }),
        }
    }

    /// The same for a release by `caller`.
    pub(crate) fn released_by(&self, caller: &Caller) -> Self {
        self.releasing().without_unstarted_script(format!("cancelled by {caller} before it began"))
    }

    /// The allocation after its release begins for this reason.
    fn released_for(&self, reason: String) -> Self {
        let next = self.moved(AllocationState::Releasing { reason: Some(reason.clone()) });
        next.without_unstarted_script(format!("{reason}, and its script had not begun"))
    }

    /// Ends its batch job for this cause if the script has not been started. A release starts no script.
    fn without_unstarted_script(mut self, cause: String) -> Self {
        if let Some(job) = self.batch.as_mut().filter(|job| job.launch.is_none() && job.end.is_none()) {
            *job = job.ended(BatchEnd { exit_code: None, cause });
        }
        self
    }

    /// The allocation of a batch job after its script ended: it is released, unless it is queued again.
    pub(crate) fn after_batch(&self, job: BatchJob) -> Self {
        let next = Self { batch: Some(job), ..self.clone() };
        match self.state {
            AllocationState::Running | AllocationState::Failed { .. } => next.releasing(),
            _ => next,
        }
    }

    /// The allocation when no launch runs in it; `busy` is the state of its earlier launches. `None` if nothing changes. An allocation that
    /// is queued again waits until all ends are processed. Otherwise they would count as failures of the next launches.
    pub(crate) fn settled(&self, busy: Option<Busy>, now: &NodesNow<'_>) -> Option<Self> {
        match (&self.state, busy) {
            (_, Some(Busy::Running)) => None,
            (AllocationState::Releasing { .. }, _) => self.released(&now.unclean.among(&self.nodes)),
            (AllocationState::Pending { .. }, None) => self.given_back().or_else(|| self.begun(now.registry, now.time)),
            _ => None,
        }
    }

    /// An allocation that is being released after no launch remains in it; processes of a launch may remain on its `unclean` nodes. `None`
    /// if nothing changes, or if it is not being released.
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
