//! Results that are the same in every protocol: the place of a rank in its job, its neighbours in a ring, pairs by their
//! number.
use alloc::string::String;
use alloc::vec::Vec;

/// Place of a rank in its job, as the server reports it at the start.
#[derive(Debug)]
pub(crate) struct Membership {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) appnum: Option<u64>,
    /// True if another job started this one.
    pub(crate) spawned: bool,
    pub(crate) job_id: String,
}

/// A pair of a space, from [`Client::pair_at`](crate::Client::pair_at).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexedPair {
    /// The key.
    pub key: String,
    /// The value.
    pub value: Vec<u8>,
    /// Index of the next pair.
    pub next: u64,
}

/// Result of [`Client::ring`](crate::Client::ring).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingNeighbours {
    /// Number of ranks before this one in the ring.
    pub position: u32,
    /// The value of the previous rank.
    pub left: Vec<u8>,
    /// The value of the next rank.
    pub right: Vec<u8>,
}
