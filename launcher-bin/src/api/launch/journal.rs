//! What happened in a launch and was not dealt with yet: events wait here, numbered, until the client acknowledges them.
//!
//! Ranks' output is bounded by credit. A node may send `window` bytes; it is granted more only as its output is acknowledged:
//!
//! ```text
//! window = on its way to us (outstanding) + kept here (unacknowledged) + not yet granted again
//! ```
//!
//! A launch that nobody follows must not stand still: then output counts as dealt with at once, and the oldest of it is
//! dropped when more than [`KEPT_MAX`] is kept.

use std::collections::VecDeque;

use pmi_transport::proto::v1::{AttachResponse, NodeEvent, attach_response, node_event};

/// How many bytes of output are kept of a launch that nobody follows, and of PMI messages of any launch.
const KEPT_MAX: usize = 4 << 20;

/// Events that were not acknowledged, in order.
#[derive(Debug)]
pub(crate) struct Journal {
    entries: VecDeque<Entry>,
    /// The number of the next event.
    next: u64,
    windows: Vec<Window>,
    /// What a node may send in all.
    window: u64,
    followed: bool,
    /// Bytes in `entries` that may be dropped: traces, and output that nobody waits for.
    droppable: usize,
    dropped: u64,
}

#[derive(Debug)]
struct Entry {
    response: AttachResponse,
    weight: Weight,
}

/// What an entry counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weight {
    /// Kept whatever happens.
    Event,
    /// Output that its node is granted again when it is dealt with.
    Credited(usize),
    /// Bytes that may be dropped.
    Droppable(usize),
}

/// One node's share.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    /// What the node may still send.
    outstanding: u64,
    /// What was sent and not acknowledged.
    unacknowledged: u64,
}

/// A node sent output that it was not allowed to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it sent {sent} bytes of output, and was allowed {window}")]
pub(crate) struct Overrun {
    pub sent: u64,
    pub window: u64,
}

impl Journal {
    /// A journal for `nodes` nodes, each of which may begin with `window` bytes. The first event will have number `first`.
    pub(crate) fn new(nodes: usize, window: u64, first: u64, followed: bool) -> Self {
        let share = Window { outstanding: window, unacknowledged: 0 };
        Self {
            entries: VecDeque::new(),
            next: first,
            windows: vec![share; nodes],
            window,
            followed,
            droppable: 0,
            dropped: 0,
        }
    }

    /// Adds an event of `node`. Returns the bytes of output that the node is to be granted, if any.
    ///
    /// # Errors
    /// Fails when the node sends more output than twice its window: once for what it was granted, and once for grants that
    /// went astray with a broken connection and were made good.
    pub(crate) fn push(&mut self, node: u32, event: NodeEvent) -> Result<Option<u64>, Overrun> {
        let weight = match &event.what {
            Some(node_event::What::Output(output)) => self.charge(node, output.data.len())?,
            Some(node_event::What::Trace(line)) => Weight::Droppable(line.len()),
            _ => Weight::Event,
        };
        self.append(node, attach_response::What::Event(event), weight);
        self.drop_oldest();
        Ok(self.grant(node))
    }

    /// Adds something that the API server itself has to say.
    pub(crate) fn push_own(&mut self, what: attach_response::What) {
        self.append(0, what, Weight::Event);
    }

    fn append(&mut self, node: u32, what: attach_response::What, weight: Weight) {
        if let Weight::Droppable(bytes) = weight {
            self.droppable += bytes;
        }
        let response = AttachResponse { sequence: self.next, node, what: Some(what) };
        self.entries.push_back(Entry { response, weight });
        self.next += 1;
    }

    fn charge(&mut self, node: u32, bytes: usize) -> Result<Weight, Overrun> {
        let followed = self.followed;
        let window = self.window;
        let share = &mut self.windows[node as usize];
        share.outstanding = share.outstanding.saturating_sub(bytes as u64);
        if !followed {
            return Ok(Weight::Droppable(bytes));
        }
        share.unacknowledged += bytes as u64;
        match share.unacknowledged {
            sent if sent > 2 * window => Err(Overrun { sent, window }),
            _ => Ok(Weight::Credited(bytes)),
        }
    }

    /// What the node is to be granted: nothing before a quarter of its window is free, so that grants do not outnumber output.
    fn grant(&mut self, node: u32) -> Option<u64> {
        let share = &mut self.windows[node as usize];
        let free = self.window.saturating_sub(share.unacknowledged + share.outstanding);
        let worth_telling = free >= (self.window / 4).max(1);
        worth_telling.then(|| {
            share.outstanding += free;
            free
        })
    }

    /// The connection to a node is new: what it was granted may have gone astray. Returns what to grant it now.
    pub(crate) fn renew(&mut self, node: u32) -> Option<u64> {
        self.windows[node as usize].outstanding = 0;
        self.grant(node)
    }

    /// Whether the node is slow because the client is: most of what it may send waits to be acknowledged.
    pub(crate) fn is_held_up(&self, node: u32) -> bool {
        self.windows[node as usize].unacknowledged > self.window / 2
    }

    /// Everything up to `sequence` was dealt with. Returns what nodes are to be granted.
    pub(crate) fn acknowledge(&mut self, sequence: u64) -> Vec<(u32, u64)> {
        let mut touched = Vec::new();
        while self.entries.front().is_some_and(|entry| entry.response.sequence <= sequence) {
            let Some(entry) = self.entries.pop_front() else { break };
            self.settle(&entry, &mut touched);
        }
        self.grants(touched)
    }

    /// From now on the launch is followed, or is not. Returns what nodes are to be granted.
    pub(crate) fn follow(&mut self, followed: bool) -> Vec<(u32, u64)> {
        self.followed = followed;
        if followed {
            return Vec::new();
        }
        for entry in &mut self.entries {
            if let Weight::Credited(bytes) = entry.weight {
                entry.weight = Weight::Droppable(bytes);
                self.droppable += bytes;
            }
        }
        self.windows.iter_mut().for_each(|share| share.unacknowledged = 0);
        self.drop_oldest();
        self.grants((0..self.windows.len() as u32).collect())
    }

    fn settle(&mut self, entry: &Entry, touched: &mut Vec<u32>) {
        match entry.weight {
            Weight::Event => {}
            Weight::Droppable(bytes) => self.droppable -= bytes,
            Weight::Credited(bytes) => {
                let node = entry.response.node;
                self.windows[node as usize].unacknowledged -= bytes as u64;
                if touched.last() != Some(&node) {
                    touched.push(node);
                }
            }
        }
    }

    fn grants(&mut self, mut nodes: Vec<u32>) -> Vec<(u32, u64)> {
        nodes.sort_unstable();
        nodes.dedup();
        nodes.into_iter().filter_map(|node| Some((node, self.grant(node)?))).collect()
    }

    /// Drops the older half when too much is kept that may be dropped.
    fn drop_oldest(&mut self) {
        if self.droppable <= KEPT_MAX {
            return;
        }
        let (mut left, mut dropped) = (self.droppable, 0);
        self.entries.retain(|entry| match entry.weight {
            Weight::Droppable(bytes) if left > KEPT_MAX / 2 => {
                left -= bytes;
                dropped += bytes as u64;
                false
            }
            _ => true,
        });
        self.droppable = left;
        self.dropped += dropped;
    }

    /// The first event after `sequence`, if there is one.
    pub(crate) fn after(&self, sequence: u64) -> Option<&AttachResponse> {
        let index = self.entries.partition_point(|entry| entry.response.sequence <= sequence);
        self.entries.get(index).map(|entry| &entry.response)
    }

    /// The number of the latest event.
    pub(crate) fn latest(&self) -> u64 {
        self.next - 1
    }

    /// Whether everything was acknowledged.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many bytes were dropped since this was asked last.
    pub(crate) fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }
}

#[cfg(test)]
mod tests {
    use pmi_transport::proto::v1::{RankOutput, RankStarted};

    use super::*;

    fn output(bytes: usize) -> NodeEvent {
        let output = RankOutput { rank: 0, on_stderr: false, data: vec![b'x'; bytes].into() };
        NodeEvent { what: Some(node_event::What::Output(output)) }
    }

    fn started(rank: u32) -> NodeEvent {
        NodeEvent { what: Some(node_event::What::Started(RankStarted { rank, ..Default::default() })) }
    }

    fn numbers(journal: &Journal) -> Vec<u64> {
        journal.entries.iter().map(|entry| entry.response.sequence).collect()
    }

    #[test]
    fn a_node_is_granted_what_was_acknowledged() {
        let mut journal = Journal::new(2, 100, 1, true);
        assert_eq!(journal.push(1, output(60)), Ok(None));
        assert_eq!(journal.push(1, output(40)), Ok(None));
        assert!(journal.is_held_up(1) && !journal.is_held_up(0));
        assert_eq!(journal.acknowledge(1), [(1, 60)]);
        assert_eq!(journal.acknowledge(1), []);
        assert_eq!(journal.acknowledge(2), [(1, 40)]);
        assert!(journal.is_empty());
    }

    #[test]
    fn small_acknowledgements_are_granted_together() {
        let mut journal = Journal::new(1, 100, 1, true);
        (0..10).for_each(|_| assert_eq!(journal.push(0, output(10)), Ok(None)));
        assert_eq!(journal.acknowledge(2), []);
        assert_eq!(journal.acknowledge(3), [(0, 30)]);
    }

    #[test]
    fn a_new_client_gets_what_the_last_one_did_not_deal_with() {
        let mut journal = Journal::new(1, 100, 1, true);
        (0..4).for_each(|rank| assert_eq!(journal.push(0, started(rank)), Ok(None)));
        journal.acknowledge(2);
        assert_eq!(numbers(&journal), [3, 4]);
        assert_eq!(journal.after(0).map(|event| event.sequence), Some(3));
        assert_eq!(journal.after(3).map(|event| event.sequence), Some(4));
        assert_eq!(journal.after(4), None);
    }

    #[test]
    fn more_than_was_granted_is_an_offence() {
        let mut journal = Journal::new(1, 100, 1, true);
        assert_eq!(journal.push(0, output(150)), Ok(None));
        assert_eq!(journal.push(0, output(60)), Err(Overrun { sent: 210, window: 100 }));
    }

    #[test]
    fn grants_that_went_astray_are_made_good() {
        let mut journal = Journal::new(1, 100, 1, true);
        assert_eq!(journal.push(0, output(70)), Ok(None));
        assert_eq!(journal.renew(0), Some(30));
        assert_eq!(journal.acknowledge(1), [(0, 70)]);
    }

    #[test]
    fn a_launch_that_nobody_follows_goes_on_and_forgets() {
        let mut journal = Journal::new(1, 1 << 20, 1, false);
        assert_eq!(journal.push(0, started(0)), Ok(None));
        let mut granted = 0;
        for _ in 0..100 {
            granted += journal.push(0, output(100_000)).unwrap().unwrap_or(0);
        }
        assert!(granted >= 100 * 100_000 - (1 << 20));
        let dropped = journal.take_dropped();
        assert!(dropped >= (100 * 100_000 - KEPT_MAX) as u64, "{dropped}");
        assert!(journal.droppable <= KEPT_MAX);
        // What is no output stays.
        assert_eq!(journal.after(0).map(|event| event.sequence), Some(1));
    }

    #[test]
    fn a_client_that_leaves_sets_the_ranks_free() {
        let mut journal = Journal::new(1, 100, 1, true);
        assert_eq!(journal.push(0, output(100)), Ok(None));
        assert_eq!(journal.follow(false), [(0, 100)]);
        assert_eq!(numbers(&journal), [1]);
        journal.follow(true);
        assert_eq!(journal.push(0, output(100)), Ok(None));
        assert_eq!(journal.acknowledge(1), []);
        assert_eq!(journal.acknowledge(2), [(0, 100)]);
    }
}
