//! One launch on one node, from its spec to its report: the session owns the ranks, their PMI server, their output and
//! their end.
//!
//! ```text
//!            start_all            last rank ended        nothing is left
//! Starting ────────────> Running ────────────────> Draining ─────────────> Report
//!     │  a start fails      │  first cause              (sweep leftovers, read the pipes empty)
//!     └─────────┬───────────┘
//!               v
//!            Ending: signal ─grace─> SIGTERM ─grace─> SIGKILL, until the last rank ended
//! ```
//! A node of a launch that holds no rank is Running too: it waits for spawned jobs, until it is released.
//!
//! One task owns all state; what happens comes to it as one of its `on_*` functions. Beside it run one task per connection (in
//! the PMI driver), one per output stream, one per process (to see it end).

mod clean_up;
mod control;
mod ending;
mod job;
mod judgement;
mod serving;
mod spawning;
mod starting;
mod surroundings;
mod waits;
mod watch;

use std::collections::VecDeque;
use std::fs;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use nix::unistd::Pid;
use parking_lot::Mutex;
use pmi_core::Phase;
use pmi_core::ids::{LocalRank, Rank};
use pmi_core::server::EndReason;
use pmix_core::JobIndex;
use pmix_core::driver::{Driver as PmixDriver, Said};
use rank_spawner::{LaunchTag, Limit, RankCommand, RankExit, RankProcess, Spawner, StartError, raise_descriptor_limit};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot, watch as flag};
use tokio::task::JoinSet;
use tokio::time::Instant;

use self::ending::Ending;
use self::job::JobAtWork;
use self::judgement::{Verdict, end_reason};
use self::serving::{Serving, SharedTrace};
use self::spawning::Order;
pub use self::surroundings::{Alone, AskError, Control, Nodes, StdinSource, Surroundings};
use self::waits::Waits;
use self::watch::Watch;
use crate::cause::{CauseKind, StartClass};
use crate::event::{Event, Notice, Output, Report, Stream};
use crate::plan::{Common, Entrances, PlanError};
use crate::pump;
use crate::spec::SessionSpec;

/// How much of what ranks say through their server may wait to be passed on; more is lost.
const SAID_MAX: usize = 256;

/// How many spawns may wait to be looked at.
const ORDERS_MAX: usize = 16;

/// Runs one node's part of a launch: starts its ranks, serves them PMI, passes on their output, reaps them.
///
/// Returns when the last process of the launch on this node is gone. Whatever goes wrong is told by the report's cause.
/// Needs a tokio runtime with I/O and time.
pub async fn run(spec: SessionSpec, surroundings: Surroundings) -> Report {
    let started = Instant::now();
    let mut session = Session::new(spec, surroundings, started);
    match session.prepare() {
        Ok(commands) => session.go(commands).await,
        Err(kind) => session.fail(kind),
    }
    session.finish().await
}

/// A session at work.
struct Session {
    spec: Arc<SessionSpec>,
    started: Instant,
    surroundings: Surroundings,
    /// The job that was launched, and those that were spawned since.
    jobs: Vec<JobAtWork>,
    /// The PMIx server of all jobs.
    pmix: Option<Arc<PmixDriver>>,
    pmix_end_reason: Option<oneshot::Receiver<(JobIndex, EndReason)>>,
    /// What ranks say through their PMIx server.
    said: (mpsc::Sender<Said>, mpsc::Receiver<Said>),
    /// Gets every PMI message, when the user wants a trace.
    trace: Option<SharedTrace>,
    /// Spawns that ranks ask for.
    orders: (mpsc::Sender<Order>, mpsc::Receiver<Order>),
    /// Limits that the ranks get instead of this process's own.
    limits: Arc<[Limit]>,
    starts: (mpsc::UnboundedSender<Start>, mpsc::UnboundedReceiver<Start>),
    spawner: Option<Spawner>,
    /// The launched job's ranks by local rank, then those of spawned jobs; this order is what a `LocalRank` means in a session.
    ranks: Vec<RankSlot>,
    /// Ranks whose start was neither reported as done nor as failed.
    starting: usize,
    /// Ranks whose process runs.
    running: usize,
    verdict: Verdict,
    ending: Ending,
    watch: Watch,
    waits: Waits,
    /// Whether no job will be spawned here any more. Who has ranks of the launched job does not wait for it.
    released: bool,
    /// Whether anybody can still ask for anything.
    controlled: bool,
    /// Events that wait for room; output goes its own way.
    outbox: VecDeque<Event>,
    pumps: JoinSet<LocalRank>,
    /// Tells the pumps to stop at the end of what is there.
    stop_pumps: flag::Sender<bool>,
    /// Tasks that see processes end, and the one that feeds standard input.
    helpers: JoinSet<()>,
    /// Tasks that remove what ranks wanted removed.
    removals: JoinSet<()>,
    exits: (mpsc::UnboundedSender<LocalRank>, mpsc::UnboundedReceiver<LocalRank>),
}

/// What can happen to a session.
enum Happening {
    /// A rank was started, or was not.
    Start(Start),
    /// A rank wants a new job.
    Order(Order),
    /// The PMI server says that the job must end.
    EndReason(EndReason),
    /// A rank said something through its server.
    Said(Said),
    /// The launch wants something; `None` when it is gone.
    Control(Option<Control>),
    /// A rank's process ended.
    Exit(LocalRank),
    /// One of a rank's output streams ended.
    PumpEnd(LocalRank),
    /// The launch takes events again.
    Room,
    /// It is time for something.
    Time,
}

type Start = Result<RankProcess, StartError>;

/// One rank of this node.
struct RankSlot {
    /// Its number as it is shown; unique in the session.
    rank: Rank,
    /// The index of its job.
    job: usize,
    /// Its position among that job's ranks here.
    local: LocalRank,
    process: Option<Arc<RankProcess>>,
    exit: Option<RankExit>,
    /// Output streams that may still bring something.
    pumps: usize,
}

impl RankSlot {
    fn new(rank: Rank, job: usize, local: LocalRank) -> Self {
        Self { rank, job, local, process: None, exit: None, pumps: 0 }
    }
}

impl Session {
    fn new(spec: SessionSpec, surroundings: Surroundings, started: Instant) -> Self {
        let ranks = spec.job.placement.ranks_on(spec.node);
        Self {
            watch: Watch::new(&spec, started),
            waits: Waits::new(&spec, started),
            released: !ranks.is_empty() || spec.job.size() == 0,
            ending: Ending::new(spec.patience, started),
            spec: Arc::new(spec),
            started,
            surroundings,
            jobs: Vec::new(),
            pmix: None,
            pmix_end_reason: None,
            trace: None,
            orders: mpsc::channel(ORDERS_MAX),
            limits: Arc::new([]),
            starts: mpsc::unbounded_channel(),
            said: mpsc::channel(SAID_MAX),
            spawner: None,
            ranks: (0..).zip(ranks).map(|(local, rank)| RankSlot::new(rank, 0, LocalRank(local))).collect(),
            starting: 0,
            running: 0,
            verdict: Verdict::Open,
            controlled: true,
            outbox: VecDeque::new(),
            pumps: JoinSet::new(),
            stop_pumps: flag::Sender::new(false),
            helpers: JoinSet::new(),
            removals: JoinSet::new(),
            exits: mpsc::unbounded_channel(),
        }
    }

    /// Makes everything that the ranks need before the first one starts.
    fn prepare(&mut self) -> Result<Vec<RankCommand>, CauseKind> {
        let system = |reason: String| CauseKind::NotStarted { reason, class: StartClass::System };
        let limit = raise_descriptor_limit().map_err(|errno| system(format!("cannot read the limits: {errno}")))?;
        self.limits = Arc::new([limit]);
        self.trace = self.surroundings.trace.take().map(|trace| Arc::new(Mutex::new(trace)));
        self.jobs.push(JobAtWork::new(Arc::clone(&self.spec), Rank(0)));
        let entrances = self.serve(0, None).map_err(|error| system(format!("cannot serve PMI: {error}")))?;
        let commands = self.plan(entrances)?;
        // The ranks have what they need of it; a pipe must not stay open on our side.
        if matches!(self.surroundings.stdin, StdinSource::Direct(_)) {
            self.surroundings.stdin = StdinSource::Empty;
        }
        if let Some(keeper) = &self.surroundings.keeper {
            keeper.guard(&self.tag()).map_err(|errno| system(format!("cannot reach the keeper: {errno}")))?;
        }
        self.spawner = Some(Spawner::new().map_err(|error| system(format!("cannot start ranks: {error}")))?);
        Ok(commands)
    }

    /// The commands of the launched job's ranks here.
    fn plan(&mut self, entrances: Entrances) -> Result<Vec<RankCommand>, CauseKind> {
        let ranks: Vec<Rank> = self.ranks.iter().map(|slot| slot.rank).collect();
        if ranks.is_empty() {
            return Ok(Vec::new());
        }
        let fabric = self.surroundings.fabric.as_ref();
        let common = Common { spec: &self.spec, ranks: &ranks, entrances, limits: Arc::clone(&self.limits), fabric };
        let refuse = |error: PlanError| CauseKind::NotStarted { class: error.class(), reason: error.to_string() };
        let plan = common.plan(&self.surroundings.stdin).map_err(refuse)?;
        self.jobs[0].programs = plan.programs;
        Ok(plan.commands)
    }

    /// Starts the ranks and stays with them until the last one has ended.
    async fn go(&mut self, commands: Vec<RankCommand>) {
        self.start_all(commands);
        let mut stdin_readers = Vec::new();
        if self.starting == 0 {
            self.feed_stdin(Vec::new());
        }
        while self.starting > 0 || self.running > 0 || self.expects_jobs() {
            match self.next_happening().await {
                Happening::Start(result) => {
                    self.on_start(result, &mut stdin_readers);
                    if self.starting == 0 {
                        self.feed_stdin(std::mem::take(&mut stdin_readers));
                    }
                }
                Happening::Order(order) => self.on_order(order),
                Happening::EndReason(reason) => self.on_end_reason(reason),
                Happening::Said(said) => self.on_said(said),
                Happening::Control(control) => self.on_control(control),
                Happening::Exit(local) => self.on_exit(local),
                Happening::PumpEnd(local) => self.on_pump_end(local),
                Happening::Room => self.send_events(),
                Happening::Time => self.on_time(),
            }
        }
    }

    /// Whether ranks may come though there are none.
    fn expects_jobs(&self) -> bool {
        !self.released && !self.ending.has_begun()
    }

    async fn next_happening(&mut self) -> Happening {
        let wake = self.next_wake();
        tokio::select! {
            biased;
            Some(result) = self.starts.1.recv() => Happening::Start(result),
            reason = end_reason(&mut self.jobs, &mut self.pmix_end_reason) => Happening::EndReason(reason),
            Some(order) = self.orders.1.recv() => Happening::Order(order),
            Some(said) = self.said.1.recv(), if self.outbox.len() < SAID_MAX => Happening::Said(said),
            control = self.surroundings.control.recv(), if self.controlled => Happening::Control(control),
            Some(local) = self.exits.1.recv() => Happening::Exit(local),
            Some(Ok(local)) = self.pumps.join_next(), if !self.pumps.is_empty() => Happening::PumpEnd(local),
            Ok(_) = self.surroundings.events.reserve(), if !self.outbox.is_empty() => Happening::Room,
            () = tokio::time::sleep_until(wake) => Happening::Time,
        }
    }

    /// Sends what waits in the outbox, as far as there is room.
    fn send_events(&mut self) {
        while let Some(event) = self.outbox.pop_front() {
            if let Err(TrySendError::Full(event)) = self.surroundings.events.try_send(event) {
                return self.outbox.push_front(event);
            }
        }
    }

    fn feed_stdin(&mut self, readers: Vec<OwnedFd>) {
        let source = std::mem::replace(&mut self.surroundings.stdin, StdinSource::Empty);
        if let StdinSource::Stream(source) = source {
            self.helpers.spawn(pump::feed(source, readers));
        }
    }

    fn on_exit(&mut self, local: LocalRank) {
        let slot = &mut self.ranks[local.index()];
        let Some(process) = &slot.process else { return };
        // Somebody else reaped it: its status is lost, and cannot count as success.
        let exit = process.try_wait().unwrap_or(None).unwrap_or(RankExit::Code(255));
        slot.exit = Some(exit);
        self.running -= 1;
        self.judge_exit(local, exit);
        let (serving, own) = self.serving(local);
        let clean_ups = serving.take_clean_up(own);
        if !clean_ups.is_empty() {
            self.removals.spawn_blocking(move || clean_ups.iter().for_each(clean_up::remove));
        }
        self.tell_exit(local);
    }

    fn on_said(&mut self, Said { job, rank, on_stderr, text }: Said) {
        let job = self.jobs.iter().find(|known| known.serving.is_pmix_job(job));
        let rank = job.map_or(rank, |job| job.shown(rank));
        let stream = if on_stderr { Stream::Stderr } else { Stream::Stdout };
        self.outbox.push_back(Event::Output(Output { rank, stream, bytes: text }));
    }

    fn on_pump_end(&mut self, local: LocalRank) {
        self.ranks[local.index()].pumps -= 1;
        self.tell_exit(local);
    }

    /// Reports a rank's exit once nothing more can come from it.
    fn tell_exit(&mut self, local: LocalRank) {
        let slot = &self.ranks[local.index()];
        if let (Some(exit), 0) = (slot.exit, slot.pumps) {
            let phase = self.phase(local);
            let rank = self.ranks[local.index()].rank;
            self.outbox.push_back(Event::Exited { rank, exit, phase });
        }
    }

    fn on_time(&mut self) {
        self.end_by_time();
        self.look_at_ranks();
        self.look_at_waits();
    }

    fn next_wake(&self) -> Instant {
        [self.ending.next(), self.watch.next(), self.waits.next()].into_iter().flatten().min().unwrap_or_else(|| {
            // Nothing to wait for but events.
            Instant::now() + Duration::from_secs(3600)
        })
    }

    /// Clears up after the last rank: kills what it left behind, reads the pipes empty, hands over what is to be told.
    async fn finish(mut self) -> Report {
        let duration = self.started.elapsed();
        self.stop_listening();
        let survivors = self.sweep().await;
        if !survivors.is_empty() {
            self.outbox.push_back(Event::Notice(Notice::Leftover { pids: survivors }));
        }
        // Nobody of ours holds a pipe any more. If somebody else does, what is in it is still read.
        self.stop_pumps.send_replace(true);
        while let Some(finished) = self.pumps.join_next().await {
            if let Ok(local) = finished {
                self.on_pump_end(local);
            }
        }
        self.remove_rank_files().await;
        self.tell_of_silent_ranks();
        while let Ok(said) = self.said.1.try_recv() {
            self.on_said(said);
        }
        self.jobs.clear();
        self.pmix = None;
        for event in self.outbox.drain(..) {
            if self.surroundings.events.send(event).await.is_err() {
                break;
            }
        }
        // Kills what it started, if anything were left; nothing is.
        drop(self.spawner.take());
        let exits = self.ranks.iter().filter_map(|slot| Some((slot.rank, slot.exit?))).collect();
        let cause = match self.verdict {
            Verdict::Here(cause) => Some(cause),
            Verdict::Open | Verdict::Elsewhere => None,
        };
        Report { exits, cause, duration }
    }

    /// Removes what ranks wanted removed, and the directory that they were given for files.
    async fn remove_rank_files(&mut self) {
        let directory = self.spec.rank_files();
        // No rank has made it, as a rule.
        if self.spec.pmi.family.has_pmix() && directory.symlink_metadata().is_ok() {
            self.removals.spawn_blocking(move || {
                // What cannot be removed stays: a rank could do no more itself.
                let _ = fs::remove_dir_all(directory);
            });
        }
        while self.removals.join_next().await.is_some() {}
    }

    fn tag(&self) -> LaunchTag {
        self.surroundings.tag.clone()
    }

    /// The processes of the ranks that were started, the ended ones included.
    fn pids(&self) -> Vec<Pid> {
        self.ranks.iter().filter_map(|slot| Some(slot.process.as_ref()?.pid())).collect()
    }

    /// Who serves a rank, and its position among the ranks of its job.
    fn serving(&self, local: LocalRank) -> (&Serving, LocalRank) {
        let slot = &self.ranks[local.index()];
        (&self.jobs[slot.job].serving, slot.local)
    }

    fn phase(&self, local: LocalRank) -> Option<Phase> {
        let (serving, own) = self.serving(local);
        serving.phase(own)
    }
}
