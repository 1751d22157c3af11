//! Credit of a launch's nodes for output. It is granted again when events are settled.
//!
//! A node may send `window` bytes (sum of event costs, see [`lattice_session::wire::event::cost`]). It is granted more only when its events are
//! settled:
//!
//! ```text
//! window = in transit to this server (outstanding) + kept here (unsettled) + not yet granted again
//! ```
//!
//! The launch's owner settles events by acknowledging them, or its spool by writing them to disk. Without both, or if the launch must end
//! regardless of its owner, output is settled at once.

use std::collections::VecDeque;

use lattice_session::flow_control::{Overrun, Window};
use lattice_session::wire::event::COST_MAX;
use pmi_core::ids::NodeIndex;

use super::facts::Settler;

/// The credit of a launch's nodes.
#[derive(Debug)]
pub(crate) struct OutputCredit {
    /// By node index.
    windows: Vec<Window>,
    /// Charged events that are not settled, in order.
    unsettled: VecDeque<Charge>,
    settler: Settler,
}

/// The charge for an event, which its node is granted again.
#[derive(Clone, Copy, Debug)]
struct Charge {
    sequence: u64,
    node: NodeIndex,
    cost: u64,
}

impl OutputCredit {
    /// Credit for `nodes` nodes, each with an initial credit of `window` bytes.
    pub(crate) fn new(nodes: usize, window: u64, settler: Settler) -> Self {
        Self { windows: vec![Window::new(window); nodes], unsettled: VecDeque::new(), settler }
    }

    /// Charges a node for an event. Returns the bytes to grant to the node, if any.
    ///
    /// # Errors
    /// Fails if the node sends more output than [`Window::receive`] allows.
    pub(crate) fn charge(&mut self, sequence: u64, node: NodeIndex, cost: u64) -> Result<Option<u64>, Overrun> {
        if cost == 0 {
            return Ok(None);
        }
        let waits = self.waits();
        let window = &mut self.windows[node.index()];
        if waits {
            window.receive(cost, COST_MAX as u64)?;
            self.unsettled.push_back(Charge { sequence, node, cost });
        } else {
            window.pass(cost);
        }
        Ok(window.grant())
    }

    /// The node has a new connection: earlier grants may have been lost. Returns the bytes to grant now.
    pub(crate) fn renew(&mut self, node: NodeIndex) -> Option<u64> {
        self.windows[node.index()].renew()
    }

    /// Returns true if grants wait for a party that settles events.
    pub(crate) fn waits(&self) -> bool {
        self.settler != Settler::Nobody
    }

    /// Returns true if slow settlement holds up the node: most of its window waits to be settled.
    pub(crate) fn is_held_up(&self, node: NodeIndex) -> bool {
        self.windows[node.index()].is_congested()
    }

    /// Settles all events up to `sequence`. Returns the bytes to grant to each node.
    pub(crate) fn settle(&mut self, sequence: u64) -> Vec<(NodeIndex, u64)> {
        let mut touched = Vec::new();
        while let Some(charge) = self.unsettled.pop_front_if(|charge| charge.sequence <= sequence) {
            self.windows[charge.node.index()].release(charge.cost);
            if touched.last() != Some(&charge.node) {
                touched.push(charge.node);
            }
        }
        self.grants(touched)
    }

    /// From now on, output is settled at once, permanently. Returns the bytes to grant to each node.
    pub(crate) fn stop_waiting(&mut self) -> Vec<(NodeIndex, u64)> {
        self.settler = Settler::Nobody;
        self.unsettled.clear();
        self.windows.iter_mut().for_each(Window::release_all);
        self.grants((0..self.windows.len() as u32).map(NodeIndex).collect())
    }

    fn grants(&mut self, mut nodes: Vec<NodeIndex>) -> Vec<(NodeIndex, u64)> {
        nodes.sort_unstable();
        nodes.dedup();
        nodes.into_iter().filter_map(|node| Some((node, self.windows[node.index()].grant()?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The window in these tests, in bytes.
    const WINDOW: u64 = 1 << 20;

    fn credit(nodes: usize, settler: Settler) -> OutputCredit {
        OutputCredit::new(nodes, WINDOW, settler)
    }

    #[test]
    fn a_node_is_granted_what_was_settled() {
        let mut credit = credit(2, Settler::Owner);
        assert_eq!(credit.charge(1, NodeIndex(1), WINDOW / 2), Ok(None));
        assert_eq!(credit.charge(2, NodeIndex(1), WINDOW / 4), Ok(None));
        assert!(credit.is_held_up(NodeIndex(1)) && !credit.is_held_up(NodeIndex(0)));
        assert_eq!(credit.settle(1), [(NodeIndex(1), WINDOW / 2)]);
        assert_eq!(credit.settle(1), []);
        assert_eq!(credit.settle(2), [(NodeIndex(1), WINDOW / 4)]);
    }

    #[test]
    fn small_settlements_are_granted_together() {
        let mut credit = credit(1, Settler::Spool);
        (1..=10).for_each(|sequence| assert_eq!(credit.charge(sequence, NodeIndex(0), WINDOW / 10), Ok(None)));
        assert_eq!(credit.settle(2), []);
        assert_eq!(credit.settle(3), [(NodeIndex(0), WINDOW - 7 * (WINDOW / 10) - WINDOW % 10)]);
    }

    #[test]
    fn events_without_output_need_no_credit() {
        let mut credit = credit(1, Settler::Owner);
        assert_eq!(credit.charge(1, NodeIndex(0), WINDOW / 2), Ok(None));
        (2..100).for_each(|sequence| assert_eq!(credit.charge(sequence, NodeIndex(0), 0), Ok(None)));
        assert_eq!(credit.settle(101), [(NodeIndex(0), WINDOW / 2)]);
    }

    #[test]
    fn more_than_was_granted_is_an_offence() {
        let mut credit = credit(1, Settler::Owner);
        assert_eq!(credit.charge(1, NodeIndex(0), 2 * WINDOW), Ok(None));
        let sent = 3 * WINDOW;
        assert_eq!(credit.charge(2, NodeIndex(0), WINDOW), Err(Overrun { sent, window: WINDOW }));
    }

    #[test]
    fn grants_that_went_astray_are_made_good() {
        let mut credit = credit(1, Settler::Owner);
        assert_eq!(credit.charge(1, NodeIndex(0), WINDOW / 2), Ok(None));
        assert_eq!(credit.renew(NodeIndex(0)), Some(WINDOW / 2));
        assert_eq!(credit.settle(1), [(NodeIndex(0), WINDOW / 2)]);
    }

    #[test]
    fn a_launch_that_waits_for_nobody_goes_on() {
        let mut credit = credit(1, Settler::Nobody);
        let granted: u64 =
            (1..=100).map(|sequence| credit.charge(sequence, NodeIndex(0), 100_000).unwrap().unwrap_or(0)).sum();
        assert!(granted >= 100 * 100_000 - WINDOW);
        assert!(!credit.is_held_up(NodeIndex(0)));
    }

    #[test]
    fn when_nobody_is_waited_for_any_more_the_ranks_are_free() {
        let mut credit = credit(1, Settler::Owner);
        assert_eq!(credit.charge(1, NodeIndex(0), WINDOW), Ok(None));
        assert!(credit.is_held_up(NodeIndex(0)));
        assert_eq!(credit.stop_waiting(), [(NodeIndex(0), WINDOW)]);
        assert!(!credit.is_held_up(NodeIndex(0)));
        assert_eq!(credit.charge(2, NodeIndex(0), WINDOW), Ok(Some(WINDOW)));
        assert_eq!(credit.settle(2), []);
    }

    /// Nodes of large launches have windows of 64 KiB. A piece of 64 KiB with its overhead costs more.
    #[test]
    fn a_window_smaller_than_a_piece_opens_again() {
        let window = 64 << 10;
        let mut node = lattice_session::flow_control::Credit::new(window);
        let mut credit = OutputCredit::new(1, window, Settler::Owner);
        for sequence in 1..=3 {
            assert!(node.is_available(), "before piece {sequence}");
            let piece = window + 256;
            node.overdraw(piece);
            let granted = credit.charge(sequence, NodeIndex(0), piece).unwrap();
            let settled = credit.settle(sequence).into_iter().map(|(_, bytes)| bytes);
            settled.chain(granted).for_each(|bytes| node.grant(bytes));
        }
    }
}
