//! Place of a rank in the levels of the machine: its node, and within the node the NUMA domain and the L3 cache to which it is bound.
//!
//! Lattice provides all levels (`lattice.topo`, see `pmi-core/src/server/places.rs`). Under other launchers only the node is available,
//! from the job's process mapping. The client sends them no request that they may not support.

use alloc::vec::Vec;

use crate::client::Client;
use crate::error::ClientError;
use crate::process_mapping;

/// A level of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TopologyLevel {
    /// A node.
    Node,
    /// A NUMA domain of a node.
    Numa,
    /// CPUs of a node that share an L3 cache.
    L3,
}

impl TopologyLevel {
    /// All levels, in the order of Lattice's reply.
    pub const ALL: [Self; 3] = [Self::Node, Self::Numa, Self::L3];

    fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Numa => "numa",
            Self::L3 => "l3",
        }
    }
}

/// Ranks that share a level, as seen by one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// The level.
    pub level: TopologyLevel,
    /// Number of the node among the nodes of the job. Within the node, number of the domain or of the cache.
    pub number: u32,
    /// Position of this rank among the ranks of its job in the cluster.
    pub position: u32,
}

impl Client {
    /// Returns the clusters to which this rank belongs, from the node down; none if the launcher does not even provide the nodes of ranks.
    /// The domain and the cache are available under Lattice, for ranks that are bound to CPUs of a single one.
    ///
    /// # Errors
    /// Fails if the server is gone or sends an invalid reply.
    pub fn topology(&mut self) -> Result<Vec<Cluster>, ClientError> {
        if let Some(text) = self.lattice_fact("topo", "lattice.topo")? {
            return Ok(parse(&text));
        }
        let rank = self.rank();
        let place = self.nodes()?.and_then(|nodes| process_mapping::place(&nodes, rank));
        let node = place.map(|(number, position)| Cluster { level: TopologyLevel::Node, number, position });
        Ok(Vec::from_iter(node))
    }
}

/// Returns the levels up to the first invalid one.
fn parse(text: &[u8]) -> Vec<Cluster> {
    let words = text.split(|&byte| byte == b',').map(|word| str::from_utf8(word).ok());
    TopologyLevel::ALL.into_iter().zip(words).map_while(|(level, word)| cluster(level, word?)).collect()
}

fn cluster(level: TopologyLevel, word: &str) -> Option<Cluster> {
    let (number, position) = word.strip_prefix(level.name())?.strip_prefix(':')?.split_once(':')?;
    Some(Cluster { level, number: number.parse().ok()?, position: position.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_read_as_far_as_they_are_told() {
        let read = |text: &str| {
            parse(text.as_bytes()).into_iter().map(|at| (at.level, at.number, at.position)).collect::<Vec<_>>()
        };
        let whole = [(TopologyLevel::Node, 1, 5), (TopologyLevel::Numa, 0, 2), (TopologyLevel::L3, 3, 1)];
        assert_eq!(read("node:1:5,numa:0:2,l3:3:1"), whole);
        assert_eq!(read("node:1:5,numa:0:2,l3:3:1,core:1:1"), whole, "of a later version");
        assert_eq!(read("node:1:5"), whole[..1]);
        for cut in ["node:1:5,numa:0", "node:1:5,numa:0:-2", "node:1:5,l3:3:1", "node:1:5,\u{ff}"] {
            assert_eq!(read(cut), whole[..1], "{cut}");
        }
        assert_eq!(read(""), []);
    }

    #[test]
    fn who_is_alone_is_on_a_node() {
        let node = Cluster { level: TopologyLevel::Node, number: 0, position: 0 };
        assert_eq!(Client::alone().topology().unwrap(), [node]);
    }
}
