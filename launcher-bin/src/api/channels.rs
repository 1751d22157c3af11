//! The connections to agents: one for each, made when it is first needed and kept.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use pmi_transport::address::{Address, AddressError};
use pmi_transport::connect::{self, Channel, ConnectError};
use pmi_transport::identity::{Caller, Security};

use super::launch::fan_out::Recipient;

/// The connections; clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Channels(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    security: Security,
    /// By node name, with the address that each leads to.
    open: Mutex<HashMap<String, (String, Channel)>>,
}

/// An agent that cannot be talked to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChannelError {
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

impl Channels {
    /// No connections yet.
    pub(crate) fn new(security: Security) -> Self {
        Self(Arc::new(Shared { security, open: Mutex::default() }))
    }

    /// The way to a node, if nobody has asked for it before.
    pub(crate) fn not_yet_to(&self, node: &Recipient) -> Option<Channel> {
        let is_known = |(address, _): &(String, Channel)| *address == node.address;
        let known = self.0.open.lock().get(&node.name).is_some_and(is_known);
        // Why there is none is told to who asks the node.
        if known { None } else { self.to(node).ok() }
    }

    /// The way to a node. It is at the other end of it, or calls fail.
    pub(crate) fn to(&self, node: &Recipient) -> Result<Channel, ChannelError> {
        let mut open = self.0.open.lock();
        if let Some((address, channel)) = open.get(&node.name)
            && *address == node.address
        {
            return Ok(channel.clone());
        }
        let address: Address = node.address.parse()?;
        let channel = connect::channel(&address, &Caller::Agent(node.name.clone()), &self.0.security)?;
        open.insert(node.name.clone(), (node.address.clone(), channel.clone()));
        Ok(channel)
    }

    /// Forgets the connection to a node that is lost, or was started anew.
    pub(crate) fn forget(&self, node: &str) {
        self.0.open.lock().remove(node);
    }
}
