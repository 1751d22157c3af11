//! A session process without processes, sockets and clock, for the simulation of whole clusters: its machine, its PMI server, its part
//! in fences, its failure policy and its words to the agent, as they are. What the runners do with channels and tasks, this does in
//! one thread: inputs go in with the time, [`SessionEffect`]s come out, to be carried out by the simulation.

mod links;

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use nix::sys::signal::Signal;
use pmi_core::Phase as Dialogue;
use pmi_core::ids::{LocalRank, NodeIndex, Rank};
use pmi_core::server::{Action, ConnectionId, EndReason, FenceStatus, Server, Settings};
use pmi_transport::proto::v1 as proto;
use proto::to_session::What;
use rank_spawner::RankExit;

use self::links::Links;
use super::confirmations::{Confirmations, Connection, End};
use super::credit::OutputCredit;
use super::failure_policy::{Decision, FailurePolicy, Stage, Told, concerns_others};
use super::incoming::resume;
use super::waiting::{Waiting, Word};
use crate::cause::StartClass;
use crate::event::{Event, Output, Report, Stream};
use crate::machine::desertion::FenceSeen;
use crate::machine::effect::{Effect, Look};
use crate::machine::jobs::JobNumber;
use crate::machine::ranks::{RankState, SlotId};
use crate::machine::verdict::ExitMeaning;
use crate::machine::watch::SilentSeen;
use crate::machine::{Phase, SessionMachine, StartFailure};
use crate::session_io::Control;
use crate::spec::SessionSpec;
use crate::timeouts;
use crate::wire;
use crate::wire::command::{self, Command};

pub use pmi_transport::fence::FanOut;

/// Something that a session wants done.
#[derive(Debug)]
pub enum SessionEffect {
    /// Start the process of a rank; answered by [`SimulatedSession::rank_started`] or [`SimulatedSession::rank_not_started`].
    Start(Rank),
    /// Send a signal to a rank's process.
    Signal(Rank, Signal),
    /// Kill what ranks left behind, then call [`SimulatedSession::swept`].
    Sweep,
    /// Hand these bytes of its PMI server to a rank.
    ToRank(Rank, Bytes),
    /// Close a rank's PMI connection.
    HangUp(Rank),
    /// Write these frames to the agent.
    ToAgent(Bytes),
    /// Send a frame to the session of another node.
    ToNode(NodeIndex, proto::LinkFrame),
    /// End the process: everything was said.
    Exit,
}

/// A session process in virtual time.
pub struct SimulatedSession {
    spec: Arc<SessionSpec>,
    machine: SessionMachine,
    server: Server,
    /// PMI connections, by local rank.
    connections: Vec<Option<ConnectionId>>,
    links: Option<Links>,
    policy: FailurePolicy,
    told: Told,
    waiting: Waiting,
    credit: OutputCredit,
    confirmations: Confirmations,
    /// Events for which there was no room.
    outbox: VecDeque<Event>,
    ending: Ending,
    is_connected: bool,
    /// Reason of the server to end its job, which counts before the end of the rank that gave it.
    reason: Option<EndReason>,
    effects: VecDeque<SessionEffect>,
}

/// Way of a session from its last rank to its exit.
#[derive(Debug)]
enum Ending {
    NotYet,
    /// The last rank has ended; others may have to be told of a failure, until then at most.
    Telling {
        report: Report,
        until: Instant,
    },
    /// Events wait for credit; the report comes behind them.
    Draining {
        report: Report,
    },
    /// The report was given.
    Reported,
    Over,
}

impl SimulatedSession {
    /// A session that an agent has just begun, which may send `window` bytes of output.
    pub fn new(spec: SessionSpec, fan_out: FanOut, window: u64, now: Instant) -> Self {
        let spec = Arc::new(spec);
        let nodes = spec.hosts.len() as u32;
        let server = Server::new(spec.job.clone(), spec.node, Settings::default());
        let connections = vec![None; server.ranks().len()];
        let mut session = Self {
            machine: SessionMachine::new(Arc::clone(&spec), now),
            connections,
            server,
            links: (nodes > 1).then(|| Links::new(&spec, fan_out, now)),
            policy: FailurePolicy::new(spec.node, nodes),
            told: Told::default(),
            waiting: Waiting::default(),
            credit: OutputCredit::new(window),
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

    /// The next effect to carry out.
    pub fn poll_effect(&mut self) -> Option<SessionEffect> {
        self.effects.pop_front()
    }

    /// Time at which [`Self::on_time`] is to be called.
    pub fn next_wake(&self) -> Option<Instant> {
        let policy = self.links.as_ref().and(self.policy.next_wake()).map(tokio::time::Instant::into_std);
        let told = match &self.ending {
            Ending::Telling { until, .. } => Some(*until),
            _ => None,
        };
        let links = self.links.as_ref().and_then(Links::next_wake);
        [self.machine.next_wake(), policy, told, links].into_iter().flatten().min()
    }

    /// The time of [`Self::next_wake`] has come.
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
        self.settle(now);
    }

    /// The process of a rank runs.
    pub fn rank_started(&mut self, rank: Rank, pid: u32, now: Instant) {
        let Some(slot) = self.machine.ranks().slot_of(rank) else { return };
        self.machine.on_started(slot, pid, 1, now);
        let local = self.machine.ranks().get(slot).local;
        self.connections[local.index()] = Some(self.server.connect(local));
        self.settle(now);
    }

    /// The process of a rank cannot be started.
    pub fn rank_not_started(&mut self, rank: Rank, reason: &str, now: Instant) {
        let Some(slot) = self.machine.ranks().slot_of(rank) else { return };
        let failure = StartFailure::Failed { class: StartClass::System, reason: reason.to_owned() };
        self.machine.on_not_started(slot, failure, now);
        self.settle(now);
    }

    /// A rank has written to its PMI server.
    pub fn rank_said(&mut self, rank: Rank, bytes: &[u8], now: Instant) {
        if let Some(connection) = self.connection(rank) {
            self.server.handle_bytes(connection, bytes);
            self.settle(now);
        }
    }

    /// A rank has written something to its output, if there is room for it.
    pub fn rank_printed(&mut self, rank: Rank, bytes: Bytes, now: Instant) -> bool {
        let has_room = self.outbox.is_empty() && self.waiting.has_room(&self.credit);
        if has_room {
            self.outbox.push_back(Event::Output(Output { rank, stream: Stream::Stdout, bytes }));
            self.settle(now);
        }
        has_room
    }

    /// The process of a rank was reaped, and its output read empty.
    pub fn rank_exited(&mut self, rank: Rank, exit: RankExit, now: Instant) {
        let Some(slot) = self.machine.ranks().slot_of(rank) else { return };
        let local = self.machine.ranks().get(slot).local;
        match self.machine.meaning_of(slot, exit) {
            ExitMeaning::LeftInOrder => self.server.handle_exit(local),
            ExitMeaning::Borne => self.server.handle_borne_failure(local),
            ExitMeaning::Failed | ExitMeaning::Nothing => {}
        }
        self.take_actions(now);
        let reasons = self.reason.take().map(|reason| (JobNumber::LAUNCHED, reason)).into_iter().collect();
        let phase = self.server.progress(local).map(|progress| progress.phase);
        self.machine.on_exit(slot, exit, phase, reasons, now);
        self.machine.on_output_end(slot);
        self.settle(now);
    }

    /// What ranks left behind was killed.
    pub fn swept(&mut self, now: Instant) {
        self.machine.on_swept(Vec::new());
        self.settle(now);
    }

    /// A frame of the agent has come.
    pub fn on_agent(&mut self, message: proto::ToSession, now: Instant) {
        match message.what {
            Some(What::Command(command)) => self.take_command(command, now),
            Some(What::Resume(order)) => self.confirmations.resume(resume(&order)),
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
                Ok(Command::Control(control)) => {
                    if matches!(control, Control::AskProgress(_)) {
                        self.credit.expect_answer();
                    }
                    self.machine.on_control(control, now);
                }
                Ok(Command::OutputCredit(bytes)) => self.credit.grant(bytes),
                Ok(Command::Stdin(_) | Command::StdinEnd) | Err(_) => {}
            }
            self.confirmations.command_taken(sequence);
        }
    }

    /// The connection to the agent broke.
    pub fn agent_lost(&mut self, now: Instant) {
        self.is_connected = false;
        self.confirmations.reconnect(Connection::Broken);
        self.settle(now);
    }

    /// Another agent has connected.
    pub fn agent_came(&mut self, now: Instant) {
        self.is_connected = true;
        self.confirmations.reconnect(Connection::Broken);
        self.settle(now);
    }

    /// No agent will come any more.
    pub fn agent_gone(&mut self, now: Instant) {
        self.is_connected = false;
        self.credit.lift();
        self.confirmations.end(End::AgentGone);
        self.machine.on_control_lost(now);
        self.settle(now);
    }

    /// A frame of another node's session has come.
    pub fn on_node(&mut self, from: NodeIndex, frame: proto::LinkFrame, now: Instant) {
        if let Some(links) = &mut self.links {
            links.on_frame(from, frame, now);
            self.settle(now);
        }
    }

    /// The link to another node broke, or could not be opened.
    pub fn link_broke(&mut self, node: NodeIndex, reason: &str, now: Instant) {
        if let Some(links) = &mut self.links {
            links.on_broken(node, reason, now);
            self.settle(now);
        }
    }

    /// Returns true once the session has left the launch's links.
    pub fn has_left(&self) -> bool {
        self.links.as_ref().is_none_or(Links::has_left)
    }

    fn connection(&self, rank: Rank) -> Option<ConnectionId> {
        let slot = self.machine.ranks().slot_of(rank)?;
        self.connections[self.machine.ranks().get(slot).local.index()]
    }

    /// Carries everything out that follows, until nothing does.
    fn settle(&mut self, now: Instant) {
        let mut batch = BytesMut::new();
        loop {
            self.take_actions(now);
            if let Some(reason) = self.reason.take() {
                self.machine.on_end_reason(JobNumber::LAUNCHED, reason, &[], now);
            }
            if self.take_effects(&mut batch, now)
                | self.take_news(&mut batch)
                | self.take_fences(now)
                | self.take_decisions(&mut batch, now)
                | self.proceed_to_end(&mut batch, now)
            {
                continue;
            }
            break;
        }
        if self.is_connected && !batch.is_empty() {
            self.effects.push_back(SessionEffect::ToAgent(batch.freeze()));
        }
        if self.waiting.is_over() && matches!(self.ending, Ending::Reported) {
            self.ending = Ending::Over;
            self.effects.push_back(SessionEffect::Exit);
        }
    }

    /// Carries out what the PMI server wants.
    fn take_actions(&mut self, now: Instant) {
        while let Some(action) = self.server.poll_action() {
            match action {
                Action::Send { connection, bytes } => {
                    if let Some(rank) = self.server.rank_of(connection) {
                        self.effects.push_back(SessionEffect::ToRank(rank, bytes));
                    }
                }
                Action::Close { connection } => {
                    if let Some(rank) = self.server.rank_of(connection) {
                        self.effects.push_back(SessionEffect::HangUp(rank));
                    }
                }
                Action::Fence { id, contribution } => {
                    let alone = match &mut self.links {
                        Some(links) => links.begin(id.clone(), contribution, now),
                        None => Some(contribution),
                    };
                    if let Some(alone) = alone {
                        self.server.handle_fence(&id, Ok(alone.segments.into()));
                    }
                }
                Action::End(reason) => self.reason = Some(reason),
                _ => {}
            }
        }
    }

    fn take_effects(&mut self, batch: &mut BytesMut, now: Instant) -> bool {
        let mut any = false;
        while let Some(effect) = self.machine.poll_effect() {
            any = true;
            match effect {
                Effect::PrepareJob { job, .. } => self.machine.on_job_prepared(job, Ok(()), now),
                Effect::StartRanks { job } => {
                    let new = self.machine.ranks().iter().filter(|(_, slot)| slot.job == job);
                    let starts: Vec<_> = new.map(|(_, slot)| SessionEffect::Start(slot.rank)).collect();
                    self.effects.extend(starts);
                }
                Effect::Signal { signal, slots } => {
                    let ranks = slots.iter().map(|&slot| self.machine.ranks().get(slot).rank);
                    let signals: Vec<_> = ranks.map(|rank| SessionEffect::Signal(rank, signal)).collect();
                    self.effects.extend(signals);
                }
                Effect::Report(event) => self.outbox.push_back(event),
                Effect::Alarm(cause) => {
                    self.waiting.take(Word::Alarm(cause), &self.credit, batch);
                }
                Effect::Look(look) => self.look(look, now),
                Effect::Sweep => self.effects.push_back(SessionEffect::Sweep),
                Effect::DrainOutputs => self.machine.on_drained(&SilentSeen::default(), now),
                // Ranks of the simulation read no input and ask for no jobs.
                Effect::FeedStdin | Effect::AnswerSpawn { .. } => {}
            }
        }
        any
    }

    /// Passes events on, as far as there is room.
    fn take_news(&mut self, batch: &mut BytesMut) -> bool {
        let mut news = self.confirmations.take();
        let mut any = news.connection.is_some() || news.resume.is_some() || news.end.is_some();
        if news.connection.take().is_some() {
            batch.clear();
            self.waiting.break_off();
        }
        self.waiting.learn(&news, &self.confirmations, batch);
        while self.waiting.expects_events()
            && self.waiting.has_room(&self.credit)
            && let Some(event) = self.outbox.pop_front()
        {
            let encoded = wire::event::encode(&event);
            self.waiting.take(Word::Event(event, encoded), &self.credit, batch);
            any = true;
        }
        self.waiting.let_go(&self.credit, &self.confirmations, batch);
        any
    }

    fn take_fences(&mut self, now: Instant) -> bool {
        let Some(links) = &mut self.links else { return false };
        let mut any = false;
        while let Some((id, result)) = links.poll_ended() {
            self.server.handle_fence(&id, result);
            any = true;
        }
        while let Some((from, failure)) = links.poll_heard() {
            self.policy.on_failure(from, failure, now.into());
            any = true;
        }
        self.effects.extend(links.take_frames().map(|(node, frame)| SessionEffect::ToNode(node, frame)));
        any
    }

    fn take_decisions(&mut self, batch: &mut BytesMut, now: Instant) -> bool {
        let Some(links) = &mut self.links else { return false };
        let mut any = false;
        if !self.waiting.has_told(&self.told) {
            self.told = self.waiting.told();
            self.policy.on_told(self.told.clone(), now.into());
            any = true;
        }
        while let Some(decision) = self.policy.poll_decision() {
            any = true;
            match decision {
                Decision::TellRoot(failure) => links.tell(0..1, &failure.cause, now),
                Decision::TellBelow(failure) => links.tell_below(&failure, now),
                Decision::Take(cause) => {
                    self.waiting.take(Word::Chosen(cause), &self.credit, batch);
                    self.machine.on_control(Control::GiveUp, now);
                }
            }
        }
        any
    }

    /// Moves on from the last rank's end to the report, as far as nobody has to be told of a failure.
    fn proceed_to_end(&mut self, batch: &mut BytesMut, now: Instant) -> bool {
        match mem::replace(&mut self.ending, Ending::Over) {
            Ending::NotYet if matches!(self.machine.phase(), Phase::Done { .. }) => {
                let until = now + timeouts::UNHEARD + timeouts::TELL;
                self.ending = Ending::Telling { report: self.machine.report(), until };
                true
            }
            Ending::Telling { report, until } if !self.is_settled(&report) && now < until => {
                self.ending = Ending::Telling { report, until };
                false
            }
            Ending::Telling { report, .. } => {
                if let Some(links) = &mut self.links {
                    links.leave();
                }
                self.ending = Ending::Draining { report };
                true
            }
            Ending::Draining { report } => {
                if self.outbox.is_empty() && self.waiting.expects_events() {
                    self.waiting.take(Word::End, &self.credit, batch);
                }
                if !self.waiting.expects_report() {
                    self.ending = Ending::Draining { report };
                    return false;
                }
                self.waiting.take(Word::Report(Some(report)), &self.credit, batch);
                self.ending = Ending::Reported;
                true
            }
            other => {
                self.ending = other;
                false
            }
        }
    }

    fn is_settled(&self, report: &Report) -> bool {
        let Some(links) = &self.links else { return true };
        let stage = if links.is_telling() { Stage::Open } else { self.policy.stage() };
        match report.cause.as_ref().is_some_and(concerns_others) {
            true => stage == Stage::Settled,
            false => stage != Stage::Open,
        }
    }

    fn look(&mut self, look: Look, now: Instant) {
        match look {
            Look::Silent(look) => {
                let silent = |state: RankState, dialogue| {
                    matches!(state, RankState::Running { .. }) && dialogue == Some(Dialogue::Silent)
                };
                let slots = self.machine.ranks().iter();
                let slots: Vec<SlotId> =
                    slots.filter(|(_, slot)| silent(slot.state, self.dialogue(slot.local))).map(|(id, _)| id).collect();
                let seen = SilentSeen { slots, ..SilentSeen::default() };
                self.machine.on_silent_seen(look, &seen, now);
            }
            Look::Fences(look) => {
                let fences = self.fences();
                self.machine.on_fences_seen(look, &fences, now);
            }
            Look::Progress { question } => {
                let progress = self.machine.ranks().iter().map(|(_, slot)| self.server.progress(slot.local)).collect();
                let fences = self.fences();
                self.machine.on_progress_seen(question, progress, &fences);
            }
        }
    }

    fn dialogue(&self, local: LocalRank) -> Option<Dialogue> {
        self.server.progress(local).map(|progress| progress.phase)
    }

    fn fences(&self) -> Vec<FenceSeen> {
        let seen = |fence: FenceStatus| {
            let missing = fence.missing.iter().filter_map(|&local| self.server.progress(local));
            let missing = missing.map(|progress| (progress.rank, progress.last_command)).collect();
            let FenceStatus { name, epoch, whole_job, waiting, .. } = fence;
            FenceSeen { job: JobNumber::LAUNCHED, name, epoch, whole_job, waiting, missing }
        };
        self.server.pending_fences().into_iter().map(seen).collect()
    }
}
