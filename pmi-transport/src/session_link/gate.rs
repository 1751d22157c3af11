//! Links that arrive at an agent's port, before the hand-over to their session.
//!
//! ```text
//! greeting ──> launch known? ──no──> waits, up to 30 s, for the launch to begin here
//!                  │ yes                     │
//!                  v                         v
//!              MAC, nodes and source address match ──> HandOver::hand_over    else: the connection is closed, and a line logged
//! ```

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pmi_core::ids::NodeIndex;
use tokio::sync::watch;
use tokio::time::timeout;

use super::greeting::{Greeting, LaunchHash};
use super::key::GateKey;
use super::transport::{Handed, resolve};
use crate::fence::{Member, Recent};

/// Time for which a link waits for its launch to begin on this node.
const LAUNCH_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum links that wait for their launches.
const WAITING_MAX: usize = 4096;
/// Maximum waiting links from one address.
const WAITING_PER_SOURCE: usize = 256;
/// Maximum remembered launches that ended here. A link for one of them does not wait.
const ENDED_MAX: usize = 4096;

/// Passes links to their session.
pub trait HandOver: Send + Sync + 'static {
    /// Passes the connection to the session, without waiting.
    ///
    /// # Errors
    /// Fails if the session is gone, or if too many connections are queued for it.
    fn hand_over(&self, handed: &Handed) -> io::Result<()>;
}

/// Refusal of a link.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GateRefusal {
    /// The launch has ended on this node.
    #[error("launch {launch:?} has ended here")]
    Ended {
        /// Short name of the launch.
        launch: LaunchHash,
    },
    /// The launch does not run on this node.
    #[error("launch {launch:?} did not begin here within {LAUNCH_TIMEOUT:?}")]
    UnknownLaunch {
        /// Short name of the launch.
        launch: LaunchHash,
    },
    /// The sender does not have the launch's key.
    #[error("its greeting is not of a session of the launch")]
    Signature,
    /// The greeting names invalid nodes.
    #[error("it is from node {from} to node {to}, and here is node {here} of {nodes}")]
    Nodes {
        /// Sender that the greeting names.
        from: NodeIndex,
        /// Receiver that the greeting names.
        to: NodeIndex,
        /// Node of the local session.
        here: NodeIndex,
        /// Number of nodes of the launch.
        nodes: usize,
    },
    /// The greeting names a node with another address.
    #[error("it came from {seen}, and node {node} is at {address}")]
    Source {
        /// Source address of the connection.
        seen: IpAddr,
        /// Name of the node that the greeting names as sender.
        node: String,
        /// Address of that node's agent.
        address: String,
    },
    /// Too many links wait for launches that did not begin.
    #[error("{WAITING_MAX} links wait for their launches already, or {WAITING_PER_SOURCE} from this address")]
    TooMany,
    /// The hand-over to the session failed.
    #[error("the session does not take it: {0}")]
    HandOver(#[from] io::Error),
}

/// Session that accepts links.
#[derive(Clone)]
struct Expecting {
    /// Distinguishes it from another session of the same launch.
    number: u64,
    key: GateKey,
    me: NodeIndex,
    nodes: Arc<[Member]>,
    hand_over: Arc<dyn HandOver>,
}

/// Links that arrive at the port of an agent.
pub struct Arrivals {
    expecting: Mutex<HashMap<LaunchHash, Expecting>>,
    ended: Mutex<Recent<LaunchHash, ()>>,
    waiting: Mutex<Waiting>,
    /// Counts launches that began; each change wakes the waiting links.
    begun: watch::Sender<u64>,
}

#[derive(Default)]
struct Waiting {
    count: usize,
    by_source: HashMap<IpAddr, usize>,
}

/// Place of a waiting link; dropping it frees the place.
struct Place<'arrivals> {
    waiting: &'arrivals Mutex<Waiting>,
    source: IpAddr,
}

/// Registration of a session that accepts links. Dropping it refuses further links.
pub struct Visitable {
    arrivals: Arc<Arrivals>,
    launch: LaunchHash,
    number: u64,
}

impl Default for Arrivals {
    fn default() -> Self {
        let ended = Mutex::new(Recent::new(ENDED_MAX));
        Self { expecting: Mutex::default(), ended, waiting: Mutex::default(), begun: watch::Sender::default() }
    }
}

impl Arrivals {
    /// Accepts links of the launch `id` for the session of its node `me`, until the result is dropped.
    pub fn expect(
        self: &Arc<Self>,
        id: &str,
        key: GateKey,
        me: NodeIndex,
        nodes: Arc<[Member]>,
        hand_over: Arc<dyn HandOver>,
    ) -> Visitable {
        let launch = LaunchHash::of(id);
        let mut expecting = self.expecting.lock();
        let number = *self.begun.borrow() + 1;
        expecting.insert(launch, Expecting { number, key, me, nodes, hand_over });
        self.begun.send_replace(number);
        Visitable { arrivals: Arc::clone(self), launch, number }
    }

    /// Passes a connection to the session that its greeting names, once that session exists.
    ///
    /// # Errors
    /// Returns the reason for a refusal. The connection is then closed.
    pub async fn arrive(&self, greeting: Greeting, socket: TcpStream, from: SocketAddr) -> Result<(), GateRefusal> {
        let launch = greeting.launch();
        let expecting = match self.find(launch) {
            Some(expecting) => expecting,
            None if self.ended.lock().get(&launch).is_some() => return Err(GateRefusal::Ended { launch }),
            None => {
                let _place = self.take_place(from.ip())?;
                let found = timeout(LAUNCH_TIMEOUT, self.begins(launch)).await;
                found.map_err(|_| GateRefusal::UnknownLaunch { launch })?
            }
        };
        expecting.check(&greeting, from.ip()).await?;
        Ok(expecting.hand_over.hand_over(&Handed { greeting, socket })?)
    }

    fn find(&self, launch: LaunchHash) -> Option<Expecting> {
        self.expecting.lock().get(&launch).cloned()
    }

    /// Waits for a launch to begin here.
    async fn begins(&self, launch: LaunchHash) -> Expecting {
        let mut begun = self.begun.subscribe();
        loop {
            if let Some(expecting) = self.find(launch) {
                return expecting;
            }
            if begun.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    fn take_place(&self, source: IpAddr) -> Result<Place<'_>, GateRefusal> {
        let mut waiting = self.waiting.lock();
        let of_source = waiting.by_source.get(&source).copied().unwrap_or(0);
        if waiting.count >= WAITING_MAX || of_source >= WAITING_PER_SOURCE {
            return Err(GateRefusal::TooMany);
        }
        waiting.count += 1;
        waiting.by_source.insert(source, of_source + 1);
        Ok(Place { waiting: &self.waiting, source })
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut waiting = self.waiting.lock();
        waiting.count -= 1;
        if let Some(count) = waiting.by_source.get_mut(&self.source) {
            *count -= 1;
            if *count == 0 {
                waiting.by_source.remove(&self.source);
            }
        }
    }
}

impl Drop for Visitable {
    fn drop(&mut self) {
        let mut expecting = self.arrivals.expecting.lock();
        // A newer registration for the same launch stays.
        if expecting.get(&self.launch).is_some_and(|expecting| expecting.number == self.number) {
            expecting.remove(&self.launch);
            self.arrivals.ended.lock().insert(self.launch, ());
        }
    }
}

impl Expecting {
    async fn check(&self, greeting: &Greeting, seen: IpAddr) -> Result<(), GateRefusal> {
        if !greeting.is_signed_by(&self.key) {
            return Err(GateRefusal::Signature);
        }
        let (from, to) = (greeting.from(), greeting.to());
        let misled = || GateRefusal::Nodes { from, to, here: self.me, nodes: self.nodes.len() };
        // The API server has signed the greeting, and the session checks the ticket after it.
        if from == Greeting::OTHER_SET && to == self.me {
            return Ok(());
        }
        let member = self.nodes.get(from.index()).filter(|_| to == self.me && from != to).ok_or_else(misled)?;
        let is_source = resolve(&member.address).await.is_ok_and(|mut found| found.any(|found| same(found.ip(), seen)));
        if !is_source {
            let Member { name, address } = member.clone();
            return Err(GateRefusal::Source { seen, node: name, address });
        }
        Ok(())
    }
}

/// Returns true if both addresses are equal, in either notation of IPv4.
fn same(one: IpAddr, other: IpAddr) -> bool {
    one.to_canonical() == other.to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session_link::LinkKey;

    struct Nobody;

    impl HandOver for Nobody {
        fn hand_over(&self, _: &Handed) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn links_of_a_launch_are_let_through_until_the_last_who_takes_them_is_gone() {
        let arrivals = Arc::new(Arrivals::default());
        let expect = || {
            let key = LinkKey::from_bytes([7; 32]).gate_key();
            arrivals.expect("launch", key, NodeIndex(0), Arc::new([]), Arc::new(Nobody))
        };
        let launch = LaunchHash::of("launch");
        let is_ended = || arrivals.ended.lock().get(&launch).is_some();
        let (older, newer) = (expect(), expect());
        drop(older);
        assert!(arrivals.find(launch).is_some() && !is_ended());
        drop(newer);
        assert!(arrivals.find(launch).is_none() && is_ended());
    }
}
