//! Members of collectives: ranks of jobs of this launch, and of other launches, as clients list them.

use std::collections::BTreeMap;
use std::fmt::Write;

use pmi_core::gathering::digest;
use pmi_core::ids::{NodeIndex, Rank};
use pmi_core::roster::{Quota, RankState};

use super::Server;
use crate::namespace::{JobIndex, Seat};
use crate::wire::reader::Proc;
use crate::wire::{status, types};

/// Maximum number of namespaces of other launches in one collective.
const OTHERS_MAX: usize = 1024;

/// Bytes of a collective's name that are kept unchanged.
const COLLECTIVE_NAME_MAX: usize = 1024;

/// Members of a collective: for each job, all its ranks or a list of ranks.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Members {
    /// Jobs of this launch.
    pub(super) ours: BTreeMap<JobIndex, Option<Vec<Rank>>>,
    /// Namespaces of other launches, which may be unknown here so far.
    pub(super) others: BTreeMap<String, Option<Vec<Rank>>>,
}

impl Server {
    /// Returns the members of a list. A namespace of another launch is checked when that launch is met.
    ///
    /// # Errors
    /// Fails with the status of the answer if a member is impossible, and if the members belong to too many launches.
    pub(super) fn members(&self, procs: &[Proc<'_>]) -> Result<Members, i32> {
        let mut members = Members::default();
        for proc in procs {
            let all = proc.rank == types::RANK_WILDCARD;
            let named = if all { None } else { Some(Vec::new()) };
            let ranks = match self.job_named(proc.namespace).filter(|&job| !self.jobs[job].is_met()) {
                Some(job) => {
                    let placement = &self.jobs[job].namespace.job.placement;
                    if !all && placement.node_of(Rank(proc.rank)).is_none() {
                        return Err(status::NOT_FOUND);
                    }
                    members.ours.entry(job).or_insert(named)
                }
                None if self.jobs.was_removed(proc.namespace) => return Err(status::NOT_FOUND),
                None => {
                    let namespace = str::from_utf8(proc.namespace).map_err(|_| status::NOT_FOUND)?;
                    if members.others.len() >= OTHERS_MAX && !members.others.contains_key(namespace) {
                        return Err(status::OUT_OF_RESOURCE);
                    }
                    members.others.entry(namespace.to_owned()).or_insert(named)
                }
            };
            match ranks {
                _ if all => *ranks = None,
                Some(ranks) => ranks.push(Rank(proc.rank)),
                None => {}
            }
        }
        for ranks in members.ours.values_mut().chain(members.others.values_mut()).flatten() {
            ranks.sort_unstable();
            ranks.dedup();
        }
        Ok(members)
    }

    /// Returns the name of a collective, the same for all its members on every node. The name is stored and sent to other nodes, so a
    /// digest replaces the end of a long name.
    pub(super) fn collective_name(&self, kind: &str, members: &Members) -> String {
        let mut name = kind.to_owned();
        let ours = members.ours.iter().map(|(&job, ranks)| (&self.jobs[job].namespace.name, ranks));
        let mut parts: Vec<_> = ours.chain(&members.others).collect();
        parts.sort_unstable_by_key(|(namespace, _)| *namespace);
        for (namespace, ranks) in parts {
            name.push(' ');
            name.push_str(namespace);
            for rank in ranks.iter().flatten() {
                // Writing to a string cannot fail.
                let _ = write!(name, ",{rank}");
            }
        }
        if name.len() > COLLECTIVE_NAME_MAX {
            let digest = digest(&name);
            name.truncate(name.floor_char_boundary(COLLECTIVE_NAME_MAX));
            let _ = write!(name, ".. #{digest:032x}");
        }
        name
    }

    pub(super) fn seats(&self, members: &Members) -> Vec<Seat> {
        let of_job = |(&job, ranks): (&JobIndex, &Option<Vec<Rank>>)| -> Vec<Seat> {
            let is_member =
                |state: &RankState| ranks.as_ref().is_none_or(|ranks| ranks.binary_search(&state.rank).is_ok());
            let here = self.jobs[job].ranks.iter().filter(|(_, state)| is_member(state));
            here.map(|(local, _)| Seat { job, local }).collect()
        };
        members.ours.iter().flat_map(of_job).collect()
    }

    /// The nodes of this launch that hold a member, in order.
    pub(super) fn nodes(&self, members: &Members) -> Vec<NodeIndex> {
        let mut nodes = Vec::new();
        for (&job, ranks) in &members.ours {
            let placement = &self.jobs[job].namespace.job.placement;
            match ranks {
                Some(ranks) => nodes.extend(ranks.iter().filter_map(|&rank| placement.node_of(rank))),
                None => nodes.extend(
                    placement
                        .blocks()
                        .iter()
                        .flat_map(|block| (0..block.nodes).map(|ahead| NodeIndex(block.first_node.0 + ahead))),
                ),
            }
        }
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    /// Returns the members by job, as far as the jobs are known here.
    pub(super) fn by_job<'a>(
        &'a self,
        members: &'a Members,
    ) -> impl Iterator<Item = (JobIndex, &'a Option<Vec<Rank>>)> {
        let others = members.others.iter();
        let known = others.filter_map(|(namespace, ranks)| Some((self.job_named(namespace.as_bytes())?, ranks)));
        members.ours.iter().map(|(&job, ranks)| (job, ranks)).chain(known)
    }

    /// Returns the members one by one.
    pub(super) fn group_members<'a>(&'a self, members: &Members) -> Vec<Proc<'a>> {
        let mut procs = Vec::new();
        for (job, ranks) in self.by_job(members) {
            let namespace = self.jobs[job].namespace.name.as_bytes();
            procs.extend(self.ranks_meant(job, ranks).iter().map(|rank| Proc { namespace, rank: rank.0 }));
        }
        procs
    }

    /// The given ranks of a job, or all its ranks.
    pub(super) fn ranks_meant(&self, job: JobIndex, ranks: &Option<Vec<Rank>>) -> Vec<Rank> {
        let all = || (0..self.jobs[job].namespace.job.size()).map(Rank).collect();
        ranks.clone().unwrap_or_else(all)
    }
}

impl Members {
    /// Returns true if ranks of other launches take part.
    pub(super) fn meet_others(&self) -> bool {
        !self.others.is_empty()
    }

    /// Returns true if the members are exactly the ranks of one job.
    pub(super) fn are_one_job(&self) -> bool {
        !self.meet_others() && self.ours.len() == 1 && self.ours.values().all(Option::is_none)
    }

    /// Returns true if every rank of a job is a member.
    pub(super) fn are_all_of(&self, job: JobIndex) -> bool {
        self.ours.get(&job).is_some_and(Option::is_none)
    }

    /// Returns the size of the list in bytes.
    pub(super) fn bytes(&self) -> usize {
        let names: usize = self.others.keys().map(|namespace| namespace.len() + Quota::PAIR_COST).sum();
        names + self.listed() * size_of::<Rank>()
    }

    /// Returns the number of members that are listed one by one.
    pub(super) fn listed(&self) -> usize {
        self.ours.values().chain(self.others.values()).flatten().map(Vec::len).sum()
    }

    pub(super) fn include(&self, job: JobIndex, rank: Rank) -> bool {
        self.ours.get(&job).is_some_and(|ranks| ranks.as_ref().is_none_or(|ranks| ranks.binary_search(&rank).is_ok()))
    }
}
