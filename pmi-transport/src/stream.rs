//! The byte streams that calls travel over, of whichever kind, as one type.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// A connection between two processes of ours.
#[derive(Debug)]
pub(crate) enum ByteStream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Does the same with whichever stream it is.
macro_rules! with_stream {
    ($self:expr, $stream:ident => $call:expr) => {
        match $self.get_mut() {
            ByteStream::Tcp($stream) => $call,
            ByteStream::Unix($stream) => $call,
        }
    };
}

impl AsyncRead for ByteStream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        with_stream!(self, stream => Pin::new(stream).poll_read(context, buffer))
    }
}

impl AsyncWrite for ByteStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        with_stream!(self, stream => Pin::new(stream).poll_write(context, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        with_stream!(self, stream => Pin::new(stream).poll_write_vectored(context, slices))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(stream) => stream.is_write_vectored(),
            Self::Unix(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        with_stream!(self, stream => Pin::new(stream).poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        with_stream!(self, stream => Pin::new(stream).poll_shutdown(context))
    }
}
