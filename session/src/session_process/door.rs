//! The door of a session process: a socket for descriptors, whose other end its agent has. Connections come through it, each with
//! bytes that say whose it is.
//!
//! ```text
//!           user id, node name, order          first of all, from the fork server, which lets no agent have the door before
//!        ──────────────────────────────> door
//!           "PAM", a connection                where users have PAM sessions, right after it, from the fork server as well
//!        ──────────────────────────────> door
//!           "LATAGENT", a connection           the agent itself: orders, events, calls
//! agent  ──────────────────────────────> door
//!           greeting, a connection             the session of another node, or the root of another set, which called at the agent's port
//! ```

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use pmi_transport::session_link::{Greeting, Handed};
use pmi_transport::task;
use rank_spawner::{DescriptorSocket, Label, PAM_WORD, Passed};
use tokio::sync::mpsc;

/// Bytes that come with the connection of an agent.
const AGENT: &[u8; 8] = b"LATAGENT";

/// Number of agents that may have connected, one after the other, before the first one's end is seen.
const AGENTS: usize = 4;

/// Number of links that may have come through the door and not be looked at yet; further ones are closed.
const ARRIVING: usize = 64;

/// Connection that came through the door.
pub(super) enum Visitor {
    /// Connection of an agent.
    Agent(UnixStream),
    /// Link of another node's session.
    Link(Handed),
}

impl Visitor {
    /// Returns whose connection it is; `None` for one that only a later version knows.
    pub(super) fn of(passed: Passed) -> Option<Self> {
        let Passed { bytes, descriptor } = passed;
        if bytes == AGENT {
            return Some(Self::Agent(descriptor.into()));
        }
        let greeting = Greeting::from_bytes(bytes.try_into().ok()?).ok()?;
        Some(Self::Link(Handed { greeting, socket: descriptor.into() }))
    }
}

/// Connects an agent to the session process behind `door`.
///
/// # Errors
/// Fails if the process is gone, or there is no descriptor left.
pub fn connect(door: &DescriptorSocket) -> io::Result<UnixStream> {
    let (ours, theirs) = UnixStream::pair()?;
    door.send(AGENT, theirs.as_fd())?;
    Ok(ours)
}

/// What a fork server says with an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// User of the launch, who a session process is to become.
    pub uid: u32,
    /// Name of this node in the launch; empty for an errand, which is done by a process that stays who it is.
    pub host: String,
}

/// Order of a session process.
pub(super) struct Ordered {
    pub(super) admitted: Admitted,
    pub(super) order: Label,
}

impl Admitted {
    /// Bytes that come with an order.
    pub fn encode(&self) -> Vec<u8> {
        [&self.uid.to_be_bytes(), self.host.as_bytes()].concat()
    }

    /// Reads them; `None` for what is none.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (uid, host) = bytes.split_first_chunk()?;
        Some(Self { uid: u32::from_be_bytes(*uid), host: str::from_utf8(host).ok()?.to_owned() })
    }
}

/// Waits for the order; `None` if the door is closed before: a spare process may never be needed.
///
/// # Errors
/// Fails with [`io::ErrorKind::InvalidData`] for what is none.
pub(super) fn order(door: &DescriptorSocket) -> io::Result<Option<Ordered>> {
    let Some(Passed { bytes, descriptor }) = door.receive_blocking()? else { return Ok(None) };
    let admitted = Admitted::decode(&bytes).ok_or(io::ErrorKind::InvalidData)?;
    Ok(Some(Ordered { admitted, order: descriptor.into() }))
}

/// Waits for the connection to the PAM process; `None` if the door is closed before, as where none could be made.
///
/// # Errors
/// Fails with [`io::ErrorKind::InvalidData`] for anything else: no agent has the door before.
pub(super) fn pam_process(door: &DescriptorSocket) -> io::Result<Option<UnixStream>> {
    let Some(Passed { bytes, descriptor }) = door.receive_blocking()? else { return Ok(None) };
    if bytes == PAM_WORD { Ok(Some(descriptor.into())) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// Waits for the first connection of an agent; `None` if the door is closed before.
pub(super) fn first_agent(door: &DescriptorSocket) -> io::Result<Option<UnixStream>> {
    while let Some(passed) = door.receive_blocking()? {
        if let Some(Visitor::Agent(agent)) = Visitor::of(passed) {
            return Ok(Some(agent));
        }
    }
    Ok(None)
}

/// Kinds of visitors that are waited for; others are closed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Awaited {
    /// Agents: not for a session that ends with its agent.
    pub(super) agents: bool,
    /// Links of the launch.
    pub(super) links: bool,
    /// Links that come from the roots of other sets.
    pub(super) sets: bool,
}

/// Visitors who have come through the door. Their queues end when it is closed: the agent is gone, and none will come.
pub(super) struct Visitors {
    pub(super) agents: mpsc::Receiver<UnixStream>,
    pub(super) links: mpsc::Receiver<Handed>,
    pub(super) sets: mpsc::Receiver<Handed>,
}

/// Ways to those who receive them.
struct Receivers {
    agents: Option<mpsc::Sender<UnixStream>>,
    links: Option<mpsc::Sender<Handed>>,
    sets: Option<mpsc::Sender<Handed>>,
}

impl Visitors {
    /// Lets in who comes through the door, in a task of its own, as far as they are taken and until the door is closed.
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
            // Whoever comes more often than can be dealt with hears nothing.
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
