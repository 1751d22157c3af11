//! A server that returns the identity of its callers, and its client.
#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod cluster;

use std::time::Duration;

use pmi_transport::address::Address;
use pmi_transport::connect::Channel;
use pmi_transport::identity::{Security, caller_of};
use pmi_transport::listen::{ListenError, Listener, serve};
use pmi_transport::proto::v1;
use pmi_transport::proto::v1::node_service_client::NodeServiceClient;
use pmi_transport::proto::v1::node_service_server::{NodeService, NodeServiceServer};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

/// Time limit for tests that hang; no call here takes long.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Answers a list of nodes with one node, which has the name of the caller.
struct Mirror;

#[tonic::async_trait]
impl NodeService for Mirror {
    type ReportLaunchStream = ReceiverStream<Result<v1::NodeCommand, Status>>;

    async fn list_nodes(
        &self,
        request: Request<v1::ListNodesRequest>,
    ) -> Result<Response<v1::ListNodesResponse>, Status> {
        let id = caller_of(&request)?.to_string();
        let nodes = vec![v1::Node { id, ..v1::Node::default() }];
        Ok(Response::new(v1::ListNodesResponse { nodes, ..v1::ListNodesResponse::default() }))
    }

    async fn heartbeat(&self, _: Request<v1::HeartbeatRequest>) -> Result<Response<v1::HeartbeatResponse>, Status> {
        Ok(Response::new(v1::HeartbeatResponse::default()))
    }

    async fn drain_nodes(&self, _: Request<v1::DrainNodesRequest>) -> Result<Response<v1::DrainNodesResponse>, Status> {
        Err(Status::unimplemented("the mirror has no such call"))
    }

    async fn resume_nodes(
        &self,
        _: Request<v1::ResumeNodesRequest>,
    ) -> Result<Response<v1::ResumeNodesResponse>, Status> {
        Err(Status::unimplemented("the mirror has no such call"))
    }

    /// A stream that lasts as long as the request stream.
    async fn report_launch(
        &self,
        request: Request<Streaming<v1::LaunchReport>>,
    ) -> Result<Response<Self::ReportLaunchStream>, Status> {
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        tokio::spawn(async move {
            let mut reports = request.into_inner();
            while let Ok(Some(_)) = reports.message().await {}
            drop(sender);
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn register_node(
        &self,
        _: Request<v1::RegisterNodeRequest>,
    ) -> Result<Response<v1::RegisterNodeResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn renew_certificate(
        &self,
        _: Request<v1::RenewCertificateRequest>,
    ) -> Result<Response<v1::RenewCertificateResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn call_name(&self, _: Request<v1::NameRequest>) -> Result<Response<v1::NameAnswer>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn spawn_tasks(&self, _: Request<v1::SpawnRequest>) -> Result<Response<v1::SpawnAnswer>, Status> {
        Err(Status::unimplemented("not here"))
    }

    type ProxyUserStream = tonic::codegen::BoxStream<v1::ProxiedBytes>;

    async fn proxy_user(
        &self,
        _: Request<Streaming<v1::ProxiedBytes>>,
    ) -> Result<Response<Self::ProxyUserStream>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn meet_launches(&self, _: Request<v1::MeetRequest>) -> Result<Response<v1::MeetAnswer>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn pass_to_set(&self, _: Request<v1::PassRequest>) -> Result<Response<v1::SetPass>, Status> {
        Err(Status::unimplemented("not here"))
    }
}

/// A server that runs until it is stopped.
pub(crate) struct Running {
    pub(crate) address: Address,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<Result<(), ListenError>>,
}

impl Running {
    /// Serves at `address`.
    pub(crate) async fn start(address: &str, security: &Security) -> Self {
        Self::serve(Listener::bind(&address.parse().unwrap(), security).await.unwrap())
    }

    /// Serves daemons at `address`, like an agent.
    pub(crate) async fn start_for_daemons(address: &str, security: &Security) -> Self {
        Self::serve(Listener::bind(&address.parse().unwrap(), security).await.unwrap().for_daemons())
    }

    fn serve(listener: Listener) -> Self {
        let (stop, stopped) = oneshot::channel();
        let address = listener.local_address();
        let services = Routes::new(NodeServiceServer::new(Mirror));
        let serving = tokio::spawn(serve(vec![listener], services, async {
            let _ = stopped.await;
        }));
        Self { address, stop, serving }
    }

    /// Stops it, and waits for its end.
    pub(crate) async fn stop(self) {
        self.stop.send(()).unwrap();
        tokio::time::timeout(DEADLINE, self.serving).await.unwrap().unwrap().unwrap();
    }
}

/// Asks the server at the other end of `channel` for our identity.
pub(crate) async fn who_am_i(channel: &Channel) -> Result<String, Status> {
    let asked = tokio::time::timeout(DEADLINE, async {
        NodeServiceClient::new(channel.clone()).list_nodes(v1::ListNodesRequest {}).await
    });
    let nodes = asked.await.expect("an answer within the deadline")?.into_inner().nodes;
    Ok(nodes[0].id.clone())
}
