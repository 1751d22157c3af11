//! Calls from the API server to the agents: the request to start a launch, and the request to end it.
//!
//! With few nodes, the API server calls all of them directly, in parallel. With many nodes, it calls relays. Each relay forwards the request to
//! its subtree, the nodes that follow it in node order. The spec is signed, so that a relay cannot forge it.

use pmi_transport::task;
use std::ops::Range;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use lattice_session::timeouts;
use pmi_transport::connect::{self, AgentChannels, reason};
use pmi_transport::fence::{Tree, shares};
use pmi_transport::proto::v1::node_agent_service_client::NodeAgentServiceClient;
use pmi_transport::proto::v1::{
    AbortProcessesRequest, CxiCredentials, LaunchProcessesRequest, LaunchProcessesResponse, RefusalReason,
};
use pmi_transport::signature::Serial;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::Status;

use super::settings::LaunchSettings;
use crate::fabric::NoCredentials;
use crate::launch_id::LaunchId;

/// Name and address of one node of a launch.
#[derive(Clone, Debug)]
pub(crate) struct Recipient {
    pub name: String,
    pub address: String,
}

/// A request to start a launch on its nodes.
#[derive(Clone, Debug)]
pub(crate) struct FanOut {
    pub launch_id: LaunchId,
    pub allocation_id: String,
    pub nodes: Vec<Recipient>,
    pub world_size: u32,
    /// The `LaunchSpec`.
    pub spec: Bytes,
    /// The serial number of the signature.
    pub serial: Serial,
    /// The API server's signature of the spec, and its certificates.
    pub signature: Bytes,
    pub signer: Vec<Bytes>,
    /// Fabric credentials of the ranks; `None` if no fabric needs credentials.
    pub credentials: Option<SignedCredentials>,
    /// True if the nodes' reports are collected through the relays that forward the launch.
    pub relays_reports: bool,
}

/// Fabric credentials, as sent to the nodes of one launch.
#[derive(Clone, Debug)]
pub(crate) struct SignedCredentials {
    pub credentials: CxiCredentials,
    /// The API server's signature of the credentials for this launch.
    pub signature: Bytes,
}

/// Credentials that are being obtained. A launch that waits for them counts as a launch with a task. For this reason, its allocation is not
/// released in the meantime.
pub(crate) type CredentialsToCome = Pin<Box<dyn Future<Output = Result<SignedCredentials, NoCredentials>> + Send>>;

/// Reason why a launch is not started.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum NotStarted {
    /// A node refuses to take part.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The launch has no access to the fabric. No node was asked.
    #[error(transparent)]
    NoCredentials(#[from] NoCredentials),
}

impl NotStarted {
    /// The node at fault (empty if there is none) and the reason, for the record of the launch.
    pub(crate) fn blame(&self) -> (&str, String) {
        match self {
            Self::Refused(refusal) => (&refusal.node, refusal.message.clone()),
            Self::NoCredentials(error) => ("", error.to_string()),
        }
    }

    /// Returns true if the same launch may succeed later, or on other nodes.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Refused(refusal) => refusal.may_pass(),
            Self::NoCredentials(error) => error.may_pass(),
        }
    }

    /// Returns true if a part of the launch may run on a node that was to take part: on any node except one that refused it.
    pub(crate) fn may_run_on(&self, node: &str) -> bool {
        match self {
            Self::Refused(refusal) => refusal.reason == RefusalReason::Unreachable || refusal.node != node,
            Self::NoCredentials(_) => false,
        }
    }
}

/// The refusal of a node to take part in a launch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("node {node} does not start its part of the launch: {message}")]
pub(crate) struct Refusal {
    pub node: String,
    pub message: String,
    pub reason: RefusalReason,
}

impl Refusal {
    /// Returns true if the state of the node is the cause, and not the content of the request.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self.reason, RefusalReason::Unreachable | RefusalReason::Busy | RefusalReason::Restarting)
    }

    /// Returns true if the node's agent was being replaced: the same launch may succeed in a moment.
    pub(crate) fn is_of_restart(&self) -> bool {
        self.reason == RefusalReason::Restarting
    }
}

/// The nodes of each request. The first node of a part forwards the request to the other nodes of the part.
pub(super) fn parts(nodes: usize, settings: &LaunchSettings) -> impl Iterator<Item = Range<u32>> {
    let nodes = nodes as u32;
    shares(0..nodes, if nodes <= settings.relay_above { nodes } else { settings.relay_fan_out })
}

/// Time limit for the nodes of a part to accept.
fn answer_within(part: &Range<u32>, settings: &LaunchSettings) -> Duration {
    // Relays divide their subtree in the same way as the tree of a fence.
    let tree = Tree::new(part.len() as u32, settings.relay_fan_out);
    timeouts::start_answer(tree.depth())
}

impl FanOut {
    /// Asks all nodes to start the launch. Returns when all nodes have answered. If a node has not accepted, all nodes that may have accepted
    /// are sent an abort.
    ///
    /// # Errors
    /// Returns the first refusal.
    pub(crate) async fn run(&self, channels: &AgentChannels, settings: &LaunchSettings) -> Result<(), Refusal> {
        let mut calls = JoinSet::new();
        for part in parts(self.nodes.len(), settings) {
            let first = self.nodes[part.start as usize].clone();
            calls.spawn(task::boxed(call(channels.clone(), first, self.request(&part, settings))));
        }
        let mut refusal: Option<Refusal> = None;
        while let Some(answer) = calls.join_next().await {
            // Calls are not cancelled and do not panic.
            if let Ok(Err(refused)) = answer {
                refusal.get_or_insert(refused);
            }
        }
        let Some(refusal) = refusal else { return Ok(()) };
        let why = refusal.to_string();
        let abort = |node: &Recipient| abort(channels.clone(), node.clone(), self.launch_id.clone(), why.clone(), 0);
        let (refusing, others): (Vec<_>, Vec<_>) = self.nodes.iter().partition(|node| node.name == refusal.node);
        if refusal.reason == RefusalReason::Unreachable {
            // The node may have received the request. The abort runs in the background.
            refusing.into_iter().map(abort).for_each(|abort| drop(task::spawn(abort)));
        }
        others.into_iter().map(abort).collect::<JoinSet<()>>().join_all().await;
        Err(refusal)
    }

    /// Opens the connections to the nodes that will be asked, unless they exist. Returns at once: a later call uses the open connection, or
    /// waits for it.
    pub(crate) fn make_way(&self, channels: &AgentChannels, settings: &LaunchSettings) {
        let heads = parts(self.nodes.len(), settings).map(|part| &self.nodes[part.start as usize]);
        for channel in heads.filter_map(|node| channels.not_yet_to(&node.name, &node.address)) {
            task::spawn(connect::reach(channel));
        }
    }

    fn request(&self, part: &Range<u32>, settings: &LaunchSettings) -> LaunchProcessesRequest {
        let relay_nodes = part.len() as u32 - 1;
        LaunchProcessesRequest {
            launch_id: self.launch_id.to_string(),
            allocation_id: self.allocation_id.clone(),
            world_size: self.world_size,
            spec: self.spec.clone(),
            node_index: part.start,
            relay_nodes,
            relay_fan_out: if relay_nodes == 0 { 0 } else { settings.relay_fan_out },
            signature: self.signature.clone(),
            signer: self.signer.clone(),
            cxi_credentials: self.credentials.as_ref().map(|signed| signed.credentials.clone()),
            cxi_signature: self.credentials.as_ref().map(|signed| signed.signature.clone()).unwrap_or_default(),
            serial: self.serial.0,
            answer_within_ms: answer_within(part, settings).as_millis() as u32,
            relays_reports: self.relays_reports,
            ..Default::default()
        }
    }
}

async fn call(channels: AgentChannels, node: Recipient, request: LaunchProcessesRequest) -> Result<(), Refusal> {
    let refusal = |reason, message: String| Refusal { node: node.name.clone(), message, reason };
    let unreachable = |message: String| refusal(RefusalReason::Unreachable, message);
    let channel = channels
        .to(&node.name, &node.address)
        .map_err(|error| unreachable(pmi_transport::error_chain::chain(&error)))?;
    let limit = Duration::from_millis(request.answer_within_ms.into());
    let client = NodeAgentServiceClient::new(channel);
    let ask = || {
        let (mut client, request) = (client.clone(), request.clone());
        async move { client.launch_processes(request).await }
    };
    let answer = timeout(limit, connect::again_if_cut_off(timeouts::AGENT_RESTART, ask)).await;
    let answer = answer.map_err(|_| unreachable(format!("no answer for {limit:?}")))?;
    accepted(&node, answer.map_err(|status| refusal(fault(&status), reason(&status)))?.into_inner())
}

/// Class of a call's failure: the agent's port refuses connections because the agent is being replaced, or the node is unreachable.
fn fault(status: &Status) -> RefusalReason {
    if connect::is_refused(status) { RefusalReason::Restarting } else { RefusalReason::Unreachable }
}

fn accepted(node: &Recipient, answer: LaunchProcessesResponse) -> Result<(), Refusal> {
    let reason = answer.reason();
    if answer.accepted || reason == RefusalReason::AlreadyRunning {
        return Ok(());
    }
    let node = if answer.node_id.is_empty() { node.name.clone() } else { answer.node_id };
    let message = if answer.message.is_empty() { words(reason).to_owned() } else { answer.message };
    Err(Refusal { node, message, reason })
}

/// Default message for a refusal without a message.
fn words(reason: RefusalReason) -> &'static str {
    match reason {
        RefusalReason::Unspecified => "it gives no reason",
        RefusalReason::Busy => "it takes no launches at present",
        RefusalReason::UnsupportedCapability => "it cannot do what is asked for",
        RefusalReason::MalformedRequest => "it does not understand the request",
        RefusalReason::AlreadyRunning => "the launch runs there already",
        RefusalReason::User => "the user may not start processes there",
        RefusalReason::Signature => "it does not trust the launch's signature",
        RefusalReason::Unreachable => "a node below it cannot be reached",
        RefusalReason::Restarting => "its agent is being replaced",
    }
}

/// Notifies a node that a launch has ended. The node begins with `signal`. A node that does not respond receives the notice when its agent
/// registers again.
pub(crate) async fn abort(channels: AgentChannels, node: Recipient, launch_id: LaunchId, reason: String, signal: i32) {
    let Ok(channel) = channels.to(&node.name, &node.address) else { return };
    let request = AbortProcessesRequest { launch_id: launch_id.to_string(), reason, signal };
    let answer = timeout(timeouts::ABORT_ANSWER, NodeAgentServiceClient::new(channel).abort_processes(request)).await;
    if !matches!(answer, Ok(Ok(_))) {
        tracing::info!(launch = %launch_id, node = node.name, "a node could not be notified of the end of the launch");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_is_asked_once() {
        let settings = LaunchSettings { relay_above: 4, relay_fan_out: 3, ..Default::default() };
        let check = |nodes, expected: &[Range<u32>]| {
            assert_eq!(parts(nodes, &settings).collect::<Vec<_>>(), expected);
        };
        check(2, &[0..1, 1..2]);
        check(4, &[0..1, 1..2, 2..3, 3..4]);
        check(5, &[0..2, 2..4, 4..5]);
        check(10, &[0..4, 4..7, 7..10]);
    }

    #[test]
    fn a_refusal_names_the_node_and_what_it_said() {
        let node = Recipient { name: "relay".to_owned(), address: String::new() };
        let answer = |reason: RefusalReason, node_id: &str, message: &str| LaunchProcessesResponse {
            accepted: false,
            message: message.to_owned(),
            reason: reason.into(),
            node_id: node_id.to_owned(),
        };
        let check = |answer, expected: &str| {
            let text = accepted(&node, answer).map_err(|refusal| refusal.to_string());
            assert_eq!(text.unwrap_err(), format!("node {expected}"));
        };
        check(
            answer(RefusalReason::Busy, "", ""),
            "relay does not start its part of the launch: it takes no launches at present",
        );
        check(answer(RefusalReason::User, "n7", "no uid 7"), "n7 does not start its part of the launch: no uid 7");
        assert_eq!(accepted(&node, answer(RefusalReason::AlreadyRunning, "", "")), Ok(()));
    }
}
