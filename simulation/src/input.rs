//! Standard input of a launch: its bytes, the reading ranks, and the client's end of it.

use std::time::Duration;

use bytes::Bytes;
use lattice_session::flow_control::Credit;
use lattice_session::settings::StdinTarget;
use pmi_core::ids::Rank;

use crate::random::Random;

/// The input of a launch.
#[derive(Clone, Debug)]
pub(crate) struct InputPlan {
    /// Number of bytes.
    pub(crate) length: usize,
    /// Maximum number of bytes that the source provides at once, and maximum time between two pieces.
    pub(crate) piece: usize,
    pub(crate) pace: Duration,
    /// Maximum number of bytes in transit.
    pub(crate) window: u64,
    pub(crate) readers: StdinTarget,
    /// By rank.
    pub(crate) reading: Vec<Reading>,
}

/// Behaviour of a rank with standard input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    /// The rank reads to the end before its fence of this number; `None` if the rank never reads.
    pub(crate) before: Option<u32>,
    /// Maximum number of bytes of one read.
    pub(crate) most: usize,
}

/// Maximum number of pieces of the source, and of full reads of a rank. Each of them may take 100 ms, and a launch has 200 s.
const PIECES_MAX: u64 = 100;

impl InputPlan {
    pub(crate) fn of(size: u32, epochs: u32, random: &mut Random) -> Self {
        let length = [0, 40, 1000, 4000][random.below(4) as usize] + random.below(100);
        let least = 1 + length / PIECES_MAX;
        let reading = |random: &mut Random| Reading {
            before: (!random.chance(5)).then(|| random.between(0, u64::from(epochs)) as u32),
            most: random.between(least, 2000) as usize,
        };
        Self {
            length: length as usize,
            piece: random.between(least, 900) as usize,
            pace: Duration::from_micros(10_u64.pow(random.between(2, 5) as u32)),
            window: [random.between(32, 100), random.between(100, 1000), 100_000][random.below(3) as usize],
            readers: if random.chance(60) { StdinTarget::Rank(Rank(0)) } else { StdinTarget::All },
            reading: {
                // A number that is no longer used. Without it, the recorded seeds would be other launches.
                random.chance(80);
                (0..size).map(|_| reading(random)).collect()
            },
        }
    }

    /// Behaviour of a rank with the input; `None` if other ranks receive it.
    pub(crate) fn reading_of(&self, rank: Rank) -> Option<Reading> {
        let reads = self.readers == StdinTarget::All || self.readers.one_reader() == Some(rank);
        self.reading.get(rank.index()).copied().filter(|_| reads)
    }
}

/// The byte at a position of every input. Neighbouring bytes do not repeat.
pub(crate) fn byte(place: usize) -> u8 {
    let mixed = (place as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9).to_be_bytes()[1]
}

/// The client's end. It sends input up to its credit, as `StdinStream` of the launcher does.
#[derive(Debug, Default)]
pub(crate) struct ClientInput {
    length: usize,
    /// Number of bytes that the source has provided, and number of sent bytes.
    given: usize,
    sent: usize,
    credit: Credit,
    /// The end of the input was sent on the present connection.
    has_ended: bool,
}

/// Message of the client's input.
#[derive(Debug)]
pub(crate) enum Next {
    Piece(Bytes),
    End,
}

impl ClientInput {
    pub(crate) fn new(length: usize) -> Self {
        Self { length, ..Self::default() }
    }

    /// The source provides `bytes` more bytes. Returns true if more follow.
    pub(crate) fn give(&mut self, bytes: usize) -> bool {
        self.given = self.length.min(self.given + bytes);
        self.given < self.length
    }

    pub(crate) fn grant(&mut self, bytes: u64) {
        self.credit.grant(bytes);
    }

    /// Returns the next message that can be sent, if any.
    pub(crate) fn next(&mut self) -> Option<Next> {
        if self.sent == self.length {
            return (!std::mem::replace(&mut self.has_ended, true)).then_some(Next::End);
        }
        let len = self.credit.take((self.given - self.sent) as u64) as usize;
        let piece: Bytes = (self.sent..self.sent + len).map(byte).collect();
        self.sent += len;
        (len > 0).then_some(Next::Piece(piece))
    }

    /// The connection has ended. Returns the number of bytes for which the user receives a warning.
    pub(crate) fn forget_connection(&mut self) -> u64 {
        self.has_ended = false;
        self.credit.reset()
    }
}
