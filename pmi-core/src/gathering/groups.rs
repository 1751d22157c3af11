//! Fences of groups: those that somebody waits in, and what must be remembered of the others.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::Gathering;
use crate::ids::Epoch;

/// The fences of groups on one node, by the text that names them.
#[derive(Debug)]
pub struct Groups<R, W> {
    open: BTreeMap<Arc<str>, Gathering<R, W>>,
    /// The next epochs of groups of several nodes in which nobody waits: all their nodes must agree on them.
    resting: HashMap<Arc<str>, Epoch>,
    resting_bytes: usize,
}

impl<R, W> Default for Groups<R, W> {
    fn default() -> Self {
        Self { open: BTreeMap::new(), resting: HashMap::new(), resting_bytes: 0 }
    }
}

impl<R: Copy + Ord, W> Groups<R, W> {
    /// The most groups that may have a fence open at once.
    pub const OPEN_MAX: usize = 1024;

    /// The memory for groups at rest; above it they stay open, and take the places of others.
    const RESTING_MAX: usize = 4 * 1024 * 1024;

    /// Bytes that a group at rest takes beside its name.
    const RESTING_COST: usize = 64;

    /// The fence `name`, begun now if nobody waits in it; `None` when too many are open.
    pub fn open(&mut self, name: &str, begin: impl FnOnce() -> Gathering<R, W>) -> Option<&mut Gathering<R, W>> {
        if !self.open.contains_key(name) {
            if self.open.len() >= Self::OPEN_MAX {
                return None;
            }
            let gathering = match self.resting.remove(name) {
                Some(epoch) => {
                    self.resting_bytes -= Self::cost(name);
                    begin().resume(epoch)
                }
                None => begin(),
            };
            self.open.insert(name.into(), gathering);
        }
        self.open.get_mut(name)
    }

    /// A fence that is open.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Gathering<R, W>> {
        self.open.get_mut(name)
    }

    /// Names of all fences that are open.
    pub fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.open.keys()
    }

    /// All fences that are open.
    pub fn iter(&self) -> impl Iterator<Item = &Gathering<R, W>> {
        self.open.values()
    }

    /// The same, each with its name.
    pub fn named(&self) -> impl Iterator<Item = (&Arc<str>, &Gathering<R, W>)> {
        self.open.iter()
    }

    /// Closes a fence of one node in which nobody waits: its epoch matters to no other.
    pub fn forget(&mut self, name: &str) {
        self.open.remove(name);
    }

    /// Closes a fence of several nodes in which nobody waits, and remembers its epoch, on which all of them must agree.
    pub fn rest(&mut self, name: &Arc<str>) {
        if self.resting_bytes + Self::cost(name) <= Self::RESTING_MAX
            && let Some(gathering) = self.open.remove(name)
        {
            self.resting_bytes += Self::cost(name);
            self.resting.insert(Arc::clone(name), gathering.epoch());
        }
    }

    fn cost(name: &str) -> usize {
        name.len() + Self::RESTING_COST
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::LocalRank;

    type Groups = super::Groups<LocalRank, ()>;

    fn begin() -> Gathering<LocalRank, ()> {
        Gathering::new([LocalRank(0)])
    }

    #[test]
    fn a_group_of_several_nodes_goes_on_where_it_rested() {
        let mut groups = Groups::default();
        let name: Arc<str> = "0,1:7".into();
        *groups.open(&name, begin).unwrap() = begin().resume(Epoch(5));
        groups.rest(&name);
        assert_eq!((groups.open.len(), groups.resting_bytes), (0, 5 + Groups::RESTING_COST));
        assert_eq!(groups.open(&name, begin).unwrap().epoch(), Epoch(5));
        assert_eq!(groups.resting_bytes, 0);
        groups.forget(&name);
        assert_eq!(groups.open(&name, begin).unwrap().epoch(), Epoch(0));
    }

    #[test]
    fn groups_at_rest_do_not_use_up_the_places_of_open_ones() {
        let mut groups = Groups::default();
        for tag in 0..10 * Groups::OPEN_MAX {
            let name: Arc<str> = format!("0,1:{tag}").into();
            assert!(groups.open(&name, begin).is_some(), "group {tag} was refused");
            groups.rest(&name);
        }
        for tag in 0..Groups::OPEN_MAX {
            assert!(groups.open(&format!("0,2:{tag}"), begin).is_some());
        }
        assert!(groups.open("0,3:0", begin).is_none());
    }

    #[test]
    fn names_at_rest_take_bounded_memory() {
        let mut groups = Groups::default();
        let long = "0,".repeat(32 * 1024);
        let mut begun = 0;
        while groups.open(&format!("{long}{begun}"), begin).is_some() {
            groups.rest(&format!("{long}{begun}").into());
            begun += 1;
            assert!(groups.resting_bytes <= Groups::RESTING_MAX);
        }
        assert!(begun < 2 * Groups::OPEN_MAX);
    }
}
