//! Exactly-once, in-order delivery over connections that break. The sender numbers its messages and stores them until the receiver
//! has confirmed them. The receiver accepts each number once.
//!
//! [`Unconfirmed`] is the sender's half and [`Received`] the receiver's half. Both are plain values without I/O, clock or lock. They
//! carry events from a session to the API server, and commands from the API server to the session.
//!
//! ```text
//! Unconfirmed (sender)                              Received (receiver)
//!   push, next_to_write ───── number, message ──────> take: new, or again
//!   confirm             <──── confirmed through N ──  last
//!                            the connection breaks
//!   resume(N)           <──── received N ───────────  last
//!   next_to_write       ───── N + 1, ... ───────────> take
//! ```
//!
//! A restarted receiver has no record of its messages. [`Unconfirmed::restart`] then drops messages that were handed to the
//! previous receiver, as it may have accepted them. It renumbers the rest, so that no message is accepted twice.

use std::collections::VecDeque;

/// Sender's half: messages that are numbered and not confirmed.
#[derive(Clone, Debug)]
pub struct Unconfirmed<T> {
    /// In order; the first message has the number after `confirmed`.
    messages: VecDeque<T>,
    /// The receiver has all messages up to this number.
    confirmed: u64,
    /// All messages up to this number were written to the present connection.
    written: u64,
    connection: Connection,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Connection {
    /// The receiver has, or will get, all messages up to `written`.
    Open,
    /// The connection broke, and the receiver has not reported its last number on a new one.
    Broken,
}

impl<T> Default for Unconfirmed<T> {
    fn default() -> Self {
        Self::after(0)
    }
}

impl<T> Unconfirmed<T> {
    /// A sender with an open first connection. Its next message has the number after `confirmed`.
    pub fn after(confirmed: u64) -> Self {
        // Far from an overflow of the count, whatever number a peer sends.
        let confirmed = confirmed.min(u64::MAX / 2);
        Self { messages: VecDeque::new(), confirmed, written: confirmed, connection: Connection::Open }
    }

    /// Numbers and stores a message. Returns its number.
    pub fn push(&mut self, message: T) -> u64 {
        self.messages.push_back(message);
        self.last()
    }

    /// Returns the number of the latest message; 0 before the first.
    pub fn last(&self) -> u64 {
        self.confirmed + self.messages.len() as u64
    }

    /// Returns the number of stored messages.
    pub fn count(&self) -> usize {
        self.messages.len()
    }

    /// Returns true if a message can be written now.
    pub fn has_next(&self) -> bool {
        self.connection == Connection::Open && self.written < self.last()
    }

    /// Returns the next message for the present connection, with its number; `None` without a connection.
    pub fn next_to_write(&mut self) -> Option<(u64, &mut T)> {
        if !self.has_next() {
            return None;
        }
        let place = (self.written - self.confirmed) as usize;
        self.written += 1;
        Some((self.written, self.messages.get_mut(place)?))
    }

    /// Records that the receiver has all messages up to this number. Returns the messages that are no longer stored.
    pub fn confirm(&mut self, through: u64) -> impl Iterator<Item = T> {
        // A receiver cannot have messages that were never written.
        let through = through.clamp(self.confirmed, self.written);
        let count = (through - self.confirmed) as usize;
        self.confirmed = through;
        self.messages.drain(..count)
    }

    /// Returns true between [`Self::break_off`] and [`Self::resume`] or [`Self::restart`].
    pub fn is_broken(&self) -> bool {
        self.connection == Connection::Broken
    }

    /// Records a broken connection: nothing is written before [`Self::resume`] or [`Self::restart`].
    pub fn break_off(&mut self) {
        self.connection = Connection::Broken;
    }

    /// Continues on a new connection. The receiver has all messages up to `after`; later messages are written again. Returns the
    /// number after which it continues, and the messages that are no longer stored. This number differs from `after` only if the
    /// receiver is wrong.
    pub fn resume(&mut self, after: u64) -> (u64, impl Iterator<Item = T>) {
        let after = after.clamp(self.confirmed, self.last());
        self.connection = Connection::Open;
        self.written = after;
        (after, self.confirm(after))
    }

    /// Continues on a new connection to a receiver without a record of its messages. Messages up to `handed` were handed to
    /// the previous receiver; without `handed`, all written messages were. Of these, only the messages that `again` selects are sent
    /// again. The rest is renumbered. Returns the number after which it continues, and the dropped messages.
    pub fn restart(&mut self, handed: Option<u64>, mut again: impl FnMut(&T) -> bool) -> (u64, Vec<T>) {
        let last = self.last();
        let handed = handed.unwrap_or(self.written).clamp(self.confirmed, last);
        let unhanded = self.messages.split_off((handed - self.confirmed) as usize);
        let (kept, lost): (Vec<T>, Vec<T>) =
            std::mem::replace(&mut self.messages, unhanded).into_iter().partition(|message| again(message));
        for message in kept.into_iter().rev() {
            self.messages.push_front(message);
        }
        (self.confirmed, self.written, self.connection) = (last, last, Connection::Open);
        (last, lost)
    }

    /// Inserts a message before all messages that [`Self::restart`] has left. Allowed only right after it, before any number is sent.
    pub fn push_first(&mut self, message: T) {
        debug_assert_eq!(self.written, self.confirmed, "nothing was written since");
        self.messages.push_front(message);
    }

    /// Returns the stored messages in order, each with a flag: true if the receiver may have it from the present connection.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&mut T, bool)> {
        let written = match self.connection {
            Connection::Open => (self.written - self.confirmed) as usize,
            Connection::Broken => 0,
        };
        self.messages.iter_mut().enumerate().map(move |(place, message)| (message, place < written))
    }

    /// Returns the stored messages in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.messages.iter()
    }
}

/// Receiver's half: the number up to which it has all messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    last: u64,
}

/// Position of a message relative to earlier arrivals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The next message.
    New,
    /// A message that arrived before, over another connection.
    Again,
    /// An earlier message is missing. A correct sender omits none.
    Gap,
}

impl Received {
    /// A receiver that has all messages up to this number.
    pub fn through(last: u64) -> Self {
        Self { last }
    }

    /// Returns the number up to which all messages have arrived.
    pub fn last(self) -> u64 {
        self.last
    }

    /// Accepts the message of this number if it is new.
    pub fn take(&mut self, number: u64) -> Arrival {
        if number <= self.last {
            Arrival::Again
        } else if number - self.last == 1 {
            self.last = number;
            Arrival::New
        } else {
            Arrival::Gap
        }
    }
}

#[cfg(test)]
mod tests;
