//! Links of one session: opens links to other sessions, and accepts links that its agent hands over.

use crate::task;
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use pmi_core::ids::NodeIndex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::StreamExt;
use tokio_util::task::TaskTracker;
use tonic::Status;

use super::frame::{FrameReader, FrameWriter, VERSION};
use super::greeting::{Greeting, LaunchHash};
use super::key::LinkKey;
use super::link_errors::{AcceptError, FIRST_FRAME_TIMEOUT, LinkError};
use super::socket;
use super::stream::{self, SharedCiphers, StreamError};
use crate::address::Address;
use crate::error_chain::chain;
use crate::fence::{FenceNode, Incoming, Member, Outgoing};
use crate::limits::CONNECT_TIMEOUT;
use crate::noise::{HANDSHAKE_LEN, Handshake};
use crate::proto::v1::LinkFrame;

/// Time limit for the other session to answer the handshake, unless the session sets another one. The other session may not have started
/// yet: its node can receive the launch later than this one.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause between two connection attempts to an agent that does not run.
const AGENT_PAUSE: Duration = Duration::from_millis(200);

/// Links of the session of one node of a launch.
#[derive(Debug)]
pub struct SessionLinks {
    key: LinkKey,
    launch_id: Arc<str>,
    me: NodeIndex,
    nodes: Arc<[Member]>,
    /// Nodes that are lost to the launch.
    cut_off: Mutex<BTreeSet<NodeIndex>>,
    /// Time for which connections to agents that do not run are retried.
    agent_lease: Duration,
    /// Time limit for the other session to answer.
    answer_timeout: Duration,
    /// Tasks that write to links.
    writing: TaskTracker,
}

/// Failure of a call of another session.
#[derive(Debug)]
enum CallFailure {
    /// The connection ended before any byte arrived. Its agent refuses this session, or has ended without a hand-over.
    Unanswered,
    Link(LinkError),
}

impl From<LinkError> for CallFailure {
    fn from(error: LinkError) -> Self {
        Self::Link(error)
    }
}

/// Connection that an agent passed to the session that it is for.
#[derive(Debug)]
pub struct Handed {
    /// Its greeting, with a MAC that the agent has verified.
    pub greeting: Greeting,
    /// The connection, read up to the end of the greeting.
    pub socket: std::net::TcpStream,
}

/// Link with an authenticated other end.
struct Accepted {
    first: LinkFrame,
    incoming: stream::Incoming,
    writer: OwnedWriteHalf,
    ciphers: SharedCiphers,
}

impl SessionLinks {
    /// Links of node `me` of the launch `launch_id`; `nodes` has the agent of each node.
    pub fn new(key: LinkKey, launch_id: &str, me: NodeIndex, nodes: Arc<[Member]>) -> Self {
        let launch_id = Arc::from(launch_id);
        let (cut_off, writing) = (Mutex::default(), TaskTracker::new());
        let (agent_lease, answer_timeout) = (Duration::ZERO, ANSWER_TIMEOUT);
        Self { key, launch_id, me, nodes, cut_off, agent_lease, answer_timeout, writing }
    }

    /// The same for sessions that outlive their agents for up to `agent_lease`. If an agent's port refuses a link, the session waits for
    /// the next agent. If an agent closes a connection without an answer, the session retries once.
    #[must_use]
    pub fn with_agent_lease(self, agent_lease: Duration) -> Self {
        Self { agent_lease, ..self }
    }

    /// The same with this time limit for sessions to answer after the hand-over; the default is 30 s.
    #[must_use]
    pub fn with_answer_timeout(self, answer_timeout: Duration) -> Self {
        Self { answer_timeout, ..self }
    }

    /// Removes a node that is lost to the launch, even if its session still runs: closes the links to it, fails the fences that need it,
    /// and refuses new links.
    pub fn cut_off(&self, fences: &FenceNode, node: NodeIndex, reason: &str) {
        let Some(member) = self.nodes.get(node.index()).filter(|_| node != self.me) else { return };
        if self.cut_off.lock().insert(node) {
            fences.lost(&member.name, reason);
        }
    }

    /// Opens a link to the session on the named node, through its agent at `address`. Sends `outgoing`, and returns the received frames.
    /// If the call is dropped, `outgoing` is still sent, but no frame is read.
    ///
    /// # Errors
    /// Fails if the agent or the session does not answer, or is not of the launch.
    pub async fn open(self: &Arc<Self>, node: &str, address: &str, outgoing: Outgoing) -> Result<Incoming, LinkError> {
        let (this, node, address) = (Arc::clone(self), node.to_owned(), address.to_owned());
        let (tell, opened) = oneshot::channel();
        self.writing.spawn(task::boxed(async move {
            match this.establish(&node, &address).await {
                Ok((socket, ciphers)) => {
                    let (reader, writer) = socket.into_split();
                    let incoming = stream::incoming(reader, Arc::clone(&ciphers), this.frame_reader());
                    // The opener may have ended meanwhile. The other nodes still need its frames.
                    let _unread = tell.send(Ok(incoming));
                    log_end(stream::write_all(writer, ciphers, this.frame_writer(), outgoing)).await;
                }
                Err(error) => drop(tell.send(Err(error))),
            }
        }));
        let incoming = opened.await.unwrap_or(Err(LinkError::Ended))?;
        Ok(Box::pin(incoming.map(|frame| frame.map_err(status))))
    }

    /// Connects to a node's agent, and completes the handshake with the session of that node.
    async fn establish(&self, node: &str, address: &str) -> Result<(TcpStream, SharedCiphers), LinkError> {
        let to = self.nodes.iter().position(|member| member.name == node).unwrap_or(self.nodes.len());
        let to = NodeIndex(to as u32);
        if self.is_cut_off(to) {
            return Err(LinkError::CutOff);
        }
        let until = Instant::now() + self.agent_lease;
        let opened = match self.try_once(to, address, until).await {
            Err(CallFailure::Unanswered) if Instant::now() < until => {
                sleep(AGENT_PAUSE).await;
                self.try_once(to, address, until).await
            }
            tried => tried,
        };
        let opened = opened.map_err(|failure| match failure {
            CallFailure::Unanswered => LinkError::Refused { address: address.to_owned() },
            CallFailure::Link(error) => error,
        });
        // Nothing has been sent yet.
        if self.is_cut_off(to) { Err(LinkError::CutOff) } else { opened }
    }

    /// Connects to an agent, which may start until `until`, and completes the handshake with the session of its node.
    async fn try_once(
        &self,
        to: NodeIndex,
        address: &str,
        until: Instant,
    ) -> Result<(TcpStream, SharedCiphers), CallFailure> {
        let greeting = Greeting::new(self.launch(), self.me, to, random()?, &self.key.gate_key());
        let mut socket = self.reach(address, until).await?;
        let shaken = timeout(self.answer_timeout, self.call(&mut socket, &greeting, address)).await;
        let late = |_| LinkError::Late { address: address.to_owned(), timeout: self.answer_timeout };
        Ok((socket, shaken.map_err(late)??))
    }

    /// Connects to an agent. Retries until `until` if it does not run.
    async fn reach(&self, address: &str, until: Instant) -> Result<TcpStream, LinkError> {
        let late = |_| LinkError::Late { address: address.to_owned(), timeout: CONNECT_TIMEOUT };
        loop {
            match timeout(CONNECT_TIMEOUT, self.connect(address)).await.map_err(late)? {
                Ok(socket) => return Ok(socket),
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused && Instant::now() < until => {
                    sleep(AGENT_PAUSE).await;
                }
                Err(source) => return Err(LinkError::Unreachable { address: address.to_owned(), source }),
            }
        }
    }

    /// Accepts a link that the agent handed over. Adds it to the fences of this node with its first frame.
    ///
    /// # Errors
    /// Fails if the other end is not a session of the launch, is of a lost node, or sends nothing.
    pub async fn accept(&self, fences: &FenceNode, handed: Handed) -> Result<(), AcceptError> {
        let Handed { greeting, socket } = handed;
        let from = greeting.from();
        let no_such_node = || AcceptError::NoSuchNode { from, nodes: self.nodes.len() };
        let member = self.nodes.get(from.index()).filter(|_| from != self.me).ok_or_else(no_such_node)?;
        if self.is_cut_off(from) {
            return Err(AcceptError::CutOff { from });
        }
        let accepted = timeout(FIRST_FRAME_TIMEOUT, self.first_frame(&greeting, socket)).await;
        let Accepted { first, incoming, writer, ciphers } = accepted.map_err(|_| AcceptError::Late)??;
        let incoming = tokio_stream::once(Ok(first)).chain(incoming.map(|frame| frame.map_err(status)));
        let outgoing = {
            // If the node is lost from here on, this link is closed with it.
            let cut_off = self.cut_off.lock();
            if cut_off.contains(&from) {
                return Err(AcceptError::CutOff { from });
            }
            fences.accept(&member.name, Box::pin(incoming))
        };
        self.writing.spawn(task::boxed(log_end(stream::write_all(writer, ciphers, self.frame_writer(), outgoing))));
        Ok(())
    }

    /// Answers the handshake and waits for the first frame, which proves that the other end has the key and not just a recording.
    async fn first_frame(&self, greeting: &Greeting, socket: std::net::TcpStream) -> Result<Accepted, AcceptError> {
        socket.set_nonblocking(true)?;
        let mut socket = TcpStream::from_std(socket)?;
        socket::configure(&socket)?;
        let ciphers = self.answer(&mut socket, greeting).await?;
        let (reader, writer) = socket.into_split();
        let mut incoming = stream::incoming(reader, Arc::clone(&ciphers), self.frame_reader());
        let first = incoming.next().await.ok_or(io::Error::from(io::ErrorKind::UnexpectedEof))?;
        let first = first.map_err(|error| AcceptError::Frame { reason: chain(&error) })?;
        Ok(Accepted { first, incoming, writer, ciphers })
    }

    /// Waits until all frames that the fences of this node have sent are written. Call it after the fences are dropped. The caller must
    /// limit the wait, because the other ends may have stopped reading.
    pub async fn flushed(&self) {
        self.writing.close();
        self.writing.wait().await;
    }

    fn is_cut_off(&self, node: NodeIndex) -> bool {
        self.cut_off.lock().contains(&node)
    }

    fn launch(&self) -> LaunchHash {
        LaunchHash::of(&self.launch_id)
    }

    fn frame_reader(&self) -> FrameReader {
        FrameReader::new(Arc::clone(&self.launch_id))
    }

    fn frame_writer(&self) -> FrameWriter {
        FrameWriter::new(Arc::clone(&self.launch_id))
    }

    async fn connect(&self, address: &str) -> io::Result<TcpStream> {
        let to = resolve(address).await?.next().ok_or(io::ErrorKind::NotFound)?;
        let open = || if to.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
        let mut socket = open()?;
        // The other agent checks the source address against the address of this node's agent.
        if let Some(own) = self.own_address(to)
            && socket.bind(SocketAddr::new(own, 0)).is_err()
        {
            socket = open()?;
        }
        let socket = socket.connect(to).await?;
        socket::configure(&socket)?;
        Ok(socket)
    }

    fn own_address(&self, to: SocketAddr) -> Option<IpAddr> {
        let own = self.nodes.get(self.me.index())?.address.parse::<SocketAddr>().ok()?.ip();
        (own.is_ipv4() == to.is_ipv4()).then_some(own)
    }

    async fn call(
        &self,
        socket: &mut TcpStream,
        greeting: &Greeting,
        address: &str,
    ) -> Result<SharedCiphers, CallFailure> {
        let fault = |source| LinkError::Handshake { address: address.to_owned(), source };
        let closed = |source: io::Error| match source.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => CallFailure::Unanswered,
            _ => LinkError::Unreachable { address: address.to_owned(), source }.into(),
        };
        let mut handshake = Handshake::of_caller(&self.key.handshake_key(), greeting.as_bytes()).map_err(fault)?;
        let mut opening = [0; Greeting::LEN + HANDSHAKE_LEN];
        opening[..Greeting::LEN].copy_from_slice(greeting.as_bytes());
        opening[Greeting::LEN..].copy_from_slice(&handshake.write(VERSION).map_err(fault)?);
        socket.write_all(&opening).await.map_err(closed)?;
        let mut answer = [0; HANDSHAKE_LEN];
        let read = read_up_to(socket, &mut answer).await.map_err(closed)?;
        let shaken = match read {
            0 => return Err(CallFailure::Unanswered),
            HANDSHAKE_LEN => handshake.read(&answer).map_err(fault),
            _ => Err(LinkError::Refused { address: address.to_owned() }),
        };
        let theirs = match shaken {
            Err(_) if is_of_calls(&answer[..read]) => {
                return Err(LinkError::NoLinks { address: address.to_owned() }.into());
            }
            shaken => shaken?,
        };
        if theirs != VERSION {
            return Err(LinkError::Version { address: address.to_owned(), theirs }.into());
        }
        Ok(Arc::new(Mutex::new(handshake.finish().map_err(fault)?)))
    }

    async fn answer(&self, socket: &mut TcpStream, greeting: &Greeting) -> Result<SharedCiphers, AcceptError> {
        let mut handshake = Handshake::of_called(&self.key.handshake_key(), greeting.as_bytes())?;
        let mut opening = [0; HANDSHAKE_LEN];
        socket.read_exact(&mut opening).await?;
        let theirs = handshake.read(&opening)?;
        // The version is sent even if it differs, so that the other end can report it.
        socket.write_all(&handshake.write(VERSION)?).await?;
        if theirs != VERSION {
            return Err(AcceptError::Version { theirs });
        }
        Ok(Arc::new(Mutex::new(handshake.finish()?)))
    }
}

/// Resolves an agent's `host:port`.
pub(super) async fn resolve(address: &str) -> io::Result<impl Iterator<Item = SocketAddr>> {
    let parsed: Address = address.parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let Address::Tcp { host, port } = parsed else { return Err(io::ErrorKind::Unsupported.into()) };
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)].into_iter());
    }
    // tokio's `lookup_host` panics if the user's thread limit is reached.
    let (tell, found) = oneshot::channel();
    let look_up = move || (host.as_str(), port).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
    thread::Builder::new().name("resolver".to_owned()).spawn(move || drop(tell.send(look_up())))?;
    Ok(found.await.map_err(io::Error::other)??.into_iter())
}

/// Fills `buffer` until the other end stops sending; returns the number of bytes. Fails only if no byte arrived.
async fn read_up_to(socket: &mut TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match socket.read(&mut buffer[read..]).await {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(_) if read > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

/// Returns true if a server of calls answers a greeting in this way: with a TLS alert (RFC 8446, 5.1), or the first frame of HTTP/2
/// (SETTINGS: RFC 9113, 3.4 and 4.1).
fn is_of_calls(answer: &[u8]) -> bool {
    matches!(answer, [0x15, 0x03, ..] | [0, 0, _, 4, 0, 0, 0, 0, 0, ..])
}

fn random<const LEN: usize>() -> Result<[u8; LEN], LinkError> {
    let mut bytes = [0; LEN];
    getrandom::fill(&mut bytes).map_err(LinkError::Random)?;
    Ok(bytes)
}

fn status(error: StreamError) -> Status {
    Status::unavailable(chain(&error))
}

/// Logs a failure only at debug level, because the reader of the link reports its end.
async fn log_end(writing: impl Future<Output = Result<(), StreamError>>) {
    if let Err(error) = writing.await {
        tracing::debug!(%error, "a link cannot be written to");
    }
}

#[cfg(test)]
mod tests;
