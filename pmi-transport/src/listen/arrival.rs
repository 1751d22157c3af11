//! Incoming connection until it is known who made it: TLS handshake, or the kernel's word on a Unix socket.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use super::connection::Connection;
use super::users::{TooManyConnections, Users};
use crate::identity::{Caller, CertificateNameError, Peer, TlsIdentity};
use crate::limits;
use crate::stream::ByteStream;
use crate::tls::{caller_in, in_words};

/// Connection that was accepted, and whose maker is not known yet.
pub(super) enum Arrival {
    /// TCP connection; with an identity, both ends have to prove theirs.
    Tcp {
        stream: TcpStream,
        from: SocketAddr,
        identity: Option<TlsIdentity>,
    },
    Unix {
        stream: UnixStream,
        users: Arc<Users>,
    },
}

/// Reason for which a connection is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    TooMany(#[from] TooManyConnections),
    #[error("no TLS: {reason}")]
    Handshake { reason: String },
    #[error("no TLS: the handshake was not over after {:?}", limits::HANDSHAKE_TIMEOUT)]
    Late,
}

impl Arrival {
    /// Identifies the other end. A certificate of our CA that names nobody is let in as nobody: each of its calls is
    /// refused with the reason.
    pub(super) async fn identify(self, cut: &CancellationToken) -> Result<Connection, Refusal> {
        match self {
            Self::Tcp { stream, identity, .. } => {
                // A fence is a chain of small messages; none may wait for the acknowledgement of the one before.
                stream.set_nodelay(true)?;
                let Some(identity) = identity else {
                    return Ok(Connection::new(ByteStream::Tcp(stream), Peer::Claimed, cut));
                };
                let stream = timeout(limits::HANDSHAKE_TIMEOUT, shake_hands(stream, &identity)).await;
                let stream = stream.map_err(|_| Refusal::Late)??;
                let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
                let caller = shown.map_or(Err(CertificateNameError::Unreadable), caller_in);
                Ok(Connection::new(ByteStream::Tls(Box::new(stream.into())), Peer::Proven(caller), cut))
            }
            Self::Unix { stream, users } => {
                let uid = stream.peer_cred()?.uid();
                let is_admin = uid == 0 || uid == nix::unistd::geteuid().as_raw();
                let caller = if is_admin { Caller::Admin(Some(uid)) } else { Caller::User(uid) };
                let place = users.admit(uid)?;
                Ok(Connection::new(ByteStream::Unix(stream), Peer::Proven(Ok(caller)), cut).with_place(place))
            }
        }
    }
}

impl fmt::Display for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { from, .. } => from.fmt(f),
            Self::Unix { .. } => f.write_str("this machine"),
        }
    }
}

async fn shake_hands(stream: TcpStream, identity: &TlsIdentity) -> Result<TlsStream<TcpStream>, Refusal> {
    match TlsAcceptor::from(Arc::clone(&identity.material().server)).accept(stream).into_fallible().await {
        Ok(stream) => Ok(stream),
        Err((error, stream)) => {
            let_read_why(stream).await;
            Err(Refusal::Handshake { reason: in_words(&error) })
        }
    }
}

/// Closes a connection so that the peer gets to read the alert that was sent last: what the peer had sent is read first,
/// because a socket that is closed over unread bytes resets the connection, and the alert is lost.
async fn let_read_why(mut stream: TcpStream) {
    let reading = async {
        stream.shutdown().await?;
        let mut rest = [0; 4096];
        while stream.read(&mut rest).await? > 0 {}
        io::Result::Ok(())
    };
    // Whoever has gone already, or goes on sending, is none the wiser.
    let _ = timeout(limits::REFUSAL_TIMEOUT, reading).await;
}
