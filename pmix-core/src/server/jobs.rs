//! Jobs of a server, by index. The index of a removed job, which a question may still hold, refers to a job without ranks and data.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::{Index, IndexMut};

use bytes::Bytes;
use pmi_core::ids::NodeIndex;
use pmi_core::roster::RankState;

use crate::namespace::{JobIndex, JobState, Seat};

/// Maximum number of stored names of removed jobs. Ranks that meet in one of these jobs are refused at once.
const REMOVED_MAX: usize = 1024;

/// Jobs of this launch, met jobs of other launches, and tools.
#[derive(Debug)]
pub(super) struct Jobs {
    known: BTreeMap<JobIndex, JobState>,
    next: usize,
    /// Placeholder for every removed job.
    none: JobState,
    /// By namespace: jobs of this launch, and met jobs.
    names: HashMap<Bytes, JobIndex>,
    /// Names of the jobs that were removed last.
    removed: VecDeque<Bytes>,
}

impl Default for Jobs {
    fn default() -> Self {
        let (known, names, removed) = Default::default();
        Self { known, next: 0, none: JobState::none(), names, removed }
    }
}

impl Jobs {
    /// Adds a job. Unless it is a tool, it can be found by its name.
    pub(super) fn add(&mut self, state: JobState) -> JobIndex {
        let job = JobIndex(self.next);
        self.next += 1;
        if !state.is_tool() {
            // The first job of a name keeps it.
            self.names.entry(state.namespace.name.clone().into()).or_insert(job);
        }
        self.known.insert(job, state);
        job
    }

    /// Removes a job; its index then refers to a job without ranks and data.
    pub(super) fn remove(&mut self, job: JobIndex) {
        let Some(state) = self.known.remove(&job) else { return };
        let name = Bytes::from(state.namespace.name);
        if self.names.get(&name) == Some(&job) {
            self.names.remove(&name);
        }
        if self.removed.len() >= REMOVED_MAX {
            self.removed.pop_front();
        }
        self.removed.push_back(name);
    }

    pub(super) fn named(&self, namespace: &[u8]) -> Option<JobIndex> {
        self.names.get(namespace).copied()
    }

    /// The job of this launch with that namespace.
    pub(super) fn own(&self, namespace: &[u8]) -> Option<JobIndex> {
        self.named(namespace).filter(|&job| !self[job].is_met())
    }

    /// Returns true for the name of one of the jobs that were removed last.
    pub(super) fn was_removed(&self, namespace: &[u8]) -> bool {
        self.removed.iter().any(|name| name == namespace)
    }

    pub(super) fn get(&self, job: JobIndex) -> Option<&JobState> {
        self.known.get(&job)
    }

    pub(super) fn get_mut(&mut self, job: JobIndex) -> Option<&mut JobState> {
        self.known.get_mut(&job)
    }

    /// The first job of the launch.
    pub(super) fn first(&self) -> Option<&JobState> {
        self.known.values().next()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &JobState> {
        self.known.values()
    }

    pub(super) fn indexed(&self) -> impl Iterator<Item = (JobIndex, &JobState)> {
        self.known.iter().map(|(&job, state)| (job, state))
    }

    pub(super) fn rank(&self, seat: Seat) -> &RankState {
        &self[seat.job].ranks[seat.local]
    }

    pub(super) fn rank_mut(&mut self, seat: Seat) -> Option<&mut RankState> {
        self.get_mut(seat.job)?.ranks.get_mut(seat.local)
    }

    pub(super) fn is_tool(&self, seat: Seat) -> bool {
        self[seat.job].is_tool()
    }

    /// The job of a request without a job: the client's own, or for a tool the first launched job.
    pub(super) fn meant_by(&self, seat: Seat) -> JobIndex {
        if self.is_tool(seat) { JobIndex(0) } else { seat.job }
    }

    /// Index of this node in the launch.
    pub(super) fn own_node(&self) -> Option<NodeIndex> {
        self.iter().find(|job| job.is_own()).map(|job| job.namespace.node)
    }
}

impl Index<JobIndex> for Jobs {
    type Output = JobState;

    fn index(&self, job: JobIndex) -> &JobState {
        self.known.get(&job).unwrap_or(&self.none)
    }
}

impl IndexMut<JobIndex> for Jobs {
    fn index_mut(&mut self, job: JobIndex) -> &mut JobState {
        match self.known.get_mut(&job) {
            Some(state) => state,
            None => {
                // The placeholder must not keep data of a removed job.
                self.none = JobState::none();
                &mut self.none
            }
        }
    }
}
