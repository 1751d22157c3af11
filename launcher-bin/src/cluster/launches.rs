//! Calls about launches that have one answer.

use std::time::Duration;

use lattice_session::placed::PlacedLaunch;
use lattice_session::rank_ranges::RankRanges;
use lattice_session::request::LaunchRequest;
use lattice_session::timeouts::{LEASE, START_ANSWER};
use lattice_session::wire;
use nix::sys::signal::Signal;
use pmi_transport::proto::v1 as proto;

use super::{Cluster, ClusterError};

/// What the API server is to do with a launch request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// It starts the launch.
    Launch,
    /// It says what the launch would be now, and refuses it as it would refuse the launch.
    PlanNow,
    /// It says what the launch would be if all nodes that are known were ready.
    Plan,
}

/// Answer of the API server to a launch request.
#[derive(Debug)]
pub(crate) struct Started {
    /// Id of the launch; empty for a plan.
    pub(crate) launch_id: String,
    /// The launch as it is placed, or the fault of its message.
    pub(crate) placed: Result<PlacedLaunch, ClusterError>,
    /// Notes on its placement.
    pub(crate) notes: Vec<String>,
    /// Lines about nodes of a plan that are not ready.
    pub(crate) absent: Vec<String>,
    /// Time for which the launch goes on while its API server is away.
    pub(crate) lease: Duration,
}

impl Cluster {
    /// Has the API server start a launch in `allocation_id`, or plan it; returns when every node has accepted it.
    ///
    /// # Errors
    /// Fails if the API server refuses it, cannot be reached, or gives no answer within [`START_ANSWER`]. In an allocation one that is not
    /// there is waited for.
    pub(crate) async fn start_launch(
        &self,
        request: &LaunchRequest,
        allocation_id: String,
        wanted: Wanted,
    ) -> Result<Started, ClusterError> {
        let (plan_only, plan_absent) = (wanted != Wanted::Launch, wanted == Wanted::Plan);
        let question =
            proto::LaunchTasksRequest { plan_only, plan_absent, ..wire::request::encode(request, allocation_id) };
        // A second one is another launch: it is asked for when nobody has heard of the first.
        let answer = self
            .patiently(ClusterError::is_unheard, async || {
                let mut service = self.allocations();
                self.ask_within(START_ANSWER, service.launch_tasks(question.clone())).await
            })
            .await?;
        let lease = if answer.lease_ms == 0 { LEASE } else { Duration::from_millis(answer.lease_ms) };
        let placed = match answer.spec {
            Some(spec) => wire::placed::decode(spec).map_err(|error| self.nonsense(error)),
            None => Err(self.nonsense("a launch without its spec")),
        };
        Ok(Started { launch_id: answer.task_launch_id, placed, notes: answer.notes, absent: answer.absent, lease })
    }

    /// Ends a launch; one that has ended is fine.
    ///
    /// # Errors
    /// Fails if there is no such launch, it is not ours, or the API server cannot be reached.
    pub(crate) async fn abort_launch(&self, launch_id: &str, reason: &str) -> Result<(), ClusterError> {
        let request = proto::AbortLaunchRequest { id: launch_id.to_owned(), reason: reason.to_owned() };
        self.ask(self.launches().abort_launch(request)).await.map(drop)
    }

    /// Sends a signal to ranks of a launch; to all for `None`.
    ///
    /// # Errors
    /// Fails if there is no such launch, it is not ours, or the API server cannot be reached.
    pub(crate) async fn signal_launch(
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
