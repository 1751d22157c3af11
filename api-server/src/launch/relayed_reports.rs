//! Reports of many nodes in few messages: a relay of a launch delivers the reports of itself and of its subtree.
//!
//! ```text
//!                     ┌─ reports ──> ReportStream of node 8 ──┐
//! relay ──stream──> ──┼─ reports ──> ReportStream of node 9 ──┼──> the launch
//!       <──messages── └─ ...                               <──┘
//! ```
//!
//! The part of each node is handled like a stream of its own. The part ends when the server must send the node a command that a relay may not
//! deliver ([`may_come`]). The node then opens a stream of its own. While a relay's stream lasts, nodes below an offline node are ordered to
//! open streams of their own: their connections to it may take longer to break.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use lattice_session::timeouts;
use lattice_session::wire::report_relay::may_come;
use parking_lot::Mutex;
use pmi_core::ids::NodeIndex;
use pmi_transport::connect::AgentChannels;
use pmi_transport::fence::Tree;
use pmi_transport::limits::{MESSAGE_MAX, RELAYED_MAX};
use pmi_transport::proto::v1 as proto;
use pmi_transport::task;
use proto::node_agent_service_client::NodeAgentServiceClient;
use proto::relayed_command::What as Command;
use proto::relayed_report::What as Report;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, interval_at, timeout};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Response, Status, Streaming};

use super::LaunchHandle;
use super::fan_out::Recipient;
use super::report_stream::{ReportStream, TO_NODE};
use crate::launch_id::LaunchId;
use crate::metrics::Metrics;
use crate::nodes::Registry;

/// Number of a node's reports that wait to be processed by the launch.
const REPORTS: usize = 16;

/// The largest number of commands in one message, and of commands that wait to be sent.
const TOGETHER: usize = 256;

/// The reports of a relay and of its subtree.
pub(super) struct RelayedReports {
    pub(super) launch: LaunchHandle,
    pub(super) launch_id: LaunchId,
    /// The relay, followed by its subtree.
    pub(super) part: Range<u32>,
    /// Number of nodes to which a relay forwards.
    pub(super) fan_out: u32,
    /// All nodes of the launch.
    pub(super) nodes: Arc<[Recipient]>,
    pub(super) channels: AgentChannels,
    pub(super) registry: Arc<Mutex<Registry>>,
    pub(super) metrics: Arc<Metrics>,
}

impl RelayedReports {
    /// Collects the reports until all nodes have completed them, or the relay is gone.
    pub(super) async fn fetch(self) {
        let (tell, told) = mpsc::channel(TOGETHER);
        let stream = match self.open(told).await {
            Ok(stream) => stream,
            // The nodes wait only a moment for the relay, and then report on their own.
            Err(status) => return self.note(&status),
        };
        if let Err(status) = self.take(stream, Streams { tell, by_node: HashMap::new() }).await {
            self.note(&status);
        }
    }

    fn note(&self, status: &Status) {
        let relay = &self.nodes[self.part.start as usize].name;
        tracing::info!(relay, "nodes report for themselves: {}", status.message());
    }

    async fn open(
        &self,
        told: mpsc::Receiver<proto::RelayedCommand>,
    ) -> Result<Streaming<proto::RelayedReports>, Status> {
        let mut client = self.client(NodeIndex(self.part.start))?;
        let (sender, messages) = mpsc::channel(1);
        task::spawn(put_together(self.launch_id.clone(), told, sender));
        match timeout(timeouts::HOP, client.relay_reports(ReceiverStream::new(messages))).await {
            Ok(opened) => opened.map(Response::into_inner),
            Err(_) => Err(Status::deadline_exceeded("the relay does not answer")),
        }
    }

    fn client(&self, node: NodeIndex) -> Result<NodeAgentServiceClient<pmi_transport::connect::Channel>, Status> {
        let Recipient { name, address } = &self.nodes[node.index()];
        let channel = self.channels.to(name, address).map_err(|error| Status::unavailable(error.to_string()))?;
        let client = NodeAgentServiceClient::new(channel);
        Ok(client.max_decoding_message_size(RELAYED_MAX).max_encoding_message_size(MESSAGE_MAX))
    }

    async fn take(&self, mut stream: Streaming<proto::RelayedReports>, mut streams: Streams) -> Result<(), Status> {
        // The nodes have just answered, so the first check can wait.
        let mut look = interval_at(Instant::now() + timeouts::HEARTBEAT, timeouts::HEARTBEAT);
        let mut told_directly = HashSet::new();
        loop {
            tokio::select! {
                message = stream.message() => {
                    let Some(message) = message? else { return Ok(()) };
                    self.metrics.count_report_message();
                    for report in message.reports {
                        self.take_one(report, &mut streams).await;
                    }
                }
                _ = look.tick() => {
                    for node in self.behind_away().into_iter().filter(|&node| told_directly.insert(node)) {
                        self.tell_directly(node);
                    }
                }
            }
        }
    }

    async fn take_one(&self, report: proto::RelayedReport, streams: &mut Streams) {
        let node = NodeIndex(report.node_index);
        match report.what {
            Some(Report::Report(proto::LaunchReport { what: Some(proto::launch_report::What::Of(of)) })) => {
                let is_of_node =
                    of.launch_id == *self.launch_id && of.node_index == node.0 && self.part.contains(&node.0);
                let opened = match is_of_node {
                    true => ReportStream::of(self.launch.clone(), &of),
                    false => Err(Status::invalid_argument("it is the report of another node")),
                };
                streams.open(node, opened).await;
            }
            Some(Report::Report(report)) => streams.pass_on(node, report).await,
            Some(Report::Left(_)) | None => drop(streams.by_node.remove(&node)),
        }
    }

    /// The nodes that cannot report through relays, because they are below an offline node.
    fn behind_away(&self) -> Vec<NodeIndex> {
        let (first, tree) = (self.part.start, Tree::new(self.part.len() as u32, self.fan_out));
        let registry = self.registry.lock();
        let is_away = |&node: &u32| registry.up(&self.nodes[node as usize].name).is_none();
        let behind = |node| tree.branch(node - first).skip(1).map(|position| NodeIndex(first + position));
        self.part.clone().filter(is_away).flat_map(behind).collect()
    }

    /// Orders a node to report on its own. A node that does not respond is offline, too.
    fn tell_directly(&self, node: NodeIndex) {
        let Ok(mut client) = self.client(node) else { return };
        let request = proto::ReportDirectlyRequest { launch_id: self.launch_id.to_string() };
        task::spawn(async move { drop(timeout(timeouts::ABORT_ANSWER, client.report_directly(request)).await) });
    }
}

/// The streams of nodes that report through one relay.
struct Streams {
    tell: mpsc::Sender<proto::RelayedCommand>,
    by_node: HashMap<NodeIndex, Part>,
}

/// One node's part of a relay's stream.
struct Part {
    reports: mpsc::Sender<Result<proto::LaunchReport, Status>>,
    giving: AbortHandle,
}

impl Drop for Part {
    fn drop(&mut self) {
        // The message that the command task sends at its end would count as the acknowledgement of a report.
        self.giving.abort();
    }
}

impl Streams {
    /// Begins a node's part, or sends the node the reason of the refusal.
    async fn open(&mut self, node: NodeIndex, opened: Result<ReportStream, Status>) {
        let stream = match opened {
            Ok(stream) => stream,
            Err(status) => return drop(self.tell.send(end(node, &status)).await),
        };
        let (reports, reported) = mpsc::channel(REPORTS);
        let broken = Err(Status::unavailable("the relay is gone"));
        let reported = ReceiverStream::new(reported).chain(tokio_stream::once(broken));
        let (sender, commands) = mpsc::channel(TO_NODE);
        task::spawn(stream.run(reported, sender));
        let giving = task::spawn(give(node, commands, self.tell.clone())).abort_handle();
        self.by_node.insert(node, Part { reports, giving });
    }

    async fn pass_on(&self, node: NodeIndex, report: proto::LaunchReport) {
        let Some(part) = self.by_node.get(&node) else { return };
        // If its stream has ended, the node is being sent the reason.
        let _ = part.reports.send(Ok(report)).await;
    }
}

/// Sends a node its commands, up to the first command that a relay may not deliver.
async fn give(
    node: NodeIndex,
    mut commands: mpsc::Receiver<Result<proto::NodeCommand, Status>>,
    tell: mpsc::Sender<proto::RelayedCommand>,
) {
    let status = loop {
        match commands.recv().await {
            Some(Ok(command)) if may_come(&command) => {
                let command = proto::RelayedCommand { node_index: node.0, what: Some(Command::Command(command)) };
                if tell.send(command).await.is_err() {
                    return;
                }
            }
            Some(Ok(_)) => break Status::aborted("the API server has a message that no relay carries"),
            Some(Err(status)) => break status,
            None => break Status::ok(""),
        }
    };
    let _ = tell.send(end(node, &status)).await;
}

fn end(node: NodeIndex, status: &Status) -> proto::RelayedCommand {
    let end = proto::StreamEnd { code: status.code().into(), message: status.message().to_owned() };
    proto::RelayedCommand { node_index: node.0, what: Some(Command::End(end)) }
}

/// Sends the relay the pending commands for its nodes, merged into messages.
async fn put_together(
    launch_id: LaunchId,
    mut told: mpsc::Receiver<proto::RelayedCommand>,
    messages: mpsc::Sender<proto::RelayedCommands>,
) {
    let mut message = proto::RelayedCommands { launch_id: launch_id.into(), commands: Vec::new() };
    loop {
        if messages.send(std::mem::take(&mut message)).await.is_err()
            || told.recv_many(&mut message.commands, TOGETHER).await == 0
        {
            return;
        }
    }
}
