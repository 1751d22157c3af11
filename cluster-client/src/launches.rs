//! Unary calls about launches.

use std::time::Duration;

use lattice_session::placed::PlacedLaunch;
use lattice_session::rank_ranges::RankRanges;
use lattice_session::request::LaunchRequest;
use lattice_session::timeouts::{LEASE, START_ANSWER};
use lattice_session::wire;
use nix::sys::signal::Signal;
use pmi_transport::proto::v1 as proto;

use super::cluster::Cluster;
use super::error::ClusterError;

/// Action that the API server takes on a launch request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchAction {
    /// Start the launch.
    Launch,
    /// Plan the launch on the nodes as they are now. Refuse it as the launch would be refused.
    PlanNow,
    /// Plan the launch as if all known nodes were ready.
    Plan,
}

/// Answer of the API server to a launch request.
#[derive(Debug)]
pub struct Started {
    /// Id of the launch; empty for a plan.
    pub launch_id: String,
    /// The launch as it is placed, or the error in its message.
    pub placed: Result<PlacedLaunch, ClusterError>,
    /// Notes on its placement.
    pub notes: Vec<String>,
    /// Lines about nodes of a plan that are not ready.
    pub absent: Vec<String>,
    /// Time for which the launch continues while its API server is away.
    pub lease: Duration,
}

impl Cluster {
    /// Starts or plans a launch in `allocation_id`. Returns when every node has accepted it.
    ///
    /// # Errors
    /// Fails if the API server refuses it, is unreachable, or does not answer within [`START_ANSWER`]. In an allocation, waits for an API
    /// server that is away.
    pub async fn start_launch(
        &self,
        request: &LaunchRequest,
        allocation_id: String,
        wanted: LaunchAction,
    ) -> Result<Started, ClusterError> {
        let (plan_only, plan_absent) = (wanted != LaunchAction::Launch, wanted == LaunchAction::Plan);
        let question =
            proto::LaunchTasksRequest { plan_only, plan_absent, ..wire::request::encode(request, allocation_id) };
        // A repeated request would start another launch. It is sent again only if the server did not receive the first one.
        let answer = self
            .patiently(ClusterError::is_unheard, async || {
                let mut service = self.allocations();
                self.ask_within(START_ANSWER, service.launch_tasks(question.clone())).await
            })
            .await?;
        let lease = if answer.lease_ms == 0 { LEASE } else { Duration::from_millis(answer.lease_ms) };
        let placed = match answer.spec {
            Some(spec) => wire::placed::decode(spec).map_err(|error| self.invalid_answer(error)),
            None => Err(self.invalid_answer("a launch without its spec")),
        };
        Ok(Started { launch_id: answer.task_launch_id, placed, notes: answer.notes, absent: answer.absent, lease })
    }

    /// Ends a launch. A launch that has already ended is no error.
    ///
    /// # Errors
    /// Fails if the launch does not exist or belongs to another user, or the API server cannot be reached.
    pub async fn abort_launch(&self, launch_id: &str, reason: &str) -> Result<(), ClusterError> {
        let request = proto::AbortLaunchRequest { id: launch_id.to_owned(), reason: reason.to_owned() };
        self.ask(self.launches().abort_launch(request)).await.map(drop)
    }

    /// Sends a signal to ranks of a launch; `None` for all ranks.
    ///
    /// # Errors
    /// Fails if the launch does not exist or belongs to another user, or the API server cannot be reached.
    pub async fn signal_launch(
        &self,
        launch_id: &str,
        signal: Signal,
        ranks: Option<&RankRanges>,
    ) -> Result<(), ClusterError> {
        let ranks = ranks.map(wire::command::encode_ranges).unwrap_or_default();
        let request = proto::SignalLaunchRequest { id: launch_id.to_owned(), signal: signal as i32, ranks };
        self.ask(self.launches().signal_launch(request)).await.map(drop)
    }
}
