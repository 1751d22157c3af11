//! New jobs in a session: what `MPI_Comm_spawn` asks for, whichever protocol it came by. Parent and children are judged together.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use nix::sys::signal::Signal;
use pmi_core::ids::{JobId, LocalRank, Rank};
use pmi_core::job::{App, Job};
use pmi_core::services::{Lifetime, NameError, Services, SpawnApp, SpawnError, SpawnRequest};
use rank_spawner::CpuBind;
use tokio::sync::{mpsc, oneshot};

use super::job::JobAtWork;
use super::{RankSlot, Session, StdinSource};
use crate::plan::Common;
use crate::spec::{AppSpec, SessionSpec, StdinTarget};

/// The most ranks of one session, spawned ones included.
const RANKS_MAX: usize = 16 * 1024;

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
pub(super) type Reply = oneshot::Sender<Result<JobId, SpawnError>>;

/// The services of one job: names are the host's matter, new jobs the session's.
pub(super) struct JobServices {
    pub(super) host: Arc<dyn Services>,
    pub(super) job: usize,
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

    async fn spawn(&self, rank: Rank, request: SpawnRequest) -> Result<JobId, SpawnError> {
        let ending = || SpawnError::Refused { reason: "the launch is ending".to_owned() };
        let (reply, answer) = oneshot::channel();
        let order = Order { job: self.job, rank, request, reply };
        self.orders.send(order).await.map_err(|_| ending())?;
        answer.await.map_err(|_| ending())?
    }
}

impl Session {
    /// Begins a new job. Its ranks are told of when the last one runs.
    pub(super) fn on_order(&mut self, order: Order) {
        let Order { job, rank, request, reply } = order;
        // Nobody listens if the rank that asked is gone: then there is nobody to tell.
        if let Err(error) = self.begin_job(job, rank, &request) {
            let _ = reply.send(Err(error));
        } else if let Some(job) = self.jobs.last_mut() {
            job.awaited = Some(reply);
        }
    }

    fn begin_job(&mut self, parent: usize, rank: Rank, request: &SpawnRequest) -> Result<(), SpawnError> {
        let refused = |reason: &str| Err(SpawnError::Refused { reason: reason.to_owned() });
        let failed = |reason: String| SpawnError::Failed { reason };
        if self.ending.has_begun() {
            return refused("the launch is ending");
        }
        if self.jobs[0].spec.job.placement.nodes() > 1 {
            return refused("new processes are started by launches on one machine only");
        }
        let size = request.apps.iter().fold(0_usize, |sum, app| sum.saturating_add(app.ranks as usize));
        if size == 0 || self.ranks.len().saturating_add(size) > RANKS_MAX {
            return refused(&format!("{size} more ranks were asked for; a launch has 1 to {RANKS_MAX}"));
        }
        let index = self.jobs.len();
        let spec = Arc::new(child_spec(&self.jobs[parent].spec, index, request).map_err(failed)?);
        let first = self.ranks.len();
        self.jobs.push(JobAtWork::new(Arc::clone(&spec), first));
        let begun = self.start_job(index, &spec, Some((parent, rank)));
        if begun.is_err() {
            self.jobs.pop();
            self.ranks.truncate(first);
        }
        begun.map_err(failed)
    }

    fn start_job(&mut self, index: usize, spec: &SessionSpec, parent: Option<(usize, Rank)>) -> Result<(), String> {
        let ranks = spec.job.placement.ranks_on(spec.node);
        let entrances = self.serve(index, parent).map_err(|error| format!("cannot serve PMI: {error}"))?;
        let limits = Arc::clone(&self.limits);
        let plan = Common { spec, ranks: &ranks, entrances, limits }.plan(&StdinSource::Empty);
        let mut plan = plan.map_err(|error| error.to_string())?;
        let first = self.jobs[index].first;
        for (local, command) in (0..).zip(&mut plan.commands) {
            // What the session shows of a rank tells it from those of other jobs.
            command.rank = self.jobs[index].shown(command.rank);
            self.ranks.push(RankSlot::new(command.rank, index, LocalRank(local)));
        }
        debug_assert_eq!(self.ranks.len(), first + ranks.len());
        let job = &mut self.jobs[index];
        job.programs = plan.programs;
        job.starting = plan.commands.len();
        self.start_all(plan.commands);
        Ok(())
    }

    /// A rank of a spawned job runs, or does not: the one who asked hears of it when all do, or when one does not.
    pub(super) fn count_start(&mut self, job: usize, failure: Option<String>) {
        let state = &mut self.jobs[job];
        state.starting -= 1;
        let outcome = match failure {
            Some(reason) => Some(Err(SpawnError::Failed { reason })),
            None if state.starting == 0 => Some(Ok(state.spec.job.id.clone())),
            None => None,
        };
        if let Some(outcome) = outcome {
            state.disowned |= outcome.is_err();
            if let Some(reply) = state.awaited.take() {
                // The rank that asked may be gone.
                let _ = reply.send(outcome);
            }
        }
        if state.disowned && state.starting == 0 {
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
    let apps: Vec<AppSpec> = request.apps.iter().map(|app| app_spec(app, &directory)).collect();
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
    Ok(SessionSpec {
        job,
        apps,
        // Its parent has the CPUs that a binding would begin with.
        cpu_bind: CpuBind::None,
        stdin: StdinTarget::None,
        ..parent.clone()
    })
}

fn app_spec(app: &SpawnApp, parent: &std::path::Path) -> AppSpec {
    let own = |bytes: &Bytes| OsStr::from_bytes(bytes).to_owned();
    let hint = app.info.iter().find(|(key, _)| key == "wdir").map(|(_, value)| value);
    let directory = app.directory.as_ref().or(hint).map_or_else(|| parent.to_owned(), |path| parent.join(own(path)));
    AppSpec {
        program: own(&app.program),
        args: app.args.iter().map(own).collect(),
        directory,
        set: app.variables.iter().map(|(name, value)| (own(name), own(value))).collect::<Vec<(OsString, OsString)>>(),
        remove: Vec::new(),
    }
}
