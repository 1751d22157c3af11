//! Meetings: collectives of ranks of several launches of one user, as `MPI_Comm_connect` and `MPI_Comm_accept` need them.
//!
//! ```text
//! launch A, node 0 ──Meeting──┐                              each node brings what its own ranks have, and gets what
//! launch A, node 1 ──Meeting──┼──> host: all are there ──Met──> all nodes of all launches brought, in the same order
//! launch B, node 0 ──Meeting──┘
//! ```

use crate::ids::{Epoch, NodeIndex};
use crate::job::Job;
use crate::segment::Segment;

/// A collective of ranks of several launches, as one node of one of them comes to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meeting {
    /// Name of it, the same for all who take part.
    pub name: String,
    /// Round of it; all who take part count alike.
    pub epoch: Epoch,
    /// The namespaces of other launches that take part.
    pub others: Vec<String>,
    /// The nodes of this launch that hold a rank that takes part, in order.
    pub nodes: Vec<NodeIndex>,
    /// The jobs of this launch that take part. One of its nodes tells of them.
    pub jobs: Vec<MetJob>,
    /// Contribution of this node's ranks.
    pub segments: Vec<Segment>,
}

/// Description of a job for other launches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetJob {
    /// The job's name among all launches of its user.
    pub namespace: String,
    /// The job. Its nodes are counted as in its own launch.
    pub job: Job,
    /// The names of its launch's nodes.
    pub hosts: Vec<String>,
}

/// A meeting to which everybody has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Met {
    /// A number that no other meeting of the user has. It is at least 2^63.
    pub number: u64,
    /// The jobs that take part, those of the own launch among them.
    pub jobs: Vec<MetJob>,
    /// Contributions of all nodes of all launches, in the same order for everybody.
    pub segments: Vec<Segment>,
}

/// A meeting that does not take place. The launches live on.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MeetError {
    /// One of the others is no job of a launch of this user, or its launch has ended.
    #[error("no such job of this user runs in another launch")]
    NotFound,
    /// The contributions are larger than can be carried.
    #[error("the meeting is too large: {reason}")]
    TooMuch {
        /// The size seen, and the limit.
        reason: String,
    },
    /// Whoever brings launches together cannot be reached.
    #[error("nobody brings launches together: {reason}")]
    Unavailable {
        /// Cause of the failure.
        reason: String,
    },
}
