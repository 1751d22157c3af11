//! Facts that a launch fixes before its first rank starts: the number of ranks, the program of each, and its node.
//!
//! `PMI_process_mapping` is derived from the [`Placement`], and never stored.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::ids::{JobId, LocalRank, NodeIndex, Rank};

/// A job: the facts that all its ranks and nodes share from the start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// The job's name, which is also the name of its key-value space.
    pub id: JobId,
    /// Node of every rank.
    pub placement: Placement,
    /// Programs of the job in rank order. Their rank counts add up to the placement's size. One program may have several runs of ranks.
    pub apps: Vec<App>,
    /// Value of `MPI_UNIVERSE_SIZE`; `None` leaves the attribute unset.
    pub universe_size: Option<u32>,
    /// The job that spawned this one, if any.
    pub spawner: Option<JobId>,
    /// Pairs that are readable before the first rank starts (the `preput` of a spawn).
    ///
    /// Each key has 1 to [`KEY_MAX`](crate::wire::KEY_MAX) bytes, each value at most [`VALUE_MAX`](crate::wire::VALUE_MAX). A host
    /// refuses other pairs with [`check_preput`](crate::wire::check_preput).
    pub preput: Vec<(String, String)>,
}

/// A run of consecutive ranks that execute the same program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct App {
    /// The number of ranks.
    pub ranks: u32,
    /// Value of `MPI_APPNUM` in them; -1 leaves it unset.
    pub appnum: i32,
}

/// A program of a job: all ranks that have one `MPI_APPNUM`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramRanks {
    /// Value of `MPI_APPNUM`; -1 leaves it unset.
    pub appnum: i32,
    /// The first of its ranks.
    pub first: Rank,
    /// Number of its ranks, which need not be consecutive.
    pub ranks: u32,
}

impl Job {
    /// A job of one program, with all ranks on one node.
    pub fn on_one_node(id: JobId, ranks: u32) -> Self {
        Self {
            id,
            placement: Placement::one_node(ranks),
            apps: vec![App { ranks, appnum: 0 }],
            universe_size: None,
            spawner: None,
            preput: Vec::new(),
        }
    }

    /// The number of ranks in the job.
    pub fn size(&self) -> u32 {
        self.placement.size()
    }

    /// The index into [`Job::apps`] of the program that `rank` runs.
    pub fn app_index(&self, rank: Rank) -> Option<usize> {
        let mut first = 0;
        self.apps.iter().position(|app| {
            first += app.ranks;
            rank.0 < first
        })
    }

    /// The programs of the job, in the order of their first ranks.
    pub fn programs(&self) -> Vec<ProgramRanks> {
        let mut programs: Vec<ProgramRanks> = Vec::new();
        let mut known = HashMap::new();
        let mut first = 0;
        for &App { ranks, appnum } in &self.apps {
            let index = *known.entry(appnum).or_insert(programs.len());
            match programs.get_mut(index) {
                Some(program) => program.ranks += ranks,
                None => programs.push(ProgramRanks { appnum, first: Rank(first), ranks }),
            }
            first += ranks;
        }
        programs
    }

    /// Returns `MPI_APPNUM` of `rank`; -1 when unset.
    pub fn appnum(&self, rank: Rank) -> i32 {
        self.app_index(rank).map_or(-1, |index| self.apps[index].appnum)
    }
}

/// `nodes` neighbouring nodes that get `ranks_per_node` consecutive ranks each.
///
/// A block of `PMI_process_mapping`: `(first_node,nodes,ranks_per_node)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// The first of the nodes.
    pub first_node: NodeIndex,
    /// Number of nodes.
    pub nodes: u32,
    /// Number of ranks on each of them.
    pub ranks_per_node: u32,
}

/// Node of every rank. Covers every rank from 0 to `size - 1` exactly once, by construction.
///
/// ```
/// use pmi_core::job::Placement;
/// // 10 ranks on 3 nodes: 4 + 3 + 3
/// let placement = Placement::block(&[4, 3, 3]);
/// assert_eq!(placement.process_mapping().unwrap(), "(vector,(0,1,4),(1,2,3))");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "Vec<Block>", into = "Vec<Block>")]
pub struct Placement {
    /// Ranks in order, block after block; no block is empty.
    blocks: Vec<Block>,
    /// The first rank of each block.
    firsts: Vec<u32>,
}

/// Error for blocks in which the number of ranks or nodes exceeds 32 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a placement has ranks or nodes beyond the number {}", u32::MAX)]
pub struct PlacementError;

impl TryFrom<Vec<Block>> for Placement {
    type Error = PlacementError;

    /// Appends the blocks one by one.
    fn try_from(blocks: Vec<Block>) -> Result<Self, PlacementError> {
        let (mut placement, mut size) = (Self::default(), 0_u32);
        for block in blocks {
            let ranks = block.nodes.checked_mul(block.ranks_per_node).ok_or(PlacementError)?;
            size = size.checked_add(ranks).ok_or(PlacementError)?;
            block.first_node.0.checked_add(block.nodes).ok_or(PlacementError)?;
            placement.push(block);
        }
        Ok(placement)
    }
}

impl From<Placement> for Vec<Block> {
    fn from(placement: Placement) -> Self {
        placement.blocks
    }
}

impl Block {
    fn ranks(self) -> u32 {
        self.nodes * self.ranks_per_node
    }

    /// The ranks on `node` of a block that begins with rank `first`.
    fn ranks_on(self, first: u32, node: NodeIndex) -> Range<u32> {
        match node.0.checked_sub(self.first_node.0).filter(|&ahead| ahead < self.nodes) {
            Some(ahead) => {
                let start = first + ahead * self.ranks_per_node;
                start..start + self.ranks_per_node
            }
            None => 0..0,
        }
    }

    /// Merges this block with `next`, which holds the following ranks; `None` if one block cannot describe both.
    fn merged(self, next: Self) -> Option<Self> {
        let is_adjacent = self.first_node.0 + self.nodes == next.first_node.0;
        let is_same_node = self.nodes == 1 && next.nodes == 1 && self.first_node == next.first_node;
        match (is_adjacent && self.ranks_per_node == next.ranks_per_node, is_same_node) {
            (true, _) => Some(Self { nodes: self.nodes + next.nodes, ..self }),
            (_, true) => Some(Self { ranks_per_node: self.ranks_per_node + next.ranks_per_node, ..self }),
            (false, false) => None,
        }
    }
}

impl Placement {
    /// The longest `PMI_process_mapping` that every client reads: MPICH 3.4 and 4.0 abort on a value above 673 bytes
    /// (measured).
    pub const MAPPING_MAX: usize = 673;

    /// All ranks on node 0.
    pub fn one_node(ranks: u32) -> Self {
        Self::block(&[ranks])
    }

    /// Consecutive ranks fill one node after the other: `counts[i]` ranks on node `i`.
    pub fn block(counts: &[u32]) -> Self {
        let mut placement = Self::default();
        for (node, &count) in (0..).zip(counts) {
            placement.push(Block { first_node: NodeIndex(node), nodes: 1, ranks_per_node: count });
        }
        placement
    }

    /// Appends the ranks of `block`, and merges it with earlier blocks where one block can describe both. No two neighbours can be merged
    /// afterwards. So the blocks of a placement, appended one by one, make the same placement.
    pub fn push(&mut self, block: Block) {
        if block.nodes == 0 || block.ranks_per_node == 0 {
            return;
        }
        let merged = self.blocks.last().and_then(|last| last.merged(block));
        let mut first = self.size();
        if merged.is_some() {
            self.blocks.pop();
            first = self.firsts.pop().unwrap_or_default();
        }
        let block = merged.unwrap_or(block);
        // A grown block may now merge with its predecessor. No block before that one can merge with it.
        match self.blocks.last_mut().and_then(|last| Some((last.merged(block)?, last))) {
            Some((merged, last)) => *last = merged,
            None => {
                self.blocks.push(block);
                self.firsts.push(first);
            }
        }
    }

    /// The blocks in rank order.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// The number of ranks.
    pub fn size(&self) -> u32 {
        self.firsts.last().zip(self.blocks.last()).map_or(0, |(first, block)| first + block.ranks())
    }

    /// One more than the highest node index that holds a rank.
    pub fn nodes(&self) -> u32 {
        self.blocks.iter().map(|block| block.first_node.0 + block.nodes).max().unwrap_or(0)
    }

    /// The nodes that hold a rank, in order.
    pub fn nodes_with_ranks(&self) -> Vec<NodeIndex> {
        let mut holds = vec![false; self.nodes() as usize];
        for block in &self.blocks {
            let first = block.first_node.index();
            holds[first..first + block.nodes as usize].fill(true);
        }
        (0..).zip(holds).filter(|(_, holds)| *holds).map(|(node, _)| NodeIndex(node)).collect()
    }

    /// Returns the node of `rank`; `None` if the job has no such rank. Uses a binary search over the blocks.
    pub fn node_of(&self, rank: Rank) -> Option<NodeIndex> {
        let index = self.firsts.partition_point(|&first| first <= rank.0).checked_sub(1)?;
        let (block, ahead) = (self.blocks[index], rank.0 - self.firsts[index]);
        (ahead < block.ranks()).then(|| NodeIndex(block.first_node.0 + ahead / block.ranks_per_node))
    }

    /// Returns the ranks on `node`, in order: the rank at index `i` has the local rank `i`. Reads every block; use
    /// [`Placement::ranks_by_node`] for all nodes.
    pub fn ranks_on(&self, node: NodeIndex) -> Vec<Rank> {
        let blocks = self.blocks.iter().zip(&self.firsts);
        blocks.flat_map(|(block, &first)| block.ranks_on(first, node)).map(Rank).collect()
    }

    /// The nodes that hold a rank, in order, each with its ranks. Reads each block and rank once.
    pub fn ranks_by_node(&self) -> BTreeMap<NodeIndex, Vec<Rank>> {
        let mut by_node = BTreeMap::<_, Vec<Rank>>::new();
        for (block, &first) in self.blocks.iter().zip(&self.firsts) {
            for node in (block.first_node.0..block.first_node.0 + block.nodes).map(NodeIndex) {
                by_node.entry(node).or_default().extend(block.ranks_on(first, node).map(Rank));
            }
        }
        by_node
    }

    /// The position of `rank` among the ranks of its node; `None` if the job has no such rank. Reads every block.
    pub fn local_rank(&self, rank: Rank) -> Option<LocalRank> {
        let node = self.node_of(rank)?;
        let blocks = self.blocks.iter().zip(&self.firsts);
        let ranks = blocks.map(|(block, &first)| block.ranks_on(first, node));
        Some(LocalRank(ranks.map(|ranks| rank.0.clamp(ranks.start, ranks.end) - ranks.start).sum()))
    }

    /// Returns the value of `PMI_process_mapping`; `None` above [`Placement::MAPPING_MAX`]. Clients then exchange host names instead.
    ///
    /// Node numbers are dense from 0, without wraps or spaces. Intel MPI crashes on a wrap. MPICH 4.0 and 5.0 place all ranks on one node
    /// after a space (both measured).
    pub fn process_mapping(&self) -> Option<String> {
        let dense = self.dense_nodes();
        let mut text = String::from("(vector");
        for block in dense.blocks() {
            let Block { first_node, nodes, ranks_per_node } = block;
            text += &format!(",({first_node},{nodes},{ranks_per_node})");
            if text.len() >= Self::MAPPING_MAX {
                return None;
            }
        }
        text.push(')');
        Some(text)
    }

    /// The same placement with nodes renumbered so that every number below [`Placement::nodes`] holds a rank.
    fn dense_nodes(&self) -> Self {
        let mut used = vec![false; self.nodes() as usize];
        for block in &self.blocks {
            let first = block.first_node.index();
            used[first..first + block.nodes as usize].fill(true);
        }
        let mut below = 0;
        let number: Vec<u32> = used
            .iter()
            .map(|&used| {
                let mine = below;
                below += u32::from(used);
                mine
            })
            .collect();
        let mut dense = Self::default();
        for block in &self.blocks {
            dense.push(Block { first_node: NodeIndex(number[block.first_node.index()]), ..*block });
        }
        dense
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(first_node: u32, nodes: u32, ranks_per_node: u32) -> Block {
        Block { first_node: NodeIndex(first_node), nodes, ranks_per_node }
    }

    fn placed(blocks: &[Block]) -> Placement {
        let mut placement = Placement::default();
        blocks.iter().for_each(|&block| placement.push(block));
        placement
    }

    #[test]
    fn mappings_are_printed_as_clients_read_them() {
        let check = |placement: Placement, expected: &str| {
            assert_eq!(placement.process_mapping().as_deref(), Some(expected));
        };
        check(Placement::one_node(4), "(vector,(0,1,4))");
        check(Placement::block(&[2, 2]), "(vector,(0,2,2))");
        check(Placement::block(&[3, 1]), "(vector,(0,1,3),(1,1,1))");
        check(placed(&[block(0, 2, 1), block(0, 2, 1)]), "(vector,(0,2,1),(0,2,1))");
        check(placed(&[block(1, 1, 1), block(0, 1, 2)]), "(vector,(1,1,1),(0,1,2))");
        // from a hostfile with a line for each slot
        check(placed(&[block(0, 1, 1), block(0, 1, 1), block(1, 1, 1), block(1, 1, 1)]), "(vector,(0,2,2))");
        // a node without ranks leaves no hole in the numbers
        check(Placement::block(&[2, 0, 2]), "(vector,(0,2,2))");
    }

    #[test]
    fn blocks_that_no_numbers_reach_are_no_placement() {
        let read = |blocks: &[Block]| Placement::try_from(blocks.to_vec());
        assert_eq!(read(&[block(0, 2, 2), block(0, 0, 7), block(2, 1, 2)]), Ok(Placement::block(&[2, 2, 2])));
        for bad in
            [vec![block(u32::MAX, 1, 1)], vec![block(0, 1 << 16, 1 << 16)], vec![block(0, 1, u32::MAX), block(1, 1, 1)]]
        {
            assert_eq!(read(&bad), Err(PlacementError), "{bad:?}");
        }
    }

    #[test]
    fn a_mapping_that_old_mpich_would_abort_on_is_withheld() {
        let zigzag: Vec<Block> = (0..200).map(|i| block(i, 1, 1 + i % 2)).collect();
        assert_eq!(placed(&zigzag).process_mapping(), None);
    }

    proptest::proptest! {
        /// The blocks of a placement make the same placement again, also after appends rank by rank.
        #[test]
        fn blocks_of_a_placement_make_it_again(
            parts in proptest::collection::vec((0_u32..3, proptest::sample::select(vec![1_u32, 1, 1, 2]), 1_u32..3), 0..60)
        ) {
            let parts: Vec<Block> = parts.into_iter().map(|(first, nodes, ranks)| block(first, nodes, ranks)).collect();
            let placement = placed(&parts);
            proptest::prop_assert_eq!(placed(placement.blocks()), placement.clone());
            let nodes: Vec<NodeIndex> = (0..placement.size()).map(|rank| placement.node_of(Rank(rank)).unwrap()).collect();
            let in_order = |part: &Block| {
                let Block { first_node, nodes, ranks_per_node } = *part;
                (0..nodes * ranks_per_node).map(move |rank| NodeIndex(first_node.0 + rank / ranks_per_node))
            };
            proptest::prop_assert_eq!(placement.node_of(Rank(placement.size())), None);
            proptest::prop_assert_eq!(nodes, parts.iter().flat_map(in_order).collect::<Vec<_>>());
        }
    }

    #[test]
    fn every_rank_has_one_node_and_one_local_rank() {
        let placement = placed(&[block(0, 2, 2), block(3, 1, 3), block(0, 1, 1)]);
        assert_eq!(placement.size(), 8);
        let mut seen = Vec::new();
        for node in 0..placement.nodes() {
            for (local, rank) in (0..).zip(placement.ranks_on(NodeIndex(node))) {
                assert_eq!(placement.node_of(rank), Some(NodeIndex(node)));
                assert_eq!(placement.local_rank(rank), Some(LocalRank(local)));
                seen.push(rank.0);
            }
        }
        for (node, ranks) in placement.ranks_by_node() {
            assert_eq!(placement.ranks_on(node), ranks);
        }
        assert!(placement.ranks_by_node().into_keys().eq(placement.nodes_with_ranks()));
        seen.sort_unstable();
        assert_eq!(seen, (0..8).collect::<Vec<_>>());
        assert_eq!(placement.node_of(Rank(8)), None);
    }

    #[test]
    fn appnums_follow_the_programs() {
        let mut job = Job::on_one_node(JobId::new("j").unwrap(), 3);
        job.apps = vec![App { ranks: 1, appnum: 0 }, App { ranks: 2, appnum: 1 }];
        assert_eq!([0, 1, 2, 3].map(|rank| job.appnum(Rank(rank))), [0, 1, 1, -1]);
    }

    #[test]
    fn runs_of_ranks_with_one_number_are_one_program() {
        let mut job = Job::on_one_node(JobId::new("a").unwrap(), 4);
        job.apps = [(1, 0), (1, 1), (2, 0)].map(|(ranks, appnum)| App { ranks, appnum }).to_vec();
        let program = |appnum, first, ranks| ProgramRanks { appnum, first: Rank(first), ranks };
        assert_eq!(job.programs(), [program(0, 0, 3), program(1, 1, 1)]);
        assert_eq!([0, 1, 2, 3].map(|rank| job.appnum(Rank(rank))), [0, 1, 0, 0]);
    }
}
