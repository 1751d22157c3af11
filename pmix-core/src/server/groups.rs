//! Groups that ranks of this node have made, for those who ask about them.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::collectives::Members;
use super::{Address, Server};
use crate::wire::status;

/// Most groups that are remembered; those after them work as well, but nobody is told of them.
const GROUPS_MAX: usize = 1024;
/// Longest name that is remembered, in bytes, as clients limit it.
const NAME_MAX: usize = 511;
/// Most members of all groups, as far as they are listed one by one.
const LISTED_MAX: usize = 1 << 20;

/// Members of groups, by the groups' names.
#[derive(Debug, Default)]
pub(super) struct NamedGroups {
    members: BTreeMap<Bytes, Arc<Members>>,
    /// Number of members that are listed one by one.
    listed: usize,
}

impl NamedGroups {
    /// Remembers a group that was made, if there is room; each of its members says so.
    pub(super) fn add(&mut self, name: Bytes, members: &Arc<Members>) {
        let listed = members.listed();
        let has_room = self.members.len() < GROUPS_MAX && self.listed + listed <= LISTED_MAX;
        if has_room && name.len() <= NAME_MAX && !self.members.contains_key(&name) {
            self.listed += listed;
            self.members.insert(name, Arc::clone(members));
        }
    }

    /// Returns the names, in order.
    pub(super) fn names(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.members.keys().map(|name| &name[..])
    }

    pub(super) fn get(&self, name: &[u8]) -> Option<&Members> {
        self.members.get(name).map(|members| &**members)
    }

    fn remove(&mut self, name: &[u8]) {
        if let Some(members) = self.members.remove(name) {
            self.listed -= members.listed();
        }
    }
}

impl Server {
    /// A member leaves a group, as all others will: the group is over. A barrier is not asked for, and was not missed.
    pub(super) fn destruct_group(&mut self, address: Address, name: &[u8]) {
        let seat = address.identity.seat;
        let rank = self.rank(seat).rank;
        if self.groups.get(name).is_some_and(|members| members.include(seat.job, rank)) {
            self.groups.remove(name);
        }
        self.answer(address, status::SUCCESS);
    }
}
