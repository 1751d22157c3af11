//! Credit of a launch's nodes for output, granted again as events are settled.
//!
//! A node may send `window` bytes (as events cost, see [`lattice_session::wire::event::cost`]); it is granted more only as what it
//! sent is settled:
//!
//! ```text
//! window = on its way to us (outstanding) + kept here (unsettled) + not yet granted again
//! ```
//!
//! The launch's owner settles events by acknowledging them, or its spool by having them on disk. When there is neither, or the
//! launch is to end whatever its owner does, output is settled as it comes.

use lattice_session::wire::event::COST_MAX;
use std::collections::VecDeque;

use super::facts::Settler;

/// The credit of a launch's nodes.
#[derive(Debug)]
pub(crate) struct OutputCredit {
    shares: Vec<Share>,
    /// Bytes that a node may send in all.
    window: u64,
    /// Events that were charged and are not settled, in order.
    unsettled: VecDeque<Charge>,
    settler: Settler,
}

/// One node's share.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    /// Bytes that the node may still send.
    outstanding: u64,
    /// Bytes that were sent and are not settled.
    unsettled: u64,
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

impl OutputCredit {
    /// Credit for `nodes` nodes, each of which may begin with `window` bytes.
    pub(crate) fn new(nodes: usize, window: u64, settler: Settler) -> Self {
        let share = Share { outstanding: window, unsettled: 0 };
        Self { shares: vec![share; nodes], window, unsettled: VecDeque::new(), settler }
    }

    /// Charges a node for an event. Returns the bytes that the node is to be granted, if any.
    ///
    /// # Errors
    /// Fails when the node sends more output than twice its window: once for what it was granted, and once for grants that went
    /// astray with a broken connection and were made good; and each time one event more than it had credit for.
    pub(crate) fn charge(&mut self, sequence: u64, node: u32, cost: u64) -> Result<Option<u64>, Overrun> {
        if cost == 0 {
            return Ok(None);
        }
        let waits = self.waits();
        let share = &mut self.shares[node as usize];
        share.outstanding = share.outstanding.saturating_sub(cost);
        if waits {
            share.unsettled += cost;
            if share.unsettled > 2 * (self.window + COST_MAX as u64) {
                return Err(Overrun { sent: share.unsettled, window: self.window });
            }
            self.unsettled.push_back(Charge { sequence, node, cost });
        }
        Ok(self.grant(node))
    }

    /// Returns the bytes to grant to the node: none before a quarter of its window is free, so that grants do not outnumber output.
    fn grant(&mut self, node: u32) -> Option<u64> {
        let share = &mut self.shares[node as usize];
        let free = self.window.saturating_sub(share.unsettled + share.outstanding);
        let worth_telling = free >= (self.window / 4).max(1);
        worth_telling.then(|| {
            share.outstanding += free;
            free
        })
    }

    /// The connection to a node is new: what it was granted may have gone astray. Returns what to grant it now.
    pub(crate) fn renew(&mut self, node: u32) -> Option<u64> {
        self.shares[node as usize].outstanding = 0;
        self.grant(node)
    }

    /// Returns true if nodes are granted no more than somebody has settled.
    pub(crate) fn waits(&self) -> bool {
        self.settler != Settler::Nobody
    }

    /// Returns true if the node is slow because whoever settles is: most of what it may send waits for that.
    pub(crate) fn is_held_up(&self, node: u32) -> bool {
        self.shares[node as usize].unsettled > self.window / 2
    }

    /// Everything up to `sequence` is settled. Returns what nodes are to be granted.
    pub(crate) fn settle(&mut self, sequence: u64) -> Vec<(u32, u64)> {
        let mut touched = Vec::new();
        while let Some(charge) = self.unsettled.pop_front_if(|charge| charge.sequence <= sequence) {
            self.shares[charge.node as usize].unsettled -= charge.cost;
            if touched.last() != Some(&charge.node) {
                touched.push(charge.node);
            }
        }
        self.grants(touched)
    }

    /// From now on output is settled as it comes, for good. Returns what nodes are to be granted.
    pub(crate) fn stop_waiting(&mut self) -> Vec<(u32, u64)> {
        self.settler = Settler::Nobody;
        self.unsettled.clear();
        self.shares.iter_mut().for_each(|share| share.unsettled = 0);
        self.grants((0..self.shares.len() as u32).collect())
    }

    fn grants(&mut self, mut nodes: Vec<u32>) -> Vec<(u32, u64)> {
        nodes.sort_unstable();
        nodes.dedup();
        nodes.into_iter().filter_map(|node| Some((node, self.grant(node)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The window of the tests' credit.
    const WINDOW: u64 = 1 << 20;

    fn credit(nodes: usize, settler: Settler) -> OutputCredit {
        OutputCredit::new(nodes, WINDOW, settler)
    }

    #[test]
    fn a_node_is_granted_what_was_settled() {
        let mut credit = credit(2, Settler::Owner);
        assert_eq!(credit.charge(1, 1, WINDOW / 2), Ok(None));
        assert_eq!(credit.charge(2, 1, WINDOW / 4), Ok(None));
        assert!(credit.is_held_up(1) && !credit.is_held_up(0));
        assert_eq!(credit.settle(1), [(1, WINDOW / 2)]);
        assert_eq!(credit.settle(1), []);
        assert_eq!(credit.settle(2), [(1, WINDOW / 4)]);
    }

    #[test]
    fn small_settlements_are_granted_together() {
        let mut credit = credit(1, Settler::Spool);
        (1..=10).for_each(|sequence| assert_eq!(credit.charge(sequence, 0, WINDOW / 10), Ok(None)));
        assert_eq!(credit.settle(2), []);
        assert_eq!(credit.settle(3), [(0, WINDOW - 7 * (WINDOW / 10) - WINDOW % 10)]);
    }

    #[test]
    fn events_without_output_need_no_credit() {
        let mut credit = credit(1, Settler::Owner);
        assert_eq!(credit.charge(1, 0, WINDOW / 2), Ok(None));
        (2..100).for_each(|sequence| assert_eq!(credit.charge(sequence, 0, 0), Ok(None)));
        assert_eq!(credit.settle(101), [(0, WINDOW / 2)]);
    }

    #[test]
    fn more_than_was_granted_is_an_offence() {
        let mut credit = credit(1, Settler::Owner);
        assert_eq!(credit.charge(1, 0, 2 * WINDOW), Ok(None));
        let sent = 3 * WINDOW;
        assert_eq!(credit.charge(2, 0, WINDOW), Err(Overrun { sent, window: WINDOW }));
    }

    #[test]
    fn grants_that_went_astray_are_made_good() {
        let mut credit = credit(1, Settler::Owner);
        assert_eq!(credit.charge(1, 0, WINDOW / 2), Ok(None));
        assert_eq!(credit.renew(0), Some(WINDOW / 2));
        assert_eq!(credit.settle(1), [(0, WINDOW / 2)]);
    }

    #[test]
    fn a_launch_that_waits_for_nobody_goes_on() {
        let mut credit = credit(1, Settler::Nobody);
        let granted: u64 = (1..=100).map(|sequence| credit.charge(sequence, 0, 100_000).unwrap().unwrap_or(0)).sum();
        assert!(granted >= 100 * 100_000 - WINDOW);
        assert!(!credit.is_held_up(0));
    }

    #[test]
    fn when_nobody_is_waited_for_any_more_the_ranks_are_free() {
        let mut credit = credit(1, Settler::Owner);
        assert_eq!(credit.charge(1, 0, WINDOW), Ok(None));
        assert!(credit.is_held_up(0));
        assert_eq!(credit.stop_waiting(), [(0, WINDOW)]);
        assert!(!credit.is_held_up(0));
        assert_eq!(credit.charge(2, 0, WINDOW), Ok(Some(WINDOW)));
        assert_eq!(credit.settle(2), []);
    }
}
