//! The server's part in batch jobs: the script of one is a launch like any other, which nobody owns, and whose end is that of its
//! allocation.

use std::sync::Arc;

use lattice_session::wire::WireError;
use pmi_transport::error_chain::chain;
use pmi_transport::identity::Caller;

use super::launching::LaunchError;
use super::{NotWritten, Server};
use crate::allocations::allocation::{FailureKind, LaunchFailure};
use crate::allocations::batch::{BatchEnd, BatchJob};
use crate::allocations::{Allocation, AllocationState};
use crate::order::OrderError;
use crate::store::{self, Change, EndedLaunch, StoreError};
use crate::wire;

/// The reason of an allocation that waits because the server before had not started its script.
const NOT_STARTED: &str = "its script had not been started when the API server ended";

/// Reason why a script is not started.
#[derive(Debug, thiserror::Error)]
enum ScriptError {
    #[error("the state cannot be read")]
    Store(#[from] StoreError),
    #[error("nothing was kept of it")]
    Missing,
    #[error("what was kept of it cannot be understood")]
    Unreadable(#[from] WireError),
    #[error(transparent)]
    NotWritten(#[from] NotWritten),
    #[error(transparent)]
    Launch(#[from] LaunchError),
}

impl Server {
    /// Starts the script of an allocation that has begun. One that cannot be started has ended; but where a node is not ready after all,
    /// the allocation waits for others.
    pub(super) async fn run_batch(self: Arc<Self>, id: String) {
        let (launch, error) = match self.start_script(&id).await {
            Ok(()) => return,
            Err((_, ScriptError::Launch(LaunchError::Order(error @ OrderError::Unready { .. })))) => {
                return self.queue_again(&id, error.to_string()).await;
            }
            Err(failed) => failed,
        };
        let cause = format!("the script was not started: {}", chain(&error));
        tracing::warn!(allocation = id, cause, "a batch job fails");
        self.batch_over(&id, launch.as_deref(), BatchEnd { exit_code: None, cause }).await;
    }

    /// Starts the script, unless somebody else does. An error comes with the launch that it was to be, as far as it had come.
    async fn start_script(self: &Arc<Self>, id: &str) -> Result<(), (Option<String>, ScriptError)> {
        let kept = id.to_owned();
        let kept = store::blocking(&self.store, move |store| store.script(&kept)).await;
        let kept = kept.map_err(ScriptError::from).and_then(|kept| kept.ok_or(ScriptError::Missing));
        let request =
            kept.and_then(|kept| Ok(wire::allocation::decode_script(&kept)?)).map_err(|error| (None, error))?;
        let (caller, allocation, planned) = {
            let mut all = self.allocations.lock().await;
            let Some(allocation) = all.find(id).filter(|allocation| is_to_be_started(allocation)).cloned() else {
                return Ok(());
            };
            let caller = Caller::User(allocation.uid);
            let planned = self.order(&caller, request, &allocation).map_err(|error| (None, error.into()))?;
            let launch = &planned.order.launch.launch_id;
            let batch = allocation.batch.as_ref().map(|job| job.started(launch));
            let allocation = Allocation { batch, ..allocation };
            // A server after this one knows by it which launch it is.
            let written = self.write(vec![Change::Allocation(allocation.clone())]).await;
            written.map_err(|error| (None, error.into()))?;
            all.put(allocation.clone());
            (caller, allocation, planned)
        };
        let launch = planned.order.launch.launch_id.clone();
        let begun = self.begin_launch(&caller, allocation.certificate.clone(), &allocation, planned).await;
        begun.map(drop).map_err(|error| (Some(launch), error.into()))
    }

    /// The script of an allocation has ended, if it is this launch; `None` is for a script that was never one. Whatever else runs in the
    /// allocation ends, too.
    pub(super) async fn batch_over(&self, id: &str, launch: Option<&str>, end: BatchEnd) {
        {
            let mut all = self.allocations.lock().await;
            let Some(allocation) = all.find(id) else { return };
            let is_it = |job: &&BatchJob| job.launch.as_deref() == launch && job.end.is_none();
            let Some(job) = allocation.batch.as_ref().filter(is_it) else { return };
            let job = match allocation.state {
                AllocationState::Pending { .. } => job.anew(),
                _ => job.ended(end),
            };
            let next = allocation.after_batch(job);
            self.put(&mut all, next).await;
        }
        self.end_launches_of(id, "its batch job has ended").await;
        self.finish_releases().await;
    }

    /// An allocation whose script has not been started gives its nodes back, and waits for others.
    async fn queue_again(&self, id: &str, reason: String) {
        {
            let mut all = self.allocations.lock().await;
            let Some(next) = all.find(id).and_then(|allocation| allocation.before_its_script(reason)) else { return };
            self.put(&mut all, next).await;
        }
        self.finish_releases().await;
    }

    /// Goes on with the batch jobs of the server before: a script may not have been started yet, or have ended unseen.
    pub(super) async fn resume_batches(&self) {
        let is_open = |allocation: &&Allocation| allocation.batch.as_ref().is_some_and(|job| job.end.is_none());
        let open: Vec<Allocation> = self.allocations.lock().await.iter().filter(is_open).cloned().collect();
        for Allocation { id, batch, .. } in open {
            let Some(launch) = batch.and_then(|job| job.launch) else {
                self.queue_again(&id, NOT_STARTED.to_owned()).await;
                continue;
            };
            if self.find(&launch).is_some() {
                continue;
            }
            let wanted = launch.clone();
            match store::blocking(&self.store, move |store| store.ended_launch(&wanted)).await {
                Ok(Some(ended)) => {
                    // It may have been killed before its policy was applied.
                    if let Some(failure) = failure(&launch, &ended) {
                        self.launch_failed(&id, failure).await;
                    }
                    let exit_code = ended.first_exit_code();
                    let cause = ended.summary.map(|summary| summary.cause).unwrap_or_default();
                    self.batch_over(&id, Some(&launch), BatchEnd { exit_code, cause }).await;
                }
                // No node has been asked.
                Ok(None) => self.queue_again(&id, NOT_STARTED.to_owned()).await,
                Err(error) => tracing::error!(allocation = id, error = chain(&error), "a batch job is left alone"),
            }
        }
    }
}

/// The failure of a launch as its record has it; `None` if it succeeded.
fn failure(id: &str, ended: &EndedLaunch) -> Option<LaunchFailure> {
    let complete = ended.complete.as_ref().filter(|complete| complete.cause.is_some())?;
    let kind = if wire::ended::lost_a_node(complete) { FailureKind::NodeLost } else { FailureKind::Other };
    Some(LaunchFailure { reason: format!("launch {id}: {}", complete.error_message), kind })
}

/// Returns true for an allocation that runs, and whose script does not yet.
fn is_to_be_started(allocation: &Allocation) -> bool {
    let is_new = allocation.batch.as_ref().is_some_and(|job| job.launch.is_none() && job.end.is_none());
    is_new && allocation.state == AllocationState::Running
}
