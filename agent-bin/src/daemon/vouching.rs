//! Vouching: the API server proves to this node's fork server which launches are new. The fork server trusts the API server and not this agent.
//! So the agent fetches a challenge from the fork server, and returns it signed with the number of the last launch.
//!
//! A fork server that is busy or stopped delays no heartbeat. The agent repeats the request with the next one, and launches wait for that.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;

use super::Node;

/// Interval between two answers of the API server for the fork server: an order is too old after two of them.
pub(super) const EVERY: Duration = Duration::from_secs(60);
/// Time limits for the fork server's answer: with a registration, when the fork server may be new, and with a heartbeat.
pub(super) const AT_FIRST: Duration = Duration::from_secs(5);
pub(super) const LATER: Duration = Duration::from_millis(500);

/// The fork server's next challenge; empty if it trusts this agent, or does not answer in time.
pub(super) async fn challenge(node: &Node, within: Duration) -> Bytes {
    match node.config.user {
        Some(_) => timeout(within, node.forks.tell(b"")).await.unwrap_or_default().into(),
        None => Bytes::new(),
    }
}

/// Sends the API server's answer to a challenge to the fork server. Returns false if the agent must repeat this soon.
pub(super) async fn bring(node: &Node, challenge: &Bytes, answer: Option<Vec<u8>>, within: Duration) -> bool {
    if challenge.is_empty() {
        return node.config.user.is_none();
    }
    let Some(answer) = answer else {
        tracing::error!(
            "no session can be started here: the API server does not sign the number of its last launch, for it is of an \
             older version; upgrade it, or leave out `user` from the agent's settings"
        );
        return true;
    };
    match timeout(within, node.forks.tell(&answer)).await {
        Ok(refusal) if refusal.is_empty() => true,
        Ok(refusal) => {
            tracing::error!("the fork server refuses {}", String::from_utf8_lossy(&refusal));
            false
        }
        Err(_) => false,
    }
}
