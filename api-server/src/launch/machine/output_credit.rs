//! What happens in a launch, and how much of it its nodes may tell: ranks' output is bounded by credit.
//!
//! A node may send `window` bytes (as events cost, [`cost`]); it is granted more only as what it sent is dealt with:
//!
//! ```text
//! window = on its way to us (outstanding) + kept here (undealt) + not yet granted again
//! ```
//!
//! Who deals with events is the launch's owner, which acknowledges them, or its spool, which has them on disk. When there is
//! neither, or the launch is to end whatever its owner does, output is dealt with as it comes.

use std::collections::VecDeque;
use std::sync::Arc;

use lattice_session::wire::event::{COST_MAX, cost};
use pmi_transport::proto::v1::{NodeEvent, attach_response};

use super::tape::Tape;

/// The events of a launch, and the credit of its nodes.
#[derive(Debug)]
pub(crate) struct Journal {
    tape: Arc<Tape>,
    windows: Vec<Window>,
    /// What a node may send in all.
    window: u64,
    /// Events that were charged and are not dealt with, in order.
    undealt: VecDeque<Charge>,
    /// Somebody deals with events, and is waited for.
    waits: bool,
}

/// One node's share.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    /// What the node may still send.
    outstanding: u64,
    /// What was sent and not dealt with.
    undealt: u64,
}

/// An event that its node is granted again.
#[derive(Clone, Copy, Debug)]
struct Charge {
    sequence: u64,
    node: u32,
    cost: u64,
}

/// A node sent output that it was not allowed to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it sent {sent} bytes of output, and was allowed {window}")]
pub(crate) struct Overrun {
    pub sent: u64,
    pub window: u64,
}

impl Journal {
    /// A journal for `nodes` nodes, each of which may begin with `window` bytes. With `waits`, somebody deals with events.
    pub(crate) fn new(nodes: usize, window: u64, waits: bool, tape: Arc<Tape>) -> Self {
        let share = Window { outstanding: window, undealt: 0 };
        Self { tape, windows: vec![share; nodes], window, undealt: VecDeque::new(), waits }
    }

    /// Adds an event of `node`. Returns the bytes that the node is to be granted, if any.
    ///
    /// # Errors
    /// Fails when the node sends more output than twice its window: once for what it was granted, and once for grants that went
    /// astray with a broken connection and were made good; and each time one event more than it had credit for.
    pub(crate) fn push(&mut self, node: u32, event: NodeEvent) -> Result<Option<u64>, Overrun> {
        let cost = cost(&event) as u64;
        let sequence = self.tape.push(node, attach_response::What::Event(event));
        if cost == 0 {
            return Ok(None);
        }
        let share = &mut self.windows[node as usize];
        share.outstanding = share.outstanding.saturating_sub(cost);
        if self.waits {
            share.undealt += cost;
            if share.undealt > 2 * (self.window + COST_MAX as u64) {
                return Err(Overrun { sent: share.undealt, window: self.window });
            }
            self.undealt.push_back(Charge { sequence, node, cost });
        }
        Ok(self.grant(node))
    }

    /// Adds something that the API server itself has to say; returns its number.
    pub(crate) fn push_own(&mut self, what: attach_response::What) -> u64 {
        self.tape.push(0, what)
    }

    /// What the node is to be granted: nothing before a quarter of its window is free, so that grants do not outnumber output.
    fn grant(&mut self, node: u32) -> Option<u64> {
        let share = &mut self.windows[node as usize];
        let free = self.window.saturating_sub(share.undealt + share.outstanding);
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

    /// Whether nodes are granted no more than somebody has dealt with.
    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    /// Whether the node is slow because who deals with its output is: most of what it may send waits for that.
    pub(crate) fn is_held_up(&self, node: u32) -> bool {
        self.windows[node as usize].undealt > self.window / 2
    }

    /// Everything up to `sequence` was dealt with. Returns what nodes are to be granted.
    pub(crate) fn acknowledge(&mut self, sequence: u64) -> Vec<(u32, u64)> {
        self.tape.settle(sequence);
        let mut touched = Vec::new();
        while let Some(charge) = self.undealt.pop_front_if(|charge| charge.sequence <= sequence) {
            self.windows[charge.node as usize].undealt -= charge.cost;
            if touched.last() != Some(&charge.node) {
                touched.push(charge.node);
            }
        }
        self.grants(touched)
    }

    /// From now on output is dealt with as it comes, for good. Returns what nodes are to be granted.
    pub(crate) fn stop_waiting(&mut self) -> Vec<(u32, u64)> {
        self.waits = false;
        self.tape.stop_waiting();
        self.undealt.clear();
        self.windows.iter_mut().for_each(|share| share.undealt = 0);
        self.grants((0..self.windows.len() as u32).collect())
    }

    fn grants(&mut self, mut nodes: Vec<u32>) -> Vec<(u32, u64)> {
        nodes.sort_unstable();
        nodes.dedup();
        nodes.into_iter().filter_map(|node| Some((node, self.grant(node)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use pmi_transport::limits::kept_cost;
    use pmi_transport::proto::v1::{RankOutput, RankStarted, node_event};

    use super::*;

    /// The window of the tests' journals.
    const WINDOW: u64 = 1 << 20;

    fn journal(nodes: usize, waits: bool) -> Journal {
        Journal::new(nodes, WINDOW, waits, Tape::new(1, waits, None))
    }

    /// Output that costs so much.
    fn output(cost: u64) -> NodeEvent {
        let data = vec![b'x'; cost as usize - kept_cost(0)].into();
        NodeEvent { what: Some(node_event::What::Output(RankOutput { rank: 0, on_stderr: false, data })) }
    }

    #[test]
    fn a_node_is_granted_what_was_acknowledged() {
        let mut journal = journal(2, true);
        assert_eq!(journal.push(1, output(WINDOW / 2)), Ok(None));
        assert_eq!(journal.push(1, output(WINDOW / 4)), Ok(None));
        assert!(journal.is_held_up(1) && !journal.is_held_up(0));
        assert_eq!(journal.acknowledge(1), [(1, WINDOW / 2)]);
        assert_eq!(journal.acknowledge(1), []);
        assert_eq!(journal.acknowledge(2), [(1, WINDOW / 4)]);
    }

    #[test]
    fn small_acknowledgements_are_granted_together() {
        let mut journal = journal(1, true);
        (0..10).for_each(|_| assert_eq!(journal.push(0, output(WINDOW / 10)), Ok(None)));
        assert_eq!(journal.acknowledge(2), []);
        assert_eq!(journal.acknowledge(3), [(0, WINDOW - 7 * (WINDOW / 10) - WINDOW % 10)]);
    }

    #[test]
    fn traces_are_granted_again_and_events_without_output_need_no_credit() {
        let mut journal = journal(1, true);
        let line = vec![b'x'; WINDOW as usize / 2].into();
        assert_eq!(journal.push(0, NodeEvent { what: Some(node_event::What::Trace(line)) }), Ok(None));
        let started = || NodeEvent { what: Some(node_event::What::Started(RankStarted::default())) };
        (0..100).for_each(|_| assert_eq!(journal.push(0, started()), Ok(None)));
        assert_eq!(journal.acknowledge(101), [(0, WINDOW / 2 + kept_cost(0) as u64)]);
    }

    #[test]
    fn more_than_was_granted_is_an_offence() {
        let mut journal = journal(1, true);
        assert_eq!(journal.push(0, output(2 * WINDOW)), Ok(None));
        let sent = 3 * WINDOW;
        assert_eq!(journal.push(0, output(WINDOW)), Err(Overrun { sent, window: WINDOW }));
    }

    #[test]
    fn grants_that_went_astray_are_made_good() {
        let mut journal = journal(1, true);
        assert_eq!(journal.push(0, output(WINDOW / 2)), Ok(None));
        assert_eq!(journal.renew(0), Some(WINDOW / 2));
        assert_eq!(journal.acknowledge(1), [(0, WINDOW / 2)]);
    }

    #[test]
    fn a_launch_that_waits_for_nobody_goes_on() {
        let mut journal = journal(1, false);
        let mut granted = 0;
        for _ in 0..100 {
            granted += journal.push(0, output(100_000)).unwrap().unwrap_or(0);
        }
        assert!(granted >= 100 * 100_000 - WINDOW);
        assert!(!journal.is_held_up(0));
    }

    #[test]
    fn when_nobody_is_waited_for_any_more_the_ranks_are_free() {
        let mut journal = journal(1, true);
        assert_eq!(journal.push(0, output(WINDOW)), Ok(None));
        assert!(journal.is_held_up(0));
        assert_eq!(journal.stop_waiting(), [(0, WINDOW)]);
        assert!(!journal.is_held_up(0));
        assert_eq!(journal.push(0, output(WINDOW)), Ok(Some(WINDOW)));
        assert_eq!(journal.acknowledge(2), []);
    }
}
