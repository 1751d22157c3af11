//! A connection to a rank: its writing side, and its unsent bytes.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::{io, net};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::tcp;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::quiet;

/// A connection: its writing side, and its unsent bytes. All reads and writes happen under the lock, so that their order is kept.
pub(super) struct Connection {
    pub(super) socket: Arc<WriteHalf>,
    pub(super) unsent: VecDeque<Bytes>,
    pub(super) unsent_bytes: usize,
    /// Wakes the reading side when `unsent` has become empty.
    pub(super) drained: Arc<Notify>,
    /// The tasks that read, and that write `unsent`.
    pub(super) tasks: Vec<AbortHandle>,
    /// True if the protocol waits for an empty `unsent`.
    pub(super) tells: bool,
    /// True while messages of the rank wait until it has read `unsent`.
    pub(super) is_paused: bool,
    /// Process id of the last known sender.
    pub(super) speaker: Option<u32>,
    /// True if nothing more is read: the rank has closed its end, or the protocol has closed this one. `unsent` holds its last answer.
    pub(super) is_ending: bool,
}

pub(super) enum ReadHalf {
    Unix(quiet::ReadHalf),
    Tcp(tcp::OwnedReadHalf),
}

pub(super) enum WriteHalf {
    Unix(quiet::WriteHalf),
    Tcp(tcp::OwnedWriteHalf),
}

impl Connection {
    pub(super) fn new(writer: WriteHalf) -> Self {
        Self {
            socket: Arc::new(writer),
            unsent: VecDeque::new(),
            unsent_bytes: 0,
            drained: Arc::default(),
            tasks: Vec::new(),
            tells: false,
            is_paused: false,
            speaker: None,
            is_ending: false,
        }
    }

    pub(super) fn queue(&mut self, bytes: Bytes) {
        self.unsent_bytes += bytes.len();
        self.unsent.push_back(bytes);
    }

    /// Writes until the socket is full; returns false when the queue is empty, or the rank is gone.
    pub(super) fn write_queued(&mut self) -> bool {
        while let Some(bytes) = self.unsent.front_mut() {
            match self.socket.try_write(bytes) {
                Ok(written) => {
                    self.unsent_bytes -= written;
                    bytes.advance(written);
                    if bytes.is_empty() {
                        self.unsent.pop_front();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(_) => {
                    self.unsent.clear();
                    self.unsent_bytes = 0;
                }
            }
        }
        false
    }
}

impl ReadHalf {
    pub(super) fn poll_read(&mut self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Unix(socket) => Pin::new(socket).poll_read(context, buffer),
            Self::Tcp(socket) => Pin::new(socket).poll_read(context, buffer),
        }
    }

    /// Sender of the last bytes read, if requested.
    pub(super) fn take_sender(&mut self) -> Option<u32> {
        match self {
            Self::Unix(socket) => socket.take_sender(),
            Self::Tcp(_) => None,
        }
    }
}

impl WriteHalf {
    /// Requests the sender of the next bytes. A connection at a port has one sender.
    pub(super) fn ask_for_sender(&self) {
        if let Self::Unix(socket) = self
            && let Err(error) = socket.ask_for_sender()
        {
            tracing::debug!("the sender of a PMI message stays unknown: {error}");
        }
    }

    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(socket) => socket.try_write(bytes),
            Self::Tcp(socket) => socket.try_write(bytes),
        }
    }

    /// Returns a reader of the bytes that the socket holds now. tokio would query the kernel only in its next turn.
    pub(super) fn unread(&self) -> io::Result<Box<dyn io::Read>> {
        Ok(match self {
            Self::Unix(socket) => Box::new(socket.get_ref().try_clone()?),
            Self::Tcp(socket) => {
                let descriptor = socket.as_ref().as_fd().try_clone_to_owned()?;
                Box::new(net::TcpStream::from(descriptor))
            }
        })
    }

    pub(super) async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Unix(socket) => socket.writable().await,
            Self::Tcp(socket) => socket.writable().await,
        }
    }
}
