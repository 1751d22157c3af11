//! Fences of one job over links, among the nodes with a living rank.
//!
//! ```text
//!            complete                                  a member dies
//! exchanged ──────────> left; kept for a repetition ────────────────> repeated among the other nodes, again and again
//!   │   ^
//!   │   ├──a member dies: among the other nodes
//!   │   │
//!   └───┴──a neighbour is lost: waits for a report of a death ──LOSS_TOLD──> failed
//! ```
//! After the death of a node, a fence continues among the other nodes under the same number. The key of a fence contains a digest of its
//! members, so both fences are distinct. A node that has left the fence also takes part in the repetition, because other nodes may not have
//! the result. No node is more than one fence ahead of the other nodes. If failures end the launch, no node dies and no fence is kept.
//! [`FenceCourse`] handles the exchanges of one fence and its result.

use pmi_transport::task;
use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use pmi_core::fence::{Begun, Contribution, Fence, FenceEnd, FenceError, FenceId, Merged, Scope};
use pmi_core::ids::{JobId, NodeIndex};
use pmi_transport::fence::{self, Gathered, LaunchFences};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::fence_course::{FenceCourse, FenceExchange, is_alone};
use super::living_nodes::{LivingNodes, members};
use crate::settings::{FailedRanks, LaunchSettings, LostNodes};
use crate::timeouts;

/// Limit of scopes with a kept last fence.
const KEPT_MAX: usize = 256;

/// Fences of one job.
pub(super) struct LinkedFence {
    way: Arc<Way>,
    /// Tasks that repeat the last fence of each scope when one of its nodes dies. `None` if nodes cannot die.
    kept: Option<Mutex<HashMap<Scope, Repetition>>>,
}

/// Path of a job's fences to other nodes.
struct Way {
    job: JobId,
    me: NodeIndex,
    living: Arc<LivingNodes>,
    fences: Option<Arc<LaunchFences>>,
}

/// Effect of the death of a node on a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeDeaths {
    /// The launch ends.
    EndLaunch,
    /// The fences of the launch continue among the other nodes.
    AreBorne,
}

impl NodeDeaths {
    /// Effect in a launch with these settings. A node also counts as dead when all its ranks are dead.
    pub(super) fn in_launch(settings: &LaunchSettings) -> Self {
        match (settings.failed_ranks, settings.lost_nodes) {
            (FailedRanks::EndLaunch, LostNodes::EndLaunch) => Self::EndLaunch,
            _ => Self::AreBorne,
        }
    }
}

/// A task that is aborted when this value is dropped.
struct Repetition(AbortHandle);

impl Drop for Repetition {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl LinkedFence {
    pub(super) fn new(
        job: JobId,
        me: NodeIndex,
        living: Arc<LivingNodes>,
        fences: Option<Arc<LaunchFences>>,
        deaths: NodeDeaths,
    ) -> Self {
        let kept = (deaths == NodeDeaths::AreBorne).then(Mutex::default);
        Self { way: Arc::new(Way { job, me, living, fences }), kept }
    }

    /// Keeps a fence that is over on this node, in place of the previous one.
    fn keep(&self, course: FenceCourse) {
        let Some(kept) = &self.kept else { return };
        let scope = course.id().scope.clone();
        let repetition = Repetition(task::spawn(repeat(Arc::clone(&self.way), course)).abort_handle());
        let mut kept = kept.lock();
        if kept.len() < KEPT_MAX || kept.contains_key(&scope) {
            kept.insert(scope, repetition);
        }
    }
}

#[async_trait]
impl Fence for LinkedFence {
    async fn exchange(&self, id: &FenceId, contribution: Contribution) -> Result<Merged, FenceError> {
        let mut living = self.way.living.watch();
        let among = members(&id.scope, &living.borrow_and_update());
        let all = self.way.living.count_all(&id.scope);
        let mut course = FenceCourse::new(id.clone(), self.way.me, all, among, contribution);
        // Fences do not wait for a node without living ranks.
        while let Some((fences, next)) = self.way.fences.as_ref().zip(course.exchange()) {
            let result = tokio::select! {
                result = self.way.attempt(fences, id, next) => result,
                among = changed(&mut living, &course) => {
                    course.on_members(among);
                    continue;
                }
            };
            match result {
                Ok(gathered) => {
                    if let Some(merged) = course.on_gathered(gathered)? {
                        self.keep(course);
                        return Ok(merged);
                    }
                }
                Err(error) if self.kept.is_none() || error.node().is_none() => return Err(error.into()),
                Err(error) => {
                    let news = changed(&mut living, &course);
                    let among = timeout(timeouts::LOSS_TOLD, news).await.map_err(|_| error)?;
                    course.on_members(among);
                }
            }
        }
        Ok(course.into_result())
    }

    /// If nodes can die, a fence may be repeated, so it needs a task.
    fn begin(&self, id: &FenceId, contribution: Contribution, end: FenceEnd) -> Begun {
        if self.kept.is_some() {
            return Begun::Unavailable(contribution);
        }
        let Way { job, me, fences, .. } = &*self.way;
        let among = self.way.among(&id.scope);
        match fences {
            Some(fences) if !is_alone(&among, *me) => fences.begin(job.as_str(), &among, id, contribution, end),
            _ => Begun::Over(Ok(contribution.segments.into())),
        }
    }

    fn give_up(&self, id: &FenceId) {
        if let (None, Some(fences)) = (&self.kept, &self.way.fences) {
            fences.give_up(self.way.job.as_str(), &self.way.among(&id.scope), &id.scope, id.epoch);
        }
    }
}

impl Way {
    /// Living nodes of a fence.
    fn among(&self, scope: &Scope) -> Vec<NodeIndex> {
        members(scope, &self.living.watch().borrow())
    }

    /// Runs one exchange of a fence.
    async fn attempt(
        &self,
        fences: &LaunchFences,
        id: &FenceId,
        FenceExchange { scope, among, contribution }: FenceExchange,
    ) -> Result<Gathered, fence::FenceError> {
        fences.exchange(self.job.as_str(), &among, &scope, id.epoch, contribution).await
    }
}

/// Repeats a fence that this node has left, after each death of one of its nodes, until no other node is left.
async fn repeat(way: Arc<Way>, mut course: FenceCourse) {
    let (mut living, id) = (way.living.watch(), course.id().clone());
    while let Some(fences) = way.fences.as_ref().filter(|_| !course.is_alone()) {
        let next = course.exchange();
        let attempt = async {
            match next {
                Some(next) => way.attempt(fences, &id, next).await.ok(),
                None => None,
            }
        };
        let gathered = tokio::select! {
            Some(gathered) = attempt => gathered,
            among = changed(&mut living, &course) => {
                course.on_members(among);
                continue;
            }
        };
        // An exchange that fails because of another death is repeated after that death.
        let _ = course.on_gathered(gathered);
    }
}

/// Waits until the members of a fence change, and returns them. Waits indefinitely if they never change. Cancel-safe.
async fn changed(living: &mut watch::Receiver<Arc<[NodeIndex]>>, course: &FenceCourse) -> Vec<NodeIndex> {
    let scope = &course.id().scope;
    let mut among = Vec::new();
    let has_changed = living.wait_for(|now| {
        among = members(scope, now);
        among != course.among()
    });
    if has_changed.await.is_err() {
        return std::future::pending().await;
    }
    among
}

#[cfg(test)]
mod tests;
