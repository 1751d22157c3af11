//! Fences of one job over links, among the nodes that have a living rank.
//!
//! ```text
//!            complete                                  a member dies
//! exchanged ──────────> left; kept for a repetition ────────────────> repeated among the others, again and again
//!   │   ^
//!   │   ├──a member dies: among the others
//!   │   │
//!   └───┴──a neighbour is lost: waits for the news of deaths that follow ──LOSS_TOLD──> failed
//! ```
//! A fence that a node dies in begins anew among the others, under the same number: its key has a digest of its members, so the two are
//! told apart. A node that has left it takes part in the repetition as well, for others may not have got their result: nobody is
//! further ahead of the others than one fence. Where failures end the launch, no node dies, and nothing is kept.

use pmi_transport::task;
use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use pmi_core::fence::{Contribution, Fence, FenceError, FenceId, LocalFence, Merged, Scope};
use pmi_core::ids::{JobId, NodeIndex};
use pmi_transport::fence::{self, Gathered, LaunchFences};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::living_nodes::{LivingNodes, members};
use crate::settings::{FailedRanks, LaunchSettings, LostNodes};
use crate::timeouts;

/// Most scopes whose last fences are kept.
const KEPT_MAX: usize = 256;

/// Fences of one job.
pub(super) struct LinkedFence {
    way: Arc<Way>,
    /// Tasks that repeat the last fence of each scope when one of its nodes dies; where nodes can die.
    kept: Option<Mutex<HashMap<Scope, Repetition>>>,
}

/// Way of a job's fences to other nodes.
struct Way {
    job: JobId,
    me: NodeIndex,
    living: Arc<LivingNodes>,
    fences: Option<Arc<LaunchFences>>,
}

/// Consequence of the death of nodes for a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeDeaths {
    /// The launch ends.
    EndLaunch,
    /// Its fences go on among the others.
    AreBorne,
}

impl NodeDeaths {
    /// Consequence in a launch of these settings: a node is dead when its ranks are, too.
    pub(super) fn in_launch(settings: &LaunchSettings) -> Self {
        match (settings.failed_ranks, settings.lost_nodes) {
            (FailedRanks::EndLaunch, LostNodes::EndLaunch) => Self::EndLaunch,
            _ => Self::AreBorne,
        }
    }
}

/// A task that ends with this.
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

    /// Keeps a fence that is over here, in place of the one before it.
    fn keep(&self, id: &FenceId, among: Vec<NodeIndex>, contribution: Contribution) {
        let Some(kept) = &self.kept else { return };
        let repeating = repeat(Arc::clone(&self.way), id.clone(), among, contribution);
        let repetition = Repetition(task::spawn(repeating).abort_handle());
        let mut kept = kept.lock();
        if kept.len() < KEPT_MAX || kept.contains_key(&id.scope) {
            kept.insert(id.scope.clone(), repetition);
        }
    }
}

#[async_trait]
impl Fence for LinkedFence {
    async fn exchange(&self, id: &FenceId, contribution: Contribution) -> Result<Merged, FenceError> {
        let mut living = self.way.living.watch();
        loop {
            let among = members(&id.scope, &living.borrow_and_update());
            let others = among.iter().any(|&node| node != self.way.me);
            // Nobody waits for a node all of whose ranks have died.
            let Some(fences) = self.way.fences.as_ref().filter(|_| others && among.contains(&self.way.me)) else {
                return LocalFence.exchange(id, contribution).await;
            };
            let result = tokio::select! {
                result = self.way.attempt(fences, id, &among, &contribution) => result,
                () = changed(&mut living, &id.scope, &among) => continue,
            };
            match result {
                Ok(gathered) => {
                    self.keep(id, among, contribution);
                    return gathered.merged(id.epoch);
                }
                Err(error) if self.kept.is_none() || error.node().is_none() => return Err(error.into()),
                Err(error) => {
                    let news = changed(&mut living, &id.scope, &among);
                    timeout(timeouts::LOSS_TOLD, news).await.map_err(|_| error)?;
                }
            }
        }
    }
}

impl Way {
    /// Exchanges the contribution among these nodes.
    async fn attempt(
        &self,
        fences: &LaunchFences,
        id: &FenceId,
        among: &[NodeIndex],
        contribution: &Contribution,
    ) -> Result<Gathered, fence::FenceError> {
        let scope = match &id.scope {
            Scope::Group { name, .. } => Scope::Group { name: Arc::clone(name), nodes: among.into() },
            Scope::Foreign { name, .. } => Scope::Foreign { name: Arc::clone(name), nodes: among.into() },
            whole => whole.clone(),
        };
        fences.exchange(self.job.as_str(), among, &scope, id.epoch, contribution.clone()).await
    }
}

/// Repeats a fence that this node has left, each time that one of its nodes dies, until nobody else is left.
async fn repeat(way: Arc<Way>, id: FenceId, mut among: Vec<NodeIndex>, contribution: Contribution) {
    let mut living = way.living.watch();
    loop {
        changed(&mut living, &id.scope, &among).await;
        among = members(&id.scope, &living.borrow_and_update());
        let Some(fences) = way.fences.as_ref().filter(|_| among.len() > 1 && among.contains(&way.me)) else { return };
        tokio::select! {
            // Those who need it have it then; if it fails, by another death, it is repeated again.
            _ = way.attempt(fences, &id, &among, &contribution) => {}
            () = changed(&mut living, &id.scope, &among) => {}
        }
    }
}

/// Waits until a fence is among other nodes than these; for ever if it never will be. Cancel-safe.
async fn changed(living: &mut watch::Receiver<Arc<[NodeIndex]>>, scope: &Scope, among: &[NodeIndex]) {
    if living.wait_for(|now| members(scope, now) != among).await.is_err() {
        std::future::pending::<()>().await;
    }
}
