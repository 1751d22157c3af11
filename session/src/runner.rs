//! The runner of a session: carries out the effects of its [`SessionMachine`] with processes, pipes, servers and tokio's clock.
//!
//! ```text
//! spawner's threads ──starts──┐                        ┌──signals──> processes
//! processes ──exits───────────┤                        ├──events──> outbox ──> the launch
//! servers ──reasons to end────┼──> SessionMachine ─────┼──jobs──> servers, commands
//! launch ──control────────────┤     (pure)             ├──looks──> servers, /proc, answered at once
//! pumps ──ends of outputs─────┘                        └──sweep, drain──> the end
//! ```
//! One task runs the loop. Other tasks are: one per connection (in the PMI drivers), one per output stream, one per process (to reap
//! it), one per reader of standard input.

mod clean_up;
mod contact;
mod deaths;
mod directories;
mod finish;
mod input_files;
mod job_memory;
mod job_servers;
mod misuse;
mod node_facts;
mod node_need;
mod observe;
mod orphans;
mod outputs;
mod prepare;
mod pump;
mod reap;
mod resources;
mod servers;
mod services;
mod shared_memory;
mod socket_file;
mod start;
mod started;
mod stdin;
mod sweep;
mod tap;
mod terminal;
mod texts;
mod usage;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pmi_core::server::EndReason;
use pmix_core::driver::RankText;
use rank_spawner::{RankCommand, RankExit, give_way};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::task::JoinSet;
use tokio::time::Instant;

use self::contact::Contact;
use self::directories::Directories;
use self::input_files::{InputFiles, OpenedFiles};
use self::node_facts::NodeFacts;
use self::observe::{OpenTells, PreparedJob};
use self::orphans::OrphanReaping;
use self::outputs::Outputs;
use self::resources::{ResourceNews, Resources};
use self::servers::{Died, RankCalls, Servers};
use self::services::{SessionCall, SpawnCall, SpawnReply};
use self::start::{ProcessNews, Processes, Start};
use self::stdin::StdinFeed;
#[cfg(feature = "simulation")]
pub(crate) use self::stdin::{Backlog, BacklogState, Next};
use crate::blocking;
use crate::event::{Event, Report};
use crate::machine::effect::{Effect, StackLook};
use crate::machine::jobs::{JobNumber, SpawnTicket};
use crate::machine::ranks::SlotId;
use crate::machine::verdict::UnreportedEnd;
use crate::machine::watch::{SilentSeen, WatchLook};
use crate::machine::{Began, Phase, SessionMachine};
use crate::session_io::{Control, HostProcess, SessionIo, StdinSource};
use crate::spec::SessionSpec;

/// Maximum number of waiting events. Above it, texts of ranks are not accepted.
const OUTBOX_MAX: usize = 256;

/// Maximum number of waiting calls of servers.
const CALLS_MAX: usize = 16;

/// Maximum time between two checks of the clock.
const IDLE: Duration = Duration::from_secs(3600);

/// Runs one node's part of a launch: starts its ranks, serves PMI, forwards their output, reaps them.
///
/// Returns when the last process of the launch on this node is gone. Every failure is reported as the report's cause. Needs a tokio
/// runtime with I/O and time.
pub async fn run(spec: SessionSpec, io: SessionIo) -> Report {
    // Its state is tens of KiB. A future that contains it has several copies of it, and each copy touches new pages.
    Box::pin(Runner::new(Arc::new(spec), io).run()).await
}

/// A running session.
struct Runner {
    spec: Arc<SessionSpec>,
    io: SessionIo,
    machine: SessionMachine,
    servers: Servers,
    contact: Contact,
    orphans: OrphanReaping,
    node: NodeFacts,
    /// `None` if the system lets the session start no process.
    processes: Option<Processes>,
    /// Commands of prepared jobs before the start of their ranks.
    commands: HashMap<JobNumber, Vec<RankCommand>>,
    prepared: BTreeMap<JobNumber, PreparedJob>,
    input_files: InputFiles,
    directories: Directories,
    /// True once a rank with other CPUs than planned was reported.
    tells_of_cpus: bool,
    spawns: OpenSpawns,
    tells: OpenTells,
    news: ProcessNews,
    inputs: Inputs,
    /// Looks at call stacks.
    looks: JoinSet<(StackLook, Vec<(SlotId, String)>)>,
    outputs: Outputs,
    stdin: StdinFeed,
    resources: Resources,
    /// Tasks for removals that ranks have requested.
    removals: JoinSet<()>,
    /// Events that wait for room; output has its own channel.
    outbox: VecDeque<Event>,
    control: ControlState,
}

/// Receivers of messages from processes and servers.
struct Inputs {
    starts: mpsc::UnboundedReceiver<Start>,
    exits: mpsc::UnboundedReceiver<(SlotId, RankExit)>,
    /// Bounded by the number of looks of the watch, a handful.
    silent: mpsc::UnboundedReceiver<(WatchLook, SilentSeen)>,
    /// Bounded by the number of texts that their server accepts.
    texts: mpsc::UnboundedReceiver<RankText>,
    calls: mpsc::Receiver<SessionCall>,
    /// Bounded by the number of ranks.
    deaths: mpsc::UnboundedReceiver<Died>,
    files: mpsc::UnboundedReceiver<Vec<PathBuf>>,
}

/// Unanswered requests of ranks for new jobs.
#[derive(Default)]
struct OpenSpawns {
    replies: HashMap<SpawnTicket, SpawnReply>,
    last: u64,
}

impl OpenSpawns {
    fn add(&mut self, reply: SpawnReply) -> SpawnTicket {
        self.last += 1;
        self.replies.insert(SpawnTicket(self.last), reply);
        SpawnTicket(self.last)
    }
}

/// State of the control channel of the launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ControlState {
    Open,
    /// All senders are gone.
    Lost,
}

/// Input of a session.
enum SessionInput {
    /// Files for standard input were opened, or could not be.
    InputFiles(OpenedFiles),
    /// A start has succeeded or failed.
    Start(Start),
    /// The reason of a PMI server to end its job.
    EndReason(JobNumber, EndReason),
    /// A server reports that a rank of this node has died, and that the other ranks continue.
    Died(Died),
    /// A rank has registered files for removal at its end.
    Files(Vec<PathBuf>),
    /// A call of a server to the session.
    Call(SessionCall),
    /// A resource of a rank was inspected or removed.
    Resource(ResourceNews),
    /// Text that a rank wrote through its server.
    Text(RankText),
    /// Control message of the launch; `None` when the launch is gone.
    Control(Option<Control>),
    /// A process was reaped.
    Exit(SlotId, RankExit),
    /// One of a rank's output streams has ended.
    OutputEnd(SlotId),
    /// The need of other nodes for this node has changed.
    NeedChanged,
    /// Silent ranks were inspected.
    Silent(WatchLook, SilentSeen),
    /// Call stacks of ranks were read.
    Stacks(StackLook, Vec<(SlotId, String)>),
    /// The launch accepts events again.
    Room,
    /// The time of the machine's next step is reached.
    Time,
}

impl Runner {
    async fn run(mut self) -> Report {
        self.carry_out();
        while !matches!(self.machine.phase(), Phase::Draining { .. } | Phase::Done { .. }) {
            let input = self.next_input().await;
            self.on_input(input);
            self.give_up_input_files();
            self.carry_out();
        }
        self.finish().await
    }

    fn new(spec: Arc<SessionSpec>, mut io: SessionIo) -> Self {
        let (starts, started) = mpsc::unbounded_channel();
        let (exits, exited) = mpsc::unbounded_channel();
        let (silent, found_silent) = mpsc::unbounded_channel();
        let (texts, written) = mpsc::unbounded_channel();
        let (session, wanted) = mpsc::channel(CALLS_MAX);
        let (deaths, died) = mpsc::unbounded_channel();
        let (files, registered) = mpsc::unbounded_channel();
        let (nodes, host) = (Arc::clone(&io.nodes), Arc::clone(&io.services));
        let calls = RankCalls { texts, session, deaths, files };
        let began = Began { now: Instant::now().into_std(), unix: crate::unix_time::since_epoch() };
        Self {
            machine: SessionMachine::new(Arc::clone(&spec), began),
            servers: Servers::new(Arc::clone(&spec), nodes, host, calls, io.communicators.clone(), io.trace.take()),
            contact: Contact::new(),
            orphans: OrphanReaping::new(io.process),
            node: NodeFacts::default(),
            processes: None,
            commands: HashMap::new(),
            prepared: BTreeMap::new(),
            input_files: InputFiles::default(),
            directories: Directories::default(),
            tells_of_cpus: false,
            spawns: OpenSpawns::default(),
            tells: OpenTells::default(),
            news: ProcessNews { starts, exits, silent },
            inputs: Inputs {
                starts: started,
                exits: exited,
                silent: found_silent,
                texts: written,
                calls: wanted,
                deaths: died,
                files: registered,
            },
            outputs: Outputs::new(spec.settings.timeouts.output_end),
            stdin: StdinFeed::default(),
            looks: JoinSet::new(),
            resources: Resources::new(),
            removals: JoinSet::new(),
            outbox: VecDeque::new(),
            control: ControlState::Open,
            spec,
            io,
        }
    }

    /// Waits for the next input. Causes are received before their consequences: starts, then reasons to end, then exits.
    async fn next_input(&mut self) -> SessionInput {
        let wake = self.machine.next_wake().map_or_else(|| Instant::now() + IDLE, Instant::from_std);
        let wake = self.orphans.wake(self.contact.wake(wake));
        let need = self.servers.need().other_than(self.machine.need);
        tokio::select! {
            biased;
            opened = self.input_files.opened() => SessionInput::InputFiles(opened),
            Some(start) = self.inputs.starts.recv() => SessionInput::Start(start),
            (job, reason) = self.servers.end_reason() => SessionInput::EndReason(job, reason),
            Some(died) = self.inputs.deaths.recv() => SessionInput::Died(died),
            Some(files) = self.inputs.files.recv() => SessionInput::Files(files),
            Some(call) = self.inputs.calls.recv() => SessionInput::Call(call),
            Some(news) = self.resources.news() => SessionInput::Resource(news),
            Some(text) = self.inputs.texts.recv(), if self.outbox.len() < OUTBOX_MAX => SessionInput::Text(text),
            control = self.io.control.recv(), if self.control == ControlState::Open => SessionInput::Control(control),
            Some((slot, exit)) = self.inputs.exits.recv() => SessionInput::Exit(slot, exit),
            Some(Ok(slot)) = self.outputs.pumps.join_next(), if !self.outputs.pumps.is_empty() => {
                SessionInput::OutputEnd(slot)
            }
            Some((look, seen)) = self.inputs.silent.recv() => SessionInput::Silent(look, seen),
            Some(Ok((look, seen))) = self.looks.join_next() => SessionInput::Stacks(look, seen),
            () = need => SessionInput::NeedChanged,
            Ok(_) = self.io.events.reserve(), if !self.outbox.is_empty() => SessionInput::Room,
            () = tokio::time::sleep_until(wake) => SessionInput::Time,
        }
    }

    fn on_input(&mut self, input: SessionInput) {
        let now = Instant::now().into_std();
        match input {
            SessionInput::InputFiles(opened) => self.on_input_files(opened),
            SessionInput::Start(Ok(process)) => self.on_process(process),
            SessionInput::Start(Err(error)) => {
                if let Some(slot) = self.machine.ranks().slot_of(error.rank()) {
                    self.machine.on_not_started(slot, start::failure(&error), now);
                }
            }
            SessionInput::EndReason(job, reason) => {
                let unreported = self.unreported_ends([&reason]);
                self.machine.on_end_reason(job, reason, &unreported, now);
            }
            SessionInput::Died(died) => self.on_died(died),
            SessionInput::Files(files) => self.processes.iter().for_each(|processes| processes.guard_files(&files)),
            SessionInput::Call(call) => self.on_call(call),
            SessionInput::Resource(news) => self.on_resource_news(news),
            SessionInput::Text(text) => self.on_text(text),
            SessionInput::Control(Some(Control::Question { question, reply })) => {
                self.servers.answer(&question, reply);
            }
            SessionInput::Control(Some(Control::Tell { detail, reply })) => {
                let ticket = self.tells.add(reply);
                self.machine.on_tell(ticket, detail, now);
            }
            SessionInput::Control(Some(Control::CutOff(node))) => self.io.nodes.cut_off(node),
            SessionInput::Control(Some(control)) => {
                if let Control::Kill(_) = control {
                    self.outputs.on_kill_order();
                }
                self.machine.on_control(control, now);
            }
            SessionInput::Control(None) => {
                self.control = ControlState::Lost;
                self.machine.on_control_lost(now);
            }
            SessionInput::Exit(slot, exit) => self.on_exit(slot, exit),
            SessionInput::OutputEnd(slot) => self.machine.on_output_end(slot),
            SessionInput::NeedChanged => self.machine.on_need(self.servers.need().now(), now),
            SessionInput::Silent(look, seen) => self.on_silent_seen(look, seen),
            SessionInput::Stacks(look, seen) => self.machine.on_stacks_seen(look, seen, now),
            SessionInput::Room => self.send_events(),
            SessionInput::Time => {
                self.let_tools_find();
                self.reap_orphans();
                self.machine.on_time(now);
            }
        }
    }

    /// Carries out all effects, including effects of answers.
    fn carry_out(&mut self) {
        while let Some(effect) = self.machine.poll_effect() {
            match effect {
                Effect::PrepareJob { job, parent } => match self.prepare(job, parent) {
                    Ok(files) if !files.is_empty() => self.input_files.open(files),
                    prepared => {
                        self.machine.on_job_prepared(job, prepared.map(drop), Instant::now().into_std());
                    }
                },
                Effect::StartRanks { job } => {
                    if let (Some(processes), Some(commands)) = (&self.processes, self.commands.remove(&job)) {
                        processes.start(commands);
                    }
                }
                Effect::ReleaseJob { job, spec, slots } => self.release_job(job, spec, &slots),
                Effect::FeedStdin => {
                    let source = std::mem::replace(&mut self.io.stdin, StdinSource::Empty);
                    self.stdin.begin(source, self.io.events.clone());
                }
                Effect::Signal { signal, slots } => {
                    if let Some(processes) = &self.processes {
                        processes.signal(signal, &slots);
                    }
                }
                Effect::ResizeTerminal(size) => {
                    if let Some(processes) = &mut self.processes {
                        processes.resize_terminal(size);
                    }
                }
                Effect::LookAtStacks { look, slots, until } => self.look_at_stacks(look, slots, until),
                Effect::AnnounceDeaths { job, deaths } => self.announce_deaths(job, &deaths),
                Effect::Report(event) => self.outbox.push_back(event),
                Effect::Alarm(cause) => {
                    if let Some(alarm) = self.io.alarm.take() {
                        // If the receiver is gone, the cause still arrives with the events.
                        let _ = alarm.send(cause);
                    }
                }
                Effect::AnswerSpawn { ticket, outcome } => {
                    if let Some(reply) = self.spawns.replies.remove(&ticket) {
                        // The requesting rank may be gone.
                        let _ = reply.send(outcome);
                    }
                }
                Effect::Tell { ticket, told } => self.tells.answer(ticket, told),
                Effect::Look(look) => self.look(look),
                // A process that has other work does not give way.
                Effect::GiveWay if self.io.process == HostProcess::Dedicated => give_way(),
                Effect::GiveWay => {}
                // These end the loop, and are awaited after it.
                Effect::Sweep | Effect::DrainOutputs => {}
            }
        }
    }

    fn on_call(&mut self, call: SessionCall) {
        if call.job().is_some_and(|job| !self.machine.jobs().knows(job)) {
            return;
        }
        // The caller may be gone.
        match call {
            SessionCall::Spawn(call) => self.on_spawn_call(call),
            SessionCall::NotSpawned { job, rank, reason } => self.machine.on_not_spawned(job, rank, reason),
            SessionCall::NameRefused { job, rank, reason } => self.machine.on_name_refused(job, rank, reason),
            SessionCall::Resource { job, rank, change, reply } => self.on_resource(job, rank, change, reply),
            SessionCall::Overdue { job, rank, resource, within } => self.on_overdue(job, rank, &resource, within),
            SessionCall::SecondProcess { job, rank, pid } => {
                self.machine.on_pmi_misuse(job, rank, misuse::second_process(pid));
            }
            SessionCall::NoDescriptor { job, rank } => self.machine.on_pmi_misuse(job, rank, misuse::no_descriptor()),
            SessionCall::Look { job, reply } => drop(reply.send(self.processes_of(job))),
            SessionCall::PushInput { ranks, pushed } => self.stdin.push(ranks, pushed),
            SessionCall::Signal { job, ranks, signal, reply } => {
                drop(reply.send(self.signal_ranks(job, &ranks, signal)));
            }
        }
    }

    fn on_spawn_call(&mut self, call: SpawnCall) {
        let SpawnCall { job, rank, request, reply } = call;
        let ticket = self.spawns.add(reply);
        self.machine.on_spawn_request(ticket, job, rank, &request);
    }

    fn on_exit(&mut self, slot: SlotId, exit: RankExit) {
        let reasons = self.last_messages(slot, exit);
        self.take_deaths();
        self.take_texts();
        let (job, local) = (self.machine.ranks().get(slot).job, self.machine.ranks().get(slot).local);
        let clean_ups = self.servers.take_clean_up(job, local);
        if !clean_ups.is_empty() {
            blocking::begin_in(&mut self.removals, move || clean_ups.iter().for_each(clean_up::remove));
        }
        self.remove_resources(slot);
        let reached = self.servers.reached(job, local);
        // The need must be set before the last exit.
        self.machine.on_need(self.servers.need().now(), Instant::now().into_std());
        let others = self.unreported_ends(reasons.iter().map(|(_, reason)| reason));
        let end = UnreportedEnd { slot, exit, reached };
        self.machine.on_exit(end, reasons, &others, Instant::now().into_std());
        if let Some(processes) = &mut self.processes {
            processes.ended(slot, exit);
        }
    }

    /// Sends waiting events from the outbox, as far as there is room.
    fn send_events(&mut self) {
        while let Some(event) = self.outbox.pop_front() {
            if let Err(TrySendError::Full(event)) = self.io.events.try_send(event) {
                return self.outbox.push_front(event);
            }
        }
    }
}
