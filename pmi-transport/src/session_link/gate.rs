//! Links that arrive at an agent's port, until the session that they are for has them.
//!
//! ```text
//! greeting ──> launch known? ──no──> waits, up to 30 s, for the launch to begin here
//!                  │ yes                     │
//!                  v                         v
//!              MAC, nodes and source address fit ──> HandOver::hand_over    else: the connection is closed, a line in the log
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
/// Most links that wait for their launches.
const WAITING_MAX: usize = 4096;
/// Most of them that came from one address.
const WAITING_PER_SOURCE: usize = 256;
/// Launches that ended here and are remembered: a link for one of them does not wait.
const ENDED_MAX: usize = 4096;

/// Way of a link to the session that it is for.
pub trait HandOver: Send + Sync + 'static {
    /// Gives the connection to the session, without waiting.
    ///
    /// # Errors
    /// Fails when the session is gone, or too many that it did not take are on their way to it.
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
    /// Its sender does not have the launch's key.
    #[error("its greeting is not of a session of the launch")]
    Signature,
    /// The greeting names nodes that cannot be meant.
    #[error("it is from node {from} to node {to}, and here is node {here} of {nodes}")]
    Nodes {
        /// Node that it says it is from.
        from: NodeIndex,
        /// Node that it says it is for.
        to: NodeIndex,
        /// Node that the session here is.
        here: NodeIndex,
        /// Number of nodes of the launch.
        nodes: usize,
    },
    /// The node that the greeting names has another address.
    #[error("it came from {seen}, and node {node} is at {address}")]
    Source {
        /// Address that it came from.
        seen: IpAddr,
        /// Name of the node that it says it is from.
        node: String,
        /// Address of that node's agent.
        address: String,
    },
    /// Too many links wait for launches that did not begin.
    #[error("{WAITING_MAX} links wait for their launches already, or {WAITING_PER_SOURCE} from this address")]
    TooMany,
    /// The session does not take it.
    #[error("the session does not take it: {0}")]
    HandOver(#[from] io::Error),
}

/// Session that links can be for.
#[derive(Clone)]
struct Expecting {
    /// Tells it from another one of the same launch.
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
    /// Counts launches that began; who waits looks again.
    begun: watch::Sender<u64>,
}

#[derive(Default)]
struct Waiting {
    count: usize,
    by_source: HashMap<IpAddr, usize>,
}

/// Place of a link among those that wait; given back when it is dropped.
struct Place<'arrivals> {
    waiting: &'arrivals Mutex<Waiting>,
    source: IpAddr,
}

/// Session of a launch that takes links; dropping it refuses further ones.
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
    /// Lets links of the launch `id` through to the session of its node `me`, until the result is dropped.
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

    /// Hands a connection to the session that its greeting is for, when there is one.
    ///
    /// # Errors
    /// Says why it is refused; it is closed then.
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
        // A newer one for the same launch stays.
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
        // The API server has signed it, and the session looks at what comes with it.
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

/// Returns true for one machine's address in either notation of IPv4.
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
