//! The address at which other nodes reach this agent: the advertised address, or else the address that it listens at. An agent that listens at
//! all addresses of its node uses the source address for the API server. That address may change, and is determined again at each registration.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use lattice_daemon::network_addresses;
use parking_lot::Mutex;
use pmi_transport::address::Address;
use tokio::net::{UdpSocket, lookup_host};
use tokio::time::timeout;

use super::config::Config;

/// Time limit for the look-up of the API server's name. Without an answer the address is one of the node's addresses.
const LOOK_UP: Duration = Duration::from_secs(1);

/// Address of this agent for other nodes.
#[derive(Debug)]
pub(super) struct OwnAddress {
    last: Mutex<Address>,
    /// Choice among the node's addresses; `None` if the settings name an address.
    choice: Option<Choice>,
}

#[derive(Debug)]
struct Choice {
    api: Address,
    port: u16,
    family: Family,
}

/// Addresses at which a listener can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    V4,
    All,
}

impl Family {
    fn has(self, address: &IpAddr) -> bool {
        self == Self::All || address.is_ipv4()
    }
}

impl OwnAddress {
    /// The address of an agent that listens at `local`.
    pub(super) fn new(config: &Config, local: &Address) -> Self {
        let settled = |address: &Address| Self { last: Mutex::new(address.clone()), choice: None };
        let (host, port) = match (&config.advertise, local) {
            (Some(address), _) => return settled(address),
            (None, Address::Tcp { host, port }) => (host.parse::<IpAddr>(), *port),
            (None, Address::Unix(_)) => return settled(local),
        };
        let family = match host {
            Ok(IpAddr::V4(Ipv4Addr::UNSPECIFIED)) => Family::V4,
            Ok(IpAddr::V6(Ipv6Addr::UNSPECIFIED)) => Family::All,
            Ok(_) | Err(_) => return settled(local),
        };
        let host = choose(&network_addresses(), family, None, None).to_string();
        let choice = Choice { api: config.api.clone(), port, family };
        Self { last: Mutex::new(Address::Tcp { host, port }), choice: Some(choice) }
    }

    /// The address that was determined last.
    pub(super) fn get(&self) -> Address {
        self.last.lock().clone()
    }

    /// Determines the address again.
    pub(super) async fn find(&self) -> Address {
        if let Some(choice) = &self.choice {
            let source = timeout(LOOK_UP, source_to(&choice.api)).await.ok().flatten();
            let host = choose(&network_addresses(), choice.family, source, self.ip()).to_string();
            *self.last.lock() = Address::Tcp { host, port: choice.port };
        }
        self.get()
    }

    /// True if the address was one of this node's, and the node has lost it but has another one.
    pub(super) fn is_gone(&self) -> bool {
        let Some(choice) = &self.choice else { return false };
        let all = network_addresses();
        self.ip().is_some_and(|last| !all.contains(&last)) && all.iter().any(|address| choice.family.has(address))
    }

    fn ip(&self) -> Option<IpAddr> {
        match &*self.last.lock() {
            Address::Tcp { host, .. } => host.parse().ok(),
            Address::Unix(_) => None,
        }
    }
}

/// Address from which this node reaches the API server, as the kernel selects it for a connection. Sends nothing.
async fn source_to(api: &Address) -> Option<IpAddr> {
    let Address::Tcp { host, port } = api else { return None };
    for to in lookup_host((host.as_str(), *port)).await.ok()? {
        if let Some(source) = source_of(to).await {
            return Some(source);
        }
    }
    None
}

async fn source_of(to: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await.ok()?;
    socket.connect(to).await.ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Chooses among the addresses of the node: `source` if other nodes reach the listener there, else `last` if the node still has it, else the
/// first. A node without addresses uses loopback.
fn choose(all: &[IpAddr], family: Family, source: Option<IpAddr>, last: Option<IpAddr>) -> IpAddr {
    let there = |address: &IpAddr| all.contains(address) && family.has(address);
    let first = || all.iter().copied().find(|address| family.has(address)).or_else(|| all.first().copied());
    source.filter(there).or_else(|| last.filter(there)).or_else(first).unwrap_or(Ipv4Addr::LOCALHOST.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_that_reaches_the_api_server_comes_before_others() {
        let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
        let check = |all: &[&str], family, source: &str, last: &str, expected: &str| {
            let all: Vec<IpAddr> = all.iter().map(|text| ip(text)).collect();
            let chosen = choose(&all, family, source.parse().ok(), last.parse().ok());
            assert_eq!(chosen, ip(expected), "{all:?} {source} {last}");
        };
        let two = &["10.0.0.1", "10.1.0.1", "fd00::1"][..];
        check(two, Family::V4, "10.1.0.1", "10.0.0.1", "10.1.0.1");
        // The API server is on this machine, or its address family has no listener, or its name is unknown.
        check(two, Family::V4, "127.0.0.1", "10.1.0.1", "10.1.0.1");
        check(two, Family::V4, "fd00::1", "", "10.0.0.1");
        check(two, Family::All, "fd00::1", "", "fd00::1");
        check(two, Family::V4, "", "10.9.0.9", "10.0.0.1");
        check(&[], Family::V4, "", "10.9.0.9", "127.0.0.1");
        check(&["fd00::1"], Family::V4, "", "", "fd00::1");
    }
}
