//! Agents that serve only fences, in this process: over TCP like real ones, or in memory.
#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod proxy;
pub(crate) mod sessions;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use pmi_core::ids::NodeIndex;
use pmi_transport::fence::{
    FanOut, FenceNode, Grpc, Incoming, LaunchFences, Limits, Member, Membership, Outgoing, Questions, Transport,
};
use pmi_transport::identity::{Caller, Security, caller_of};
use pmi_transport::listen::{Listener, serve};
use pmi_transport::proto::v1;
use pmi_transport::proto::v1::node_agent_service_server::{NodeAgentService, NodeAgentServiceServer};
use pmi_transport::session_link::SessionLinks;
use tokio::task::AbortHandle;
use tokio_stream::StreamExt;
use tonic::codegen::BoxStream;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

/// Time limit for tests that hang.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// The fence calls of an agent's service.
struct Service(Weak<FenceNode>);

impl Service {
    fn node<T>(&self, request: &Request<T>) -> Result<(Arc<FenceNode>, String), Status> {
        let node = self.0.upgrade().ok_or_else(|| Status::unavailable("the agent has ended"))?;
        match caller_of(request)? {
            Caller::Agent(name) => Ok((node, name.clone())),
            caller => Err(Status::permission_denied(format!("{caller} is no agent"))),
        }
    }
}

#[tonic::async_trait]
impl NodeAgentService for Service {
    async fn retire_vni(&self, _: Request<v1::RetireVniRequest>) -> Result<Response<v1::RetireVniResponse>, Status> {
        Err(Status::unimplemented("this agent has no fabric"))
    }

    async fn list_cxi_services(
        &self,
        _: Request<v1::ListCxiServicesRequest>,
    ) -> Result<Response<v1::ListCxiServicesResponse>, Status> {
        Err(Status::unimplemented("this agent has no fabric"))
    }

    type RelayReportsStream = BoxStream<v1::RelayedReports>;

    async fn relay_reports(
        &self,
        _: Request<Streaming<v1::RelayedCommands>>,
    ) -> Result<Response<Self::RelayReportsStream>, Status> {
        Err(Status::unimplemented("this agent launches nothing"))
    }

    async fn report_directly(
        &self,
        _: Request<v1::ReportDirectlyRequest>,
    ) -> Result<Response<v1::ReportDirectlyResponse>, Status> {
        Err(Status::unimplemented("this agent launches nothing"))
    }

    type LinkStream = BoxStream<v1::LinkFrame>;

    async fn link(&self, request: Request<Streaming<v1::LinkFrame>>) -> Result<Response<Self::LinkStream>, Status> {
        let (node, caller) = self.node(&request)?;
        Ok(Response::new(node.link(&caller, request.into_inner())))
    }

    async fn pmi_fence(&self, request: Request<v1::PmiFenceRequest>) -> Result<Response<v1::PmiFenceResponse>, Status> {
        let (node, caller) = self.node(&request)?;
        node.pmi_fence(&caller, request.into_inner()).await.map(Response::new)
    }

    async fn pmi_fence_complete(
        &self,
        _: Request<v1::PmiFenceCompleteRequest>,
    ) -> Result<Response<v1::PmiFenceCompleteResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn launch_processes(
        &self,
        _: Request<v1::LaunchProcessesRequest>,
    ) -> Result<Response<v1::LaunchProcessesResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn abort_processes(
        &self,
        _: Request<v1::AbortProcessesRequest>,
    ) -> Result<Response<v1::AbortProcessesResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }
}

/// Serves a service of agents at its own port while the runtime lives; returns its address.
pub(crate) async fn serve_agent(name: &str, service: impl NodeAgentService) -> (String, AbortHandle) {
    let security = insecure(name);
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap(), &security).await.unwrap();
    let address = listener.local_address().to_string();
    let routes = Routes::new(NodeAgentServiceServer::new(service));
    let serving = tokio::spawn(async { serve(vec![listener], routes, std::future::pending()).await.unwrap() });
    (address, serving.abort_handle())
}

pub(crate) fn insecure(name: &str) -> Security {
    Security::Insecure { name: Caller::Agent(name.to_owned()) }
}

/// Transport that calls agents of the same process directly.
struct Memory {
    me: String,
    agents: Arc<Mutex<HashMap<String, Weak<FenceNode>>>>,
}

#[async_trait]
impl Transport for Memory {
    async fn link(&self, node: &str, _: &str, outgoing: Outgoing) -> Result<Incoming, Status> {
        let agent = self.agents.lock().unwrap().get(node).and_then(Weak::upgrade);
        let agent = agent.ok_or_else(|| Status::unavailable("no such agent"))?;
        Ok(agent.link(&self.me, outgoing.map(Ok)))
    }

    async fn complete(&self, _: &str, _: &str, _: v1::PmiFenceCompleteRequest) -> Result<(), Status> {
        Err(Status::unimplemented("not in memory"))
    }
}

/// Transport between the agents of a world.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Over {
    Tcp,
    Memory,
    /// Links between sessions.
    Sessions,
}

/// Agents in the order of their nodes. A slot is empty after its agent was killed.
pub(crate) struct World {
    pub(crate) agents: Vec<Option<Arc<FenceNode>>>,
    pub(crate) members: Arc<[Member]>,
    /// Links of each node's session; empty without sessions.
    pub(crate) sessions: Vec<Arc<SessionLinks>>,
    serving: Vec<AbortHandle>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.serving.iter().for_each(AbortHandle::abort);
    }
}

impl World {
    pub(crate) async fn new(nodes: u32, over: Over, limits: Limits) -> Self {
        if let Over::Sessions = over {
            return Self::of_sessions(nodes, limits).await;
        }
        let (mut agents, mut members, mut serving) = (Vec::new(), Vec::new(), Vec::new());
        let directory = Arc::default();
        for name in (0..nodes).map(|node| format!("node{node}")) {
            let transport: Arc<dyn Transport> = match over {
                Over::Tcp => Arc::new(Grpc { security: insecure(&name) }),
                Over::Sessions | Over::Memory => Arc::new(Memory { me: name.clone(), agents: Arc::clone(&directory) }),
            };
            let agent = FenceNode::with_limits(name.clone(), transport, limits);
            let mut address = String::new();
            match over {
                Over::Tcp => {
                    let (served, handle) = serve_agent(&name, Service(Arc::downgrade(&agent))).await;
                    address = served;
                    serving.push(handle);
                }
                Over::Sessions | Over::Memory => {
                    directory.lock().unwrap().insert(name.clone(), Arc::downgrade(&agent));
                }
            }
            members.push(Member { name, address });
            agents.push(Some(agent));
        }
        Self { agents, members: members.into(), sessions: Vec::new(), serving }
    }

    pub(crate) fn agent(&self, node: u32) -> &Arc<FenceNode> {
        self.agents[node as usize].as_ref().expect("a living agent")
    }

    pub(crate) fn join(&self, node: u32, launch: &str, fan_out: FanOut) -> LaunchFences {
        let membership = self.membership(node, launch, fan_out);
        self.agent(node).join(membership, Arc::new(Echo))
    }

    pub(crate) fn membership(&self, node: u32, launch: &str, fan_out: FanOut) -> Membership {
        Membership { launch_id: launch.into(), me: NodeIndex(node), nodes: Arc::clone(&self.members), fan_out }
    }

    pub(crate) fn join_all(&self, launch: &str, fan_out: FanOut) -> Vec<LaunchFences> {
        (0..self.agents.len() as u32).map(|node| self.join(node, launch, fan_out)).collect()
    }

    pub(crate) fn all(&self) -> Vec<NodeIndex> {
        (0..self.agents.len() as u32).map(NodeIndex).collect()
    }

    /// Ends an agent without notice.
    pub(crate) fn kill(&mut self, node: u32) {
        self.agents[node as usize] = None;
        if let Some(serving) = self.serving.get(node as usize) {
            serving.abort();
        }
    }
}

/// Answers a question with its sender and its content.
pub(crate) struct Echo;

#[async_trait]
impl Questions for Echo {
    async fn answer(&self, from: NodeIndex, question: Bytes) -> Result<Bytes, String> {
        match &*question {
            b"never" => std::future::pending().await,
            b"unknown" => Err("nobody knows".into()),
            question => Ok(format!("{from} asked {}", String::from_utf8_lossy(question)).into()),
        }
    }
}
