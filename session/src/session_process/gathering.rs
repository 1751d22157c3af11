//! A session's part in a question to the sessions of several nodes, as a pure state machine.
//!
//! ```text
//! order for nodes 0-6 ──> 0, which asks 1 for 1-3 and 4 for 4-6; 1 asks 2 and 3
//!           answer <────── data of 0 itself, with the answers of 1 and of 4
//! ```
//! Each node asks as many nodes as a node of the launch's fences has branches, so questions use the existing links of the fences. Each node
//! has more time than the nodes that it asks. If a node does not answer, its parent asks the nodes below it, as long as time is left. The
//! answer is complete in time, even if nodes are missing.

mod collected;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use pmi_core::ids::NodeIndex;
use pmi_transport::fence::shares;
use tokio::time::Instant;

use self::collected::Collected;
use crate::gathered::{GatherOrder, Gathered, NodeSelection, Unheard};

/// Limit of nodes for which one session waits at a time.
const ASKING_MAX: usize = 32;
/// Shortest time for a question to another node, in addition to the time for a look at its ranks.
const WAY_MIN: Duration = Duration::from_millis(10);

/// One question in this session.
#[derive(Debug)]
pub(super) struct Gathering {
    order: GatherOrder,
    /// All nodes of the question. This node is the first.
    nodes: Vec<u32>,
    fan_out: u32,
    until: Instant,
    /// Ranges of nodes that must still be asked, by position in `nodes`.
    waiting: VecDeque<Range<u32>>,
    /// Ranges of nodes for which an asked node must answer, by asked node.
    asked: BTreeMap<NodeIndex, PendingGather>,
    own: Own,
    collected: Collected,
}

#[derive(Debug)]
struct PendingGather {
    part: Range<u32>,
    until: Instant,
}

/// State of this session's data about its own ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Own {
    Awaited,
    Told,
}

impl Gathering {
    /// Starts with an order that has this node as its first node. The fences of the launch have `fan_out` branches at each node.
    pub(super) fn new(order: GatherOrder, fan_out: u32, now: Instant) -> Self {
        let nodes: Vec<u32> = order.nodes.nodes().collect();
        let fan_out = fan_out.clamp(1, ASKING_MAX as u32);
        Self {
            waiting: shares(1..nodes.len() as u32, fan_out).collect(),
            until: now + order.time,
            asked: BTreeMap::new(),
            own: Own::Awaited,
            collected: Collected::new(order.detail),
            nodes,
            fan_out,
            order,
        }
    }

    /// Returns the next node to ask, and its order.
    pub(super) fn poll_ask(&mut self, now: Instant) -> Option<(NodeIndex, GatherOrder)> {
        while self.asked.len() < ASKING_MAX {
            let part = self.waiting.pop_front()?;
            let Some(time) = self.time_below(now) else {
                self.miss(part, "no time was left to ask it");
                continue;
            };
            let behind = self.nodes[part.start as usize..part.end as usize].iter().copied();
            let Some(nodes) = NodeSelection::of(behind) else { continue };
            let node = NodeIndex(self.nodes[part.start as usize]);
            self.asked.insert(node, PendingGather { part, until: now + time });
            return Some((node, GatherOrder { nodes, time, detail: self.order.detail }));
        }
        None
    }

    /// Handles this session's data about its own ranks, or the reason why there is none.
    pub(super) fn on_own(&mut self, told: Result<Gathered, String>) {
        self.own = Own::Told;
        let me = NodeIndex(self.nodes[0]);
        match told {
            Ok(told) => self.collected.add(told, |node| node == me),
            Err(reason) => self.collected.miss(Unheard { node: me, reason }),
        }
    }

    /// Handles the answer of a node for its range, or the reason why the node does not answer.
    pub(super) fn on_answer(&mut self, node: NodeIndex, answer: Result<Gathered, String>, now: Instant) {
        let Some(PendingGather { part, .. }) = self.asked.remove(&node) else { return };
        match answer {
            Ok(told) => {
                let part = &self.nodes[part.start as usize..part.end as usize];
                self.collected.add(told, |node| part.binary_search(&node.0).is_ok());
            }
            Err(reason) => self.go_round(node, part, reason, now),
        }
    }

    /// Handles the time of [`Self::wake`].
    pub(super) fn on_time(&mut self, now: Instant) {
        let late: Vec<NodeIndex> =
            self.asked.iter().filter(|(_, asked)| asked.until <= now).map(|(node, _)| *node).collect();
        for node in late {
            if let Some(PendingGather { part, .. }) = self.asked.remove(&node) {
                self.go_round(node, part, "it did not answer in time".to_owned(), now);
            }
        }
    }

    /// Time of the next step, if no answer arrives before it.
    pub(super) fn wake(&self) -> Instant {
        self.asked.values().map(|asked| asked.until).fold(self.until, Instant::min)
    }

    /// Returns the answer when all nodes have answered or the time is over. No other call may follow.
    pub(super) fn poll_answer(&mut self, now: Instant) -> Option<Gathered> {
        let is_complete = self.own == Own::Told && self.asked.is_empty() && self.waiting.is_empty();
        (is_complete || now >= self.until).then(|| self.collected.take())
    }

    /// Asks the nodes below a node that does not answer.
    fn go_round(&mut self, node: NodeIndex, part: Range<u32>, reason: String, now: Instant) {
        self.collected.miss(Unheard { node, reason });
        let behind = part.start + 1..part.end;
        if self.time_below(now).is_some() {
            self.waiting.extend(shares(behind, self.fan_out));
        } else {
            self.miss(behind, "no time was left to ask it");
        }
    }

    fn miss(&mut self, part: Range<u32>, reason: &str) {
        for position in part {
            self.collected.miss(Unheard { node: NodeIndex(self.nodes[position as usize]), reason: reason.to_owned() });
        }
    }

    /// Time for a node that is asked now: the time for a look at its ranks, and three quarters of the remaining time. `None` if the
    /// remainder is too short.
    fn time_below(&self, now: Instant) -> Option<Duration> {
        let look = self.order.detail.look();
        let way = self.until.saturating_duration_since(now).checked_sub(look)? * 3 / 4;
        (way >= WAY_MIN).then_some(look + way)
    }
}

#[cfg(test)]
mod tests;
