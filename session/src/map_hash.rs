//! Hash of a launch's map. The API server uses it to verify that every node has decoded the same map.

use pmi_core::job::{Block, Placement};
use ring::digest::{Context, SHA256};

/// 64 bits of the SHA-256 of a launch's nodes and of the ranks on each node.
///
/// Nodes compute the hash from their decoded request, so it differs if two versions decode a request differently. It does not
/// protect against a malicious node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapHash(pub u64);

impl MapHash {
    /// The hash of a launched job's map; `hosts` are the names of its nodes, by node index.
    pub fn of(placement: &Placement, hosts: &[String]) -> Self {
        let mut digest = Context::new(&SHA256);
        digest.update(&(hosts.len() as u64).to_le_bytes());
        for host in hosts {
            digest.update(&(host.len() as u64).to_le_bytes());
            digest.update(host.as_bytes());
        }
        for Block { first_node, nodes, ranks_per_node } in placement.blocks() {
            for part in [first_node.0, *nodes, *ranks_per_node] {
                digest.update(&part.to_le_bytes());
            }
        }
        let digest = digest.finish();
        let first = digest.as_ref().iter().take(8);
        Self(first.fold(0, |hash, &byte| (hash << 8) | u64::from(byte)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_that_differ_have_other_hashes() {
        let hash = |counts: &[u32], hosts: &[&str]| {
            MapHash::of(&Placement::block(counts), &hosts.iter().map(|&host| host.to_owned()).collect::<Vec<_>>())
        };
        let map = hash(&[2, 1], &["n0", "n1"]);
        assert_eq!(map, hash(&[2, 1], &["n0", "n1"]));
        for other in [
            hash(&[1, 2], &["n0", "n1"]),
            hash(&[2, 1], &["n1", "n0"]),
            hash(&[2, 1], &["n0n", "1"]),
            hash(&[2, 1], &["n0", "n1", "n2"]),
            hash(&[2, 1, 1], &["n0", "n1"]),
        ] {
            assert_ne!(map, other);
        }
    }
}
