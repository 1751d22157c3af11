//! The connections to agents: one per agent, made at its first use and kept, because a handshake costs both ends more than most
//! calls. The owner sets their maximum number, and may close unused ones.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Channel, ConnectError, channel};
use crate::address::AddressError;
use crate::identity::{Caller, Security};

/// The connections; clones share them.
#[derive(Clone, Debug)]
pub struct AgentChannels(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    security: Security,
    most: usize,
    /// By node name.
    kept: Mutex<HashMap<String, CachedChannel>>,
}

#[derive(Debug)]
struct CachedChannel {
    /// Address of the agent.
    address: String,
    channel: Channel,
    used: Instant,
}

/// Failure to make a channel to an agent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentChannelError {
    /// Malformed address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// Certificates are missing, or the node name is not valid in a certificate.
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

impl AgentChannels {
    /// Creates an empty set. It keeps the `most` connections that were used last. A call in progress keeps its own connection.
    pub fn new(security: Security, most: usize) -> Self {
        Self(Arc::new(Shared { security, most, kept: Mutex::default() }))
    }

    /// Returns the channel to the agent of `node` at `address`, written `host:port`. Calls fail if another process answers; see
    /// [`channel`].
    ///
    /// # Errors
    /// Fails if the address is malformed, or our security is not sufficient for it.
    pub fn to(&self, node: &str, address: &str) -> Result<Channel, AgentChannelError> {
        let Shared { security, most, kept } = &*self.0;
        let (mut kept, used) = (kept.lock(), Instant::now());
        if let Some(known) = kept.get_mut(node).filter(|known| known.address == address) {
            known.used = used;
            return Ok(known.channel.clone());
        }
        let channel = channel(&address.parse()?, &Caller::Agent(node.to_owned()), security)?;
        let new = CachedChannel { address: address.to_owned(), channel: channel.clone(), used };
        if kept.insert(node.to_owned(), new).is_none() && kept.len() > *most {
            let oldest = kept.iter().min_by_key(|(_, kept)| kept.used).map(|(node, _)| node.clone());
            oldest.map(|node| kept.remove(&node));
        }
        Ok(channel)
    }

    /// The same, but `None` if the channel exists already.
    pub fn not_yet_to(&self, node: &str, address: &str) -> Option<Channel> {
        let known = self.0.kept.lock().get(node).is_some_and(|known| known.address == address);
        // The next call of `to` reports the error.
        if known { None } else { self.to(node, address).ok() }
    }

    /// Closes the connection to an agent that is lost or was restarted.
    pub fn forget(&self, node: &str) {
        self.0.kept.lock().remove(node);
    }

    /// Closes the connections that were not used for `age`, because both ends of each connection send keep-alive pings.
    pub fn forget_unused(&self, age: Duration) {
        self.0.kept.lock().retain(|_, kept| kept.used.elapsed() < age);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: &str = "127.0.0.1:1";

    fn channels(most: usize) -> AgentChannels {
        AgentChannels::new(Security::Insecure { name: Caller::Api }, most)
    }

    fn kept(channels: &AgentChannels) -> Vec<String> {
        let mut nodes: Vec<_> = channels.0.kept.lock().keys().cloned().collect();
        nodes.sort_unstable();
        nodes
    }

    #[tokio::test]
    async fn a_node_has_one_connection_while_it_stays_where_it_is() {
        let channels = channels(8);
        let is_new = |address| channels.not_yet_to("a", address).is_some();
        assert_eq!([ADDRESS, ADDRESS, "127.0.0.1:2", "127.0.0.1:2"].map(is_new), [true, false, true, false]);
        channels.forget("a");
        assert!(is_new(ADDRESS));
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_were_used_last_are_kept() {
        let channels = channels(2);
        for node in ["a", "b", "a", "c"] {
            tokio::time::advance(Duration::from_secs(1)).await;
            channels.to(node, ADDRESS).unwrap();
        }
        assert_eq!(kept(&channels), ["a", "c"]);
        channels.forget_unused(Duration::from_secs(1));
        assert_eq!(kept(&channels), ["c"], "a was used a second ago");
    }

    #[tokio::test]
    async fn who_cannot_be_talked_to_is_not_kept() {
        let channels = channels(2);
        assert!(matches!(channels.to("a", "nowhere"), Err(AgentChannelError::Address(_))));
        assert!(matches!(channels.to("a", "192.0.2.1:1"), Err(AgentChannelError::Connect(_))));
        assert!(channels.not_yet_to("a", "nowhere").is_none() && kept(&channels).is_empty());
    }
}
