//! Forwards a request to start a launch through a tree of nodes. Each node forwards it to all nodes below it at once, with a shorter time limit
//! than its own. So the node directly above reports a node that does not answer.

use std::sync::Arc;
use std::time::Duration;

use lattice_session::timeouts;
use pmi_transport::connect::{again_if_cut_off, is_refused};
use pmi_transport::fence::{Member, shares};
use pmi_transport::limits::MESSAGE_MAX;
use pmi_transport::proto::v1 as proto;
use proto::node_agent_service_client::NodeAgentServiceClient;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tonic::Status;

use super::Node;
use super::refusal::{Refusal, RefusalReason};
use super::wire;

/// Maximum number of agents with an open connection for the next launch: several times the fan-out of a relay.
pub(super) const AGENTS_MAX: usize = 64;
/// Time for which an unused connection is kept.
pub(super) const AGENT_UNUSED_MAX: Duration = Duration::from_secs(60);

/// Time after the arrival of a request during which its sender waits for the answer.
pub(super) fn time_to_answer(request: &proto::LaunchProcessesRequest) -> Duration {
    match request.answer_within_ms {
        0 => timeouts::start_answer(1),
        milliseconds => Duration::from_millis(milliseconds.into()),
    }
}

/// Forwards `request`, which arrived at `arrived`, and waits until all nodes below have accepted the launch.
///
/// The first refusal counts; the sender of the request then ends the launch on all nodes.
pub(super) async fn pass_on(
    node: &Arc<Node>,
    request: &proto::LaunchProcessesRequest,
    members: &Arc<[Member]>,
    arrived: Instant,
) -> Result<(), Refusal> {
    let (first, count) = (request.node_index.saturating_add(1), request.relay_nodes);
    if u64::from(first) + u64::from(count) > members.len() as u64 {
        let text = format!("the launch was to be passed on to {count} nodes from {first} on; it has {}", members.len());
        return Err(Refusal::of(node, RefusalReason::MalformedRequest, text));
    }
    let deadline = arrived + timeouts::below_relay(time_to_answer(request));
    let answer_within_ms = deadline.saturating_duration_since(Instant::now()).as_millis() as u32;
    let mut calls = JoinSet::new();
    for share in shares(first..first + count, request.relay_fan_out) {
        let (node, members) = (Arc::clone(node), Arc::clone(members));
        // The first node of a share forwards the request to the rest of the share.
        let (node_index, relay_nodes) = (share.start, share.len() as u32 - 1);
        let request = proto::LaunchProcessesRequest { node_index, relay_nodes, answer_within_ms, ..request.clone() };
        calls.spawn(async move { ask(&node, &members[node_index as usize], request, deadline).await });
    }
    let mut first_refusal = Ok(());
    while let Some(answer) = calls.join_next().await {
        if let (Ok(Err(refusal)), Ok(())) = (answer, &first_refusal) {
            first_refusal = Err(refusal);
        }
    }
    first_refusal
}

/// Class of a failed call: no process listens yet at the next agent's port, or the node cannot be reached.
fn fault(status: &Status) -> RefusalReason {
    if is_refused(status) { RefusalReason::Restarting } else { RefusalReason::Unreachable }
}

async fn ask(
    node: &Node,
    member: &Member,
    request: proto::LaunchProcessesRequest,
    deadline: Instant,
) -> Result<(), Refusal> {
    let refusal = |reason, error: &dyn std::fmt::Display| Refusal {
        reason,
        message: format!("{} at {} cannot be reached: {error}", member.name, member.address),
        node_id: member.name.clone(),
    };
    let unreachable = |error: &dyn std::fmt::Display| refusal(RefusalReason::Unreachable, error);
    let channel = node.agents.to(&member.name, &member.address).map_err(|error| unreachable(&error))?;
    let client = NodeAgentServiceClient::new(channel).max_encoding_message_size(MESSAGE_MAX);
    let within = Duration::from_millis(request.answer_within_ms.into());
    let asking = again_if_cut_off(timeouts::AGENT_RESTART, || {
        let (mut client, request) = (client.clone(), request.clone());
        async move { client.launch_processes(request).await }
    });
    let answer = match timeout_at(deadline, asking).await {
        Ok(answer) => answer.map_err(|status| refusal(fault(&status), &status.message()))?.into_inner(),
        Err(_) => return Err(unreachable(&format!("no answer within {within:.1?}"))),
    };
    match wire::refusal::decode(answer, &member.name) {
        // The launch runs there already because this request was sent twice.
        Err(Refusal { reason: RefusalReason::AlreadyRunning, .. }) => Ok(()),
        result => result,
    }
}
