//! Questions for the status of a large launch: its sessions gather the answers over their tree, and one question leaves the API server.
//!
//! ```text
//! status ─> waits for the one before ─> root ──its answer──> nodes that are not in it are asked one by one
//!                                         └──no answer─────> all are asked one by one, and later questions as well for a while
//! ```
//! What one session says of the ranks of others is shown, and decides nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use lattice_session::gathered::{GatherDetail, GatherOrder, Gathered, NodeSelection};
use tokio::time::Instant;

use super::event::NodeCommand;
use super::progress_query::{Answer, Extent};

/// Time by which the root has less than the API server waits for it.
const WAY: Duration = Duration::from_millis(200);
/// Time for which nodes are asked one by one after their root has not answered: it may be of a version that gathers nothing.
const DIRECTLY: Duration = Duration::from_secs(60);

/// The questions that are gathered.
#[derive(Debug)]
pub(super) struct Gathering {
    /// Number of nodes up to which all are asked one by one.
    above: u32,
    usage: Lane,
    stacks: Lane,
    /// Nodes are asked one by one until then.
    directly_until: Option<Instant>,
}

/// Questions of one extent, of which one is under way at a time.
#[derive(Debug, Default)]
struct Lane {
    open: Option<OpenGather>,
    /// The number of the last question that waits; its answer is the answer to those before it.
    next: Option<u64>,
}

/// A question that is under way.
#[derive(Debug)]
pub(super) struct OpenGather {
    pub(super) number: u64,
    root: u32,
    /// All nodes that were asked.
    pub(super) nodes: Vec<u32>,
    until: Instant,
    is_root_gone: bool,
}

impl Gathering {
    /// Launches on more than `above` nodes are gathered.
    pub(super) fn new(above: u32) -> Self {
        Self { above, usage: Lane::default(), stacks: Lane::default(), directly_until: None }
    }

    /// Returns true if so many nodes are to be asked by way of their root.
    pub(super) fn takes(&self, nodes: usize, now: Instant) -> bool {
        nodes > self.above as usize && self.directly_until.is_none_or(|until| now >= until)
    }

    /// A question waits to be asked.
    pub(super) fn want(&mut self, extent: Extent, number: u64) {
        self.lane(extent).next = Some(number);
    }

    /// Takes the number of the question that is to be asked now, if none is under way.
    pub(super) fn take_next(&mut self, extent: Extent) -> Option<u64> {
        let lane = self.lane(extent);
        if lane.open.is_some() { None } else { lane.next.take() }
    }

    /// Asks these nodes, which are in order. Returns the root with the command to it; `None` without any node.
    pub(super) fn begin(
        &mut self,
        extent: Extent,
        number: u64,
        nodes: Vec<u32>,
        now: Instant,
    ) -> Option<(u32, NodeCommand)> {
        let (root, limit) = (*nodes.first()?, extent.limit());
        let detail = match extent {
            Extent::Progress => GatherDetail::Usage,
            Extent::Stacks => GatherDetail::Stacks,
        };
        let selection = NodeSelection::of(nodes.iter().copied())?;
        let order = GatherOrder { nodes: selection, detail, time: limit.saturating_sub(WAY) };
        self.lane(extent).open = Some(OpenGather { number, root, nodes, until: now + limit, is_root_gone: false });
        Some((root, NodeCommand::Gather { question: number, order }))
    }

    /// A node has answered what it has gathered. Returns the question, if it was asked it.
    pub(super) fn on_answer(&mut self, node: u32, question: u64) -> Option<(Extent, OpenGather)> {
        let is_meant = |open: &mut OpenGather| open.root == node && open.number == question;
        Extent::ALL.into_iter().find_map(|extent| Some((extent, self.lane(extent).open.take_if(is_meant)?)))
    }

    /// Nothing more comes from a node.
    pub(super) fn on_gone(&mut self, node: u32) {
        for extent in Extent::ALL {
            if let Some(open) = self.lane(extent).open.as_mut().filter(|open| open.root == node) {
                open.is_root_gone = true;
            }
        }
    }

    /// The questions that their root will not answer, or has not answered in time.
    pub(super) fn take_failed(&mut self, now: Instant) -> Vec<(Extent, OpenGather)> {
        let has_failed = |open: &mut OpenGather| open.is_root_gone || open.until <= now;
        let failed: Vec<_> = Extent::ALL
            .into_iter()
            .filter_map(|extent| Some((extent, self.lane(extent).open.take_if(has_failed)?)))
            .collect();
        if failed.iter().any(|(_, open)| !open.is_root_gone) {
            self.directly_until = Some(now + DIRECTLY);
        }
        failed
    }

    fn lane(&mut self, extent: Extent) -> &mut Lane {
        match extent {
            Extent::Progress => &mut self.usage,
            Extent::Stacks => &mut self.stacks,
        }
    }
}

/// The answers of single nodes in what was gathered, as far as they were asked. Call stacks are with the first node that has a rank in
/// them, whom `node_of` knows; each rank counts once, of `ranks` in all.
pub(super) fn by_node(
    gathered: Gathered,
    asked: &[u32],
    ranks: u32,
    node_of: impl Fn(pmi_core::ids::Rank) -> Option<u32>,
) -> Vec<(u32, Answer)> {
    let mut told = BTreeSet::new();
    let has_stacks = gathered.stacks.is_some();
    let nodes = gathered
        .nodes
        .into_iter()
        .filter(|answer| asked.binary_search(&answer.node.0).is_ok() && told.insert(answer.node.0));
    let mut answers: Vec<(u32, Answer)> = nodes
        .map(|answer| {
            let (progress, programs) = answer
                .ranks
                .into_iter()
                .map(|rank| {
                    let number = rank.progress.rank;
                    (rank.progress, (number, rank.program))
                })
                .unzip();
            let stacks = has_stacks.then(Vec::new);
            (answer.node.0, Answer { ranks: progress, programs, stacks, left_out: answer.left_out })
        })
        .collect();
    let (mut room, stacks) = (ranks as usize, gathered.stacks.unwrap_or_default());
    for mut stack in stacks.stacks {
        stack.ranks.truncate(room);
        room -= stack.ranks.len();
        let first = stack.ranks.first().and_then(|rank| node_of(*rank));
        let at = answers.iter().position(|(node, _)| Some(*node) == first);
        if let Some((_, answer)) = answers.get_mut(at.unwrap_or(0)).filter(|_| !stack.ranks.is_empty()) {
            answer.stacks.get_or_insert_default().push(stack);
        }
    }
    if let Some((_, first)) = answers.first_mut() {
        first.left_out = first.left_out.saturating_add(stacks.left_out);
    }
    answers
}

#[cfg(test)]
mod tests;
