//! Process sets: ranks that have a name together.

use std::ops::Range;

/// Ranks of a job that have a name together, which MPI sessions make groups of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessSet {
    /// Its name, without a comma.
    pub name: String,
    /// Its ranks, in ascending order.
    pub ranks: Vec<Range<u32>>,
}

impl ProcessSet {
    /// Returns true if the rank is one of the set.
    pub(crate) fn contains(&self, rank: u32) -> bool {
        self.ranks.iter().any(|ranks| ranks.contains(&rank))
    }
}
