//! Members of collectives: ranks of jobs of this launch, and of other launches, as clients list them.

use std::collections::BTreeMap;
use std::fmt::Write;

use pmi_core::gathering::digest;
use pmi_core::ids::{NodeIndex, Rank};
use pmi_core::roster::{Quota, RankState};

use super::jobs::Jobs;
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

impl Members {
    /// Returns the members of a list. A namespace of another launch is checked when that launch is met.
    ///
    /// # Errors
    /// Fails with the status of the answer if a member is impossible, and if the members belong to too many launches.
    pub(super) fn new(jobs: &Jobs, procs: &[Proc<'_>]) -> Result<Self, i32> {
        let mut members = Self::default();
        for proc in procs {
            let all = proc.rank == types::RANK_WILDCARD;
            let named = if all { None } else { Some(Vec::new()) };
            let ranks = match jobs.own(proc.namespace) {
                Some(job) => {
                    let placement = &jobs[job].namespace.job.placement;
                    if !all && placement.node_of(Rank(proc.rank)).is_none() {
                        return Err(status::NOT_FOUND);
                    }
                    members.ours.entry(job).or_insert(named)
                }
                None if jobs.was_removed(proc.namespace) => return Err(status::NOT_FOUND),
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
    pub(super) fn collective_name(&self, jobs: &Jobs, kind: &str) -> String {
        let mut name = kind.to_owned();
        let ours = self.ours.iter().map(|(&job, ranks)| (&jobs[job].namespace.name, ranks));
        let mut parts: Vec<_> = ours.chain(&self.others).collect();
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

    /// Returns the members on this node.
    pub(super) fn seats(&self, jobs: &Jobs) -> Vec<Seat> {
        let of_job = |(&job, ranks): (&JobIndex, &Option<Vec<Rank>>)| -> Vec<Seat> {
            let is_member =
                |state: &RankState| ranks.as_ref().is_none_or(|ranks| ranks.binary_search(&state.rank).is_ok());
            let here = jobs[job].ranks.iter().filter(|(_, state)| is_member(state));
            here.map(|(local, _)| Seat { job, local }).collect()
        };
        self.ours.iter().flat_map(of_job).collect()
    }

    /// The nodes of this launch that hold a member, in order.
    pub(super) fn nodes(&self, jobs: &Jobs) -> Vec<NodeIndex> {
        let mut nodes = Vec::new();
        for (&job, ranks) in &self.ours {
            let placement = &jobs[job].namespace.job.placement;
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
    pub(super) fn by_job(&self, jobs: &Jobs) -> impl Iterator<Item = (JobIndex, &Option<Vec<Rank>>)> {
        let others = self.others.iter();
        let known = others.filter_map(|(namespace, ranks)| Some((jobs.named(namespace.as_bytes())?, ranks)));
        self.ours.iter().map(|(&job, ranks)| (job, ranks)).chain(known)
    }

    /// Returns the members one by one.
    pub(super) fn procs<'a>(&self, jobs: &'a Jobs) -> Vec<Proc<'a>> {
        let mut procs = Vec::new();
        for (job, ranks) in self.by_job(jobs) {
            let namespace = jobs[job].namespace.name.as_bytes();
            procs.extend(ranks_meant(jobs, job, ranks).iter().map(|rank| Proc { namespace, rank: rank.0 }));
        }
        procs
    }

    /// Returns the job for the fence of members of several jobs. Every node must select the same job, although nodes may have received
    /// the jobs in different orders.
    pub(super) fn host(&self, jobs: &Jobs) -> Option<JobIndex> {
        self.ours.keys().copied().min_by_key(|&job| &jobs[job].namespace.name)
    }

    /// Returns true if one of the members is known to be dead.
    pub(super) fn lack_any(&self, jobs: &Jobs) -> bool {
        self.ours.iter().any(|(&job, ranks)| match ranks {
            None => !jobs[job].deaths.is_empty(),
            Some(ranks) => ranks.iter().any(|&rank| jobs[job].deaths.include(rank)),
        })
    }

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

/// The given ranks of a job, or all its ranks.
pub(super) fn ranks_meant(jobs: &Jobs, job: JobIndex, ranks: &Option<Vec<Rank>>) -> Vec<Rank> {
    let all = || (0..jobs[job].namespace.job.size()).map(Rank).collect();
    ranks.clone().unwrap_or_else(all)
}
