//! Fences of groups: the open ones, and the epochs of the idle ones.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::round::Gathering;
use crate::ids::Epoch;

/// The fences of groups on one node, by name.
#[derive(Debug)]
pub struct Groups<R, W> {
    open: BTreeMap<Arc<str>, Gathering<R, W>>,
    /// Next epochs of idle groups of several nodes, by the digests of their names. All nodes of a group must agree on them.
    resting: HashMap<u128, Epoch>,
}

/// Digest of a name: FNV-1a of 128 bits, the same on all nodes. Names of one job collide only if a client searches for a collision.
pub fn digest(name: &str) -> u128 {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    name.bytes().fold(BASIS, |digest, byte| (digest ^ u128::from(byte)).wrapping_mul(PRIME))
}

impl<R, W> Default for Groups<R, W> {
    fn default() -> Self {
        Self { open: BTreeMap::new(), resting: HashMap::new() }
    }
}

impl<R: Copy + Ord, W> Groups<R, W> {
    /// Maximum number of groups with an open fence.
    pub const OPEN_MAX: usize = 1024;

    /// Maximum number of idle groups, about 32 bytes each. Further idle groups stay open, and count as open groups.
    const RESTING_MAX: usize = 1 << 20;

    /// Returns the fence `name`, and opens it if necessary; `None` when too many are open.
    pub fn open(&mut self, name: &str, begin: impl FnOnce() -> Gathering<R, W>) -> Option<&mut Gathering<R, W>> {
        if !self.open.contains_key(name) {
            if self.open.len() >= Self::OPEN_MAX {
                return None;
            }
            let gathering = match self.resting.remove(&digest(name)) {
                Some(epoch) => begin().resume(epoch),
                None => begin(),
            };
            self.open.insert(name.into(), gathering);
        }
        self.open.get_mut(name)
    }

    /// Returns an open fence.
    pub fn get(&self, name: &str) -> Option<&Gathering<R, W>> {
        self.open.get(name)
    }

    /// Returns a mutable open fence.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Gathering<R, W>> {
        self.open.get_mut(name)
    }

    /// Names of all open fences.
    pub fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.open.keys()
    }

    /// All open fences, mutable.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Gathering<R, W>> {
        self.open.values_mut()
    }

    /// All open fences.
    pub fn iter(&self) -> impl Iterator<Item = &Gathering<R, W>> {
        self.open.values()
    }

    /// All open fences with their names.
    pub fn named(&self) -> impl Iterator<Item = (&Arc<str>, &Gathering<R, W>)> {
        self.open.iter()
    }

    /// Closes a fence of one node without waiters. No other node needs its epoch.
    pub fn forget(&mut self, name: &str) {
        self.open.remove(name);
    }

    /// Closes a fence of several nodes without waiters. Keeps its epoch, on which all these nodes must agree.
    pub fn rest(&mut self, name: &Arc<str>) {
        if self.resting.len() < Self::RESTING_MAX
            && let Some(gathering) = self.open.remove(name)
        {
            self.resting.insert(digest(name), gathering.epoch());
        }
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
        assert_eq!((groups.open.len(), groups.resting.len()), (0, 1));
        assert_eq!(groups.open(&name, begin).unwrap().epoch(), Epoch(5));
        assert_eq!(groups.resting.len(), 0);
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

    /// A group of half of a large job has a name of 64 KiB, and there may be many such.
    #[test]
    fn groups_at_rest_take_no_more_for_long_names() {
        let mut groups = Groups::default();
        let long = "0,".repeat(32 * 1024);
        for tag in 0..2 * Groups::OPEN_MAX {
            let name: Arc<str> = format!("{tag}:{long}").into();
            assert!(groups.open(&name, begin).is_some(), "group {tag} was refused");
            groups.rest(&name);
        }
        assert_eq!(groups.open.len(), 0);
    }

    #[test]
    fn groups_at_rest_take_bounded_memory() {
        let resting = (0..Groups::RESTING_MAX as u128).map(|digest| (digest, Epoch(1))).collect();
        let mut groups = Groups { resting, ..Groups::default() };
        for tag in 0..Groups::OPEN_MAX {
            let name: Arc<str> = format!("0,1:{tag}").into();
            assert!(groups.open(&name, begin).is_some());
            groups.rest(&name);
        }
        assert_eq!(groups.resting.len(), Groups::RESTING_MAX);
        assert!(groups.open("one more", begin).is_none());
    }

    #[test]
    fn digests_are_those_of_the_standard() {
        // draft-eastlake-fnv, appendix C.
        assert_eq!(digest(""), 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        assert_eq!(digest("a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
        assert_eq!(digest("foobar"), 0x343e_1662_793c_64bf_6f0d_3597_ba44_6f18);
    }
}
