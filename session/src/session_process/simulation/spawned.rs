//! Spawned jobs of a simulated session: a PMI server for each job, and the calls of ranks to the API server. All ranks of a spawned job are
//! on one node, so its fences end at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use pmi_core::connections::ConnectionId;
use pmi_core::ids::{JobId, LocalRank, Rank};
use pmi_core::report::Progress;
use pmi_core::server::{Action, Server, Settings, Ticket};
use pmi_core::services::{Answer, Call, SpawnError};

use super::{SessionEffect, SimulatedSession};
use crate::machine::jobs::JobNumber;
use crate::machine::ranks::Slot;

/// The spawned jobs on this node.
#[derive(Default)]
pub(super) struct SpawnedJobs {
    servers: BTreeMap<JobNumber, SpawnedServer>,
    /// Unanswered calls, by number.
    calls: BTreeMap<u64, (JobNumber, Ticket)>,
    count: u64,
}

struct SpawnedServer {
    server: Server,
    /// By local rank.
    connections: Vec<Option<ConnectionId>>,
}

impl SpawnedJobs {
    pub(super) fn add(&mut self, job: JobNumber, server: Server) {
        let connections = vec![None; server.ranks().len()];
        self.servers.insert(job, SpawnedServer { server, connections });
    }

    pub(super) fn release(&mut self, job: JobNumber) {
        self.servers.remove(&job);
    }

    pub(super) fn server(&mut self, job: JobNumber) -> Option<&mut Server> {
        self.servers.get_mut(&job).map(|known| &mut known.server)
    }

    pub(super) fn connect(&mut self, job: JobNumber, local: LocalRank) {
        if let Some(known) = self.servers.get_mut(&job) {
            known.connections[local.index()] = known.server.connect(local).ok();
        }
    }

    pub(super) fn handle_bytes(&mut self, job: JobNumber, local: LocalRank, bytes: &[u8]) {
        if let Some(known) = self.servers.get_mut(&job)
            && let Some(connection) = known.connections[local.index()]
        {
            known.server.handle_bytes(connection, bytes);
        }
    }

    pub(super) fn progress(&self, job: JobNumber, local: LocalRank) -> Option<Progress> {
        self.servers.get(&job)?.server.progress(local)
    }
}

impl SimulatedSession {
    /// Creates the server of a job.
    pub(super) fn prepare_job(&mut self, job: JobNumber, now: Instant) {
        if job != JobNumber::LAUNCHED {
            let spec = Arc::clone(&self.machine.jobs().get(job).spec);
            self.spawned.add(job, Server::new(spec.job.clone(), spec.node, Settings::default()));
        }
        self.machine.on_job_prepared(job, Ok(()), now);
    }

    /// Carries out the actions of the servers of spawned jobs.
    pub(super) fn take_spawned_actions(&mut self) {
        let jobs: Vec<JobNumber> = self.spawned.servers.keys().copied().collect();
        for job in jobs {
            while let Some(action) = self.spawned.server(job).and_then(Server::poll_action) {
                self.take_spawned_action(job, action);
            }
        }
    }

    fn take_spawned_action(&mut self, job: JobNumber, action: Action) {
        match action {
            Action::Send { connection, bytes } => {
                let rank = self.spawned.server(job).and_then(|server| server.rank_of(connection));
                if let Some(rank) = rank.filter(|_| self.machine.jobs().knows(job)) {
                    let shown = self.machine.jobs().get(job).shown(rank);
                    self.effects.push_back(SessionEffect::ToRank(shown, bytes));
                }
            }
            Action::Fence { id, contribution } => {
                if let Some(server) = self.spawned.server(job) {
                    server.handle_fence(&id, Ok(contribution.segments.into()));
                }
            }
            Action::Died(death) => self.machine.on_died(job, death),
            Action::End(reason) => self.reason = Some((job, reason)),
            Action::Call { ticket, rank, call } => self.call_host(job, ticket, rank, call),
            _ => {}
        }
    }

    /// Handles a call of a rank to the launcher.
    pub(super) fn call_host(&mut self, job: JobNumber, ticket: Ticket, rank: Rank, call: Call) {
        let Call::Spawn(request) = call else { return };
        self.spawned.count += 1;
        let call = self.spawned.count;
        self.spawned.calls.insert(call, (job, ticket));
        let parent = self.machine.jobs().get(job).spec.job.id.clone();
        self.effects.push_back(SessionEffect::Spawn { call, parent, rank, request });
    }

    /// Handles the API server's answer to a call for a new job.
    pub fn spawn_answered(&mut self, call: u64, answer: Result<JobId, SpawnError>, now: Instant) {
        let Some((job, ticket)) = self.spawned.calls.remove(&call) else { return };
        let server = if job == JobNumber::LAUNCHED { Some(&mut self.server) } else { self.spawned.server(job) };
        if let Some(server) = server {
            server.handle_answer(ticket, &Answer::Spawned(answer));
        }
        self.settle(now);
    }

    pub(super) fn progress_of(&self, slot: &Slot) -> Option<Progress> {
        match slot.job {
            JobNumber::LAUNCHED => self.progress(slot.local),
            job => self.spawned.progress(job, slot.local),
        }
    }
}
