//! New jobs in a session: what `MPI_Comm_spawn` asks for, whichever protocol it came by. Parent and children are judged together.
//!
//! ```text
//! rank ──spawn──> its server ──> JobServices ─┬─ the host starts jobs: Services::spawn ──> every node of the launch: Control::Spawn
//!                                             │                                                └─> its part, Event::Spawned
//!                                             └─ it does not: Order ──> this session starts the whole job here
//! ```

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use nix::sys::signal::Signal;
use pmi_core::ids::{JobId, LocalRank, Rank};
use pmi_core::job::{App, Job};
use pmi_core::services::{Lifetime, MeetError, Meeting, Met, NameError, Services, SpawnError, SpawnRequest};
use rank_spawner::CpuBind;
use tokio::sync::{mpsc, oneshot};

use super::job::JobAtWork;
use super::{RankSlot, Session, SpawnOrder, StdinSource};
use crate::event::Event;
use crate::plan::Common;
use crate::spec::{AppSpec, SessionSpec, StdinTarget};

/// The most ranks of one session, spawned ones included.
const RANKS_MAX: usize = 16 * 1024;

/// The most jobs of one session, those included that could not be started.
const JOBS_MAX: usize = 4096;

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

/// Why a job, or this node's part of it, was not begun.
#[derive(Debug, thiserror::Error)]
enum NotBegun {
    #[error("{0}")]
    Refused(String),
    #[error("{0}")]
    Failed(String),
}

impl From<NotBegun> for SpawnError {
    fn from(error: NotBegun) -> Self {
        match error {
            NotBegun::Refused(reason) => Self::Refused { reason },
            NotBegun::Failed(reason) => Self::Failed { reason },
        }
    }
}

impl Session {
    /// Begins a job that is all on this node. Its parent is told of when the last rank runs.
    pub(super) fn on_order(&mut self, order: Order) {
        let Order { job, rank, request, reply } = order;
        if let Err(error) = self.begin_job(job, rank, &request) {
            // Nobody listens if the rank that asked is gone: then there is nobody to tell.
            let _ = reply.send(Err(error.into()));
        } else if let Some(job) = self.jobs.last_mut() {
            job.awaited = Some(Awaited::Parent(reply));
        }
    }

    fn begin_job(&mut self, parent: usize, rank: Rank, request: &SpawnRequest) -> Result<(), NotBegun> {
        if self.jobs[0].spec.job.placement.nodes() > 1 {
            let reason = "new processes are started by launches on one machine only";
            return Err(NotBegun::Refused(reason.to_owned()));
        }
        let size = request.apps.iter().fold(0_usize, |sum, app| sum.saturating_add(app.ranks as usize));
        if size == 0 {
            return Err(NotBegun::Refused("no rank was asked for".to_owned()));
        }
        self.check_room(size)?;
        let spec = child_spec(&self.jobs[parent].spec, self.jobs.len(), request).map_err(NotBegun::Failed)?;
        // Ranks are never taken out of the list, so no number is shown twice.
        let first_shown = Rank(self.ranks.len() as u32);
        self.begin(spec, first_shown, (parent, rank))
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
            return Err(NotBegun::Refused(format!("job {} is here already", job.id)));
        }
        let parent = job.spawner.as_ref().and_then(|spawner| self.job_by_id(spawner));
        let parent =
            parent.ok_or_else(|| NotBegun::Refused(format!("the parent of job {} is not known here", job.id)))?;
        self.check_room(job.placement.ranks_on(self.spec.node).len())?;
        let spec = spawned_spec(&self.spec, job, apps);
        self.begin(spec, first_shown, (parent, parent_rank))
    }

    pub(super) fn job_by_id(&self, id: &JobId) -> Option<usize> {
        self.jobs.iter().position(|job| job.spec.job.id == *id)
    }

    fn check_room(&self, ranks: usize) -> Result<(), NotBegun> {
        if self.ending.has_begun() {
            return Err(NotBegun::Refused("the launch is ending".to_owned()));
        }
        if self.ranks.len().saturating_add(ranks) > RANKS_MAX {
            let there = self.ranks.len();
            let reason = format!(
                "{ranks} more ranks were asked for; a node has up to {RANKS_MAX} of a launch, and {there} already"
            );
            return Err(NotBegun::Refused(reason));
        }
        if self.jobs.len() >= JOBS_MAX {
            return Err(NotBegun::Refused(format!("a launch has up to {JOBS_MAX} jobs")));
        }
        Ok(())
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

/// What a spawned job runs: what was asked for, in the surroundings of its parent.
fn child_spec(parent: &SessionSpec, index: usize, request: &SpawnRequest) -> Result<SessionSpec, String> {
    let family = parent.job.id.as_str().split(".s").next().unwrap_or_default();
    let id = JobId::new(&format!("{family}.s{index}")).map_err(|error| error.to_string())?;
    let directory = parent.apps.first().map_or_else(|| PathBuf::from("/"), |app| app.directory.clone());
    let apps = request.apps.iter().map(|app| AppSpec::spawned(app, &directory)).collect();
    let size: u32 = request.apps.iter().map(|app| app.ranks).sum();
    let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).map_err(|_| "a preput pair is not text".to_owned());
    let preput = request.preput.iter().map(|(key, value)| Ok((text(key)?, text(value)?)));
    let job = Job {
        apps: (0..).zip(&request.apps).map(|(appnum, app)| App { ranks: app.ranks, appnum }).collect(),
        universe_size: parent.job.universe_size,
        spawner: Some(parent.job.id.clone()),
        preput: preput.collect::<Result<_, String>>()?,
        ..Job::on_one_node(id, size)
    };
    Ok(spawned_spec(parent, job, apps))
}

fn spawned_spec(launched: &SessionSpec, job: Job, apps: Vec<AppSpec>) -> SessionSpec {
    // The launched job has the CPUs that a binding would begin with.
    SessionSpec { job, apps, cpu_bind: CpuBind::None, stdin: StdinTarget::None, ..launched.clone() }
}
