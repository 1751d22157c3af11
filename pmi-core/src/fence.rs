//! The fence: every node contributes the pairs of its ranks, and every node receives all pairs.
//!
//! Nodes reach each other only through this interface. A [`crate::server::Server`] does not depend on other nodes. Its driver passes each
//! [`Contribution`] to a [`Fence`], and returns the [`Merged`] result to the server.
//!
//! ```text
//! rank: barrier_in ──> Server ──Contribution──> Fence::exchange ──Merged──> Server ──> barrier_out: rank
//!                     (last local rank)      (all nodes of the job)
//! ```

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::ids::{Epoch, NodeIndex};
use crate::segment::Segment;

/// Members of a fence, and meaning of its segments.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Scope {
    /// Every rank of the job; the segments hold pairs of the key-value space.
    World,
    /// The members of a PMI-1.2 group barrier. The segments hold pairs of the key-value space, after a label with the ages of the pairs.
    Group {
        /// Group and tag as the client sent them; the text is the same for all members.
        name: Arc<str>,
        /// The nodes that hold a member, in order.
        nodes: Arc<[NodeIndex]>,
    },
    /// Every rank of the job, in a PMI-2 `ring`; the segments hold the ranks' ring values.
    Ring,
    /// The members of a collective of another protocol's server. Only such servers can read the segments.
    Foreign {
        /// Name of the collective and its members; the text is the same on all its nodes.
        name: Arc<str>,
        /// The nodes that hold a member, in order.
        nodes: Arc<[NodeIndex]>,
    },
}

impl Scope {
    /// Returns the nodes that take part, in order. `all` are the nodes of the job.
    pub fn members<'a>(&'a self, all: &'a [NodeIndex]) -> &'a [NodeIndex] {
        match self {
            Self::World | Self::Ring => all,
            Self::Group { nodes, .. } | Self::Foreign { nodes, .. } => nodes,
        }
    }
}

/// Identifier of a fence, the same on every node that takes part.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FenceId {
    /// Members of the fence.
    pub scope: Scope,
    /// Number of earlier fences of this scope.
    pub epoch: Epoch,
}

/// Distribution of a fence's data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Exchange {
    /// Every node receives all data.
    #[default]
    Full,
    /// The fence may leave large data on the contributing nodes, and act as a barrier only. Nodes then request data from these nodes.
    Auto,
    /// The fence leaves all data on the contributing nodes.
    Lazy,
}

/// Contribution of one node to a fence.
///
/// Without segments, no rank of this node has put a pair. A fence without segments from any node is only a barrier.
#[derive(Clone, Debug, Default)]
pub struct Contribution {
    /// Pairs that were put on this node since its last fence, in the order of the puts.
    pub segments: Vec<Segment>,
    /// Permission to withhold data; the same on all nodes of the fence.
    pub exchange: Exchange,
}

/// Result of a fence, for every node: all contributions in the order of the nodes.
///
/// The order of the pairs is part of the contract: of two pairs with one key, every node uses the later one. Segment borders are not part
/// of it: a fence may join adjacent segments, and split a segment between two pairs.
#[derive(Clone, Debug, Default)]
pub struct Merged {
    /// All pairs of all nodes, in any segments. If data was withheld: the pairs of the first node, or none.
    pub segments: Vec<Segment>,
    /// Bytes that all nodes together withheld; 0 when all data is here. A fence withholds data only if its [`Contribution`] permits it.
    /// An implementation may always transfer all data instead.
    pub withheld: u64,
}

impl From<Vec<Segment>> for Contribution {
    /// Creates a contribution that every node receives.
    fn from(segments: Vec<Segment>) -> Self {
        Self { segments, exchange: Exchange::Full }
    }
}

impl From<Vec<Segment>> for Merged {
    /// Creates a result with the whole data of a fence.
    fn from(segments: Vec<Segment>) -> Self {
        Self { segments, withheld: 0 }
    }
}

/// Reason for the failure of a fence. A fence fails on every node that takes part, and the job cannot continue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FenceError {
    /// Not every node arrived in time.
    #[error("PMI fence timeout: fence {epoch} was not complete after {} s", waited.as_secs())]
    Timeout {
        /// The fence that did not complete.
        epoch: Epoch,
        /// Time that this node waited.
        waited: Duration,
    },
    /// A node left the job while other nodes needed it.
    #[error("node {node} left during fence {epoch}: {reason}")]
    NodeLost {
        /// The node that left.
        node: NodeIndex,
        /// The fence that needed the node.
        epoch: Epoch,
        /// Observation that showed the loss.
        reason: String,
    },
    /// The fence cannot be completed, and no node is to blame.
    #[error("fence {epoch} failed: {reason}")]
    Failed {
        /// The fence.
        epoch: Epoch,
        /// Reason, as readable text.
        reason: String,
    },
    /// This node did not begin the fence.
    #[error("fence {epoch} was not begun: {reason}")]
    NotBegun {
        /// The fence.
        epoch: Epoch,
        /// Reason, as readable text.
        reason: String,
    },
    /// A segment that another node sent cannot be read.
    #[error("fence {epoch} brought a segment that cannot be read: {reason}")]
    BadSegment {
        /// The fence that delivered it.
        epoch: Epoch,
        /// Error of the decoder.
        reason: String,
    },
}

/// Receives the result of a fence after [`Fence::begin`].
pub type FenceEnd = Box<dyn FnOnce(Result<Merged, FenceError>) + Send>;

/// Outcome of [`Fence::begin`].
#[derive(Debug)]
pub enum Begun {
    /// The fence is already complete. Its [`FenceEnd`] is dropped.
    Over(Result<Merged, FenceError>),
    /// The [`FenceEnd`] receives the result later.
    Pending,
    /// The fence has not begun. Pass the contribution to [`Fence::exchange`].
    Unavailable(Contribution),
}

/// Moves contributions between the nodes of a job.
///
/// A host needs to implement only [`Fence::exchange`]. The other two methods are for fences without a task of their own.
///
/// Contract, checked by the suite in `conformance` (feature of the same name): for the same [`FenceId`] every node receives the same
/// [`Merged`]. It holds the contributed pairs in the order of the nodes, in segments of any borders. Calls with different ids never mix,
/// even when they overlap. The loss of a node fails the call on every other node promptly.
#[async_trait]
pub trait Fence: Send + Sync {
    /// Contributes to the fence `id`, waits for all other nodes, and returns the merged contributions.
    ///
    /// # Errors
    /// Fails when a node of the scope is lost or late; the job must then end, on every node.
    async fn exchange(&self, id: &FenceId, contribution: Contribution) -> Result<Merged, FenceError>;

    /// Does the same without a future. Returns at once, and calls `end` later on any thread: at most once, and not during this call.
    /// `end` may begin further fences. Every pending fence ends, unless it is given up.
    fn begin(&self, _id: &FenceId, contribution: Contribution, _end: FenceEnd) -> Begun {
        Begun::Unavailable(contribution)
    }

    /// Gives up a pending fence of [`Fence::begin`], as a dropped call of [`Fence::exchange`] does. A complete fence is not an error.
    fn give_up(&self, _id: &FenceId) {}
}

/// The fence of a job on one node: it returns the contribution at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalFence;

#[async_trait]
impl Fence for LocalFence {
    async fn exchange(&self, _: &FenceId, contribution: Contribution) -> Result<Merged, FenceError> {
        Ok(contribution.segments.into())
    }

    fn begin(&self, _: &FenceId, contribution: Contribution, _: FenceEnd) -> Begun {
        Begun::Over(Ok(contribution.segments.into()))
    }
}
