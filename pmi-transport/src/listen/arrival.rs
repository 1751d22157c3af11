//! Incoming connection before its peer is known: TLS handshake, or the kernel's credentials on a Unix socket.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use super::budget::{Budget, Exhausted};
use super::connection::Connection;
use super::greetings::Greeter;
use crate::identity::{Caller, Peer, TlsIdentity};
use crate::limits;
use crate::session_link::{Arrivals, Greeting, GreetingError, MAGIC};
use crate::stream::ByteStream;
use crate::tls::{Clients, caller_in, in_words};

/// Accepted connection without a known peer.
pub(super) enum Arrival {
    /// TCP connection.
    Tcp {
        stream: TcpStream,
        from: SocketAddr,
        /// Proof that both ends must give. `None` if every claimed identity is accepted.
        proof: Option<Proof>,
        /// Receiver of links between sessions, at an agent's port.
        links: Option<Arc<Arrivals>>,
        /// Place of the connection until its peer is known.
        greeter: Greeter,
    },
    Unix {
        stream: UnixStream,
        /// User at the other end.
        uid: u32,
    },
    /// Proxied by the agent of a user's node.
    Proxied { stream: DuplexStream, caller: Result<Caller, String> },
}

/// Mutual proof of identity on a connection.
pub(super) struct Proof {
    /// Our identity.
    pub(super) identity: TlsIdentity,
    /// Peers that may connect.
    pub(super) clients: Clients,
}

/// Kind of a connection, from its first byte and its proof.
pub(super) enum Identified {
    /// Carries calls.
    Calls(Connection),
    /// Is a link for a session of this node.
    Link { arrivals: Arc<Arrivals>, greeting: Greeting, socket: std::net::TcpStream, from: SocketAddr },
}

/// Reason for refusing a connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Exhausted(#[from] Exhausted),
    #[error("its place was needed for another one")]
    Dismissed,
    #[error("no TLS: {reason}")]
    Handshake { reason: String },
    #[error("no TLS: it shows no certificate")]
    NoCertificate,
    #[error("no TLS: the handshake was not over after {:?}", limits::HANDSHAKE_TIMEOUT)]
    Late,
    #[error(transparent)]
    Greeting(#[from] GreetingError),
}

impl Arrival {
    /// Identifies the other end. A certificate of our CA that names no caller is admitted as an unknown caller: each of
    /// its calls is refused with the reason.
    pub(super) async fn identify(self, budget: &Arc<Budget>, cut: &CancellationToken) -> Result<Identified, Refusal> {
        match self {
            Self::Tcp { stream, from, proof, links, greeter } => {
                // A fence is a chain of small messages. None may wait for the acknowledgement of the previous one.
                stream.set_nodelay(true)?;
                let proving = timeout(limits::HANDSHAKE_TIMEOUT, async {
                    let first = greeter.first_byte(&stream).await?;
                    match links {
                        Some(arrivals) if first == Some(MAGIC[0]) => greeted(stream, from, arrivals).await,
                        _ => prove(stream, proof, budget, cut).await.map(Identified::Calls),
                    }
                });
                tokio::select! {
                    proven = proving => proven.unwrap_or(Err(Refusal::Late)),
                    () = greeter.gone() => Err(Refusal::Dismissed),
                }
            }
            Self::Unix { stream, uid } => {
                let is_admin = uid == 0 || uid == nix::unistd::geteuid().as_raw();
                let caller = if is_admin { Caller::Admin(Some(uid)) } else { Caller::User(uid) };
                let place = budget.connection(Some(caller.clone()))?;
                let connection = Connection::new(ByteStream::Unix(stream), Peer::Local(caller), cut);
                Ok(Identified::Calls(connection.with_place(place)))
            }
            Self::Proxied { stream, caller } => {
                let place = budget.connection(caller.as_ref().ok().cloned())?;
                let connection = Connection::new(ByteStream::Proxied(stream), Peer::Proxied(caller), cut);
                Ok(Identified::Calls(connection.with_place(place)))
            }
        }
    }
}

/// Formats the other end for the log: its address, or its user.
impl fmt::Display for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { from, .. } => from.ip().fmt(f),
            Self::Unix { uid, .. } => write!(f, "user {uid}"),
            Self::Proxied { caller: Ok(caller), .. } => caller.fmt(f),
            Self::Proxied { .. } => f.write_str("a node"),
        }
    }
}

/// Reads the greeting of a link, and no byte beyond it.
async fn greeted(mut stream: TcpStream, from: SocketAddr, arrivals: Arc<Arrivals>) -> Result<Identified, Refusal> {
    let mut bytes = [0; Greeting::LEN];
    stream.read_exact(&mut bytes).await?;
    let greeting = Greeting::from_bytes(bytes)?;
    Ok(Identified::Link { arrivals, greeting, socket: stream.into_std()?, from })
}

/// Authenticates the peer of a connection for calls, if certificates are required.
async fn prove(
    stream: TcpStream,
    proof: Option<Proof>,
    budget: &Arc<Budget>,
    cut: &CancellationToken,
) -> Result<Connection, Refusal> {
    let Some(proof) = proof else {
        return Ok(Connection::new(ByteStream::Tcp(stream), Peer::Claimed, cut));
    };
    let from = stream.peer_addr().ok().map(|from| from.ip());
    let stream = shake_hands(stream, &proof).await?;
    let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let certificate = shown.ok_or(Refusal::NoCertificate)?.clone().into_owned();
    let caller = caller_in(&certificate);
    let watched = proof.identity.watch(&certificate);
    let place = budget.connection(caller.as_ref().ok().cloned())?;
    let (stream, peer) = (ByteStream::Tls(Box::new(stream.into())), Peer::Certified { caller, certificate, from });
    Ok(Connection::new(stream, peer, cut).with_place(place).watched(watched))
}

async fn shake_hands(stream: TcpStream, proof: &Proof) -> Result<TlsStream<TcpStream>, Refusal> {
    let acceptor = TlsAcceptor::from(proof.identity.material().server(proof.clients));
    match acceptor.accept(stream).into_fallible().await {
        Ok(stream) => Ok(stream),
        Err((error, stream)) => {
            let_read_why(stream).await;
            Err(Refusal::Handshake { reason: in_words(&error) })
        }
    }
}

/// Closes a connection so that the peer can read the last alert. The remaining input is read first: closing a socket
/// with unread input resets the connection, and the alert is lost.
async fn let_read_why(mut stream: TcpStream) {
    let reading = async {
        stream.shutdown().await?;
        let mut rest = [0; 4096];
        while stream.read(&mut rest).await? > 0 {}
        io::Result::Ok(())
    };
    // A peer that is gone, or keeps sending, does not get the alert.
    let _ = timeout(limits::REFUSAL_TIMEOUT, reading).await;
}
