//! Nodes of one job, for its fences over links or through the agent.

use pmi_core::fence::Scope;
use pmi_core::ids::{JobId, NodeIndex};
use pmi_core::job::Job;

/// A job and the nodes of its fences.
pub(super) struct JobNodes {
    pub(super) job: JobId,
    /// This node.
    pub(super) node: NodeIndex,
    /// Nodes with a rank of the job, in order.
    pub(super) members: Vec<NodeIndex>,
}

impl JobNodes {
    pub(super) fn new(job: &Job, node: NodeIndex) -> Self {
        Self { job: job.id.clone(), node, members: job.placement.nodes_with_ranks() }
    }

    /// Returns true for a fence of this node alone.
    pub(super) fn is_alone(&self, scope: &Scope) -> bool {
        scope.members(&self.members) == [self.node]
    }
}
