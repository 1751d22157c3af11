//! New jobs in a session: what `MPI_Comm_spawn` asks for, whichever protocol it came by. Parent and children are judged together.
//!
//! ```text
//! rank ──spawn──> its server ──> JobServices ─┬─ the host starts jobs: Services::spawn ──> every node of the launch: Control::Spawn
//!                                             │                                                └─> its part, Event::Spawned
//!                                             └─ it does not: Order ──> this session starts the whole job here
//! ```

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use nix::sys::signal::Signal;
use pmi_core::ids::{JobId, LocalRank, Rank};
use pmi_core::job::{Job, Placement};
use pmi_core::services::{Lifetime, MeetError, Meeting, Met, NameError, Services, SpawnError, SpawnRequest};
use rank_spawner::CpuBind;
use tokio::sync::{mpsc, oneshot};

use super::job::JobAtWork;
use super::{RankSlot, Session, StdinSource};
use crate::event::Event;
use crate::limits::{JOBS_MAX, NODE_RANKS_MAX};
use crate::plan::Common;
use crate::spawn::{SpawnOrder, SpawnParent, SpawnRefusal, spawned_job};
use crate::spec::{AppSpec, SessionSpec, StdinTarget};

/// A spawn on its way to the session.
pub(super) struct Order {
    /// The index of the job whose rank asks.
    job: usize,
    /// That rank.
    rank: Rank,
    request: SpawnRequest,
    reply: Reply,
}

/// Who waits for a spawned job to run.
type Reply = oneshot::Sender<Result<JobId, SpawnError>>;

/// Who waits for the ranks of a spawned job that sit here to run.
pub(super) enum Awaited {
    /// The rank that asked for the job, all of which is here.
    Parent(Reply),
    /// The launch, of which other nodes have parts of the job.
    Launch,
}

/// The services of one job. Names and meetings are the host's matter, and so are new jobs if it says so.
pub(super) struct JobServices {
    pub(super) host: Arc<dyn Services>,
    pub(super) job: usize,
    pub(super) id: JobId,
    pub(super) orders: mpsc::Sender<Order>,
}

#[async_trait]
impl Services for JobServices {
    async fn publish(&self, rank: Rank, service: Bytes, port: Bytes, lifetime: Lifetime) -> Result<(), NameError> {
        self.host.publish(rank, service, port, lifetime).await
    }

    async fn lookup(&self, rank: Rank, service: Bytes, patience: Option<Duration>) -> Result<Bytes, NameError> {
        self.host.lookup(rank, service, patience).await
    }

    async fn unpublish(&self, rank: Rank, service: Bytes) -> Result<(), NameError> {
        self.host.unpublish(rank, service).await
    }

    async fn meet(&self, meeting: Meeting) -> Result<Met, MeetError> {
        self.host.meet(meeting).await
    }

    async fn spawn(&self, rank: Rank, request: SpawnRequest) -> Result<JobId, SpawnError> {
        if self.host.starts_jobs() {
            return self.host.spawn(rank, SpawnRequest { parent: Some(self.id.clone()), ..request }).await;
        }
        let ending = || SpawnError::Refused { reason: "the launch is ending".to_owned() };
        let (reply, answer) = oneshot::channel();
        let order = Order { job: self.job, rank, request, reply };
        self.orders.send(order).await.map_err(|_| ending())?;
        answer.await.map_err(|_| ending())?
    }
}

/// Reason why a job, or this node's part of it, was not begun.
#[derive(Debug, thiserror::Error)]
enum NotBegun {
    #[error(transparent)]
    Refused(#[from] SpawnRefusal),
    #[error("{0}")]
    Failed(String),
}

impl From<NotBegun> for SpawnError {
    fn from(error: NotBegun) -> Self {
        match error {
            NotBegun::Refused(refusal) => refusal.into(),
            NotBegun::Failed(reason) => Self::Failed { reason },
        }
    }
}

impl Session {
    /// Begins a job that is all on this node. Its parent is told of when the last rank runs.
    pub(super) fn on_order(&mut self, order: Order) {
        let Order { job, rank, request, reply } = order;
        let begun =
            self.place_here(job, rank, &request).map_err(NotBegun::from).and_then(|order| self.begin_part(order));
        if let Err(error) = begun {
            // Nobody listens if the rank that asked is gone: then there is nobody to tell.
            let _ = reply.send(Err(error.into()));
        } else if let Some(job) = self.jobs.last_mut() {
            job.awaited = Some(Awaited::Parent(reply));
        }
    }

    /// Places a spawned job on this node: a launch on one machine is a cluster of one node.
    fn place_here(&self, parent: usize, rank: Rank, request: &SpawnRequest) -> Result<SpawnOrder, SpawnRefusal> {
        let launched = &self.jobs[0].spec.job;
        if launched.placement.nodes() > 1 {
            return Err(SpawnRefusal::SeveralNodes);
        }
        let parent = &self.jobs[parent].spec;
        let directory = parent.apps.first().map_or(Path::new("/"), |app| &app.directory);
        // Ranks are never taken out of the list, so no number is shown twice.
        let ranks = self.ranks.len() as u32;
        let universe_size = launched.universe_size;
        let parent = SpawnParent { launched: &launched.id, ranks, universe_size, job: &parent.job.id, rank, directory };
        let job = spawned_job(&parent, self.jobs.len(), request)?;
        let placement = Placement::one_node(job.size());
        Ok(job.on(placement))
    }

    /// Begins this node's part of a job, which may be without ranks. The launch is told when all its ranks here run.
    pub(super) fn on_spawn(&mut self, order: SpawnOrder) {
        let id = order.job.id.clone();
        match self.begin_part(order) {
            Err(error) => {
                self.outbox.push_back(Event::Spawned { job: id, failure: Some(error.to_string()) });
            }
            Ok(()) => {
                let index = self.jobs.len() - 1;
                self.jobs[index].awaited = Some(Awaited::Launch);
                self.settle_start(index, None);
            }
        }
    }

    fn begin_part(&mut self, order: SpawnOrder) -> Result<(), NotBegun> {
        let SpawnOrder { job, apps, parent_rank, first_shown } = order;
        if self.jobs.iter().any(|known| known.spec.job.id == job.id) {
            return Err(SpawnRefusal::Known { job: job.id }.into());
        }
        let parent = job.spawner.as_ref().and_then(|spawner| self.job_by_id(spawner));
        let parent = parent.ok_or_else(|| SpawnRefusal::NoParent { job: job.id.clone() })?;
        self.check_room(job.placement.ranks_on(self.spec.node).len())?;
        let spec = spawned_spec(&self.spec, job, apps);
        self.begin(spec, first_shown, (parent, parent_rank))
    }

    pub(super) fn job_by_id(&self, id: &JobId) -> Option<usize> {
        self.jobs.iter().position(|job| job.spec.job.id == *id)
    }

    fn check_room(&self, asked: usize) -> Result<(), SpawnRefusal> {
        let there = self.ranks.len();
        if self.ending.has_begun() {
            Err(SpawnRefusal::Ending)
        } else if there.saturating_add(asked) > NODE_RANKS_MAX {
            Err(SpawnRefusal::NodeRanks { asked, there })
        } else if self.jobs.len() >= JOBS_MAX {
            Err(SpawnRefusal::Jobs)
        } else {
            Ok(())
        }
    }

    fn begin(&mut self, spec: SessionSpec, first_shown: Rank, parent: (usize, Rank)) -> Result<(), NotBegun> {
        let index = self.jobs.len();
        let spec = Arc::new(spec);
        self.jobs.push(JobAtWork::new(Arc::clone(&spec), first_shown));
        let begun = self.start_job(index, &spec, parent);
        // Its servers know it, so it stays, without ranks: the name must not be used again.
        self.jobs[index].disowned = begun.is_err();
        begun.map_err(NotBegun::Failed)
    }

    fn start_job(&mut self, index: usize, spec: &SessionSpec, parent: (usize, Rank)) -> Result<(), String> {
        let ranks = self.jobs[index].ranks_here();
        let entrances = self.serve(index, Some(parent)).map_err(|error| format!("cannot serve PMI: {error}"))?;
        if ranks.is_empty() {
            return Ok(());
        }
        let limits = Arc::clone(&self.limits);
        let fabric = self.surroundings.fabric.as_ref();
        let plan = Common { spec, ranks: &ranks, entrances, limits, fabric }.plan(&StdinSource::Empty);
        let mut plan = plan.map_err(|error| error.to_string())?;
        for (local, command) in (0..).zip(&mut plan.commands) {
            // What the session shows of a rank tells it from those of other jobs.
            command.rank = self.jobs[index].shown(command.rank);
            self.ranks.push(RankSlot::new(command.rank, index, LocalRank(local)));
        }
        let job = &mut self.jobs[index];
        job.programs = plan.programs;
        job.starting = plan.commands.len();
        self.start_all(plan.commands);
        Ok(())
    }

    /// A rank of a spawned job runs, or does not.
    pub(super) fn count_start(&mut self, job: usize, failure: Option<String>) {
        self.jobs[job].starting -= 1;
        self.settle_start(job, failure);
    }

    /// Who waits for a job to run hears of it when all its ranks here do, or when one does not.
    fn settle_start(&mut self, job: usize, failure: Option<String>) {
        let state = &mut self.jobs[job];
        if failure.is_some() || state.starting == 0 {
            state.disowned |= failure.is_some();
            let id = state.spec.job.id.clone();
            match state.awaited.take() {
                Some(Awaited::Parent(reply)) => {
                    let outcome = failure.map_or(Ok(id), |reason| Err(SpawnError::Failed { reason }));
                    // The rank that asked may be gone.
                    let _ = reply.send(outcome);
                }
                Some(Awaited::Launch) => self.outbox.push_back(Event::Spawned { job: id, failure }),
                None => {}
            }
        }
        self.kill_if_disowned(job);
    }

    /// A job was not started on another node.
    pub(super) fn disown(&mut self, id: &JobId) {
        // The job that was launched is the launch itself.
        if let Some(job) = self.job_by_id(id).filter(|&job| job > 0) {
            self.jobs[job].disowned = true;
            self.kill_if_disowned(job);
        }
    }

    /// Kills the ranks of a job that is not there as a whole, once none of them is on its way.
    fn kill_if_disowned(&self, job: usize) {
        if self.jobs[job].disowned && self.jobs[job].starting == 0 {
            self.signal_job(job, Signal::SIGKILL);
        }
    }

    fn signal_job(&self, job: usize, signal: Signal) {
        for slot in self.ranks.iter().filter(|slot| slot.job == job && slot.exit.is_none()) {
            if let Some(process) = &slot.process {
                // It may have ended this very moment.
                let _ = process.signal_group(signal);
            }
        }
    }
}

fn spawned_spec(launched: &SessionSpec, job: Job, apps: Vec<AppSpec>) -> SessionSpec {
    // The launched job has the CPUs that a binding would begin with.
    SessionSpec { job, apps, cpu_bind: CpuBind::None, stdin: StdinTarget::None, ..launched.clone() }
}
