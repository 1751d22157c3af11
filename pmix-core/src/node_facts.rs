//! Facts about a node, for the ranks on it, and the key of the longest one.

use bytes::Bytes;

/// Key of the node's topology, as hwloc reads it.
pub(crate) const TOPOLOGY: &str = "pmix.hwlocxml2";

/// Facts about a node, for the ranks on it.
#[derive(Clone, Debug, Default)]
pub struct NodeFacts {
    /// The node as hwloc reads it, in XML; without it, ranks look for themselves.
    pub topology: Option<Bytes>,
    /// Places of the ranks that are bound, by local rank; none beyond the end.
    pub places: Vec<Option<BoundPlace>>,
}

/// Place of a rank that is bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundPlace {
    /// List of its CPUs, such as `0-3`.
    pub cpus: String,
    /// Its locality, in the words by which clients compare the places of two ranks: `SK0:L30:CR0:HT0:NM0`.
    pub locality: String,
}
