//! Fences of one job of a launch, as the PMI servers of pmi-core and pmix-core call them.

use std::sync::Arc;

use async_trait::async_trait;
use pmi_core::fence::{self, Begun, Contribution, Fence, FenceId, Merged};
use pmi_core::ids::{Epoch, JobId, NodeIndex};
use pmi_core::kvs::Segment;

use super::{Brought, Gathered, LaunchFences};

/// Fences of one job among the nodes of a launch with its ranks.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use pmi_core::{fence::Fence, ids::{JobId, JobIdError, NodeIndex}};
/// # use pmi_transport::fence::{FenceNode, JobFence, Membership, Questions};
/// # fn of(node: &FenceNode, membership: Membership, questions: Arc<dyn Questions>) -> Result<Arc<dyn Fence>, JobIdError> {
/// // A job with ranks on all nodes of the launch.
/// let members: Vec<NodeIndex> = (0..membership.nodes.len() as u32).map(NodeIndex).collect();
/// let launch = Arc::new(node.join(membership, questions));
/// let fence: Arc<dyn Fence> = Arc::new(JobFence::new(launch, JobId::new("job-1")?, members));
/// # Ok(fence)
/// # }
/// ```
pub struct JobFence {
    launch: Arc<LaunchFences>,
    job: JobId,
    members: Arc<[NodeIndex]>,
}

impl JobFence {
    /// Fences of a job with ranks on these nodes of the launch, in ascending order. A scope that names nodes uses them
    /// instead.
    pub fn new(launch: Arc<LaunchFences>, job: JobId, members: impl Into<Arc<[NodeIndex]>>) -> Self {
        Self { launch, job, members: members.into() }
    }
}

#[async_trait]
impl Fence for JobFence {
    /// Exchanges like [`LaunchFences::exchange`]; not cancel-safe either.
    async fn exchange(&self, id: &FenceId, contribution: Contribution) -> Result<Merged, fence::FenceError> {
        let FenceId { scope, epoch } = id;
        self.launch.exchange(self.job.as_str(), &self.members, scope, *epoch, contribution).await?.merged(*epoch)
    }

    fn begin(&self, id: &FenceId, contribution: Contribution, end: fence::FenceEnd) -> Begun {
        self.launch.begin(self.job.as_str(), &self.members, id, contribution, end)
    }

    fn give_up(&self, FenceId { scope, epoch }: &FenceId) {
        self.launch.give_up(self.job.as_str(), &self.members, scope, *epoch);
    }
}

impl From<Contribution> for Brought {
    fn from(Contribution { segments, exchange }: Contribution) -> Self {
        Self { segments: segments.into_iter().map(Segment::into_bytes).collect(), exchange }
    }
}

impl Gathered {
    /// Decodes the segments of a completed fence.
    ///
    /// # Errors
    /// Fails with [`fence::FenceError::BadSegment`] if a node contributed a malformed segment.
    pub fn merged(self, epoch: Epoch) -> Result<Merged, fence::FenceError> {
        let decoded = self.runs.into_iter().map(Segment::decode).collect::<Result<_, _>>();
        let segments = decoded.map_err(|error| fence::FenceError::BadSegment { epoch, reason: error.to_string() })?;
        Ok(Merged { segments, withheld: self.withheld })
    }
}
