//! Connections to the API server. One carries a bounded number of calls at a time, and each launch of the node has a call for as long as it
//! runs, each user's connection another: so there are as many as the calls need.

use std::sync::Arc;

use parking_lot::Mutex;
use pmi_transport::address::Address;
use pmi_transport::connect::{self, Channel, ConnectError};
use pmi_transport::identity::{Caller, Security};

/// Most calls of one connection: half of what the other end takes, so that calls which come and go find room beside those that stay.
const CALLS_MAX: usize = 128;

/// The connections, the first of which is always there.
#[derive(Debug)]
pub(super) struct ApiChannels {
    address: Address,
    security: Security,
    first: Connection,
    further: Mutex<Vec<Connection>>,
}

/// A connection, and the calls on it: each keeps a reference.
#[derive(Clone, Debug)]
struct Connection {
    channel: Channel,
    calls: Arc<()>,
}

/// Room for one call, until it is dropped.
#[derive(Debug)]
pub(super) struct Place(Connection);

impl ApiChannels {
    /// The first connection, which is made when it is used.
    ///
    /// # Errors
    /// Fails if `security` does not suffice for the address.
    pub(super) fn new(address: &Address, security: &Security) -> Result<Self, ConnectError> {
        let first = Connection::new(address, security)?;
        Ok(Self { address: address.clone(), security: security.clone(), first, further: Mutex::default() })
    }

    /// Room for one call, on a connection that is there if it has any.
    pub(super) fn place(&self) -> Place {
        if self.first.has_room() {
            return self.first.place();
        }
        let mut further = self.further.lock();
        further.retain(Connection::is_used);
        if let Some(connection) = further.iter().find(|connection| connection.has_room()) {
            return connection.place();
        }
        match Connection::new(&self.address, &self.security) {
            Ok(connection) => {
                let place = connection.place();
                further.push(connection);
                place
            }
            // The first was made of the same. A call too many waits there.
            Err(error) => {
                tracing::warn!(%error, "no further connection to the API server");
                self.first.place()
            }
        }
    }
}

impl Connection {
    fn new(address: &Address, security: &Security) -> Result<Self, ConnectError> {
        connect::channel(address, &Caller::Api, security).map(Self::from)
    }

    fn calls(&self) -> usize {
        Arc::strong_count(&self.calls) - 1
    }

    fn has_room(&self) -> bool {
        self.calls() < CALLS_MAX
    }

    fn is_used(&self) -> bool {
        self.calls() > 0
    }

    fn place(&self) -> Place {
        Place(self.clone())
    }
}

impl From<Channel> for Connection {
    fn from(channel: Channel) -> Self {
        Self { channel, calls: Arc::default() }
    }
}

impl Place {
    /// The connection, for the call that this is kept for.
    pub(super) fn channel(&self) -> Channel {
        self.0.channel.clone()
    }
}

#[cfg(test)]
impl From<Channel> for Place {
    fn from(channel: Channel) -> Self {
        Self(channel.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_full_connection_has_another_beside_it_for_as_long_as_it_is_needed() {
        let security = Security::Insecure { name: Caller::Agent("node0".into()) };
        let channels = ApiChannels::new(&Address::Unix("/nonesuch".into()), &security).unwrap();
        let counts = || -> Vec<usize> { channels.further.lock().iter().map(Connection::calls).collect() };
        let mut places: Vec<_> = (0..300).map(|_| channels.place()).collect();
        assert_eq!((channels.first.calls(), counts()), (128, vec![128, 44]));
        places.drain(..2);
        places.truncate(128);
        let again = [channels.place(), channels.place(), channels.place()];
        assert_eq!((channels.first.calls(), counts()), (128, vec![3]));
        drop((places, again));
        assert_eq!(channels.first.calls(), 0);
    }
}
