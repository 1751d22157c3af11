//! Ranks of a node, from `PMI_process_mapping`: `(vector,(first node,nodes,ranks on each),...)`, ranks in order.
//!
//! If the blocks have fewer ranks than the job, they repeat, as in MPICH. Hydra sends `(vector,(0,1,1))` for any number of ranks on
//! one node.
use alloc::vec::Vec;

/// Returns the ranks on the node of `rank`, in order. `nodes` contains the node of each rank. Returns `None` if the rank does not
/// exist.
pub(crate) fn local_ranks(nodes: &[u32], rank: u32) -> Option<Vec<u32>> {
    let own = nodes.get(rank as usize)?;
    Some((0..).zip(nodes).filter(|&(_, node)| node == own).map(|(rank, _)| rank).collect())
}

/// Returns the node of `rank`, and its position among the ranks of the node; `None` if the rank does not exist.
pub(crate) fn place(nodes: &[u32], rank: u32) -> Option<(u32, u32)> {
    let own = *nodes.get(rank as usize)?;
    let before = nodes[..rank as usize].iter().filter(|&&node| node == own).count();
    Some((own, before as u32))
}

/// Returns the node of each rank; `None` for an invalid mapping.
pub(crate) fn nodes(mapping: &[u8], size: u32) -> Option<Vec<u32>> {
    let blocks = parse(str::from_utf8(mapping).ok()?)?;
    Some(blocks.iter().cycle().flat_map(Block::nodes_of_ranks).take(size as usize).collect())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    first_node: u32,
    nodes: u32,
    ranks_on_each: u32,
}

impl Block {
    /// Returns the node of each rank of the block. The block may have more ranks than any job.
    fn nodes_of_ranks(&self) -> impl Iterator<Item = u32> {
        let Self { first_node, nodes, ranks_on_each } = *self;
        (0..nodes).flat_map(move |node| (0..ranks_on_each).map(move |_| first_node.wrapping_add(node)))
    }
}

/// Parses the blocks of a mapping. Each block has at least one rank.
fn parse(mapping: &str) -> Option<Vec<Block>> {
    let list = mapping.strip_prefix("(vector,(")?.strip_suffix("))")?;
    list.split("),(").map(block).collect()
}

fn block(text: &str) -> Option<Block> {
    let mut numbers = text.split(',').map(|number| number.parse::<u32>().ok());
    let mut next = || numbers.next().flatten();
    let block = Block { first_node: next()?, nodes: next()?, ranks_on_each: next()? };
    let is_whole = numbers.next().is_none();
    (is_whole && block.nodes > 0 && block.ranks_on_each > 0).then_some(block)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(mapping: &str, rank: u32, size: u32, expected: Option<&[u32]>) {
        let local = nodes(mapping.as_bytes(), size).and_then(|nodes| local_ranks(&nodes, rank));
        assert_eq!(local.as_deref(), expected, "{mapping}");
    }

    #[test]
    fn ranks_of_a_node_are_found_in_every_layout() {
        check("(vector,(0,1,4))", 2, 4, Some(&[0, 1, 2, 3]));
        check("(vector,(0,2,2))", 2, 4, Some(&[2, 3]));
        check("(vector,(0,2,1),(0,2,1))", 1, 4, Some(&[1, 3]));
        check("(vector,(1,1,1),(0,1,2))", 0, 3, Some(&[0]));
    }

    #[test]
    fn blocks_for_fewer_ranks_are_gone_through_again() {
        check("(vector,(0,1,1))", 3, 4, Some(&[0, 1, 2, 3]));
        check("(vector,(0,2,1))", 1, 4, Some(&[1, 3]));
    }

    #[test]
    fn a_rank_has_a_position_on_its_node() {
        let places = |mapping: &[u8]| {
            let nodes = nodes(mapping, 4).unwrap();
            (0..4).map(|rank| place(&nodes, rank).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(places(b"(vector,(0,2,2))"), [(0, 0), (0, 1), (1, 0), (1, 1)]);
        assert_eq!(places(b"(vector,(0,2,1))"), [(0, 0), (1, 0), (0, 1), (1, 1)]);
    }

    #[test]
    fn nonsense_is_no_mapping_and_huge_blocks_cost_no_more_than_the_job() {
        for nonsense in [
            "",
            "(vector)",
            "(vector,())",
            "(vector,(0,0,1))",
            "(vector,(0,1))",
            "(vector,(0,1,1,1))",
            "(vector,(0,1,-1))",
        ] {
            check(nonsense, 0, 2, None);
        }
        check("(vector,(4294967295,4294967295,4294967295))", 1, 2, Some(&[0, 1]));
    }
}
