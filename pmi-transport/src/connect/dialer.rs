//! Makes the connections of one channel, and verifies the peer's identity.

use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::unix_socket;
use crate::address::Address;
use crate::identity::Caller;
use crate::limits::CONNECT_TIMEOUT;
use crate::stream::{ByteStream, write_through_stream};
use crate::tls::{CertificateNameError, TlsIdentity, Watched, caller_in, in_words, refuses_us};

/// First byte of a TLS alert. An HTTP/2 server begins with a short frame, which has 0 as its first byte (RFC 9113, 3.4 and 4.1).
const TLS_ALERT: u8 = 0x15;

/// Error kind of a connection if the other end refuses our certificate. `h2` keeps only the kind and text of an error for the calls of
/// its connection. Connected sockets return no error of this kind.
pub(super) const NOT_TAKEN: ErrorKind = ErrorKind::PermissionDenied;

/// Failure to connect.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DialError {
    /// No process answers at the address, or it has no route.
    #[error("cannot connect to {address}: {source}")]
    Unreachable {
        /// The address.
        address: Address,
        /// The system's error.
        source: io::Error,
    },
    /// Time-out.
    #[error("{address} did not answer within {timeout:?}")]
    Late {
        /// The address.
        address: Address,
        /// Length of the time-out.
        timeout: Duration,
    },
    /// The peer closed the connection before it proved its identity, twice in a row.
    #[error("no TLS with {address}: it hung up")]
    HungUp {
        /// The address.
        address: Address,
    },
    /// The peer does not prove its identity, or not with a certificate of our CA.
    #[error("no TLS with {address}: {reason}")]
    Handshake {
        /// The address.
        address: Address,
        /// Fault, as a sentence; "it" is the peer.
        reason: String,
    },
    /// The peer's certificate names no caller.
    #[error("the server at {address} is not identified")]
    Nameless {
        /// The address.
        address: Address,
        /// Error of its certificate.
        source: CertificateNameError,
    },
    /// The wrong process answers.
    #[error("{found} answers at {address}; {meant} was meant")]
    Stranger {
        /// The address.
        address: Address,
        /// Expected process.
        meant: Caller,
        /// Process that answers.
        found: Caller,
    },
}

/// Makes connections to one peer.
#[derive(Clone, Debug)]
pub(super) struct Dialer {
    pub(super) address: Address,
    pub(super) tls: Option<PeerProof>,
}

/// Proof that a peer must give.
#[derive(Clone, Debug)]
pub(super) struct PeerProof {
    pub(super) identity: TlsIdentity,
    pub(super) peer: Caller,
    pub(super) name: ServerName<'static>,
}

impl Dialer {
    /// Connects. Repeats the attempt once if the peer closes the connection. A peer closes every connection that sends nothing for
    /// [`FIRST_BYTE_TIMEOUT`]. That affects an honest process that is stopped, or waits for a CPU, between its connection and its first
    /// byte.
    ///
    /// [`FIRST_BYTE_TIMEOUT`]: crate::limits::FIRST_BYTE_TIMEOUT
    pub(super) async fn dial(self) -> Result<Dialed, DialError> {
        match self.dial_once().await {
            Err(DialError::HungUp { address }) => {
                tracing::debug!(%address, "the server closed the connection before it proved its identity; connecting once more");
                self.dial_once().await
            }
            dialed => dialed,
        }
    }

    async fn dial_once(&self) -> Result<Dialed, DialError> {
        let connection = timeout(CONNECT_TIMEOUT, self.connect()).await;
        let late = || DialError::Late { address: self.address.clone(), timeout: CONNECT_TIMEOUT };
        connection.unwrap_or_else(|_| Err(late()))
    }

    async fn connect(&self) -> Result<Dialed, DialError> {
        let unreachable = |source| DialError::Unreachable { address: self.address.clone(), source };
        let mut watched = None;
        let stream = match &self.address {
            Address::Unix(path) => {
                ByteStream::Unix(unix_socket::connect(path, CONNECT_TIMEOUT).await.map_err(unreachable)?)
            }
            Address::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(unreachable)?;
                // A fence is a chain of small messages. None may wait for the acknowledgement of the previous one.
                stream.set_nodelay(true).map_err(unreachable)?;
                match &self.tls {
                    Some(proof) => {
                        let (stream, shown) = self.prove(stream, proof).await?;
                        watched = proof.identity.watch(&shown);
                        ByteStream::Tls(Box::new(stream.into()))
                    }
                    None => ByteStream::Tcp(stream),
                }
            }
        };
        Ok(Dialed { stream, heard: false, watched })
    }

    /// Verifies the peer's identity; also returns the certificate that it has shown.
    async fn prove(
        &self,
        stream: TcpStream,
        proof: &PeerProof,
    ) -> Result<(TlsStream<TcpStream>, CertificateDer<'static>), DialError> {
        let address = || self.address.clone();
        let connector = TlsConnector::from(Arc::clone(&proof.identity.material().client));
        let stream = connector.connect(proof.name.clone(), stream).await;
        let stream = stream.map_err(|error| match error.kind() {
            // A peer's close appears as a reset if we have just written. TLS errors have the kind `InvalidData`.
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                DialError::HungUp { address: address() }
            }
            _ => DialError::Handshake { address: address(), reason: in_words(&error) },
        })?;
        let nameless = |source| DialError::Nameless { address: address(), source };
        let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let shown = shown.ok_or_else(|| nameless(CertificateNameError::Unreadable))?.clone().into_owned();
        let found = caller_in(&shown).map_err(nameless)?;
        // A stolen key of one node must not be valid for another node, nor for the API server.
        if found != proof.peer {
            return Err(DialError::Stranger { address: address(), meant: proof.peer.clone(), found });
        }
        Ok((stream, shown))
    }
}

/// A connection that we made. Its errors are in plain words.
pub(super) struct Dialed {
    stream: ByteStream,
    /// Set once the first bytes were read.
    heard: bool,
    /// `None` if the peer has shown no certificate.
    watched: Option<Watched>,
}

impl AsyncRead for Dialed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.watched.as_mut().is_some_and(|watched| watched.poll_revoked(context).is_ready()) {
            let revoked = io::Error::new(ErrorKind::ConnectionAborted, "the certificate of the peer was revoked");
            return Poll::Ready(Err(revoked));
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        match (&self.stream, polled) {
            // With TLS 1.3 a server refuses our certificate after the handshake has ended for us.
            (ByteStream::Tls(_), Poll::Ready(Err(error))) => {
                let kind = if refuses_us(&error) { NOT_TAKEN } else { error.kind() };
                Poll::Ready(Err(io::Error::new(kind, in_words(&error))))
            }
            (ByteStream::Tcp(_), Poll::Ready(Ok(()))) if !self.heard => {
                self.heard = true;
                match buffer.filled().get(before) {
                    Some(&TLS_ALERT) => Poll::Ready(Err(io::Error::new(
                        ErrorKind::InvalidData,
                        "it speaks TLS, and we have no certificates",
                    ))),
                    _ => Poll::Ready(Ok(())),
                }
            }
            (_, polled) => polled,
        }
    }
}

write_through_stream!(Dialed);
