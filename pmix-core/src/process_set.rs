//! Process sets: named sets of ranks.

use std::ops::Range;

/// A named set of ranks of a job. MPI sessions create groups from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessSet {
    /// Its name, without a comma.
    pub name: String,
    /// Its ranks, in ascending order.
    pub ranks: Vec<Range<u32>>,
}

impl ProcessSet {
    /// Returns true if the rank belongs to the set.
    pub(crate) fn contains(&self, rank: u32) -> bool {
        self.ranks.iter().any(|ranks| ranks.contains(&rank))
    }
}
