//! The pseudo-terminal of a rank. A pump reads the rank's output from it, and the launch's input is typed into it.

use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use bytes::BytesMut;
use nix::unistd;
use rank_spawner::{Terminal, TerminalSize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::sleep;

/// Maximum number of bytes of one read; the kernel returns at most a page of a terminal.
const PIECE: usize = 4096;
/// Interval between checks whether the end of the input was read; there is no notification of it.
const END_OF_INPUT_CHECK: Duration = Duration::from_millis(100);

/// A rank's pseudo-terminal.
#[derive(Debug)]
pub(super) struct RankTerminal(AsyncFd<Terminal>);

impl RankTerminal {
    /// # Errors
    /// Fails when the runtime cannot watch another descriptor.
    pub(super) fn new(terminal: Terminal) -> io::Result<Self> {
        terminal.watched().map(Self)
    }

    /// Changes the size, unless the terminal is gone.
    pub(super) fn resize(&self, size: TerminalSize) {
        let _ = self.0.get_ref().resize(size);
    }

    /// Waits until there may be something to read.
    pub(super) async fn readable(&self) -> io::Result<()> {
        self.0.readable().await.map(|mut ready| ready.retain_ready())
    }

    /// Reads into the room of `held`. Fails with `EIO` when no process has the terminal open.
    pub(super) fn try_read_buf(&self, held: &mut BytesMut) -> io::Result<usize> {
        let mut piece = [0; PIECE];
        let len = self.0.try_io(Interest::READABLE, |terminal| Ok(unistd::read(terminal, &mut piece)?))?;
        held.extend_from_slice(&piece[..len]);
        Ok(len)
    }

    /// Types some of `bytes`, and returns their number.
    ///
    /// # Errors
    /// Fails when the terminal is gone.
    pub(super) async fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.0.async_io(Interest::WRITABLE, |terminal| Ok(unistd::write(terminal, bytes)?)).await
    }

    /// Presents the end of the input, as at the end of a file, to every process that reads from now on. It types the character for it
    /// each time that no input is left to read. A program that starts to edit its lines itself interprets an earlier character
    /// differently.
    ///
    /// # Errors
    /// Fails when the terminal is gone.
    pub(super) async fn end_input(&self) -> io::Result<Infallible> {
        loop {
            if !self.0.get_ref().has_unread_input()?
                && let Some(end) = self.0.get_ref().end_of_input()
            {
                self.write(&[end]).await?;
            }
            sleep(END_OF_INPUT_CHECK).await;
        }
    }
}

impl AsFd for RankTerminal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }
}
