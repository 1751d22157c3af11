//! Bytes that wait for a rank to read them.

use std::collections::VecDeque;
use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

/// Queued bytes above which the server stops reading from a rank.
const MANY: usize = 64 * 1024;

/// Queue of the messages to a rank, in order.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    pieces: VecDeque<Bytes>,
    /// Bytes of the pieces, including the piece that is being written.
    bytes: usize,
    is_closed: bool,
}

impl Outgoing {
    /// Appends bytes, unless the queue is closed.
    pub(super) fn push(&self, piece: Bytes) {
        self.change(|queue| {
            if !queue.is_closed {
                queue.bytes += piece.len();
                queue.pieces.push_back(piece);
            }
        });
    }

    /// Closes the queue for new bytes. Queued bytes are still written.
    pub(super) fn close(&self) {
        self.change(|queue| queue.is_closed = true);
    }

    /// Waits until only few bytes are queued.
    pub(super) fn wait_until_few(&self) {
        drop(self.wait_while(|queue| queue.bytes > MANY && !queue.is_closed));
    }

    /// Writes all queued bytes, until the queue is closed or the rank is gone. Then closes the socket in both directions.
    pub(super) fn write_to(&self, mut socket: UnixStream) {
        while let Some(piece) = self.next() {
            if socket.write_all(&piece).is_err() {
                self.close();
                break;
            }
            self.change(|queue| queue.bytes -= piece.len());
        }
        let _ = socket.shutdown(Shutdown::Both);
    }

    fn next(&self) -> Option<Bytes> {
        self.wait_while(|queue| queue.pieces.is_empty() && !queue.is_closed).pieces.pop_front()
    }

    fn change(&self, change: impl FnOnce(&mut Queue)) {
        change(&mut self.queue.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    fn wait_while(&self, condition: impl FnMut(&mut Queue) -> bool) -> MutexGuard<'_, Queue> {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        self.changed.wait_while(queue, condition).unwrap_or_else(PoisonError::into_inner)
    }
}
