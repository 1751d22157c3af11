//! New jobs in a session, requested by `MPI_Comm_spawn`. Parent and children have one verdict.
//!
//! ```text
//! rank ──> its server ──> the API server ──> Control::Spawn ──┐
//!                    └──> the session itself, on one machine ─┴──> SpawnOrder ──admit──> PrepareJob ──> StartRanks ──> answer
//! ```

use std::path::Path;
use std::time::Instant;

use nix::sys::signal::Signal;
use pmi_core::ids::{LocalRank, NodeIndex, Rank};
use pmi_core::job::Placement;
use pmi_core::services::{SpawnError, SpawnRequest};

use super::SessionMachine;
use super::effect::{Asker, Effect, ProgressDetail};
use super::jobs::{Alive, Awaited, JobNumber, JobPhase, SpawnTicket};
use super::{Phase, StartClass};
use crate::cause::CauseKind;
use crate::event::{Event, Notice};
use crate::map_hash::MapHash;
use crate::session_io::Control;
use crate::spawn::{LOCALHOST, SpawnOrder, SpawnParent, SpawnRefusal, spawned_job};

/// Maximum number of failed spawns that a session reports: a program may repeat its request.
const REFUSALS_TOLD_MAX: u32 = 16;

/// Maximum length of the reason in such a report, in bytes.
const REASON_MAX: usize = 2048;

/// Failure to prepare a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PrepareFailure {
    pub(crate) class: StartClass,
    pub(crate) reason: String,
}

impl SessionMachine {
    /// Handles a rank's request for a new job, if the session itself starts the jobs of the launch. The rank gets the answer when the
    /// last of the new ranks runs.
    pub(crate) fn on_spawn_request(&mut self, ticket: SpawnTicket, job: JobNumber, rank: Rank, request: &SpawnRequest) {
        let admitted = self.place_here(job, rank, request).and_then(|order| self.admit(order, Awaited::Rank(ticket)));
        if let Err(refusal) = admitted {
            self.effects.push_back(Effect::AnswerSpawn { ticket, outcome: Err(refusal.into()) });
        }
    }

    /// Reports a rank's failed request for a new job.
    pub(crate) fn on_not_spawned(&mut self, job: JobNumber, rank: Rank, reason: String) {
        self.tell_refusal(job, rank, reason, |rank, reason| Notice::NotSpawned { rank, reason });
    }

    /// Reports a rank's failed request to publish, look up or withdraw a name.
    pub(crate) fn on_name_refused(&mut self, job: JobNumber, rank: Rank, reason: String) {
        self.tell_refusal(job, rank, reason, |rank, reason| Notice::NameRefused { rank, reason });
    }

    /// Reports a process other than the rank's that has called the rank's PMI server, or tried to.
    pub(crate) fn on_pmi_misuse(&mut self, job: JobNumber, rank: Rank, observed: String) {
        self.tell_refusal(job, rank, observed, |rank, observed| Notice::PmiMisuse { rank, observed });
    }

    /// Reports a refusal, unless the launch ends or the maximum number was reported.
    fn tell_refusal(&mut self, job: JobNumber, rank: Rank, mut reason: String, notice: fn(Rank, String) -> Notice) {
        if self.is_over() || matches!(self.phase, Phase::Ending(_)) || self.refusals_told == REFUSALS_TOLD_MAX {
            return;
        }
        self.refusals_told += 1;
        reason.truncate(reason.floor_char_boundary(REASON_MAX));
        if self.refusals_told == REFUSALS_TOLD_MAX {
            reason.push_str("; further failures of this kind are not reported");
        }
        let rank = self.jobs.get(job).shown(rank);
        self.report_event(Event::Notice(notice(rank, reason)));
    }

    /// Places a spawned job on this node: a launch on one machine is a cluster of one node.
    fn place_here(&self, parent: JobNumber, rank: Rank, request: &SpawnRequest) -> Result<SpawnOrder, SpawnRefusal> {
        let launched = &self.jobs.get(JobNumber::LAUNCHED).spec.job;
        if launched.placement.nodes() > 1 {
            return Err(SpawnRefusal::SeveralNodes);
        }
        let parent = &self.jobs.get(parent).spec;
        let directory = parent.apps.first().map_or(Path::new("/"), |app| &app.directory);
        // Ranks of removed jobs count, so that no displayed number is used twice.
        let ranks = self.ranks.count() as u32;
        let universe_size = launched.universe_size;
        let parent = SpawnParent { launched: &launched.id, ranks, universe_size, job: &parent.job.id, rank, directory };
        let job = spawned_job(&parent, self.jobs.next().0, request)?;
        let host = self.jobs.get(JobNumber::LAUNCHED).spec.host(NodeIndex(0));
        job.on(&[(NodeIndex(0), host), (NodeIndex(0), LOCALHOST)], Placement::one_node)
    }

    /// Handles an order of the launch for this node's part of a job, which may have no ranks.
    pub(super) fn on_spawn_order(&mut self, order: SpawnOrder) {
        let id = order.job.id.clone();
        if let Err(refusal) = self.admit(order, Awaited::Launch) {
            self.report_event(Event::Spawned { job: id, failure: Some(refusal.to_string()) });
        }
    }

    fn admit(&mut self, order: SpawnOrder, awaited: Awaited) -> Result<(), SpawnRefusal> {
        if self.is_over() || matches!(self.phase, Phase::Ending(_)) {
            return Err(SpawnRefusal::Ending);
        }
        let parent_rank = order.parent_rank;
        let ranks = self.ranks.starting() + self.ranks.running();
        let alive = Alive { ranks, jobs: self.ranks.jobs_alive() };
        let (job, parent) = self.jobs.admit(order, alive, awaited)?;
        self.effects.push_back(Effect::PrepareJob { job, parent: Some((parent, parent_rank)) });
        Ok(())
    }

    /// Handles the result of the preparation of a job's servers and commands.
    pub(crate) fn on_job_prepared(&mut self, job: JobNumber, prepared: Result<(), PrepareFailure>, now: Instant) {
        match prepared {
            Ok(()) => {
                self.tell_map(job);
                self.start_ranks(job);
            }
            Err(PrepareFailure { class, reason }) if job == JobNumber::LAUNCHED => {
                self.jobs.get_mut(job).begin_start(0);
                self.fail(CauseKind::NotStarted { reason, class }, now);
            }
            Err(PrepareFailure { reason, .. }) => self.disown(job, &reason),
        }
        self.advance(now);
    }

    /// Reports this node's map of the launched job to the API server.
    fn tell_map(&mut self, job: JobNumber) {
        let spec = &self.jobs.get(job).spec;
        if job == JobNumber::LAUNCHED && spec.hosts.len() > 1 {
            let hash = MapHash::of(&spec.job.placement, &spec.hosts);
            self.report_event(Event::Mapped(hash));
        }
    }

    fn start_ranks(&mut self, job: JobNumber) {
        let state = self.jobs.get(job);
        let shown: Vec<Rank> = state.ranks_here().into_iter().map(|rank| state.shown(rank)).collect();
        let count = shown.len();
        for (local, rank) in (0..).map(LocalRank).zip(shown) {
            self.ranks.add(rank, job, local);
        }
        self.jobs.get_mut(job).begin_start(count);
        if count > 0 {
            self.effects.push_back(Effect::StartRanks { job });
        }
        self.settle_start(job);
    }

    /// Reports that a job runs, once all of its ranks here run. Kills the ranks of a disowned job once none of them is starting.
    pub(super) fn settle_start(&mut self, job: JobNumber) {
        let awaited = self.jobs.get_mut(job).settle();
        let id = self.jobs.get(job).spec.job.id.clone();
        match awaited {
            Some(Awaited::Rank(ticket)) => self.effects.push_back(Effect::AnswerSpawn { ticket, outcome: Ok(id) }),
            Some(Awaited::Launch) => self.report_event(Event::Spawned { job: id, failure: None }),
            None => {}
        }
        match self.jobs.get(job).phase {
            JobPhase::Running if job == JobNumber::LAUNCHED => self.effects.push_back(Effect::FeedStdin),
            JobPhase::Disowned { left: 0 } => self.signal_job(job, Signal::SIGKILL),
            _ => {}
        }
        self.forget_if_over(job);
    }

    /// Ends the ranks here of a spawned job that was not started as a whole. Notifies the receiver that waits for its start.
    pub(super) fn disown(&mut self, job: JobNumber, reason: &str) {
        let awaited = self.jobs.get_mut(job).disown();
        let id = self.jobs.get(job).spec.job.id.clone();
        let reason = reason.to_owned();
        match awaited {
            Some(Awaited::Rank(ticket)) => {
                let outcome = Err(SpawnError::Failed { reason });
                self.effects.push_back(Effect::AnswerSpawn { ticket, outcome });
            }
            Some(Awaited::Launch) => self.report_event(Event::Spawned { job: id, failure: Some(reason) }),
            None => {}
        }
        self.settle_start(job);
    }

    /// Answers control messages that need an answer after the end of the last rank. The other messages concern no rank any more.
    pub(super) fn answer_after_the_end(&mut self, control: Control) {
        match control {
            Control::Spawn(order) => {
                // A job without ranks here continues on other nodes, like the launch.
                let has_ranks = !order.job.placement.ranks_on(self.spec.node).is_empty();
                let failure = has_ranks.then(|| "this node's part of the launch is over".to_owned());
                self.report_event(Event::Spawned { job: order.job.id, failure });
            }
            // No rank runs any more.
            Control::AskProgress(question) | Control::AskUsage(question) | Control::AskStacks(question) => {
                self.look_at_progress(Asker::Launch(question), ProgressDetail::Dialogue);
            }
            _ => {}
        }
    }
}
