//! The pseudo-terminal of a rank: what the rank writes there goes to the launch as it comes, and what the launch has for it is typed there.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use nix::unistd;
use pmi_core::ids::Rank;
use rank_spawner::{Terminal, TerminalSize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use super::pump::until_true;
use super::tap::Tap;
use crate::event::{Event, Output, Stream};

/// Bytes that are read at once; the kernel hands out no more than a page of a terminal.
const PIECE: usize = 4096;
/// Reads that take all that a terminal holds: the kernel keeps no more than 64 KiB of output for one.
const LAST_READS: usize = (64 << 10) / PIECE + 1;
/// Interval between looks whether the end of the input was read; nothing tells us.
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

    /// Changes the size. A terminal that is gone has none.
    pub(super) fn resize(&self, size: TerminalSize) {
        let _ = self.0.get_ref().resize(size);
    }

    /// Passes on what is written there, until the last process that has it is gone; once `stop` turns true, what is there then.
    ///
    /// Nothing is read while the launch does not take what was read: the terminal fills, and who writes there waits.
    pub(super) async fn pump(
        &self,
        rank: Rank,
        events: mpsc::Sender<Event>,
        tap: Option<Tap>,
        mut stop: watch::Receiver<bool>,
    ) {
        let mut buffer = [0; PIECE];
        // Others that have the terminal may write for ever.
        let mut last_reads = LAST_READS;
        while last_reads > 0 {
            let read = tokio::select! {
                biased;
                () = until_true(&mut stop) => {
                    last_reads -= 1;
                    read(self.0.get_ref(), &mut buffer)
                }
                read = self.0.async_io(Interest::READABLE, |terminal| read(terminal, &mut buffer)) => read,
            };
            let Ok(len @ 1..) = read else { break };
            let bytes = Bytes::copy_from_slice(&buffer[..len]);
            if let Some(tap) = &tap {
                tap.wrote(Stream::Stdout, &bytes);
            }
            // A launch that takes no more output has ended its ranks, or will: keep reading, so that they can end.
            let _ = events.send(Event::Output(Output { rank, stream: Stream::Stdout, bytes })).await;
        }
        if let Some(tap) = &tap {
            tap.ended(Stream::Stdout);
        }
    }

    /// Types some of `bytes`, and returns how many.
    ///
    /// # Errors
    /// Fails when the terminal is gone.
    pub(super) async fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.0.async_io(Interest::WRITABLE, |terminal| Ok(unistd::write(terminal, bytes)?)).await
    }

    /// Has everybody who reads from now on find the end of the input, as at the end of a file: types the character for it each time that
    /// nothing is left to be read. A program that begins to edit its lines by itself takes what was typed before for something else.
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

fn read(terminal: &Terminal, buffer: &mut [u8]) -> io::Result<usize> {
    Ok(unistd::read(terminal, buffer)?)
}
