//! Connections of clients, and the addresses of answers.

use std::collections::BTreeSet;

use pmi_core::connections::ConnectionId;

use super::action::Ticket;
use crate::namespace::{JobIndex, Seat};
use crate::wire::Encoding;
use crate::wire::frame::FrameBuffer;
use crate::wire::handshake::Version;

/// One connection and its client.
#[derive(Debug, Default)]
pub(super) struct Client {
    pub(super) frames: FrameBuffer,
    pub(super) identity: Option<Identity>,
    /// The events that the client has registered for.
    pub(super) interest: Interest,
    /// Other jobs with facts that the client received with a get: it stores them until it disconnects from the job.
    pub(super) known_jobs: BTreeSet<JobIndex>,
}

/// Result of a client's handshake.
#[derive(Clone, Copy, Debug)]
pub(super) struct Identity {
    pub(super) seat: Seat,
    /// Ticket of the handshake: a rank that initializes MPI again is another client, possibly with the same connection number.
    pub(super) claim: Ticket,
    pub(super) encoding: Encoding,
    pub(super) version: Version,
    /// The name of its encoding.
    pub(super) module: &'static str,
}

/// Address of an answer, with its encoding.
#[derive(Clone, Copy, Debug)]
pub(super) struct Address {
    pub(super) connection: ConnectionId,
    pub(super) tag: u32,
    pub(super) identity: Identity,
}

/// The events that a client has registered for.
#[derive(Clone, Debug, Default)]
pub(super) struct Interest {
    /// All events.
    all: bool,
    codes: BTreeSet<i32>,
}

impl Interest {
    /// Maximum number of codes of one client.
    const CODES_MAX: usize = 4096;

    /// Adds codes, or all events for an empty list; returns false if there are too many.
    pub(super) fn register(&mut self, codes: &[i32]) -> bool {
        self.all |= codes.is_empty();
        let fits = self.codes.len() + codes.len() <= Self::CODES_MAX;
        if fits {
            self.codes.extend(codes);
        }
        fits
    }

    /// Removes codes; an empty list removes the registration for all events.
    pub(super) fn deregister(&mut self, codes: &[i32]) {
        self.all &= !codes.is_empty();
        for code in codes {
            self.codes.remove(code);
        }
    }

    /// Returns true if the client receives events with this code.
    pub(super) fn includes(&self, code: i32) -> bool {
        self.all || self.names(code)
    }

    /// Returns true if the client has registered for this very code.
    pub(super) fn names(&self, code: i32) -> bool {
        self.codes.contains(&code)
    }
}
