//! A session process without processes, sockets and clock, for the simulation of whole clusters. It uses the real state machine, PMI
//! server, fences, failure policy and agent protocol. In place of the runners' channels and tasks, it has one thread. Its inputs arrive
//! with the time. The simulation carries out its outputs, the [`SessionEffect`]s.

mod input;
mod links;
mod pmix;
mod settling;
mod spawned;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use nix::sys::signal::Signal;
use pmi_core::ids::{JobId, LocalRank, NodeIndex, Rank};
use pmi_core::server::{ConnectionId, EndReason, Progress, Server, Settings};
use pmi_core::services::SpawnRequest;
use pmi_transport::proto::v1 as proto;
use pmix_core::server::{Need, Ticket};
use proto::to_session::What;
use rank_spawner::RankExit;

pub use self::input::InputRead;
use self::input::{Asker, SessionInput};
use self::links::Links;
use self::pmix::Pmix;
use self::spawned::SpawnedJobs;
use super::confirmations::{Confirmations, Connection, End};
use super::credit::OutputCredit;
use super::failure_policy::{FailurePolicy, SentCause};
use super::incoming::resume;
use super::stdin::Readers;
use super::waiting::Waiting;
use crate::cause::StartClass;
use crate::event::{Event, Output, Report, Stream};
use crate::machine::jobs::JobNumber;
use crate::machine::ranks::Slot;
use crate::machine::verdict::{ExitMeaning, UnreportedEnd, death_kind};
use crate::machine::{Began, SessionMachine, StartFailure};
use crate::session_io::Control;
use crate::spec::SessionSpec;
use crate::wire::command::{self, Command};

use pmi_transport::fence::AnswerId;

pub use pmi_transport::fence::FanOut;

/// An effect that the simulation must carry out for a session.
#[derive(Debug)]
pub enum SessionEffect {
    /// Start the process of a rank. The simulation then calls [`SimulatedSession::rank_started`] or [`SimulatedSession::rank_not_started`].
    Start(Rank),
    /// Send a signal to a rank's process.
    Signal(Rank, Signal),
    /// Kill the remaining processes of the ranks, then call [`SimulatedSession::swept`].
    Sweep,
    /// Send these bytes from its PMI server to a rank.
    ToRank(Rank, Bytes),
    /// Close a rank's PMI connection.
    HangUp(Rank),
    /// Input, or the end of the input, is available for a rank.
    InputReady(Rank),
    /// The input of a rank was ended early, and the user was warned. Without a rank, the agent's log has the warning.
    InputCut(Option<Rank>),
    /// Write these frames to the agent.
    ToAgent(Bytes),
    /// Send a request for a new job to the API server. The simulation then calls [`SimulatedSession::spawn_answered`].
    Spawn { call: u64, parent: JobId, rank: Rank, request: SpawnRequest },
    /// Send a frame to the session of another node.
    ToNode(NodeIndex, proto::LinkFrame),
    /// End the process after all messages were sent.
    Exit,
}

/// Initial windows of the flow control, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Output window of the session.
    pub output: u64,
    /// Input window of the session.
    pub input: u64,
}

/// A session process in virtual time.
pub struct SimulatedSession {
    spec: Arc<SessionSpec>,
    machine: SessionMachine,
    server: Server,
    /// PMIx server, if the ranks use PMIx.
    pmix: Option<Pmix>,
    spawned: SpawnedJobs,
    /// Unanswered questions from servers of other nodes to this node's server.
    asked: BTreeMap<Ticket, AnswerId>,
    /// Number of links that are being opened.
    opening: usize,
    /// PMI connections, by local rank.
    connections: Vec<Option<ConnectionId>>,
    links: Option<Links>,
    policy: FailurePolicy,
    told: SentCause,
    waiting: Waiting,
    credit: OutputCredit,
    input: SessionInput,
    confirmations: Confirmations,
    /// Events that wait for room.
    outbox: VecDeque<Event>,
    ending: Ending,
    is_connected: bool,
    /// Reason of the server to end its job. It takes precedence over the exit of the rank that caused it.
    reason: Option<(JobNumber, EndReason)>,
    effects: VecDeque<SessionEffect>,
}

/// Stage between the end of a session's last rank and the exit of the session.
#[derive(Debug)]
enum Ending {
    NotYet,
    /// The last rank has ended. Other nodes may need a failure notification, until this time at most.
    Telling {
        report: Report,
        until: Instant,
    },
    /// Events wait for credit. The report follows them.
    Draining {
        report: Report,
    },
    /// The report was sent.
    Reported,
    Over,
}

impl SimulatedSession {
    /// Returns a session that an agent has just started, with an output window of `windows.output` bytes.
    pub fn new(spec: SessionSpec, fan_out: FanOut, windows: Windows, now: Instant) -> Self {
        let spec = Arc::new(spec);
        let nodes = spec.hosts.len() as u32;
        let server = Server::new(spec.job.clone(), spec.node, Settings::default());
        let connections = vec![None; server.ranks().len()];
        let mut session = Self {
            machine: SessionMachine::new(Arc::clone(&spec), Began { now, unix: Duration::ZERO }),
            connections,
            pmix: spec.settings.pmi.family.has_pmix().then(|| Pmix::new(&spec, server.ranks().len())),
            spawned: SpawnedJobs::default(),
            asked: BTreeMap::new(),
            opening: 0,
            server,
            links: (nodes > 1).then(|| Links::new(&spec, fan_out, now)),
            policy: FailurePolicy::new(spec.node, nodes),
            told: SentCause::default(),
            waiting: Waiting::default(),
            credit: OutputCredit::new(windows.output),
            input: SessionInput::new(spec.node, Readers::of(&spec), windows.input),
            confirmations: Confirmations::default(),
            outbox: VecDeque::new(),
            ending: Ending::NotYet,
            is_connected: true,
            reason: None,
            effects: VecDeque::new(),
            spec,
        };
        session.settle(now);
        session
    }

    /// Returns the next effect to carry out.
    pub fn poll_effect(&mut self) -> Option<SessionEffect> {
        self.effects.pop_front()
    }

    /// Time at which [`Self::on_time`] must be called.
    pub fn next_wake(&self) -> Option<Instant> {
        let policy = self.links.as_ref().and(self.policy.next_wake()).map(tokio::time::Instant::into_std);
        let told = match &self.ending {
            Ending::Telling { until, .. } => Some(*until),
            _ => None,
        };
        let links = self.links.as_ref().and_then(Links::next_wake);
        let pmix = self.pmix.as_ref().and_then(Pmix::next_wake);
        [self.machine.next_wake(), policy, told, links, self.input.next_wake(), pmix].into_iter().flatten().min()
    }

    /// Handles the time of [`Self::next_wake`].
    pub fn on_time(&mut self, now: Instant) {
        if self.machine.next_wake().is_some_and(|wake| wake <= now) {
            self.machine.on_time(now);
        }
        if self.links.is_some() {
            self.policy.on_time(now.into());
        }
        if let Some(links) = &mut self.links {
            links.on_time(now);
        }
        if let Some(pmix) = &mut self.pmix {
            pmix.on_time(now);
        }
        self.settle(now);
    }

    /// Handles the start of a rank's process.
    pub fn rank_started(&mut self, rank: Rank, pid: u32, now: Instant) {
        let Some(slot) = self.machine.ranks().slot_of(rank) else { return };
        self.machine.on_started(slot, pid, 1, now);
        let Slot { job, local, .. } = *self.machine.ranks().get(slot);
        match &mut self.pmix {
            _ if job != JobNumber::LAUNCHED => self.spawned.connect(job, local),
            Some(pmix) => pmix.connect(local),
            None => self.connections[local.index()] = self.server.connect(local).ok(),
        }
        self.settle(now);
    }

    /// Handles the failure to start a rank's process.
    pub fn rank_not_started(&mut self, rank: Rank, reason: &str, now: Instant) {
        let Some(slot) = self.machine.ranks().slot_of(rank) else { return };
        let failure = StartFailure::Failed { class: StartClass::System, reason: reason.to_owned() };
        self.machine.on_not_started(slot, failure, now);
        self.settle(now);
    }

    /// Handles bytes from a rank to its PMI server.
    pub fn rank_said(&mut self, rank: Rank, bytes: &[u8], now: Instant) {
        let slot = self.machine.ranks().slot_of(rank).map(|slot| self.machine.ranks().get(slot));
        let (job, local) = slot.map_or((JobNumber::LAUNCHED, None), |slot| (slot.job, Some(slot.local)));
        if let Some(local) = local.filter(|_| job != JobNumber::LAUNCHED) {
            self.spawned.handle_bytes(job, local, bytes);
            self.settle(now);
        } else if let (Some(pmix), Some(local)) = (&mut self.pmix, local) {
            pmix.handle_bytes(local, bytes);
            self.settle(now);
        } else if let Some(connection) = self.connection(rank) {
            self.server.handle_bytes(connection, bytes);
            self.settle(now);
        }
    }

    /// Handles output of a rank. Returns false, and drops the output, if there is no room for it.
    pub fn rank_printed(&mut self, rank: Rank, bytes: Bytes, now: Instant) -> bool {
        let has_room = self.outbox.is_empty() && self.waiting.has_room(&self.credit);
        if has_room {
            self.outbox.push_back(Event::Output(Output { rank, stream: Stream::Stdout, bytes }));
            self.settle(now);
        }
        has_room
    }

    /// Handles a read of at most `most` bytes from a rank's input.
    pub fn rank_reads(&mut self, rank: Rank, most: usize, now: Instant) -> InputRead {
        let read = self.input.read(rank, most, now);
        self.settle(now);
        read
    }

    /// Handles the exit of a rank's process, after its output was read to the end.
    pub fn rank_exited(&mut self, rank: Rank, exit: RankExit, now: Instant) {
        let Some(slot) = self.machine.ranks().slot_of(rank) else { return };
        self.input.leave(rank);
        let Slot { job, local, .. } = *self.machine.ranks().get(slot);
        let spawned = job != JobNumber::LAUNCHED;
        let server = if spawned { self.spawned.server(job) } else { Some(&mut self.server) };
        match (self.machine.meaning_of(slot, exit), &mut self.pmix) {
            (ExitMeaning::LeftInOrder, Some(pmix)) => pmix.handle_exit(local),
            (ExitMeaning::LeftInOrder, None) => {
                server.into_iter().for_each(|server| server.handle_exit(local));
            }
            (ExitMeaning::Borne, Some(pmix)) => pmix.handle_borne_failure(local, death_kind(exit)),
            (ExitMeaning::Borne, None) => {
                server.into_iter().for_each(|server| server.handle_borne_failure(local, death_kind(exit)));
            }
            (ExitMeaning::Failed | ExitMeaning::Nothing, Some(pmix)) => pmix.handle_death(local),
            (ExitMeaning::Failed | ExitMeaning::Nothing, None) => {}
        }
        self.take_actions(now);
        let reasons = self.reason.take().into_iter().collect();
        let reached = self.progress_of(self.machine.ranks().get(slot)).map(|progress| progress.reached());
        self.machine.on_exit(UnreportedEnd { slot, exit, reached }, reasons, &[], now);
        self.machine.on_output_end(slot);
        self.settle(now);
    }

    /// Handles the end of a sweep: the remaining processes of the ranks were killed.
    pub fn swept(&mut self, now: Instant) {
        self.machine.on_swept(Vec::new());
        self.settle(now);
    }

    /// Handles a frame from the agent.
    pub fn on_agent(&mut self, message: proto::ToSession, now: Instant) {
        match message.what {
            Some(What::Command(command)) => self.take_command(command, now),
            Some(What::Resume(order)) => resume(&order, &self.confirmations, &self.credit),
            Some(What::Unheard(proto::Nothing {})) => self.confirmations.unheard(),
            Some(What::Dismissed(proto::Nothing {})) => {
                self.credit.lift();
                self.confirmations.end(End::Dismissed);
            }
            _ => {}
        }
        self.settle(now);
    }

    fn take_command(&mut self, command: proto::NodeCommand, now: Instant) {
        let proto::NodeCommand { sequence, events_taken, .. } = command;
        if events_taken > 0 {
            self.confirmations.confirm(events_taken);
        }
        if (command.what.is_some() || events_taken == 0) && self.confirmations.is_new_command(sequence) {
            match command::decode(command, self.spec.hosts.len()) {
                Ok(Command::Control(Control::CutOff(node))) => {
                    if let Some(links) = &mut self.links {
                        links.cut_off(node, now);
                    }
                }
                Ok(Command::Control(control)) => {
                    if matches!(control, Control::AskProgress(_) | Control::AskUsage(_) | Control::AskStacks(_)) {
                        self.credit.expect_answer();
                    }
                    self.machine.on_control(control, now);
                }
                Ok(Command::OutputCredit(bytes)) => self.credit.grant(bytes),
                Ok(Command::Stdin(piece)) => self.input.push(piece),
                Ok(Command::StdinEnd) => self.input.end(),
                Ok(Command::Input(piece)) => self.input.arrived(piece, Asker::Api),
                Ok(Command::Gather { .. }) | Err(_) => {}
            }
            self.confirmations.command_taken(sequence);
        }
    }

    /// Handles a broken connection to the agent.
    pub fn agent_lost(&mut self, now: Instant) {
        self.is_connected = false;
        self.confirmations.reconnect(Connection::Broken);
        self.settle(now);
    }

    /// Handles the connection of another agent.
    pub fn agent_came(&mut self, now: Instant) {
        self.is_connected = true;
        self.confirmations.reconnect(Connection::Broken);
        self.settle(now);
    }

    /// Handles the permanent loss of the agent.
    pub fn agent_gone(&mut self, now: Instant) {
        self.is_connected = false;
        self.credit.lift();
        self.confirmations.end(End::AgentGone);
        self.machine.on_control_lost(now);
        self.settle(now);
    }

    /// Handles a frame from another node's session.
    pub fn on_node(&mut self, from: NodeIndex, frame: proto::LinkFrame, now: Instant) {
        if let Some(links) = &mut self.links {
            links.on_frame(from, frame, now);
            self.settle(now);
        }
    }

    /// Handles a link to another node that broke or could not be opened.
    pub fn link_broke(&mut self, node: NodeIndex, reason: &str, now: Instant) {
        if let Some(links) = &mut self.links {
            links.on_broken(node, reason, now);
            self.settle(now);
        }
    }

    /// Handles a link that could not be opened, because the other node has left the launch.
    pub fn link_absent(&mut self, node: NodeIndex, reason: &str, now: Instant) {
        if let Some(links) = &mut self.links {
            links.on_absent(node, reason, now);
            self.settle(now);
        }
    }

    /// Sets the number of links to other nodes that are being opened.
    pub fn opens_links(&mut self, number: usize, now: Instant) {
        self.opening = number;
        self.tell_need(now);
        self.settle(now);
    }

    /// Returns true after the session has left the launch's links.
    pub fn has_left(&self) -> bool {
        self.links.as_ref().is_none_or(Links::has_left)
    }

    /// Sends the machine the time for which other nodes need this node, like `NodeNeed` of the runner.
    fn tell_need(&mut self, now: Instant) {
        let need = match self.pmix.as_ref().map_or(Need::Over, Pmix::need) {
            Need::Over if self.opening > 0 => Need::WhileRanksRun,
            need => need,
        };
        self.machine.on_need(need, now);
    }

    fn progress(&self, local: LocalRank) -> Option<Progress> {
        self.pmix.as_ref().map_or_else(|| self.server.progress(local), |pmix| pmix.progress(local))
    }

    fn connection(&self, rank: Rank) -> Option<ConnectionId> {
        let slot = self.machine.ranks().slot_of(rank)?;
        self.connections[self.machine.ranks().get(slot).local.index()]
    }
}
