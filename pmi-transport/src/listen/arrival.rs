//! A connection on its way in: who made it?

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

use super::connection::{Connection, Peer};
use super::users::{TooManyConnections, Users};
use crate::identity::{Caller, CertificateNameError, TlsIdentity};
use crate::limits;
use crate::stream::ByteStream;
use crate::tls::{caller_in, in_words};

/// A connection of whose maker only the address is known.
pub(super) enum Arrival {
    /// With an identity, both ends have to prove theirs.
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

/// Why a connection is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    TooMany(#[from] TooManyConnections),
    #[error("no TLS: {reason}")]
    Handshake { reason: String },
    #[error("no TLS: the handshake was not over after {:?}", limits::HANDSHAKE_PATIENCE)]
    Late,
}

impl Arrival {
    /// Finds out who is at the other end. A certificate of our CA that names nobody is let in as nobody: each of its calls is
    /// refused with the reason.
    pub(super) async fn identify(self, cut: &CancellationToken) -> Result<Connection, Refusal> {
        match self {
            Self::Tcp { stream, identity, .. } => {
                // A fence is a chain of small messages; none may wait for the acknowledgement of the one before.
                stream.set_nodelay(true)?;
                let Some(identity) = identity else {
                    return Ok(Connection::new(ByteStream::Tcp(stream), Peer::Claimed, cut));
                };
                let stream = timeout(limits::HANDSHAKE_PATIENCE, shake_hands(stream, &identity)).await;
                let stream = stream.map_err(|_| Refusal::Late)??;
                let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
                let caller = shown.map_or(Err(CertificateNameError::Unreadable), caller_in);
                Ok(Connection::new(ByteStream::Tls(Box::new(stream.into())), Peer::Proven(caller), cut))
            }
            Self::Unix { stream, users } => {
                let uid = stream.peer_cred()?.uid();
                let caller = match uid == 0 || uid == nix::unistd::geteuid().as_raw() {
                    true => Caller::Admin(Some(uid)),
                    false => Caller::User(uid),
                };
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
    let _ = timeout(limits::REFUSAL_PATIENCE, reading).await;
}
