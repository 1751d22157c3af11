//! The nodes that take part in a fence, and their positions in its tree.

use std::sync::Arc;

use pmi_core::ids::NodeIndex;

/// Nodes in ascending order. The position of a node is its index among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Members {
    /// All nodes of the launch: this many, from 0 on.
    All(u32),
    Some(Arc<[NodeIndex]>),
}

impl Members {
    /// Takes the members of a fence in a launch of `nodes` nodes; `None` if they are not ascending or outside the launch.
    pub(crate) fn of(members: &[NodeIndex], nodes: u32) -> Option<Self> {
        let is_ascending = members.windows(2).all(|pair| pair[0] < pair[1]);
        let is_inside = members.last().is_some_and(|last| last.0 < nodes);
        if !is_ascending || !is_inside {
            return None;
        }
        Some(if members.len() == nodes as usize { Self::All(nodes) } else { Self::Some(members.into()) })
    }

    pub(crate) fn count(&self) -> u32 {
        match self {
            Self::All(count) => *count,
            // Not longer than the list of the launch's nodes.
            Self::Some(members) => members.len() as u32,
        }
    }

    pub(crate) fn position(&self, node: NodeIndex) -> Option<u32> {
        match self {
            Self::All(count) => (node.0 < *count).then_some(node.0),
            Self::Some(members) => members.binary_search(&node).ok().map(|position| position as u32),
        }
    }

    /// The node at a position below [`Members::count`].
    pub(crate) fn node(&self, position: u32) -> NodeIndex {
        match self {
            Self::All(_) => NodeIndex(position),
            Self::Some(members) => members[position as usize],
        }
    }

    /// Digest of the members in a `FenceKey`: 0 for all nodes, otherwise FNV-1a of the indices. It distinguishes fences of one
    /// name. It is not a protection, because every session of a launch may take part in all its fences.
    pub(crate) fn digest(&self) -> u64 {
        const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
        const PRIME: u64 = 0x0100_0000_01b3;
        match self {
            Self::All(_) => 0,
            Self::Some(members) => {
                let bytes = members.iter().flat_map(|node| node.0.to_le_bytes());
                bytes.fold(BASIS, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(members: &[u32], nodes: u32) -> Option<Members> {
        Members::of(&members.iter().copied().map(NodeIndex).collect::<Vec<_>>(), nodes)
    }

    #[test]
    fn positions_and_nodes_are_told_from_each_other() {
        let some = of(&[1, 4, 7], 9).unwrap();
        assert_eq!([1, 4, 7, 2].map(|node| some.position(NodeIndex(node))), [Some(0), Some(1), Some(2), None]);
        assert_eq!(some.node(2), NodeIndex(7));
        let all = of(&[0, 1, 2], 3).unwrap();
        assert_eq!((all.clone(), all.position(NodeIndex(3)), all.digest()), (Members::All(3), None, 0));
    }

    #[test]
    fn other_members_have_another_digest() {
        let digests: Vec<_> =
            [&[1, 2][..], &[1, 3], &[2, 3], &[1], &[2]].map(|some| of(some, 9).unwrap().digest()).into();
        for (at, digest) in digests.iter().enumerate() {
            assert!(*digest != 0 && !digests[..at].contains(digest), "{digests:?}");
        }
    }

    #[test]
    fn members_are_ascending_nodes_of_the_launch() {
        for (members, nodes) in [(&[][..], 3), (&[1, 1], 3), (&[2, 1], 3), (&[1, 3], 3)] {
            assert_eq!(of(members, nodes), None, "{members:?} of {nodes}");
        }
    }
}
