//! The server's part in the queue. Allocations begin as nodes become free, and end when their time limit passes.

use pmi_transport::task;
use std::sync::Arc;
use std::time::Duration;

use lattice_session::unix_time;
use pmi_transport::identity::RevocationList;
use tokio::time::sleep;

use super::Server;
use crate::allocations::{Allocation, Served};

/// Interval at which the queue is served while allocations wait, even without an event.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The longest wait for the end of a time limit before the time of day is read again.
const LOOK_MAX: Duration = Duration::from_secs(60);

impl Server {
    /// Serves the queue and the time limits of allocations indefinitely.
    pub(crate) async fn tend_queue(self: Arc<Self>) {
        self.resume_batches().await;
        loop {
            self.end_overdue().await;
            self.serve_queue().await;
            let pause = self.next_look().await;
            tokio::select! {
                () = self.queue_due.notified() => {}
                () = sleep(pause) => {}
            }
        }
    }

    /// Time until the next check of the queue or of a time limit.
    async fn next_look(&self) -> Duration {
        let all = self.allocations.lock().await;
        if all.iter().any(Allocation::is_queued) {
            return LOOK_EVERY;
        }
        let now = unix_time::seconds();
        let left = all.iter().filter_map(Allocation::ends_at).map(|end| end.saturating_sub(now)).min();
        left.map_or(LOOK_MAX, |seconds| Duration::from_secs(seconds).clamp(LOOK_EVERY, LOOK_MAX))
    }

    /// Serves the queue after an allocation was added. Returns the present state of that allocation.
    pub(super) async fn queued(self: &Arc<Self>, queued: Allocation) -> Allocation {
        tracing::info!(allocation = queued.id, uid = queued.uid, "an allocation is queued");
        self.serve_queue().await;
        let all = self.allocations.lock().await;
        // No client knows the id yet, so that no client can have released the allocation.
        all.find(&queued.id).cloned().unwrap_or(queued)
    }

    /// Begins the queued allocations that can have their nodes now.
    async fn serve_queue(self: &Arc<Self>) {
        let mut all = self.allocations.lock().await;
        if !all.iter().any(Allocation::is_queued) {
            return;
        }
        let Served { begun, waiting } = self.with_nodes_now(|now| all.serve(now));
        // Reasons to wait are not written, because they follow from the stored state.
        waiting.into_iter().for_each(|(id, reason)| all.wait(&id, reason));
        if begun.is_empty() || self.change(&mut all, begun.clone(), None).await.is_err() {
            return;
        }
        for next in begun {
            let nodes = hostlist::fold(&next.nodes);
            tracing::info!(allocation = next.id, nodes, "an allocation of the queue begins");
            if next.batch.is_some() {
                task::spawn(Arc::clone(self).run_batch(next.id));
            }
        }
    }

    /// Releases the allocations that have reached their time limit.
    async fn end_overdue(&self) {
        let now = unix_time::seconds();
        self.release_those(|allocation| allocation.timed_out(now)).await;
    }

    /// Releases the allocations that were created with a certificate on this list.
    pub(super) async fn release_revoked(&self, list: &RevocationList) {
        self.release_those(|allocation| allocation.revoked(list)).await;
    }

    /// Releases the allocations for which `over` returns a next state. Their launches end first.
    async fn release_those(&self, over: impl Fn(&Allocation) -> Option<Allocation>) {
        let over: Vec<Allocation> = {
            let mut all = self.allocations.lock().await;
            let over: Vec<Allocation> = all.iter().filter_map(over).collect();
            for next in &over {
                tracing::info!(allocation = next.id, reason = next.state.reason(), "an allocation is released");
            }
            self.put(&mut all, over.clone()).await;
            over
        };
        if over.is_empty() {
            return;
        }
        for Allocation { id, state, .. } in &over {
            self.end_launches_of(id, state.reason().unwrap_or_default()).await;
        }
        self.settle_allocations().await;
    }
}
