//! The server's part in batch jobs. The script of a job is a launch without an owner, and its end is the end of its allocation.

use std::sync::Arc;

use lattice_session::unix_time;
use lattice_session::wire::WireError;
use pmi_transport::error_chain::chain;
use pmi_transport::identity::Caller;

use super::launching::LaunchError;
use super::{NotWritten, Server};
use crate::allocations::batch::{BatchEnd, BatchJob};
use crate::allocations::{Allocation, AllocationState};
use crate::launch::summary::Course;
use crate::launch::surroundings::LaunchEnd;
use crate::launch_id::LaunchId;
use crate::store::{self, StoreError};
use crate::wire;

/// Reason of an allocation that waits because the previous server had not started its script.
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

impl ScriptError {
    /// Returns true if the same script may be started later, or on other nodes.
    fn may_pass(&self) -> bool {
        match self {
            Self::Store(_) | Self::NotWritten(_) => true,
            Self::Missing | Self::Unreadable(_) => false,
            Self::Launch(error) => error.may_pass(),
        }
    }

    /// The node that could not be reached, or was busy.
    fn node_to_avoid(&self) -> Option<&str> {
        match self {
            Self::Launch(error) => error.node_to_avoid(),
            _ => None,
        }
    }
}

impl Server {
    /// Starts the script of an allocation that has begun. A script that cannot be started now is tried again, on other nodes if one node
    /// caused the failure. A script that can never be started has ended.
    pub(super) async fn run_batch(self: Arc<Self>, id: String) {
        let Err((launch, error)) = self.start_script(&id).await else {
            return self.allocations.lock().await.postponed.forget(&id);
        };
        let cause = format!("the script was not started: {}", chain(&error));
        if error.may_pass() && self.postpone(&id, &cause, error.node_to_avoid()).await {
            tracing::info!(allocation = id, cause, "a batch job waits again");
            return self.settle_allocations().await;
        }
        tracing::warn!(allocation = id, cause, "a batch job fails");
        self.batch_over(&id, launch.as_ref(), BatchEnd { exit_code: None, cause }).await;
    }

    /// Returns an allocation to waiting, for other nodes or for a later time, because its script could not be started. Returns false if all
    /// attempts are used up, or if the allocation does not run.
    async fn postpone(&self, id: &str, cause: &str, node: Option<&str>) -> bool {
        let mut all = self.allocations.lock().await;
        let now = unix_time::seconds();
        if let Some(node) = node {
            all.postponed.avoid(node, now);
        }
        let again = all.find(id).and_then(|allocation| allocation.before_its_script(cause.to_owned()));
        let Some(again) = again.filter(|_| all.postponed.postpone(id, now)) else { return false };
        self.put(&mut all, vec![again]).await;
        true
    }

    /// Applies the end of a launch to its allocation, including the batch job. [`Self::run_batch`] handles a script that was not started.
    pub(super) async fn answer_end(&self, allocation: &str, launch: &LaunchId, cause: String, end: LaunchEnd) {
        let LaunchEnd { failure, exit_code, course } = end;
        if course == Course::NotBegun && self.is_script(allocation, launch).await {
            return;
        }
        if let Some(failure) = failure {
            self.launch_failed(allocation, failure).await;
        }
        self.batch_over(allocation, Some(launch), BatchEnd { exit_code, cause }).await;
    }

    /// Returns true if a launch is the script of an allocation's batch job.
    async fn is_script(&self, allocation: &str, launch: &LaunchId) -> bool {
        let all = self.allocations.lock().await;
        let job = all.find(allocation).and_then(|allocation| allocation.batch.as_ref());
        job.is_some_and(|job| job.launch.as_ref() == Some(launch))
    }

    /// Starts the script, unless another task does. An error includes the id of the launch, if it was already known.
    async fn start_script(self: &Arc<Self>, id: &str) -> Result<(), (Option<LaunchId>, ScriptError)> {
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
            // The user was allowed to start the script when the job was submitted.
            let planned = self.order(request, &allocation).map_err(|error| (None, error.into()))?;
            let launch = planned.order.id();
            let batch = allocation.batch.as_ref().map(|job| job.started(&launch));
            let allocation = Allocation { batch, ..allocation };
            // The next server finds the launch of the script in this record.
            let written = self.change(&mut all, vec![allocation.clone()], None).await;
            written.map_err(|error| (None, error.into()))?;
            (caller, allocation, planned)
        };
        let launch = planned.order.id();
        let begun = self.begin_launch(&caller, allocation.certificate.clone(), &allocation, planned).await;
        begun.map(drop).map_err(|error| (Some(launch), error.into()))
    }

    /// Records the end of a script, if `launch` is the script; `None` means that the script never became a launch. Everything else in the
    /// allocation ends as well.
    pub(super) async fn batch_over(&self, id: &str, launch: Option<&LaunchId>, end: BatchEnd) {
        {
            let mut all = self.allocations.lock().await;
            let Some(allocation) = all.find(id) else { return };
            let is_it = |job: &&BatchJob| job.launch.as_ref() == launch && job.end.is_none();
            let Some(job) = allocation.batch.as_ref().filter(is_it) else { return };
            let job = match allocation.state {
                AllocationState::Pending { .. } => job.anew(),
                _ => job.ended(end),
            };
            let next = allocation.after_batch(job);
            self.put(&mut all, vec![next]).await;
        }
        self.end_launches_of(id, "its batch job has ended").await;
        self.settle_allocations().await;
    }

    /// Queues an allocation again because its script has not been started. The allocation returns its nodes and waits for other nodes.
    async fn queue_again(&self, id: &str, reason: String) {
        {
            let mut all = self.allocations.lock().await;
            let Some(next) = all.find(id).and_then(|allocation| allocation.before_its_script(reason)) else { return };
            self.put(&mut all, vec![next]).await;
        }
        self.settle_allocations().await;
    }

    /// Continues the batch jobs of the previous server. A script may not have been started yet, or its end may not have been recorded.
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
                // The previous server had not decided whether to try the script again.
                Ok(Some(ended)) if ended.course() == Course::NotBegun => {
                    self.queue_again(&id, NOT_STARTED.to_owned()).await;
                }
                Ok(Some(ended)) => {
                    // The previous server may have been killed before it applied the policy.
                    if let Some(failure) = ended.failure(&launch) {
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

/// Returns true for a running allocation that has not started its script.
fn is_to_be_started(allocation: &Allocation) -> bool {
    let is_new = allocation.batch.as_ref().is_some_and(|job| job.launch.is_none() && job.end.is_none());
    is_new && allocation.state == AllocationState::Running
}
