//! Dead ranks of a job, as the server reports them to the ranks that continue.

use std::collections::{BTreeSet, HashSet};
use std::fmt::Write;

use crate::ids::{NodeIndex, Rank};
use crate::job::Placement;

/// A dead rank of a job that continues without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Death {
    /// The rank.
    pub rank: Rank,
    /// Kind of its end.
    pub kind: DeathKind,
}

/// End of a dead rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeathKind {
    /// Its process was killed by a signal.
    Killed,
    /// Its process returned a status other than 0.
    Exited,
    /// Its node was lost.
    NodeLost,
}

/// Dead ranks of a job, in the order of their reports.
#[derive(Debug, Default)]
pub struct Deaths {
    known: HashSet<Rank>,
    text: String,
}

impl Deaths {
    /// The longest value of `PMI_dead_processes`. Clients have room for 1024 bytes with the NUL.
    const TEXT_MAX: usize = 1023;

    /// Adds a rank; returns false if it is already known.
    pub fn add(&mut self, rank: Rank) -> bool {
        let is_new = self.known.insert(rank);
        if is_new {
            let before = self.text.len();
            let comma = if before == 0 { "" } else { "," };
            // Writing to a string cannot fail.
            let _ = write!(self.text, "{comma}{rank}");
            if self.text.len() > Self::TEXT_MAX {
                self.text.truncate(before);
            }
        }
        is_new
    }

    /// Returns true if the rank is known to be dead.
    pub fn include(&self, rank: Rank) -> bool {
        self.known.contains(&rank)
    }

    /// Returns the first node, except `own`, on which all ranks are known to be dead.
    pub fn dead_node(&self, placement: &Placement, own: NodeIndex) -> Option<NodeIndex> {
        let mut nodes = BTreeSet::new();
        nodes.extend(self.known.iter().filter_map(|&rank| placement.node_of(rank)));
        let is_dead = |node: &NodeIndex| placement.ranks_on(*node).into_iter().all(|rank| self.include(rank));
        nodes.into_iter().filter(|&node| node != own).find(is_dead)
    }

    /// Returns true if no rank is known to be dead.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Value of `PMI_dead_processes`, such as `4,1,3`: ranks in the order of their deaths, as Hydra returns it. MPICH relies on the
    /// order. A value without room for a rank omits it. `None` without dead ranks.
    pub fn text(&self) -> Option<&str> {
        (!self.text.is_empty()).then_some(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dead_are_listed_in_the_order_of_their_deaths_and_once() {
        let mut deaths = Deaths::default();
        assert_eq!((deaths.text(), deaths.is_empty()), (None, true));
        let news = [4, 1, 4, 12].map(|rank| deaths.add(Rank(rank)));
        assert_eq!((news, deaths.text()), ([true, true, false, true], Some("4,1,12")));
        assert!(deaths.include(Rank(1)) && !deaths.include(Rank(2)));
    }

    #[test]
    fn a_node_is_dead_when_all_its_ranks_are() {
        let placement = Placement::block(&[1, 0, 2, 1]);
        let mut deaths = Deaths::default();
        let mut dead_node = |rank| {
            deaths.add(Rank(rank));
            deaths.dead_node(&placement, NodeIndex(0))
        };
        let seen = [0, 1, 2, 3].map(&mut dead_node);
        assert_eq!(seen, [None, None, Some(NodeIndex(2)), Some(NodeIndex(2))]);
    }

    #[test]
    fn a_list_that_is_too_long_for_clients_ends_with_a_whole_rank() {
        let mut deaths = Deaths::default();
        (1000..2000).for_each(|rank| assert!(deaths.add(Rank(rank))));
        let text = deaths.text().unwrap();
        assert!(text.len() <= Deaths::TEXT_MAX && text.ends_with(",1203"), "{text}");
        assert!(deaths.include(Rank(1999)));
    }
}
