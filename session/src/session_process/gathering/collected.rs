//! Collection of the answers of nodes, in bounded size. Without enough room, the largest answers are cut.

use std::collections::HashSet;
use std::mem;

use pmi_core::ids::NodeIndex;

use crate::call_stacks::{CallStacks, RankStack};
use crate::gathered::{GatherDetail, Gathered, GatheredStacks, NodeAnswer, RankAnswer, Unheard};
use crate::wire::gathered::cost;

/// Limit of the ranks in an answer, in bytes. The answer and its stacks must fit one message of a link and of a report.
pub(super) const RANKS_MAX: usize = 2 << 20;
/// The same limit while answers arrive.
const RANKS_HELD_MAX: usize = 4 * RANKS_MAX;
/// Bytes that a node needs in addition to its ranks.
const NODE_COST: usize = 16;
/// Limit of nodes that are reported with a reason.
const UNHEARD_MAX: usize = 64;
/// Limit of a reason, in characters.
const REASON_MAX: usize = 200;

/// Answers that have arrived.
#[derive(Debug, Default)]
pub(super) struct Collected {
    nodes: Vec<NodeAnswer>,
    /// Nodes that have answered, even if their answers were cut.
    told: HashSet<NodeIndex>,
    /// Size of the nodes' ranks, in bytes.
    bytes: usize,
    stacks: Option<CallStacks>,
    stacks_left_out: u32,
    unheard: Vec<Unheard>,
}

impl Collected {
    pub(super) fn new(detail: GatherDetail) -> Self {
        Self { stacks: (detail == GatherDetail::Stacks).then(CallStacks::default), ..Self::default() }
    }

    /// Adds an answer. Nodes that were not asked, or have already answered, are ignored.
    pub(super) fn add(&mut self, told: Gathered, is_asked: impl Fn(NodeIndex) -> bool) {
        for answer in told.nodes {
            if is_asked(answer.node) && self.told.insert(answer.node) {
                self.bytes += bytes_of(&answer.ranks);
                self.nodes.push(answer);
            }
        }
        if self.bytes > RANKS_HELD_MAX {
            self.cut();
        }
        if let (Some(all), Some(GatheredStacks { stacks, left_out })) = (&mut self.stacks, told.stacks) {
            stacks.into_iter().for_each(|RankStack { ranks, text }| all.add(ranks, text));
            self.stacks_left_out = self.stacks_left_out.saturating_add(left_out);
        }
        told.unheard.into_iter().filter(|unheard| is_asked(unheard.node)).for_each(|unheard| self.miss(unheard));
    }

    /// Records that a node will not answer.
    pub(super) fn miss(&mut self, Unheard { node, reason }: Unheard) {
        if self.unheard.len() < UNHEARD_MAX {
            self.unheard.push(Unheard { node, reason: reason.chars().take(REASON_MAX).collect() });
        }
    }

    /// Returns all answers, cut to the available room.
    pub(super) fn take(&mut self) -> Gathered {
        self.cut();
        let Self { mut nodes, stacks, stacks_left_out, unheard, .. } = mem::take(self);
        nodes.sort_unstable_by_key(|answer| answer.node);
        let stacks = stacks.map(|all| GatheredStacks { stacks: all.into_stacks(), left_out: stacks_left_out });
        Gathered { nodes, stacks, unheard }
    }

    fn cut(&mut self) {
        cut(&mut self.nodes, RANKS_MAX);
        self.bytes = self.nodes.iter().map(|answer| bytes_of(&answer.ranks)).sum();
    }
}

fn bytes_of(ranks: &[RankAnswer]) -> usize {
    ranks.iter().map(cost).sum()
}

/// Cuts answers until all of them together have at most `room` bytes. Each node keeps its first ranks, up to the same number of bytes.
/// Nodes without any room are dropped.
fn cut(nodes: &mut Vec<NodeAnswer>, room: usize) {
    nodes.truncate(room / NODE_COST);
    let room = room - nodes.len() * NODE_COST;
    let sizes: Vec<usize> = nodes.iter().map(|answer| bytes_of(&answer.ranks)).collect();
    let share = share(&sizes, room);
    for (answer, mut size) in nodes.iter_mut().zip(sizes) {
        while size > share
            && let Some(last) = answer.ranks.pop()
        {
            size -= cost(&last);
            answer.left_out = answer.left_out.saturating_add(1);
        }
    }
}

/// Returns the largest equal share of `room`, where no participant gets more than it needs.
fn share(needs: &[usize], room: usize) -> usize {
    let mut needs = needs.to_vec();
    needs.sort_unstable();
    let (mut left, mut others) = (room, needs.len());
    for need in needs {
        if need * others > left {
            return left / others;
        }
        left -= need;
        others -= 1;
    }
    usize::MAX
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use pmi_core::ids::Rank;
    use proptest::prelude::*;
    use prost::Message;

    use super::*;
    use crate::event::RankProgress;
    use crate::wire::gathered::{decode_answer, encode};

    fn node(node: u32, ranks: u32, command: usize) -> NodeAnswer {
        let rank = |rank| RankAnswer {
            progress: RankProgress {
                pid: Some(7),
                last_command: Some("c".repeat(command)),
                ..RankProgress::unknown(Rank(rank))
            },
            program: Bytes::from_static(b"/bin/true"),
        };
        NodeAnswer { node: NodeIndex(node), ranks: (0..ranks).map(rank).collect(), left_out: 0 }
    }

    fn told(nodes: Vec<NodeAnswer>) -> Gathered {
        Gathered { nodes, ..Gathered::default() }
    }

    #[test]
    fn nobody_gets_more_than_needed_and_nobody_less_than_others() {
        for (needs, room, expected) in [
            (&[3, 5, 9][..], 17, usize::MAX),
            (&[3, 5, 9], 16, 8),
            (&[3, 5, 9], 12, 4),
            (&[10, 10], 3, 1),
            (&[10], 0, 0),
            (&[], 0, usize::MAX),
        ] {
            assert_eq!(share(needs, room), expected, "{needs:?} of {room}");
        }
    }

    #[test]
    fn the_largest_answer_is_cut_and_says_by_how_much() {
        let mut nodes = vec![node(0, 2, 10), node(1, 1000, 10), node(2, 3, 10)];
        let all = nodes.iter().map(|answer| bytes_of(&answer.ranks)).sum::<usize>();
        cut(&mut nodes, all / 2);
        let kept: Vec<usize> = nodes.iter().map(|answer| answer.ranks.len()).collect();
        assert_eq!((kept[0], kept[2]), (2, 3), "small answers are whole");
        assert!((400..600).contains(&kept[1]), "{kept:?}");
        assert_eq!(nodes[1].left_out as usize + kept[1], 1000);
        assert_eq!(nodes[1].ranks[0].progress.rank, Rank(0), "the first ones stay");
    }

    #[test]
    fn only_nodes_that_were_asked_count_and_each_once() {
        let mut collected = Collected::new(GatherDetail::Usage);
        collected.add(told(vec![node(1, 2, 0), node(1, 5, 0), node(9, 1, 0)]), |node| node.0 < 5);
        collected.add(told(vec![node(1, 7, 0), node(0, 1, 0)]), |node| node.0 < 5);
        let ranks: Vec<_> = collected.take().nodes.iter().map(|answer| (answer.node.0, answer.ranks.len())).collect();
        assert_eq!(ranks, [(0, 1), (1, 2)]);
    }

    #[test]
    fn equal_stacks_of_several_nodes_are_one() {
        let stack = |ranks: &[u32], text: &str| RankStack {
            ranks: ranks.iter().copied().map(Rank).collect(),
            text: text.to_owned(),
        };
        let stacks = |stacks| Some(GatheredStacks { stacks, left_out: 1 });
        let mut collected = Collected::new(GatherDetail::Stacks);
        collected.add(Gathered { stacks: stacks(vec![stack(&[2, 3], "wait")]), ..Gathered::default() }, |_| true);
        let second = stacks(vec![stack(&[0], "solve"), stack(&[1], "wait")]);
        collected.add(Gathered { stacks: second, ..Gathered::default() }, |_| true);
        let merged = GatheredStacks { stacks: vec![stack(&[0], "solve"), stack(&[1, 2, 3], "wait")], left_out: 2 };
        assert_eq!(collected.take().stacks, Some(merged));
    }

    #[test]
    fn reasons_are_bounded_in_number_and_length() {
        let mut collected = Collected::new(GatherDetail::Usage);
        for node in 0..1000 {
            collected.miss(Unheard { node: NodeIndex(node), reason: "x".repeat(9000) });
        }
        let unheard = collected.take().unheard;
        assert!(unheard.len() == UNHEARD_MAX && unheard.iter().all(|unheard| unheard.reason.len() == REASON_MAX));
    }

    proptest! {
        /// For all answers of nodes, the result fits one message, and each rank is either present or counted as left out.
        #[test]
        fn an_answer_fits_one_message_and_counts_what_it_leaves_out(
            nodes in prop::collection::vec((0_u32..300, 0_usize..4000), 0..40)
        ) {
            let mut collected = Collected::new(GatherDetail::Usage);
            let all: usize = nodes.iter().map(|(ranks, _)| *ranks as usize).sum();
            for (number, &(ranks, command)) in (0..).zip(&nodes) {
                collected.add(told(vec![node(number, ranks, command)]), |_| true);
            }
            let gathered = collected.take();
            let message = encode(0, &gathered);
            prop_assert!(message.encoded_len() <= RANKS_MAX, "{} bytes", message.encoded_len());
            let counted = gathered.nodes.iter().map(|answer| answer.ranks.len() + answer.left_out as usize);
            prop_assert_eq!(counted.sum::<usize>(), all);
            prop_assert_eq!(decode_answer(message.encode_to_vec().into()).unwrap(), gathered);
        }
    }
}
