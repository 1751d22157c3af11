//! Groups that ranks of this node have created, for queries.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use pmi_core::ids::Rank;

use super::client::Address;
use super::jobs::Jobs;
use super::launch::Launch;
use super::members::{Members, ranks_meant};
use crate::namespace::JobIndex;
use crate::wire::status;

/// Maximum number of stored groups; later groups work too, but are not reported.
const GROUPS_MAX: usize = 1024;
/// Maximum number of members of all groups that are listed one by one.
const LISTED_MAX: usize = 1 << 20;

/// A group with ranks of this node, for queries to the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupFacts {
    /// Its name, as its members sent it.
    pub name: Bytes,
    /// Its context id, by which MPI libraries distinguish communicators.
    pub context: u64,
    /// Its members, by job.
    pub members: Vec<GroupMembers>,
}

/// Members of a group from one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMembers {
    /// The job, if it belongs to this launch.
    pub job: Option<JobIndex>,
    /// Its namespace.
    pub namespace: String,
    /// The ranks, in order.
    pub ranks: Vec<Rank>,
}

/// Groups by name.
#[derive(Debug, Default)]
pub(super) struct NamedGroups {
    groups: BTreeMap<Bytes, Group>,
    /// Number of members that are listed one by one.
    listed: usize,
}

#[derive(Debug)]
struct Group {
    members: Arc<Members>,
    context: u64,
}

impl NamedGroups {
    /// Stores a new group, if there is room; called for each of its members.
    pub(super) fn add(&mut self, name: Bytes, members: &Arc<Members>, context: u64) {
        let listed = members.listed();
        let has_room = self.groups.len() < GROUPS_MAX && self.listed + listed <= LISTED_MAX;
        if has_room && !self.groups.contains_key(&name) {
            self.listed += listed;
            self.groups.insert(name, Group { members: Arc::clone(members), context });
        }
    }

    /// Returns the names, in order.
    pub(super) fn names(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.groups.keys().map(|name| &name[..])
    }

    pub(super) fn get(&self, name: &[u8]) -> Option<&Members> {
        self.groups.get(name).map(|group| &*group.members)
    }

    /// Removes the groups with members only from this job.
    pub(super) fn forget(&mut self, job: JobIndex) {
        let is_of_job =
            |group: &Group| !group.members.meet_others() && group.members.ours.keys().all(|&member| member == job);
        let names: Vec<Bytes> =
            self.groups.iter().filter(|(_, group)| is_of_job(group)).map(|(name, _)| name.clone()).collect();
        names.iter().for_each(|name| self.remove(name));
    }

    fn remove(&mut self, name: &[u8]) {
        if let Some(group) = self.groups.remove(name) {
            self.listed -= group.members.listed();
        }
    }

    /// A member leaves a group. All other members will leave it too, so the group ends. Clients request no barrier here, and none was
    /// found to need one.
    pub(super) fn destruct(&mut self, launch: &mut Launch, address: Address, name: &[u8]) {
        let seat = address.identity.seat;
        let rank = launch.jobs.rank(seat).rank;
        if self.get(name).is_some_and(|members| members.include(seat.job, rank)) {
            self.remove(name);
        }
        launch.answer(address, status::SUCCESS);
    }

    /// Returns the groups in the order of their names.
    pub(super) fn facts(&self, jobs: &Jobs) -> Vec<GroupFacts> {
        let facts = |(name, group): (&Bytes, &Group)| GroupFacts {
            name: name.clone(),
            context: group.context,
            members: members_by_job(jobs, &group.members),
        };
        self.groups.iter().map(facts).collect()
    }
}

/// The server has the jobs of all members of a group that was created here.
fn members_by_job(jobs: &Jobs, members: &Members) -> Vec<GroupMembers> {
    let of_job = |(job, ranks): (JobIndex, &Option<Vec<Rank>>)| {
        let state = &jobs[job];
        GroupMembers {
            job: (!state.is_met()).then_some(job),
            namespace: state.namespace.name.clone(),
            ranks: ranks_meant(jobs, job, ranks),
        }
    };
    members.by_job(jobs).map(of_job).collect()
}
