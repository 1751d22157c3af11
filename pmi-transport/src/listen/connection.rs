//! Accepted connection with the identity of its peer. It is cut at the end of serving, and when its certificate is revoked.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

use super::budget::Place;
use crate::identity::{Incoming, Peer, PeerClose};
use crate::stream::ByteStream;
use crate::tls::Watched;

/// Accepted connection; its reads fail once it is cut.
pub(super) struct Connection {
    stream: ByteStream,
    incoming: Incoming,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    /// `None` without a certificate.
    watched: Option<Watched>,
    /// Returned with the connection.
    _place: Option<Place>,
}

impl Connection {
    pub(super) fn new(stream: ByteStream, peer: Peer, cut: &CancellationToken) -> Self {
        let incoming = Incoming { peer, close: PeerClose::default() };
        Self { stream, incoming, cut: Box::pin(cut.clone().cancelled_owned()), watched: None, _place: None }
    }

    /// The same connection, cut when its certificate is revoked.
    pub(super) fn watched(self, watched: Option<Watched>) -> Self {
        Self { watched, ..self }
    }

    /// Records an end that the peer caused. On a proxied stream the end may be that of the connection between the daemons, so it
    /// is not recorded.
    fn note<T>(&self, done: Poll<io::Result<T>>, is_end: impl FnOnce(&T) -> bool) -> Poll<io::Result<T>> {
        const CLOSED: [io::ErrorKind; 3] =
            [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset, io::ErrorKind::UnexpectedEof];
        let is_end = match &done {
            Poll::Ready(Ok(value)) => is_end(value),
            Poll::Ready(Err(error)) => CLOSED.contains(&error.kind()),
            Poll::Pending => false,
        };
        if is_end && !matches!(self.stream, ByteStream::Proxied(_)) {
            self.incoming.close.note();
        }
        done
    }

    pub(super) fn with_place(self, place: Place) -> Self {
        Self { _place: Some(place), ..self }
    }
}

impl Connected for Connection {
    type ConnectInfo = Incoming;

    fn connect_info(&self) -> Incoming {
        self.incoming.clone()
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
        let (before, had_room) = (buffer.filled().len(), buffer.remaining() > 0);
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.note(read, |()| had_room && buffer.filled().len() == before)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note(written, |_| false)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.note(written, |_| false)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.note(flushed, |()| false)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
