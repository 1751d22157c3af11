//! Jobs of a server, by index. The index of a removed job, which a question may still hold, refers to a job without ranks and data.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::{Index, IndexMut};
use std::sync::Arc;

use bytes::Bytes;
use pmi_core::connections::ConnectionId;
use pmi_core::gathering::Gathering;
use pmi_core::ids::Rank;

use super::{Action, Client, Server, Waiter};
use crate::namespace::{JobIndex, JobState, Seat};
use crate::wire::status;

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

    fn remove(&mut self, job: JobIndex) {
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

impl Server {
    /// Ends the service of a job after its ranks have ended on all nodes. Its namespace is then unknown, and gets of its ranks' values
    /// fail. Collectives with its members end with the status of lost members.
    pub fn remove(&mut self, job: JobIndex) {
        let is_of_job = |client: &Client| client.identity.is_some_and(|identity| identity.seat.job == job);
        let of_job = self.clients.iter().filter(|(_, client)| is_of_job(client));
        let connections: Vec<ConnectionId> = of_job.map(|(connection, _)| connection).collect();
        for connection in connections {
            self.handle_disconnect(connection);
            self.actions.push_back(Action::Close { connection });
        }
        for (_, rank) in self.waits.keys((job, Rank(0))..=(job, Rank(u32::MAX))) {
            self.give_up_on(job, rank);
        }
        let clients: Vec<ConnectionId> = self.clients.iter().map(|(connection, _)| connection).collect();
        for connection in clients {
            self.clients[connection].known_jobs.remove(&job);
        }
        self.jobs.remove(job);
        self.end_collectives_with(job);
        self.forget_withheld(job);
        self.groups.forget(job);
        self.publishers.retain(|seat| seat.job != job);
        self.named_tools.retain(|seat| seat.job != job);
    }

    fn end_collectives_with(&mut self, job: JobIndex) {
        let has_members = |gathering: &Gathering<Seat, Waiter>| {
            let is_named = |waiter: &Waiter| waiter.members.ours.contains_key(&job);
            gathering.members().any(|seat| seat.job == job) || gathering.waiters().any(is_named)
        };
        let named = self.collectives.named().filter(|(_, gathering)| has_members(gathering));
        let ended: Vec<(Arc<str>, Vec<Waiter>)> =
            named.map(|(name, gathering)| (Arc::clone(name), gathering.waiters().cloned().collect())).collect();
        for (name, waiters) in ended {
            self.collectives.forget(&name);
            for waiter in waiters {
                self.give_back(waiter.address.identity.seat, waiter.questions);
                self.answer(waiter.address, status::LOST_CONNECTION);
            }
        }
    }
}
