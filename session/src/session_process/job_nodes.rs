//! Nodes of one job as its fences need them, whichever way they take.

use bytes::Bytes;
use pmi_core::fence::{FenceError, Merged, Scope};
use pmi_core::ids::{Epoch, JobId, NodeIndex};
use pmi_core::job::Job;
use pmi_core::kvs::Segment;

/// A job, and which nodes take part in its fences.
pub(super) struct JobNodes {
    pub(super) job: JobId,
    /// This node.
    pub(super) node: NodeIndex,
    /// Nodes that hold a rank of the job, in order.
    pub(super) members: Vec<NodeIndex>,
}

impl JobNodes {
    pub(super) fn new(job: &Job, node: NodeIndex) -> Self {
        Self { job: job.id.clone(), node, members: job.placement.nodes_with_ranks() }
    }

    /// Returns true for fences of this node alone.
    pub(super) fn is_alone(&self, scope: &Scope) -> bool {
        scope.members(&self.members) == [self.node]
    }
}

/// Result of a fence, of the segments that all nodes brought, and the bytes that were withheld.
pub(super) fn merged(segments: Vec<Bytes>, withheld: u64, epoch: Epoch) -> Result<Merged, FenceError> {
    let decoded = segments.into_iter().map(Segment::decode).collect::<Result<_, _>>();
    let segments = decoded.map_err(|error| FenceError::BadSegment { epoch, reason: error.to_string() })?;
    Ok(Merged { segments, withheld })
}
