//! Connections to the API server. A connection carries a bounded number of calls at a time. Each running launch and each user connection of the
//! node holds one call open, so the number of connections follows the number of calls.

use std::sync::Arc;

use parking_lot::Mutex;
use pmi_transport::address::Address;
use pmi_transport::connect::{self, Channel, ConnectError};
use pmi_transport::identity::{Caller, Security};

/// Maximum number of calls on one connection. It is half of the server's limit, so that short calls find room next to long ones.
const CALLS_MAX: usize = 128;

/// The connections; the first always exists.
#[derive(Debug)]
pub(super) struct ApiChannels {
    address: Address,
    security: Security,
    first: Connection,
    further: Mutex<Vec<Connection>>,
}

/// A connection and its calls; each call holds a reference to `calls`.
#[derive(Clone, Debug)]
struct Connection {
    channel: Channel,
    calls: Arc<()>,
}

/// Room for one call; dropping it frees the room.
#[derive(Debug)]
pub(super) struct Place(Connection);

impl ApiChannels {
    /// Creates the first connection, which is established on first use.
    ///
    /// # Errors
    /// Fails if `security` is not sufficient for the address.
    pub(super) fn new(address: &Address, security: &Security) -> Result<Self, ConnectError> {
        let first = Connection::new(address, security)?;
        Ok(Self { address: address.clone(), security: security.clone(), first, further: Mutex::default() })
    }

    /// Room for one call, on an existing connection if one has room.
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
            // The first connection has the same parameters. An excess call waits there.
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
    /// The connection of this call.
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
