//! Calls of one agent to another for fences: the interface between links and the network. [`Grpc`] is the real one; tests use one in memory.

use async_trait::async_trait;
use tonic::Status;
use tonic::codegen::BoxStream;

use super::link_queue::Outgoing;
use crate::address::Address;
use crate::connect::{self, Channel};
use crate::identity::{Caller, Security};
use crate::limits::MESSAGE_MAX;
use crate::proto::v1::node_agent_service_client::NodeAgentServiceClient;
use crate::proto::v1::{LinkFrame, PmiFenceCompleteRequest};

/// Frames that the other end of a link sends.
pub type Incoming = BoxStream<LinkFrame>;

/// Calls agents by their names and addresses, written `host:port`.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// Opens a link to the agent of `node`: sends `outgoing` and returns the received frames. The agent at the other end must get this node's
    /// name from the transport, not from a message.
    ///
    /// # Errors
    /// Fails if there is no agent at the address, or if it refuses this one. With `NotFound`, the node has left the launch, which counts as a
    /// normal leave.
    async fn link(&self, node: &str, address: &str, outgoing: Outgoing) -> Result<Incoming, Status>;

    /// Sends the result of a fence to an agent that had an early response. Only for servers of `PmiFence`.
    ///
    /// # Errors
    /// Fails if there is no agent at the address, or if it does not accept the result.
    async fn complete(&self, node: &str, address: &str, request: PmiFenceCompleteRequest) -> Result<(), Status> {
        let PmiFenceCompleteRequest { launch_id, .. } = request;
        Err(Status::unimplemented(format!("{node} at {address} receives fences of launch {launch_id} over its link")))
    }
}

/// Calls agents over gRPC, with the credentials of this one.
#[derive(Clone, Debug)]
pub struct Grpc {
    /// Credentials of this agent.
    pub security: Security,
}

impl Grpc {
    fn client(&self, node: &str, address: &str) -> Result<NodeAgentServiceClient<Channel>, Status> {
        let unreachable = |error: &dyn std::error::Error| Status::unavailable(error.to_string());
        let address: Address = address.parse().map_err(|error| unreachable(&error))?;
        let peer = Caller::Agent(node.to_owned());
        let channel = connect::channel(&address, &peer, &self.security).map_err(|error| unreachable(&error))?;
        Ok(NodeAgentServiceClient::new(channel).max_decoding_message_size(MESSAGE_MAX))
    }
}

#[async_trait]
impl Transport for Grpc {
    async fn link(&self, node: &str, address: &str, outgoing: Outgoing) -> Result<Incoming, Status> {
        let frames = self.client(node, address)?.link(outgoing).await?.into_inner();
        Ok(Box::pin(frames))
    }

    async fn complete(&self, node: &str, address: &str, request: PmiFenceCompleteRequest) -> Result<(), Status> {
        self.client(node, address)?.pmi_fence_complete(request).await.map(drop)
    }
}
