//! Accepted connection, with the proof of who made it and the means to cut it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

use super::budget::Place;
use crate::identity::Peer;
use crate::stream::{ByteStream, write_through_stream};

/// Accepted connection; its reads fail once it is cut.
pub(super) struct Connection {
    stream: ByteStream,
    peer: Peer,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Given back with the connection.
    _place: Option<Place>,
}

impl Connection {
    pub(super) fn new(stream: ByteStream, peer: Peer, cut: &CancellationToken) -> Self {
        Self { stream, peer, cut: Box::pin(cut.clone().cancelled_owned()), _place: None }
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
        if self.cut.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

write_through_stream!(Connection);
