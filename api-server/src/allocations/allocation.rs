//! One allocation, and what happens to it: a state machine without I/O.
//!
//! ```text
//!  its nodes are ready          release             its launches have ended
//! ────────────────────> Running ──────────────> Releasing ────────────────────> Released
//!                       │ ^   └──node lost, without a policy for it──> Failed
//!     requeue: as the   v │
//!          policy     Pending   until its nodes are ready again
//! ```
//! A node is ready when it is up and not drained. Pending and failed allocations can be released as well.

use crate::nodes::Registry;

/// Nodes that a user may launch on, for as long as it is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub id: String,
    pub state: AllocationState,
    /// The user whose it is.
    pub uid: u32,
    /// The names of its nodes, in node order.
    pub nodes: Vec<String>,
    pub requeue: RequeuePolicy,
    /// Time of its creation, in seconds since 1970.
    pub created_at: u64,
    /// Number of times that it was queued again.
    pub requeues: u32,
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
    /// The allocation in another state.
    pub(crate) fn moved(&self, state: AllocationState) -> Self {
        Self { state, ..self.clone() }
    }

    /// The allocation once it runs, if it is pending and all its nodes are ready; or with another reason why it does not. `None` if
    /// nothing changes.
    pub(crate) fn begun(&self, registry: &Registry) -> Option<Self> {
        if !matches!(self.state, AllocationState::Pending { .. }) {
            return None;
        }
        let absent: Vec<&String> = self.nodes.iter().filter(|node| registry.ready(node).is_err()).collect();
        let next = self.moved(match absent.is_empty() {
            true => AllocationState::Running,
            false => AllocationState::Pending { reason: format!("waits for {}", hostlist::fold(&absent)) },
        });
        (next != *self).then_some(next)
    }

    /// The allocation after a launch in it failed; `None` if that changes nothing.
    pub(crate) fn after_failure(&self, failure: &LaunchFailure) -> Option<Self> {
        if self.state != AllocationState::Running {
            return None;
        }
        let LaunchFailure { reason, kind } = failure;
        let requeued = || Self {
            requeues: self.requeues.saturating_add(1),
            ..self.moved(AllocationState::Pending { reason: format!("queued again: {reason}") })
        };
        match (self.requeue, kind) {
            (RequeuePolicy::OnAnyFailure, _) | (RequeuePolicy::OnNodeFailure, FailureKind::NodeLost) => {
                Some(requeued())
            }
            (RequeuePolicy::Never, FailureKind::NodeLost) => {
                Some(self.moved(AllocationState::Failed { reason: reason.clone() }))
            }
            (RequeuePolicy::Never | RequeuePolicy::OnNodeFailure, FailureKind::Other) => None,
        }
    }

    /// The allocation once its release has begun; one that is being released already stays as it is.
    pub(crate) fn releasing(&self) -> Self {
        match self.state {
            AllocationState::Releasing { .. } => self.clone(),
            _ => self.moved(AllocationState::Releasing { reason: None }),
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
