//! The queue of allocations that wait for nodes: first come, first served, with EASY backfill. Pure; the time is passed in.
//!
//! ```text
//! in the order of their turns:    fits ──> begins        the first that does not fit: the head, which gets a reservation
//!                                                        each one after it: begins if it cannot delay the head
//! ```
//! The head's reservation holds nodes, and the earliest time at which they are free if every running allocation uses its whole time limit.
//! A later request begins on free nodes if it ends before that time, or if it does not use the head's nodes. If a running allocation has no
//! time limit, that time is unknown. Then requests with a limit begin, and requests without a limit get none of the head's nodes. A request
//! for nodes that are not ready waits without delaying other requests. Nodes with an agent that is about to return count as ready.

#[cfg(test)]
mod properties;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

/// Choice of the nodes of an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NodeChoice {
    /// Exactly these nodes, in this order.
    These(Vec<String>),
    /// This number of ready and free nodes.
    Any(NonZeroU32),
}

impl NodeChoice {
    /// Approximate size in memory, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        /// Bytes that a name takes in addition to its characters.
        const NAME: usize = 56;
        match self {
            Self::These(nodes) => nodes.iter().map(|node| node.len() + NAME).sum(),
            Self::Any(_) => 0,
        }
    }
}

/// Time at which a node becomes free, in seconds. The variants are in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FreeAt {
    Now,
    /// At this time at the latest.
    At(u64),
    /// At an unknown time: the node is used without a limit.
    Unknown,
}

/// A request for nodes, as the queue considers it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish<'a> {
    pub nodes: &'a NodeChoice,
    /// Seconds for which it runs at most; `None` for no limit.
    pub limit: Option<u64>,
}

/// Outcome for one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The request begins now, on these nodes.
    Begins(Vec<String>),
    /// The request is the head of the queue: its nodes are not free.
    Heads,
    /// The request waits after the head.
    Waits,
    /// The request waits for nodes that are not ready.
    Lacks,
}

/// Ready nodes with the times at which they become free, and the reservation. Requests must be passed in the order of their turns.
#[derive(Debug)]
pub(crate) struct Timetable {
    now: u64,
    free_at: BTreeMap<String, FreeAt>,
    /// The nodes that are free now.
    free: BTreeSet<String>,
    head: Option<Reservation>,
}

/// Nodes that are reserved for the head of the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reservation {
    /// Time at which they are free at the latest, in seconds; `None` if it is unknown.
    pub at: Option<u64>,
    pub nodes: BTreeSet<String>,
}

impl Timetable {
    /// The nodes as they are at the time `now`, in seconds.
    pub(crate) fn new(now: u64, free_at: BTreeMap<String, FreeAt>) -> Self {
        let free = free_at.iter().filter(|&(_, at)| *at == FreeAt::Now).map(|(node, _)| node.clone()).collect();
        Self { now, free_at, free, head: None }
    }

    /// The reservation of the first request that did not fit.
    #[cfg(test)]
    pub(crate) fn head(&self) -> Option<&Reservation> {
        self.head.as_ref()
    }

    /// Decides on the next request in the queue. A request that begins takes its nodes.
    pub(crate) fn decide(&mut self, wish: Wish<'_>) -> Decision {
        if !self.has(wish.nodes) {
            return Decision::Lacks;
        }
        if let Some(nodes) = self.fitting(wish) {
            let until = wish.limit.map_or(FreeAt::Unknown, |limit| FreeAt::At(self.now.saturating_add(limit)));
            for node in &nodes {
                self.free.remove(node);
                self.free_at.insert(node.clone(), until);
            }
            return Decision::Begins(nodes);
        }
        if self.head.is_some() {
            return Decision::Waits;
        }
        self.head = Some(self.reservation(wish.nodes));
        Decision::Heads
    }

    /// Returns true if a request could begin if all nodes were free.
    fn has(&self, wanted: &NodeChoice) -> bool {
        match wanted {
            NodeChoice::Any(number) => self.free_at.len() >= number.get() as usize,
            NodeChoice::These(nodes) => nodes.iter().all(|node| self.free_at.contains_key(node)),
        }
    }

    /// Nodes on which a request can begin now without delaying the head.
    fn fitting(&self, wish: Wish<'_>) -> Option<Vec<String>> {
        let may_use = |node: &str| self.ends_in_time(wish.limit) || !self.is_reserved(node);
        match wish.nodes {
            NodeChoice::These(nodes) => {
                nodes.iter().all(|node| self.free.contains(node) && may_use(node)).then(|| nodes.clone())
            }
            NodeChoice::Any(number) if self.free.len() < number.get() as usize => None,
            NodeChoice::Any(number) => {
                let number = number.get() as usize;
                let (reserved, others): (Vec<&String>, Vec<&String>) =
                    self.free.iter().filter(|node| may_use(node)).partition(|node| self.is_reserved(node));
                // A request that ends in time takes the head's nodes, and leaves other nodes to requests that do not.
                let mut nodes: Vec<String> = reserved.into_iter().chain(others).take(number).cloned().collect();
                nodes.sort_unstable();
                (nodes.len() == number).then_some(nodes)
            }
        }
    }

    fn is_reserved(&self, node: &str) -> bool {
        self.head.as_ref().is_some_and(|head| head.nodes.contains(node))
    }

    /// Returns true if a request with this limit that begins now ends by the time the head begins.
    fn ends_in_time(&self, limit: Option<u64>) -> bool {
        match (&self.head, limit) {
            (None, _) | (Some(Reservation { at: None, .. }), Some(_)) => true,
            (Some(_), None) => false,
            (Some(Reservation { at: Some(at), .. }), Some(limit)) => self.now.saturating_add(limit) <= *at,
        }
    }

    /// The reservation with the earliest nodes for a request that does not fit now.
    fn reservation(&self, wanted: &NodeChoice) -> Reservation {
        let known = |at: FreeAt| match at {
            FreeAt::Now => Some(self.now),
            FreeAt::At(at) => Some(at),
            FreeAt::Unknown => None,
        };
        match wanted {
            NodeChoice::These(nodes) => {
                let at = |node: &String| self.free_at.get(node).copied().unwrap_or(FreeAt::Unknown);
                let at = nodes.iter().map(at).max().and_then(known);
                Reservation { at, nodes: nodes.iter().cloned().collect() }
            }
            NodeChoice::Any(number) => {
                let number = number.get() as usize;
                let mut by_time: Vec<(FreeAt, &String)> = self.free_at.iter().map(|(node, &at)| (at, node)).collect();
                by_time.sort_unstable();
                let at = by_time.get(number - 1).and_then(|&(at, _)| known(at));
                if let Some(at) = at {
                    // All nodes that are free by then suffice. The latest ones are taken, so that more of the earlier ones can be used
                    // until then.
                    by_time.retain(|&(free, _)| known(free).is_some_and(|free| free <= at));
                    by_time.reverse();
                }
                Reservation { at, nodes: by_time.into_iter().take(number).map(|(_, node)| node.clone()).collect() }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1000;

    fn any(number: u32) -> NodeChoice {
        NodeChoice::Any(NonZeroU32::new(number).unwrap())
    }

    fn these(list: &str) -> NodeChoice {
        NodeChoice::These(hostlist::expand(list).unwrap())
    }

    /// Nodes n0, n1, ... that become free after these seconds; `None` for never.
    fn timetable(after: &[Option<u64>]) -> Timetable {
        let free_at = |after: &Option<u64>| match after {
            Some(0) => FreeAt::Now,
            Some(after) => FreeAt::At(NOW + after),
            None => FreeAt::Unknown,
        };
        let nodes = after.iter().enumerate().map(|(index, after)| (format!("n{index}"), free_at(after)));
        Timetable::new(NOW, nodes.collect())
    }

    fn check(after: &[Option<u64>], queue: &[(NodeChoice, Option<u64>)], expected: &[&str]) {
        let mut table = timetable(after);
        let decided = queue.iter().map(|(nodes, limit)| match table.decide(Wish { nodes, limit: *limit }) {
            Decision::Begins(nodes) => hostlist::fold(&nodes),
            Decision::Heads => "heads".to_owned(),
            Decision::Waits => "waits".to_owned(),
            Decision::Lacks => "lacks".to_owned(),
        });
        assert_eq!(decided.collect::<Vec<_>>(), expected, "{after:?} {queue:?}");
    }

    #[test]
    fn nodes_go_to_those_who_came_first() {
        let free = [Some(0); 3];
        check(&free, &[(any(2), None), (any(2), None), (any(1), None)], &["n[0-1]", "heads", "waits"]);
        check(&free, &[(these("n1"), None), (any(2), None)], &["n1", "n[0,2]"]);
    }

    #[test]
    fn who_ends_before_the_head_begins_may_begin_before_it() {
        let table = [Some(0), Some(60)];
        check(&table, &[(any(2), None), (any(1), Some(60))], &["heads", "n0"]);
        check(&table, &[(any(2), None), (any(1), Some(61))], &["heads", "waits"]);
        check(&table, &[(any(2), None), (any(1), None)], &["heads", "waits"]);
        check(&table, &[(any(2), None), (any(1), Some(30)), (any(1), Some(1))], &["heads", "n0", "waits"]);
    }

    #[test]
    fn who_needs_none_of_the_heads_nodes_may_begin_before_it() {
        let table = [Some(0), Some(0), Some(60)];
        check(&table, &[(any(3), None), (any(1), None)], &["heads", "waits"]);
        // At 60 three nodes are free, of which the head takes two: one is spare.
        let table = [Some(0), Some(60), Some(60)];
        check(&table, &[(any(2), None), (any(1), None), (any(1), None)], &["heads", "n0", "waits"]);
        check(&table, &[(these("n[0-1]"), None), (any(1), None)], &["heads", "waits"]);
        check(&table, &[(these("n[1-2]"), None), (any(1), None)], &["heads", "n0"]);
    }

    #[test]
    fn who_is_through_in_time_leaves_the_other_nodes_to_those_who_are_not() {
        // The head takes n0 and n1 at 60; n2 and n3 are spare.
        let table = [Some(0), Some(60), Some(0), Some(0)];
        let queue = [(these("n[0-1]"), None), (any(1), Some(10)), (any(2), None)];
        check(&table, &queue, &["heads", "n0", "n[2-3]"]);
    }

    #[test]
    fn before_a_head_whose_time_nobody_knows_only_those_with_a_limit_begin() {
        let table = [Some(0), None, None];
        check(&table, &[(any(2), None), (any(1), None), (any(1), Some(9))], &["heads", "waits", "n0"]);
        check(&table, &[(these("n1"), None), (any(1), None)], &["heads", "n0"]);
    }

    #[test]
    fn who_wants_nodes_that_are_not_ready_holds_nobody_up() {
        let table = [Some(0), Some(60)];
        check(&table, &[(any(3), None), (these("z9"), None), (any(1), None)], &["lacks", "lacks", "n0"]);
        check(&table, &[(any(3), None), (any(2), None), (any(1), None)], &["lacks", "heads", "waits"]);
    }
}
