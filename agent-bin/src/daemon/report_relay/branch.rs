//! Stream to a node that this node forwarded the launch to: the reports of that node and of the nodes below it.

use std::ops::Range;

use lattice_session::timeouts;
use pmi_transport::connect::Channel;
use pmi_transport::limits::{MESSAGE_MAX, RELAYED_MAX};
use pmi_transport::proto::v1 as proto;
use proto::node_agent_service_client::NodeAgentServiceClient;
use proto::relayed_report::What;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::super::Node;
use super::{MESSAGES, Relayed};

/// Nodes below this one, and the messages to them.
pub(super) struct Branch {
    pub(super) nodes: Range<u32>,
    /// `None` after the branch was given up.
    pub(super) messages: Option<mpsc::Sender<proto::RelayedCommands>>,
}

impl Branch {
    /// Creates a branch, and the stream of its messages. The first message names the launch.
    pub(super) fn new(launch_id: &str, nodes: Range<u32>) -> (Self, ReceiverStream<proto::RelayedCommands>) {
        let (messages, stream) = mpsc::channel(MESSAGES);
        let first = proto::RelayedCommands { launch_id: launch_id.to_owned(), commands: Vec::new() };
        // The channel has room for its first message.
        let _ = messages.try_send(first);
        (Self { nodes, messages: Some(messages) }, ReceiverStream::new(stream))
    }
}

/// Forwards the reports of a branch until all its nodes have finished, or the branch breaks: its nodes then open their own streams.
pub(super) async fn pass_on(
    channel: Option<Channel>,
    nodes: Range<u32>,
    messages: ReceiverStream<proto::RelayedCommands>,
    reports: mpsc::Sender<Vec<proto::RelayedReport>>,
) {
    let opened = match channel {
        Some(channel) => open(channel, messages).await,
        None => Err(Status::unavailable("its address cannot be used")),
    };
    let result = match opened {
        Ok(stream) => take(stream, &nodes, &reports).await,
        Err(status) => Err(status),
    };
    if let Err(status) = result {
        tracing::info!(
            first = nodes.start,
            last = nodes.end - 1,
            "reports of nodes are not relayed: {}",
            status.message()
        );
        let left = |node_index| proto::RelayedReport { node_index, what: Some(What::Left(proto::Nothing {})) };
        let _ = reports.send(nodes.map(left).collect()).await;
    }
}

/// The channel to the first node of a branch; `None` if its address is not usable.
pub(super) fn channel(node: &Node, relayed: &Relayed, first: u32) -> Option<Channel> {
    let member = &relayed.members[first as usize];
    node.agents.to(&member.name, &member.address).ok()
}

async fn open(
    channel: Channel,
    messages: ReceiverStream<proto::RelayedCommands>,
) -> Result<Streaming<proto::RelayedReports>, Status> {
    let mut client = NodeAgentServiceClient::new(channel)
        .max_decoding_message_size(RELAYED_MAX)
        .max_encoding_message_size(MESSAGE_MAX);
    match timeout(timeouts::HOP, client.relay_reports(messages)).await {
        Ok(opened) => opened.map(tonic::Response::into_inner),
        Err(_) => Err(Status::deadline_exceeded("no answer")),
    }
}

async fn take(
    mut stream: Streaming<proto::RelayedReports>,
    nodes: &Range<u32>,
    reports: &mpsc::Sender<Vec<proto::RelayedReport>>,
) -> Result<(), Status> {
    while let Some(message) = stream.message().await? {
        if let Some(foreign) = message.reports.iter().find(|report| !nodes.contains(&report.node_index)) {
            let text = format!("it sends for node {}, which is not below it", foreign.node_index);
            return Err(Status::invalid_argument(text));
        }
        if reports.send(message.reports).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}
