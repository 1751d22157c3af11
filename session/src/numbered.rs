//! Delivery exactly once, in order, over connections that break: the sender numbers its messages and keeps them until the receiver
//! has confirmed them, the receiver takes each number once.
//!
//! [`Unconfirmed`] is the sender's half and [`Received`] the receiver's. Both are plain values without I/O, clock or lock. A session
//! sends events to the API server by them, and the API server commands to the session.
//!
//! ```text
//! Unconfirmed (sender)                              Received (receiver)
//!   push, next_to_write ───── number, message ──────> take: new, or again
//!   confirm             <──── confirmed through N ──  last
//!                            the connection breaks
//!   resume(N)           <──── I have N ─────────────  last
//!   next_to_write       ───── N + 1, ... ───────────> take
//! ```
//!
//! A receiver that was started anew does not know what it had. [`Unconfirmed::restart`] then gives up what was handed to the receiver
//! before it, which may have taken it or not, and numbers the rest on, so that nothing is taken twice.

use std::collections::VecDeque;

/// Sender's half: messages that were numbered and are not confirmed.
#[derive(Clone, Debug)]
pub struct Unconfirmed<T> {
    /// In order; the first one has the number after `confirmed`.
    messages: VecDeque<T>,
    /// The receiver has everything up to this number.
    confirmed: u64,
    /// Everything up to this number was written to the present connection.
    written: u64,
    connection: Connection,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Connection {
    /// The receiver is known to have, or to get, everything up to `written`.
    Open,
    /// The connection broke, and its successor has not been told what the receiver has.
    Broken,
}

impl<T> Default for Unconfirmed<T> {
    fn default() -> Self {
        Self::after(0)
    }
}

impl<T> Unconfirmed<T> {
    /// A sender whose next message has the number after `confirmed`, and whose first connection is there.
    pub fn after(confirmed: u64) -> Self {
        // Far from where counting on would overflow, whatever a peer says.
        let confirmed = confirmed.min(u64::MAX / 2);
        Self { messages: VecDeque::new(), confirmed, written: confirmed, connection: Connection::Open }
    }

    /// Numbers a message, and keeps it. Returns its number.
    pub fn push(&mut self, message: T) -> u64 {
        self.messages.push_back(message);
        self.last()
    }

    /// The number of the latest message; 0 before the first.
    pub fn last(&self) -> u64 {
        self.confirmed + self.messages.len() as u64
    }

    /// The number of messages that are kept.
    pub fn count(&self) -> usize {
        self.messages.len()
    }

    /// Returns true if a message can be written now.
    pub fn has_next(&self) -> bool {
        self.connection == Connection::Open && self.written < self.last()
    }

    /// The next message to be written to the present connection, with its number; `None` while there is no connection.
    pub fn next_to_write(&mut self) -> Option<(u64, &mut T)> {
        if !self.has_next() {
            return None;
        }
        let place = (self.written - self.confirmed) as usize;
        self.written += 1;
        Some((self.written, self.messages.get_mut(place)?))
    }

    /// The receiver has everything up to this number. Returns what is not kept any more.
    pub fn confirm(&mut self, through: u64) -> impl Iterator<Item = T> {
        // Nobody has what was never written.
        let through = through.clamp(self.confirmed, self.written);
        let count = (through - self.confirmed) as usize;
        self.confirmed = through;
        self.messages.drain(..count)
    }

    /// Returns true between [`Self::break_off`] and [`Self::resume`] or [`Self::restart`].
    pub fn is_broken(&self) -> bool {
        self.connection == Connection::Broken
    }

    /// The connection has broken: nothing is written before [`Self::resume`] or [`Self::restart`].
    pub fn break_off(&mut self) {
        self.connection = Connection::Broken;
    }

    /// There is a new connection, and the receiver has everything up to `after`: what follows is written again. Returns the number
    /// after which it goes on, which differs only if the receiver is wrong; and what is not kept any more.
    pub fn resume(&mut self, after: u64) -> (u64, impl Iterator<Item = T>) {
        let after = after.clamp(self.confirmed, self.last());
        self.connection = Connection::Open;
        self.written = after;
        (after, self.confirm(after))
    }

    /// There is a new connection, to a receiver that does not know what it had. Of what was handed to the one before, up to
    /// `handed`, only what `again` selects is sent again; without `handed`, everything that was written counts as handed. The rest
    /// is numbered on. Returns the number after which it goes on, and what is not kept any more.
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

    /// Puts a message before all others that [`Self::restart`] has left. Only right after it: then no number has been told.
    pub fn push_first(&mut self, message: T) {
        debug_assert_eq!(self.written, self.confirmed, "nothing was written since");
        self.messages.push_front(message);
    }

    /// The messages that are kept, in order, each with whether the receiver may have it from the present connection.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&mut T, bool)> {
        let written = match self.connection {
            Connection::Open => (self.written - self.confirmed) as usize,
            Connection::Broken => 0,
        };
        self.messages.iter_mut().enumerate().map(move |(place, message)| (message, place < written))
    }

    /// The messages that are kept, in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.messages.iter()
    }
}

/// Receiver's half: the number up to which it has everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    last: u64,
}

/// Place of a message among those that came before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The next one.
    New,
    /// One that came before, over another connection.
    Again,
    /// One before it is missing, which no sender leaves out.
    Gap,
}

impl Received {
    /// A receiver that has everything up to this number.
    pub fn through(last: u64) -> Self {
        Self { last }
    }

    /// The number up to which everything has come.
    pub fn last(self) -> u64 {
        self.last
    }

    /// Takes in the message of this number; it counts only if it is new.
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
