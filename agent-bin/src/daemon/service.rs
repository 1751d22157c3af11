//! gRPC service of the agent.

use std::sync::Arc;

use cxi_fabric::Vni;
use nix::libc::SIGTERM;
use pmi_transport::identity::{Caller, caller_of};
use pmi_transport::proto::v1 as proto;
use proto::LinkFrame;
use proto::node_agent_service_server::NodeAgentService;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status, Streaming, async_trait};

use super::admission::admit;
use super::ending::Ending;
use super::launches::{Handle, LaunchOrder, NotTaken};
use super::refusal::{Refusal, RefusalReason};
use super::report_relay::Relayed;
use super::wire::launch_request::Received;
use super::{Node, launch, relay, report_relay, wire};

/// The agent as a gRPC server. The caller's role was checked before.
pub(super) struct Service {
    pub(super) node: Arc<Node>,
}

impl Service {
    /// Starts a launch on this node and on the nodes below. Must not be cancelled: a launch that was entered must be removed.
    async fn launch(node: &Arc<Node>, caller: &Caller, request: &Received) -> Result<(), Refusal> {
        let arrived = Instant::now();
        let admitted = admit(node, caller, request).await?;
        if arrived.elapsed() >= relay::time_to_answer(request.message()) {
            let text = format!(
                "it needed {:.1} s to admit the launch, too long for its client",
                arrived.elapsed().as_secs_f64()
            );
            return Err(Refusal::of(node, RefusalReason::Busy, text));
        }
        let assignment = &admitted.assignment;
        let (orders, ordered) = mpsc::unbounded_channel();
        let (relayed, offers) = Relayed::of(caller, request.message(), &assignment.members).unzip();
        let handle = Handle::new(assignment, orders, relayed);
        node.launches.enter(&assignment.launch_id, handle.clone()).map_err(|not_taken| {
            let (reason, text) = match not_taken {
                NotTaken::Running => (RefusalReason::AlreadyRunning, "the launch runs here already"),
                NotTaken::Ended => (RefusalReason::MalformedRequest, "the launch was here, and has ended"),
                NotTaken::GivenUp => (RefusalReason::Busy, "the launch was given up before this node had taken it"),
                NotTaken::Stopping => (RefusalReason::Restarting, "the agent is stopping"),
            };
            Refusal::of(node, reason, text)
        })?;
        let passing_on = relay::pass_on(node, request.message(), &assignment.members, arrived);
        let (started, passed_on) = tokio::join!(launch::start(node, &admitted, ordered, offers), passing_on);
        if started.is_ok() && passed_on.is_err() {
            // The caller ends the launch on the nodes that accepted it. This node ends it without an order.
            handle.order(LaunchOrder::End(Ending::Kill(SIGTERM)));
        }
        started.and(passed_on)
    }

    /// The relayed part of a launch.
    fn relayed(&self, launch_id: &str) -> Result<Arc<Relayed>, Status> {
        let relayed = self.node.launches.get(launch_id).and_then(|launch| launch.relayed);
        relayed.ok_or_else(|| Status::not_found(format!("no reports of launch {launch_id} are relayed here")))
    }

    /// Name of the calling agent.
    fn agent<T>(request: &Request<T>) -> Result<String, Status> {
        match caller_of(request)? {
            Caller::Agent(name) => Ok(name.clone()),
            other => Err(Status::permission_denied(format!("{other} takes part in no fence; agents do"))),
        }
    }
}

#[async_trait]
impl NodeAgentService for Service {
    async fn launch_processes(
        &self,
        request: Request<proto::LaunchProcessesRequest>,
    ) -> Result<Response<proto::LaunchProcessesResponse>, Status> {
        let caller = caller_of(&request)?.clone();
        let (node, request) = (Arc::clone(&self.node), Received::new(request.into_inner()));
        // The caller may disconnect at any time, which cancels this call.
        let launching = tokio::spawn(async move {
            let result = Self::launch(&node, &caller, &request).await;
            if let Err(Refusal { message, node_id, .. }) = &result {
                node.metrics.refused.inc();
                tracing::warn!(launch = request.launch_id(), node = node_id, "refused: {message}");
            }
            wire::refusal::encode(result)
        });
        launching.await.map(Response::new).map_err(|error| Status::internal(error.to_string()))
    }

    async fn abort_processes(
        &self,
        request: Request<proto::AbortProcessesRequest>,
    ) -> Result<Response<proto::AbortProcessesResponse>, Status> {
        let caller = caller_of(&request)?.clone();
        let proto::AbortProcessesRequest { launch_id, reason, signal } = request.into_inner();
        if let Some(launch) = self.node.launches.get(&launch_id) {
            if let Caller::Agent(name) = &caller
                && !launch.nodes.contains(name)
            {
                return Err(Status::permission_denied(format!("{caller} takes no part in launch {launch_id}")));
            }
            tracing::info!(launch = launch_id, "{caller} ends it: {reason}");
            launch.order(LaunchOrder::End(wire::ending::decode_signal(signal)));
            // The node that fetches its reports may never do so.
            launch.relayed.inspect(|relayed| relayed.report_directly());
        } else if caller == Caller::Api {
            self.node.launches.give_up(&launch_id);
        }
        Ok(Response::new(proto::AbortProcessesResponse {}))
    }

    async fn pmi_fence(
        &self,
        request: Request<proto::PmiFenceRequest>,
    ) -> Result<Response<proto::PmiFenceResponse>, Status> {
        let agent = Self::agent(&request)?;
        self.node.fences.pmi_fence(&agent, request.into_inner()).await.map(Response::new)
    }

    async fn pmi_fence_complete(
        &self,
        request: Request<proto::PmiFenceCompleteRequest>,
    ) -> Result<Response<proto::PmiFenceCompleteResponse>, Status> {
        let agent = Self::agent(&request)?;
        self.node.fences.pmi_fence_complete(&agent, request.into_inner()).await.map(Response::new)
    }

    async fn retire_vni(
        &self,
        request: Request<proto::RetireVniRequest>,
    ) -> Result<Response<proto::RetireVniResponse>, Status> {
        let vni = Vni::new(request.into_inner().vni).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let left = self.node.fabric.retire(vni).await.err();
        Ok(Response::new(proto::RetireVniResponse { clear: left.is_none(), left: left.unwrap_or_default() }))
    }

    async fn list_cxi_services(
        &self,
        _: Request<proto::ListCxiServicesRequest>,
    ) -> Result<Response<proto::ListCxiServicesResponse>, Status> {
        Ok(Response::new(lattice_session::wire::cxi::encode(self.node.fabric.list().await)))
    }

    type RelayReportsStream = ReceiverStream<Result<proto::RelayedReports, Status>>;

    async fn relay_reports(
        &self,
        request: Request<Streaming<proto::RelayedCommands>>,
    ) -> Result<Response<Self::RelayReportsStream>, Status> {
        let caller = caller_of(&request)?.clone();
        let mut messages = request.into_inner();
        let launch_id = messages.message().await?.unwrap_or_default().launch_id;
        let relayed = self.relayed(&launch_id)?;
        relayed.check(&caller)?;
        Ok(Response::new(report_relay::relay(Arc::clone(&self.node), launch_id, relayed, messages)))
    }

    async fn report_directly(
        &self,
        request: Request<proto::ReportDirectlyRequest>,
    ) -> Result<Response<proto::ReportDirectlyResponse>, Status> {
        self.relayed(&request.into_inner().launch_id)?.report_directly();
        Ok(Response::new(proto::ReportDirectlyResponse {}))
    }

    type LinkStream = BoxStream<LinkFrame>;

    async fn link(&self, request: Request<Streaming<LinkFrame>>) -> Result<Response<Self::LinkStream>, Status> {
        let agent = Self::agent(&request)?;
        Ok(Response::new(self.node.fences.link(&agent, request.into_inner())))
    }
}
