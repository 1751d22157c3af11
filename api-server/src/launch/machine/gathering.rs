//! Queries for the status of a large launch. The API server sends one query, and the sessions collect the answers over their tree.
//!
//! ```text
//! status ─> waits for the last query ─> root ──its answer──> nodes that are not in it are queried directly
//!                                         └──no answer─────> all nodes are queried directly, also for later queries for a while
//! ```
//! Data that one session reports about ranks of other nodes is shown to users. The machine makes no decisions from it.

use std::collections::BTreeSet;
use std::time::Duration;

use lattice_session::gathered::{GatherDetail, GatherOrder, Gathered, NodeSelection};
use pmi_core::ids::NodeIndex;
use tokio::time::Instant;

use super::event::NodeCommand;
use super::progress_query::{Answer, Extent};

/// Difference between the API server's time limit and the root's time limit.
const WAY: Duration = Duration::from_millis(200);
/// Time for which nodes are queried directly after the root has not answered: its version may not support collection.
const DIRECTLY: Duration = Duration::from_secs(60);

/// The queries that are collected over the tree.
#[derive(Debug)]
pub(super) struct Gathering {
    /// Number of nodes up to which all are queried directly.
    above: u32,
    usage: Lane,
    stacks: Lane,
    /// The end of the period of direct queries.
    directly_until: Option<Instant>,
}

/// Queries of one extent, one of them in progress at a time.
#[derive(Debug, Default)]
struct Lane {
    open: Option<OpenGather>,
    /// The number of the last query that waits. Its answer also answers the queries before it.
    next: Option<u64>,
}

/// A query in progress.
#[derive(Debug)]
pub(super) struct OpenGather {
    pub(super) number: u64,
    root: NodeIndex,
    /// All queried nodes.
    pub(super) nodes: Vec<NodeIndex>,
    until: Instant,
    is_root_gone: bool,
}

impl Gathering {
    /// Queries to more than `above` nodes use the tree.
    pub(super) fn new(above: u32) -> Self {
        Self { above, usage: Lane::default(), stacks: Lane::default(), directly_until: None }
    }

    /// Returns true if a query to `nodes` nodes uses the tree.
    pub(super) fn takes(&self, nodes: usize, now: Instant) -> bool {
        nodes > self.above as usize && self.directly_until.is_none_or(|until| now >= until)
    }

    /// Adds a query to the queue.
    pub(super) fn want(&mut self, extent: Extent, number: u64) {
        self.lane(extent).next = Some(number);
    }

    /// Removes and returns the number of the query to send now, unless one is in progress.
    pub(super) fn take_next(&mut self, extent: Extent) -> Option<u64> {
        let lane = self.lane(extent);
        if lane.open.is_some() { None } else { lane.next.take() }
    }

    /// Starts a query to these nodes, which are in order. Returns the root and the command to it; `None` if there are no nodes.
    pub(super) fn begin(
        &mut self,
        extent: Extent,
        number: u64,
        nodes: Vec<NodeIndex>,
        now: Instant,
    ) -> Option<(NodeIndex, NodeCommand)> {
        let (root, limit) = (*nodes.first()?, extent.limit());
        let detail = match extent {
            Extent::Progress => GatherDetail::Usage,
            Extent::Stacks => GatherDetail::Stacks,
        };
        let selection = NodeSelection::of(nodes.iter().map(|node| node.0))?;
        let order = GatherOrder { nodes: selection, detail, time: limit.saturating_sub(WAY) };
        self.lane(extent).open = Some(OpenGather { number, root, nodes, until: now + limit, is_root_gone: false });
        Some((root, NodeCommand::Gather { question: number, order }))
    }

    /// A root has answered. Returns the query, if it was in progress at this root.
    pub(super) fn on_answer(&mut self, node: NodeIndex, question: u64) -> Option<(Extent, OpenGather)> {
        let is_meant = |open: &mut OpenGather| open.root == node && open.number == question;
        Extent::ALL.into_iter().find_map(|extent| Some((extent, self.lane(extent).open.take_if(is_meant)?)))
    }

    /// A node can send no more answers.
    pub(super) fn on_gone(&mut self, node: NodeIndex) {
        for extent in Extent::ALL {
            if let Some(open) = self.lane(extent).open.as_mut().filter(|open| open.root == node) {
                open.is_root_gone = true;
            }
        }
    }

    /// Removes and returns the queries without an answer because the root is gone, or did not answer in time.
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

/// Splits a collected answer into the answers of single nodes, limited to the queried nodes. A call stack goes to the node of its first rank,
/// according to `node_of`. The call stacks contain at most `ranks` ranks in all.
pub(super) fn by_node(
    gathered: Gathered,
    asked: &[NodeIndex],
    ranks: u32,
    node_of: impl Fn(pmi_core::ids::Rank) -> Option<NodeIndex>,
) -> Vec<(NodeIndex, Answer)> {
    let mut told = BTreeSet::new();
    let has_stacks = gathered.stacks.is_some();
    let nodes = gathered
        .nodes
        .into_iter()
        .filter(|answer| asked.binary_search(&answer.node).is_ok() && told.insert(answer.node));
    let mut answers: Vec<(NodeIndex, Answer)> = nodes
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
            (answer.node, Answer { ranks: progress, programs, stacks, left_out: answer.left_out })
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
