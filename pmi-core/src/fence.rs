//! The fence: every node brings the pairs that its ranks put, every node leaves with all of them.
//!
//! This is the one seam through which nodes reach each other. A [`crate::server::Server`] does not know that other nodes
//! exist; whoever drives it hands each [`Contribution`] to a [`Fence`] and gives the [`Merged`] result back.
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
    /// The members of a PMI-1.2 group barrier; the segments hold pairs of the key-value space, behind a label that tells how old they
    /// are.
    Group {
        /// The group and tag as the client wrote them; all members write the same text.
        name: Arc<str>,
        /// The nodes that hold a member, in order.
        nodes: Arc<[NodeIndex]>,
    },
    /// Every rank of the job, in a PMI-2 `ring`; the segments hold the ranks' ring values.
    Ring,
    /// The members of a collective of another protocol's server; the segments hold what only such servers read.
    Foreign {
        /// Name of the collective and its members; all its nodes write the same text.
        name: Arc<str>,
        /// The nodes that hold a member, in order.
        nodes: Arc<[NodeIndex]>,
    },
}

impl Scope {
    /// The nodes that take part, in order, where `all` are the nodes of the job.
    pub fn members<'a>(&'a self, all: &'a [NodeIndex]) -> &'a [NodeIndex] {
        match self {
            Self::World | Self::Ring => all,
            Self::Group { nodes, .. } | Self::Foreign { nodes, .. } => nodes,
        }
    }
}

/// Names one fence: the same on every node that takes part in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FenceId {
    /// Members of the fence.
    pub scope: Scope,
    /// Number of fences of this scope that came before.
    pub epoch: Epoch,
}

/// Way of a fence's data to the nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Exchange {
    /// Every node leaves the fence with all of it.
    #[default]
    Full,
    /// The fence may leave large data with the nodes that brought it, and be a barrier only: those nodes can be asked.
    Auto,
    /// The fence leaves all data with the nodes that brought it.
    Lazy,
}

/// Contribution of one node to a fence.
///
/// No segments means that nobody on this node put anything. A fence to which no node brings a segment is only a barrier.
#[derive(Clone, Debug, Default)]
pub struct Contribution {
    /// The pairs put on this node since its last fence, in the order of the puts.
    pub segments: Vec<Segment>,
    /// Permission to leave data where it is; the same on all nodes of the fence.
    pub exchange: Exchange,
}

/// Result of a fence, for every node: all contributions in the order of the nodes.
///
/// The order of the pairs is part of the contract. Where two pairs have one key the later one wins, on every node alike. The borders of
/// segments are not: a fence may join segments that follow each other, and cut a segment between two pairs.
#[derive(Clone, Debug, Default)]
pub struct Merged {
    /// All pairs of all nodes, in any segments; of the first node alone, or none at all, where data was withheld.
    pub segments: Vec<Segment>,
    /// Bytes that all nodes together kept to themselves: 0 when everything is here. Only fences to which a [`Contribution`] permits
    /// it withhold data; an implementation may always carry everything instead.
    pub withheld: u64,
}

impl From<Vec<Segment>> for Contribution {
    /// A contribution that every node gets.
    fn from(segments: Vec<Segment>) -> Self {
        Self { segments, exchange: Exchange::Full }
    }
}

impl From<Vec<Segment>> for Merged {
    /// The whole data of a fence.
    fn from(segments: Vec<Segment>) -> Self {
        Self { segments, withheld: 0 }
    }
}

/// Reason for the failure of a fence. A fence fails on every node that takes part, and the job cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FenceError {
    /// Not every node arrived in time.
    #[error("PMI fence timeout: fence {epoch} was not complete after {} s", waited.as_secs())]
    Timeout {
        /// The fence that did not complete.
        epoch: Epoch,
        /// Time for which this node waited.
        waited: Duration,
    },
    /// A node left the job while others needed it.
    #[error("node {node} left during fence {epoch}: {reason}")]
    NodeLost {
        /// The node that left.
        node: NodeIndex,
        /// The fence it was missed in.
        epoch: Epoch,
        /// Observation that told of its end.
        reason: String,
    },
    /// The fence cannot be completed, and no node is to blame.
    #[error("fence {epoch} failed: {reason}")]
    Failed {
        /// The fence.
        epoch: Epoch,
        /// Reason, as text for people.
        reason: String,
    },
    /// This node did not come to the fence.
    #[error("fence {epoch} was not begun: {reason}")]
    NotBegun {
        /// The fence.
        epoch: Epoch,
        /// Reason, as text for people.
        reason: String,
    },
    /// A segment that another node sent cannot be read.
    #[error("fence {epoch} brought a segment that cannot be read: {reason}")]
    BadSegment {
        /// The fence that brought it.
        epoch: Epoch,
        /// Error of the decoder.
        reason: String,
    },
}

/// Takes the result of a fence that [`Fence::begin`] has begun.
pub type FenceEnd = Box<dyn FnOnce(Result<Merged, FenceError>) + Send>;

/// Outcome of [`Fence::begin`].
#[derive(Debug)]
pub enum Begun {
    /// The fence is over already; its [`FenceEnd`] is dropped.
    Over(Result<Merged, FenceError>),
    /// The result goes to the [`FenceEnd`].
    Pending,
    /// Nothing has begun: the contribution is for [`Fence::exchange`].
    Unavailable(Contribution),
}

/// Moves contributions between the nodes of a job.
///
/// A host writes [`Fence::exchange`] alone. The other two methods are for fences that need no task of their own.
///
/// Contract, checked by the suite in `conformance` (feature of the same name): every node gets the same [`Merged`] for the same
/// [`FenceId`], whose pairs are those that were brought, in the order of the nodes, in segments of any borders; calls with different ids never mix, even when they overlap; a node that leaves fails the call on every other
/// node promptly.
#[async_trait]
pub trait Fence: Send + Sync {
    /// Brings `contribution` to the fence `id`, waits for all other nodes, returns what all brought together.
    ///
    /// # Errors
    /// Fails when a node of the scope is lost or late; the job must then end, on every node.
    async fn exchange(&self, id: &FenceId, contribution: Contribution) -> Result<Merged, FenceError>;

    /// Does the same without a future: returns at once, and calls `end` later on any thread, at most once and not during this call. `end` may
    /// begin further fences. Unless it was given up, every fence that is pending ends.
    fn begin(&self, _id: &FenceId, contribution: Contribution, _end: FenceEnd) -> Begun {
        Begun::Unavailable(contribution)
    }

    /// Gives up a fence that [`Fence::begin`] has left pending, as a dropped call of [`Fence::exchange`] does. Not an error if it is over.
    fn give_up(&self, _id: &FenceId) {}
}

/// The fence of a job whose ranks are all on one node: what goes in comes out, at once.
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
