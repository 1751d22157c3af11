//! Results that every protocol gives alike: the place of a rank in its job, and its neighbours in a ring.

/// Place of a rank in its job, as the server states it at the beginning.
#[derive(Debug)]
pub(crate) struct Membership {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) appnum: Option<u64>,
    pub(crate) job_id: String,
}

/// Result of [`Client::ring`](crate::Client::ring).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingNeighbours {
    /// Number of ranks that come before this one in the ring.
    pub position: u32,
    /// The value of the rank before.
    pub left: Vec<u8>,
    /// The value of the rank after.
    pub right: Vec<u8>,
}
