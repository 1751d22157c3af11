//! Search for the API server: finds one of its machine's addresses that answers from here, and this node's own address on that route.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use pmi_transport::address::Address;
use pmi_transport::connect;
use pmi_transport::identity::{Caller, IdentityError, Security, TlsFiles};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Time limit for the search.
const FIND_WITHIN: Duration = Duration::from_secs(60);
/// Pause before all addresses are tried again.
const PAUSE: Duration = Duration::from_millis(200);

/// The API server, as this node reaches it.
#[derive(Debug)]
pub(super) struct Found {
    /// Address that answers.
    pub(super) api: Address,
    /// This node's own address, as the API server sees it.
    pub(super) here: IpAddr,
}

/// Error of the search.
#[derive(Debug, thiserror::Error)]
pub(super) enum FindError {
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(
        "the API server cannot be reached from {node} within {FIND_WITHIN:?} at {}: {reason}; \
         nodes connect to a port of the machine that runs the launcher, which a firewall may close",
        listed(addresses)
    )]
    Unreachable { node: String, addresses: Vec<SocketAddr>, reason: String },
    #[error("cannot look for the API server: {0}")]
    System(#[from] std::io::Error),
}

fn listed(addresses: &[SocketAddr]) -> String {
    addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", ")
}

/// Tries all addresses at once until one answers as the API server of the cluster's CA.
///
/// # Errors
/// Fails if no address answers within a minute.
pub(super) fn find(addresses: &[SocketAddr], node: &str, files: &TlsFiles) -> Result<Found, FindError> {
    let security = Security::from_files(files)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut reason = "there is none".to_owned();
        let answering = async {
            loop {
                match first_that_answers(addresses, &security).await {
                    Ok(found) => return found,
                    Err(last) => reason = last,
                }
                sleep(PAUSE).await;
            }
        };
        let found = timeout(FIND_WITHIN, answering).await;
        found.map_err(|_| FindError::Unreachable { node: node.to_owned(), addresses: addresses.to_vec(), reason })
    })
}

/// The first address that answers, or the reason of the last failure.
async fn first_that_answers(addresses: &[SocketAddr], security: &Security) -> Result<Found, String> {
    let mut tries = JoinSet::new();
    for address in addresses {
        let (address, security) = (*address, security.clone());
        tries.spawn(async move { try_one(address, &security).await });
    }
    let mut reason = "there is none".to_owned();
    while let Some(tried) = tries.join_next().await {
        match tried {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(why)) => reason = why,
            Err(error) => reason = error.to_string(),
        }
    }
    Err(reason)
}

async fn try_one(address: SocketAddr, security: &Security) -> Result<Found, String> {
    let api = Address::Tcp { host: address.ip().to_string(), port: address.port() };
    let channel = connect::channel(&api, &Caller::Api, security).map_err(|error| error.to_string())?;
    connect::answers(channel).await.map_err(|status| connect::reason(&status))?;
    let here = own_address(address).map_err(|error| error.to_string())?;
    Ok(Found { api, here })
}

/// The source address of connections from this node to `other`. Sends nothing.
fn own_address(other: SocketAddr) -> std::io::Result<IpAddr> {
    let any: IpAddr = if other.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(other)?;
    Ok(socket.local_addr()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_address_is_the_one_on_the_way() {
        for address in ["127.0.0.1", "127.0.0.9"] {
            let other = SocketAddr::new(address.parse().unwrap(), 9);
            assert!(own_address(other).unwrap().is_loopback());
        }
    }
}
