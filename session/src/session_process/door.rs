//! The door of a session process: a socket that receives descriptors. The agent has the other end. Each connection arrives with bytes that
//! identify its sender.
//!
//! ```text
//!           user id, node name, order          first of all, from the fork server, before any agent gets the door
//!        ──────────────────────────────> door
//!           "PAM", a connection                where users have PAM sessions, right after the order, also from the fork server
//!        ──────────────────────────────> door
//!           "LATAGENT", a connection           the agent itself: orders, events, calls
//! agent  ──────────────────────────────> door
//!           greeting, a connection             the session of another node, or the root of another set, connected to the agent's port
//! ```

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use pmi_transport::session_link::{Greeting, Handed};
use pmi_transport::task;
use rank_spawner::{DescriptorSocket, Label, PAM_WORD, Passed};
use tokio::sync::mpsc;

/// Bytes that accompany the connection of an agent.
const AGENT: &[u8; 8] = b"LATAGENT";

/// Number of successive agents that may connect before the session detects the end of the first one.
const AGENTS: usize = 4;

/// Number of received links that may wait to be processed. Further links are closed.
const ARRIVING: usize = 64;

/// A connection that arrived through the door.
pub(super) enum Visitor {
    /// A connection from an agent.
    Agent(UnixStream),
    /// A link from another node's session, or from the root of another set.
    Link(Handed),
}

impl Visitor {
    /// Identifies a connection by its bytes; `None` for a kind that only a later version supports.
    pub(super) fn of(passed: Passed) -> Option<Self> {
        let Passed { bytes, descriptor } = passed;
        if bytes == AGENT {
            return Some(Self::Agent(descriptor.into()));
        }
        let greeting = Greeting::from_bytes(bytes.try_into().ok()?).ok()?;
        Some(Self::Link(Handed { greeting, socket: descriptor.into() }))
    }
}

/// Connects an agent to the session process through `door`.
///
/// # Errors
/// Fails if the process is gone, or if no descriptor is left.
pub fn connect(door: &DescriptorSocket) -> io::Result<UnixStream> {
    let (ours, theirs) = UnixStream::pair()?;
    door.send(AGENT, theirs.as_fd())?;
    Ok(ours)
}

/// Data that a fork server sends with an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// User id of the launch. A session process changes to this user.
    pub uid: u32,
    /// Name of this node in the launch; empty for an errand. The process of an errand keeps its user.
    pub host: String,
}

/// Order for a session process.
pub(super) struct Ordered {
    pub(super) admitted: Admitted,
    pub(super) order: Label,
}

impl Admitted {
    /// Encodes the bytes that accompany an order.
    pub fn encode(&self) -> Vec<u8> {
        [&self.uid.to_be_bytes(), self.host.as_bytes()].concat()
    }

    /// Decodes the bytes; `None` if they are invalid.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (uid, host) = bytes.split_first_chunk()?;
        Some(Self { uid: u32::from_be_bytes(*uid), host: str::from_utf8(host).ok()?.to_owned() })
    }
}

/// Waits for the order; `None` if the door is closed first, because a spare process may never be needed.
///
/// # Errors
/// Fails with [`io::ErrorKind::InvalidData`] for any other message.
pub(super) fn order(door: &DescriptorSocket) -> io::Result<Option<Ordered>> {
    let Some(Passed { bytes, descriptor }) = door.receive_blocking()? else { return Ok(None) };
    let admitted = Admitted::decode(&bytes).ok_or(io::ErrorKind::InvalidData)?;
    Ok(Some(Ordered { admitted, order: descriptor.into() }))
}

/// Waits for the connection to the PAM process; `None` if the door is closed first, for example because that process could not be made.
///
/// # Errors
/// Fails with [`io::ErrorKind::InvalidData`] for any other message: no agent has the door yet.
pub(super) fn pam_process(door: &DescriptorSocket) -> io::Result<Option<UnixStream>> {
    let Some(Passed { bytes, descriptor }) = door.receive_blocking()? else { return Ok(None) };
    if bytes == PAM_WORD { Ok(Some(descriptor.into())) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// Waits for the first connection from an agent; `None` if the door is closed first.
pub(super) fn first_agent(door: &DescriptorSocket) -> io::Result<Option<UnixStream>> {
    while let Some(passed) = door.receive_blocking()? {
        if let Some(Visitor::Agent(agent)) = Visitor::of(passed) {
            return Ok(Some(agent));
        }
    }
    Ok(None)
}

/// Kinds of connections that the session accepts. All other kinds are closed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Awaited {
    /// Agents; false for a session that ends with its agent.
    pub(super) agents: bool,
    /// Links of the launch.
    pub(super) links: bool,
    /// Links from roots of other sets.
    pub(super) sets: bool,
}

/// Connections that arrived through the door. The queues end when the door is closed: then the agent is gone, and no connection follows.
pub(super) struct Visitors {
    pub(super) agents: mpsc::Receiver<UnixStream>,
    pub(super) links: mpsc::Receiver<Handed>,
    pub(super) sets: mpsc::Receiver<Handed>,
}

/// Senders of the queues.
struct Receivers {
    agents: Option<mpsc::Sender<UnixStream>>,
    links: Option<mpsc::Sender<Handed>>,
    sets: Option<mpsc::Sender<Handed>>,
}

impl Visitors {
    /// Accepts connections at the door in a task of its own, as long as the queues have receivers and the door is open.
    pub(super) fn of(door: DescriptorSocket, awaited: Awaited) -> Self {
        let (to_agents, agents) = mpsc::channel(AGENTS);
        let (to_links, links) = mpsc::channel(ARRIVING);
        let (to_sets, sets) = mpsc::channel(ARRIVING);
        let receivers = Receivers {
            agents: awaited.agents.then_some(to_agents),
            links: awaited.links.then_some(to_links),
            sets: awaited.sets.then_some(to_sets),
        };
        task::spawn(receivers.watch(door));
        Self { agents, links, sets }
    }
}

impl Receivers {
    async fn watch(self, door: DescriptorSocket) {
        while let Ok(Some(passed)) = door.receive().await {
            // A connection that arrives at a full queue is closed without an answer.
            match Visitor::of(passed) {
                Some(Visitor::Agent(agent)) => drop(self.agents.as_ref().map(|agents| agents.try_send(agent))),
                Some(Visitor::Link(handed)) => {
                    let is_of_set = handed.greeting.from() == Greeting::OTHER_SET;
                    let receiver = if is_of_set { &self.sets } else { &self.links };
                    drop(receiver.as_ref().map(|receiver| receiver.try_send(handed)));
                }
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use pmi_core::ids::NodeIndex;
    use pmi_transport::session_link::{LaunchHash, LinkKey};

    use super::*;

    fn greeting() -> Greeting {
        let key = LinkKey::from_bytes([1; LinkKey::LEN]).gate_key();
        Greeting::new(LaunchHash::of("launch"), NodeIndex(0), NodeIndex(1), [7; 16], &key)
    }

    #[test]
    fn an_agent_and_a_link_are_told_apart_and_anything_else_is_passed_over() {
        let (agent, door) = DescriptorSocket::pair().unwrap();
        let (link, _far) = std::net::TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| Ok((std::net::TcpStream::connect(listener.local_addr()?)?, listener)))
            .unwrap();
        agent.send(b"a later version's", link.as_fd()).unwrap();
        agent.send(greeting().as_bytes(), link.as_fd()).unwrap();
        let mut ours = connect(&agent).unwrap();
        let next = || Visitor::of(door.try_receive().unwrap().unwrap());
        assert!(next().is_none());
        let Some(Visitor::Link(handed)) = next() else { panic!("no link") };
        assert_eq!(handed.greeting, greeting());
        let Some(Visitor::Agent(mut theirs)) = next() else { panic!("no agent") };
        ours.write_all(b"x").unwrap();
        let mut read = [0];
        theirs.read_exact(&mut read).unwrap();
        assert_eq!(read, *b"x");
    }

    #[tokio::test]
    async fn the_next_agent_is_passed_on_and_the_closed_door_is_seen() {
        let (agent, door) = DescriptorSocket::pair().unwrap();
        let (agents, mut next) = mpsc::channel(1);
        let watching = tokio::spawn(Receivers { agents: Some(agents), links: None, sets: None }.watch(door));
        let mut ours = connect(&agent).unwrap();
        let mut theirs = next.recv().await.unwrap();
        ours.write_all(b"x").unwrap();
        theirs.read_exact(&mut [0]).unwrap();
        drop(agent);
        assert!(next.recv().await.is_none());
        watching.await.unwrap();
    }

    #[test]
    fn a_process_that_no_agent_connects_to_sees_that_its_door_is_closed() {
        let (agent, door) = DescriptorSocket::pair().unwrap();
        agent.send(greeting().as_bytes(), agent.as_fd()).unwrap();
        drop(agent);
        assert!(first_agent(&door).unwrap().is_none());
        let (agent, door) = DescriptorSocket::pair().unwrap();
        drop(door);
        assert!(connect(&agent).is_err());
    }
}
