//! An accepted connection, and what is known of who made it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

use super::users::Place;
use crate::identity::Caller;
use crate::stream::ByteStream;

/// Who is at the other end of a connection. It is in the extensions of each request.
#[derive(Clone, Debug)]
pub(crate) enum Peer {
    /// The kernel or a certificate names it; or why the certificate names nobody.
    Proven(Result<Caller, Arc<str>>),
    /// Each call says who makes it, and is believed.
    Claimed,
}

/// An accepted connection; its reads fail once it is cut.
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

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
