//! The request to an agent to confirm that nothing of a VNI is left on its node.

use lattice_session::timeouts::RETIRE_ANSWER;
use pmi_transport::connect::{AgentChannels, reason};
use pmi_transport::proto::v1::RetireVniRequest;
use pmi_transport::proto::v1::node_agent_service_client::NodeAgentServiceClient;
use tokio::time::timeout;

use crate::launch::fan_out::Recipient;

/// Asks a node to give up a VNI.
///
/// # Errors
/// Returns the reason why the node has not confirmed that nothing of the VNI is left.
pub(super) async fn retire(channels: &AgentChannels, node: &Recipient, vni: u32) -> Result<(), String> {
    let channel = channels.to(&node.name, &node.address).map_err(|error| pmi_transport::error_chain::chain(&error))?;
    let answer =
        timeout(RETIRE_ANSWER, NodeAgentServiceClient::new(channel).retire_vni(RetireVniRequest { vni })).await;
    let answer = answer.map_err(|_| format!("no answer for {RETIRE_ANSWER:?}"))?;
    let answer = answer.map_err(|status| reason(&status))?.into_inner();
    if answer.clear { Ok(()) } else { Err(answer.left) }
}
