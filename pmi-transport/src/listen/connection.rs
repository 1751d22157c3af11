//! Accepted connection, with the proof of who made it and the means to cut it: when serving ends, and when that proof is revoked.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

use super::budget::Place;
use crate::identity::Peer;
use crate::stream::{ByteStream, write_through_stream};
use crate::tls::Watched;

/// Accepted connection; its reads fail once it is cut.
pub(super) struct Connection {
    stream: ByteStream,
    peer: Peer,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    /// `None` for one that no certificate was shown on.
    watched: Option<Watched>,
    /// Given back with the connection.
    _place: Option<Place>,
}

impl Connection {
    pub(super) fn new(stream: ByteStream, peer: Peer, cut: &CancellationToken) -> Self {
        Self { stream, peer, cut: Box::pin(cut.clone().cancelled_owned()), watched: None, _place: None }
    }

    /// The same, cut when the certificate is revoked that was shown on it.
    pub(super) fn watched(self, watched: Option<Watched>) -> Self {
        Self { watched, ..self }
    }

    pub(super) fn with_place(self, place: Place) -> Self {
        Self { _place: Some(place), ..self }
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let revoked = self.watched.as_mut().is_some_and(|watched| watched.poll_revoked(context).is_ready());
        if revoked || self.cut.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

write_through_stream!(Connection);
