//! Facts about a node for its ranks, and the key of the longest one.

use bytes::Bytes;

/// Key of the node's topology, in the format of hwloc.
pub(crate) const TOPOLOGY: &str = "pmix.hwlocxml2";

/// Facts about a node for its ranks.
#[derive(Clone, Debug, Default)]
pub struct NodeFacts {
    /// The node in hwloc's XML format. Without it, ranks discover the topology themselves.
    pub topology: Option<Bytes>,
    /// Places of the bound ranks, by local rank; ranks beyond the end are unbound.
    pub places: Vec<Option<BoundPlace>>,
}

/// Place of a bound rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundPlace {
    /// List of its CPUs, such as `0-3`.
    pub cpus: String,
    /// Its locality, in the format by which clients compare the places of two ranks: `SK0:L30:CR0:HT0:NM0`.
    pub locality: String,
}
