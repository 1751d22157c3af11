//! A session's part in a question to the sessions of several nodes, as a pure state machine.
//!
//! ```text
//!  order for nodes 0-6 ──> 0, who asks 1 for 1-3 and 4 for 4-6; 1 asks 2 and 3
//!           answer <────── what 0 sees itself, with the answers of 1 and of 4
//! ```
//! Each node asks as many others as the launch's fences have branches at a node, so that it is the links of fences that are used, where
//! there are any. Whoever asks has more time than who is asked. Where a node does not answer, who has asked it asks those behind it
//! instead, as far as there is time; the answer is given in time whoever is missing.

mod collected;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use pmi_core::ids::NodeIndex;
use pmi_transport::fence::shares;
use tokio::time::Instant;

use self::collected::Collected;
use crate::gathered::{GatherOrder, Gathered, NodeSelection, Unheard};

/// Most nodes that one session waits for at a time.
const ASKING_MAX: usize = 32;
/// The shortest time, beside that of a look, which a node is asked for.
const WAY_MIN: Duration = Duration::from_millis(10);

/// One question on its way through this session.
#[derive(Debug)]
pub(super) struct Gathering {
    order: GatherOrder,
    /// All nodes of the question, this one first.
    nodes: Vec<u32>,
    fan_out: u32,
    until: Instant,
    /// Parts of the nodes that are still to be asked, by positions.
    waiting: VecDeque<Range<u32>>,
    /// Parts that others answer for, by the node that was asked.
    asked: BTreeMap<NodeIndex, Asked>,
    own: Own,
    collected: Collected,
}

#[derive(Debug)]
struct Asked {
    part: Range<u32>,
    until: Instant,
}

/// State of what this session sees of its own ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Own {
    Awaited,
    Told,
}

impl Gathering {
    /// Begins with an order whose first node is this one; in a launch whose fences have `fan_out` branches at each node.
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

    /// The next node to ask, and what.
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
            self.asked.insert(node, Asked { part, until: now + time });
            return Some((node, GatherOrder { nodes, time, detail: self.order.detail }));
        }
        None
    }

    /// This session has looked at its own ranks, or could not.
    pub(super) fn on_own(&mut self, told: Result<Gathered, String>) {
        self.own = Own::Told;
        let me = NodeIndex(self.nodes[0]);
        match told {
            Ok(told) => self.collected.add(told, |node| node == me),
            Err(reason) => self.collected.miss(Unheard { node: me, reason }),
        }
    }

    /// A node that was asked has answered for its part, or will not.
    pub(super) fn on_answer(&mut self, node: NodeIndex, answer: Result<Gathered, String>, now: Instant) {
        let Some(Asked { part, .. }) = self.asked.remove(&node) else { return };
        match answer {
            Ok(told) => {
                let part = &self.nodes[part.start as usize..part.end as usize];
                self.collected.add(told, |node| part.binary_search(&node.0).is_ok());
            }
            Err(reason) => self.go_round(node, part, reason, now),
        }
    }

    /// The time of [`Self::wake`] has come.
    pub(super) fn on_time(&mut self, now: Instant) {
        let late: Vec<NodeIndex> =
            self.asked.iter().filter(|(_, asked)| asked.until <= now).map(|(node, _)| *node).collect();
        for node in late {
            if let Some(Asked { part, .. }) = self.asked.remove(&node) {
                self.go_round(node, part, "it did not answer in time".to_owned(), now);
            }
        }
    }

    /// The time of the next step, if nothing comes before.
    pub(super) fn wake(&self) -> Instant {
        self.asked.values().map(|asked| asked.until).fold(self.until, Instant::min)
    }

    /// The answer, once all have told or the time is over. Nothing may follow it.
    pub(super) fn poll_answer(&mut self, now: Instant) -> Option<Gathered> {
        let is_complete = self.own == Own::Told && self.asked.is_empty() && self.waiting.is_empty();
        (is_complete || now >= self.until).then(|| self.collected.take())
    }

    /// Asks those behind a node that does not answer.
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

    /// Time for whoever is asked now: that for a look, and three quarters of what is left beside it. `None` if that is too little.
    fn time_below(&self, now: Instant) -> Option<Duration> {
        let look = self.order.detail.look();
        let way = self.until.saturating_duration_since(now).checked_sub(look)? * 3 / 4;
        (way >= WAY_MIN).then_some(look + way)
    }
}

#[cfg(test)]
mod tests;
