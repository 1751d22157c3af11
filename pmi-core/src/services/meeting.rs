//! Meetings: collectives of ranks of several launches of one user, for `MPI_Comm_connect` and `MPI_Comm_accept`.
//!
//! ```text
//! launch A, node 0 ──Meeting──┐                              each node contributes the data of its own ranks,
//! launch A, node 1 ──Meeting──┼──> host: all are there ──Met──> and receives the data of all nodes of all launches, in the same order
//! launch B, node 0 ──Meeting──┘
//! ```

use crate::ids::{Epoch, NodeIndex};
use crate::job::Job;
use crate::segment::Segment;

/// A collective of ranks of several launches, as one node of one launch joins it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meeting {
    /// Name of the collective, the same for all participants.
    pub name: String,
    /// Round of the collective; all participants count alike.
    pub epoch: Epoch,
    /// The namespaces of other launches that take part.
    pub others: Vec<String>,
    /// The nodes of this launch that hold a participating rank, in order.
    pub nodes: Vec<NodeIndex>,
    /// The participating jobs of this launch. Only one of its nodes sends them.
    pub jobs: Vec<MetJob>,
    /// Contribution of this node's ranks.
    pub segments: Vec<Segment>,
}

/// Description of a job for other launches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetJob {
    /// The job's name among all launches of its user.
    pub namespace: String,
    /// The job. Its nodes are numbered as in its own launch.
    pub job: Job,
    /// The names of its launch's nodes.
    pub hosts: Vec<String>,
}

/// A meeting that all participants have joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Met {
    /// A number that no other meeting of the user has; at least 2^63.
    pub number: u64,
    /// The participating jobs, including the jobs of the own launch.
    pub jobs: Vec<MetJob>,
    /// Contributions of all nodes of all launches, in the same order for all participants.
    pub segments: Vec<Segment>,
}

/// Reason why a meeting does not take place. The launches continue.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MeetError {
    /// A participant is not a job of a launch of this user, or its launch has ended.
    #[error("no such job of this user runs in another launch")]
    NotFound,
    /// The contributions exceed the size limit.
    #[error("the meeting is too large: {reason}")]
    TooMuch {
        /// The size found, and the limit.
        reason: String,
    },
    /// The service that connects launches cannot be reached.
    #[error("launches cannot be connected: {reason}")]
    Unavailable {
        /// Cause of the failure.
        reason: String,
    },
}
