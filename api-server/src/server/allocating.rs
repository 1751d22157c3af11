//! The server's part in the life of allocations. Every change is durable before it takes effect, and changes are applied one after the
//! other.

use std::io;
use std::sync::Arc;

use lattice_session::{random, unix_time};
use pmi_transport::identity::Caller;

use super::{NotWritten, Server};
use crate::allocations::allocation::{FailureKind, LaunchFailure};
use crate::allocations::plan::{AllocationRequest, PlanError};
use crate::allocations::{Allocation, AllocationError, AllocationState, Allocations, NodesNow};
use crate::fabric::CredentialRequest;
use crate::launch::Request;
use crate::nodes::Unready;
use crate::start_policy::PolicyError;
use crate::store::Change;
use crate::wire;

/// Reason why an allocation is not created.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AllocateError {
    #[error("no random number can be had")]
    Random(#[source] io::Error),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error(transparent)]
    NotWritten(#[from] NotWritten),
}

/// Reason why an allocation is not released.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReleaseError {
    #[error(transparent)]
    Allocation(#[from] AllocationError),
    #[error(transparent)]
    NotWritten(#[from] NotWritten),
}

impl Server {
    /// Applies the policy of an allocation to a failed launch.
    pub(super) async fn launch_failed(&self, id: &str, failure: LaunchFailure) {
        let next = {
            let mut all = self.allocations.lock().await;
            let Some(allocation) = all.find(id) else { return };
            let failure = self.judged(allocation, failure);
            let Some(next) = allocation.after_failure(&failure) else { return };
            tracing::info!(
                allocation = id,
                state = next.state.word(),
                reason = failure.reason,
                "an allocation changes"
            );
            self.put(&mut all, vec![next.clone()]).await;
            next
        };
        // The allocation continues when none of its launches is left.
        self.end_launches_of(id, next.state.reason().unwrap_or_default()).await;
    }

    /// The failure of a launch of this allocation. A script can detect the end of a launch that lost a node, and fail, before the server
    /// processes that end.
    fn judged(&self, allocation: &Allocation, failure: LaunchFailure) -> LaunchFailure {
        let registry = self.nodes.lock();
        let is_lost = |node: &String| registry.ready(node) == Err(Unready::Lost);
        match allocation.batch.is_some() && allocation.nodes.iter().any(is_lost) {
            true => LaunchFailure { kind: FailureKind::NodeLost, ..failure },
            false => failure,
        }
    }

    /// Stores allocations that the server changed for reasons of its own. The changes apply even if they cannot be written, because their
    /// causes have already occurred.
    pub(super) async fn put(&self, all: &mut Allocations, next: Vec<Allocation>) {
        if next.is_empty() {
            return;
        }
        // The error is already in the log.
        let _ = self.write(next.iter().cloned().map(Change::Allocation).collect()).await;
        self.take_effect(all, next);
    }

    /// Stores allocations that change on request, and a further change with them. Returns the resulting requests for fabric credentials.
    ///
    /// # Errors
    /// Fails if the changes cannot be written; then nothing changes.
    pub(super) async fn change(
        &self,
        all: &mut Allocations,
        next: Vec<Allocation>,
        beside: Option<Change>,
    ) -> Result<Vec<CredentialRequest>, NotWritten> {
        self.write(next.iter().cloned().map(Change::Allocation).chain(beside).collect()).await?;
        Ok(self.take_effect(all, next))
    }

    /// Applies the effects of changed allocations. Returns the resulting requests for credentials, for which launches wait.
    fn take_effect(&self, all: &mut Allocations, next: Vec<Allocation>) -> Vec<CredentialRequest> {
        let mut asked = Vec::new();
        for next in next {
            asked.extend(self.fabric.as_ref().and_then(|fabric| fabric.follow(&next)));
            all.put(next);
        }
        self.queue_due.notify_one();
        asked
    }

    /// Calls `look` with the nodes as they are now.
    pub(super) fn with_nodes_now<T>(&self, look: impl FnOnce(&NodesNow<'_>) -> T) -> T {
        let (registry, unclean) = (self.nodes.lock(), self.unclean.lock());
        look(&NodesNow { registry: &registry, unclean: &unclean, time: unix_time::seconds() })
    }

    /// Continues allocations that wait for these nodes, which may be ready.
    pub(super) async fn nodes_are_there(&self, nodes: &[String]) {
        {
            let mut all = self.allocations.lock().await;
            nodes.iter().for_each(|node| all.postponed.node_is_there(node));
        }
        self.settle_allocations().await;
        self.queue_due.notify_one();
    }

    /// Creates the allocation that `request` describes, or queues it.
    ///
    /// # Errors
    /// See the variants of [`AllocateError`].
    pub(crate) async fn allocate(
        self: &Arc<Self>,
        caller: &Caller,
        request: &AllocationRequest,
    ) -> Result<Allocation, AllocateError> {
        if let Some(batch) = &request.batch {
            self.config.policy.check_batch(caller, batch.launch.programs.iter().map(|program| &program.app))?;
        }
        let id = random::id().map_err(AllocateError::Random)?;
        let mut all = self.allocations.lock().await;
        let planned = self.with_nodes_now(|now| all.plan(request, caller, &self.config.allocations, now, id))?;
        let script = request.batch.as_ref().map(|batch| Change::Script {
            allocation: planned.id.clone(),
            request: wire::allocation::encode_script(batch),
        });
        let credentials = self.change(&mut all, vec![planned.clone()], script).await?;
        if planned.is_queued() {
            drop(all);
            let planned = self.queued(planned).await;
            self.release_if_revoked(&planned).await;
            return Ok(planned);
        }
        drop(all);
        let nodes = hostlist::fold(&planned.nodes);
        tracing::info!(allocation = planned.id, uid = planned.uid, nodes, "an allocation is created");
        for credentials in credentials {
            credentials.settle().await;
        }
        self.release_if_revoked(&planned).await;
        Ok(planned)
    }

    /// Releases an allocation if its certificate was revoked during the write of the allocation.
    async fn release_if_revoked(&self, made: &Allocation) {
        let list = self.security.revocations();
        if made.revoked(&list).is_some() {
            self.release_revoked(&list).await;
        }
    }

    /// Releases an allocation: its launches end first.
    ///
    /// # Errors
    /// Fails if the allocation does not belong to the caller, or if the change cannot be written.
    pub(crate) async fn release(self: &Arc<Self>, caller: &Caller, id: &str) -> Result<Allocation, ReleaseError> {
        let next = {
            let mut all = self.allocations.lock().await;
            let next = all.of(caller, id)?.released_by(caller);
            self.change(&mut all, vec![next.clone()], None).await?;
            next
        };
        let what = if next.batch.is_some() { "batch job is cancelled" } else { "allocation is released" };
        self.end_launches_of(id, &format!("its {what} by {caller}")).await;
        self.settle_allocations().await;
        let all = self.allocations.lock().await;
        Ok(all.find(id).cloned().unwrap_or_else(|| next.moved(AllocationState::Released)))
    }

    /// Continues the releases that the previous server began. It may have been killed before it notified a node, or after the last node
    /// answered.
    pub(super) async fn resume_releases(&self) {
        let ended = |allocation: &&Allocation| {
            matches!(allocation.state, AllocationState::Releasing { .. } | AllocationState::Failed { .. })
        };
        let ended: Vec<String> =
            self.allocations.lock().await.iter().filter(ended).map(|allocation| allocation.id.clone()).collect();
        for id in ended {
            self.end_launches_of(&id, "its allocation is gone").await;
        }
        self.settle_allocations().await;
    }

    /// Continues allocations that wait until no launch is left in them. Allocations that are being released become free when no part of a
    /// launch is left on their nodes. Allocations that are queued again continue when their nodes are ready, or return their nodes.
    pub(super) async fn settle_allocations(&self) {
        let mut all = self.allocations.lock().await;
        let next: Vec<Allocation> = {
            // Launches begin under the same lock.
            let launches = self.launches.lock();
            let busy = launches.busy();
            let settled = |allocation: &Allocation, now: &NodesNow<'_>| {
                allocation.settled(busy.get(&allocation.id).copied(), now)
            };
            self.with_nodes_now(|now| all.iter().filter_map(|allocation| settled(allocation, now)).collect())
        };
        self.put(&mut all, next).await;
    }

    pub(super) async fn end_launches_of(&self, allocation: &str, reason: &str) {
        let open = self.launches.lock().open_in(allocation);
        for handle in open {
            let who = Caller::Api.to_string();
            handle.send(Request::Abort { who, reason: reason.to_owned() }).await;
        }
    }
}
