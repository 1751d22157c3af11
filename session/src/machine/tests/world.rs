//! A world around one machine: processes, pipes and servers under control of a test, and a virtual clock. It checks the invariants
//! after every step.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use pmi_core::deaths::Death;
use pmi_core::ids::{JobId, Rank};
use pmi_core::server::EndReason;
use pmi_core::services::{SpawnApp, SpawnError, SpawnRequest};
use pmi_core::{DialoguePoint, Phase as Dialogue};
use pmix_core::server::Need;
use rank_spawner::{RankExit, TerminalSize};

use super::super::desertion::FenceSeen;
use super::super::effect::{Effect, FenceLook, Look, StackLook};
use super::super::jobs::{JobNumber, SpawnTicket};
use super::super::ranks::{RankState, SlotId};
use super::super::reports::RankSeen;
use super::super::verdict::UnreportedEnd;
use super::super::watch::{SilentSeen, WatchLook};
use super::super::{Began, Phase, PrepareFailure, SessionMachine, StartFailure};
use crate::cause::{Cause, CauseKind, StartClass};
use crate::event::{Event, Notice};
use crate::gathered::GatherDetail;
use crate::session_io::{Control, RanksAnswer};
use crate::spec::SessionSpec;

pub(super) const KILLED: RankExit = RankExit::Signal { signal: 9, core_dumped: false };

/// Machine, virtual clock and runner. The world carries out the effects of the machine, and records them.
pub(super) struct World {
    pub(super) machine: SessionMachine,
    start: Instant,
    now: Instant,
    /// Slots with a requested start that has neither succeeded nor failed.
    pub(super) starting: Vec<SlotId>,
    /// Open outputs of each process, including ended processes.
    outputs: BTreeMap<SlotId, usize>,
    /// Signals that each process has received.
    pub(super) signals: BTreeMap<SlotId, Vec<Signal>>,
    pub(super) events: Vec<Event>,
    /// Answers to sessions, by ticket.
    pub(super) told: Vec<(u64, RanksAnswer)>,
    pub(super) alarms: Vec<Cause>,
    pub(super) answers: BTreeMap<u64, Result<JobId, SpawnError>>,
    pub(super) tickets: u64,
    pub(super) stdin_fed: usize,
    /// Number of removed jobs.
    pub(super) released: usize,
    sweeps: usize,
    /// Number of signals that had been sent before the session gave way.
    pub(super) gave_way_after: Option<usize>,
    /// Results of the next preparations of jobs; the default is success.
    pub(super) preparations: Vec<Preparation>,
    /// The fences that servers report.
    pub(super) fences: Vec<FenceSeen>,
    /// The silent ranks that servers report.
    pub(super) silent: SilentSeen,
    /// Processes that the sweep reports as still running.
    pub(super) survivors: Vec<u32>,
    /// Deaths that were announced to servers.
    pub(super) announced: Vec<(JobNumber, Vec<Death>)>,
    pub(super) terminal_size: Option<TerminalSize>,
    /// Answer to looks at call stacks.
    pub(super) stacks: StackAnswer,
    /// Call stack of every rank.
    pub(super) stack: Option<&'static str>,
    /// Looks at call stacks, with the inspected ranks.
    pub(super) looks: Vec<(StackLook, Vec<SlotId>)>,
    exits_told: BTreeSet<Rank>,
}

/// Time of the answer to a look at call stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StackAnswer {
    /// At once. Ranks with even numbers are in one function, the other ranks in another one.
    AtOnce,
    /// At the request of a test.
    Later,
}

/// Result of preparing the programs of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Preparation {
    Done,
    /// A program is missing.
    Failed,
}

impl World {
    /// A world with a prepared launched job. Its ranks are being started.
    pub(super) fn new(spec: Arc<SessionSpec>) -> Self {
        Self::prepared(spec, Preparation::Done)
    }

    pub(super) fn prepared(spec: Arc<SessionSpec>, preparation: Preparation) -> Self {
        let start = Instant::now();
        let mut world = Self {
            machine: SessionMachine::new(spec, Began { now: start, unix: Duration::ZERO }),
            start,
            now: start,
            starting: Vec::new(),
            outputs: BTreeMap::new(),
            signals: BTreeMap::new(),
            events: Vec::new(),
            told: Vec::new(),
            alarms: Vec::new(),
            answers: BTreeMap::new(),
            tickets: 0,
            stdin_fed: 0,
            released: 0,
            sweeps: 0,
            gave_way_after: None,
            preparations: vec![preparation],
            fences: Vec::new(),
            silent: SilentSeen::default(),
            survivors: Vec::new(),
            announced: Vec::new(),
            terminal_size: None,
            stacks: StackAnswer::AtOnce,
            stack: None,
            looks: Vec::new(),
            exits_told: BTreeSet::new(),
        };
        world.settle();
        world
    }

    /// A world in which all ranks run.
    pub(super) fn running(spec: Arc<SessionSpec>) -> Self {
        let mut world = Self::new(spec);
        world.start_all();
        world
    }

    pub(super) fn start_all(&mut self) {
        while let Some(&slot) = self.starting.first() {
            self.start(slot);
        }
    }

    pub(super) fn start(&mut self, slot: SlotId) {
        self.starting.retain(|&other| other != slot);
        self.outputs.insert(slot, 2);
        self.machine.on_started(slot, 1000 + slot.0 as u32, 2, self.now);
        self.settle();
    }

    /// Starts a rank with a PMI socket that cannot be watched.
    pub(super) fn start_unserved(&mut self, slot: SlotId) {
        self.start(slot);
        self.machine.on_not_served(slot, "no descriptor left".to_owned(), self.now);
        self.settle();
    }

    pub(super) fn fail_start(&mut self, slot: SlotId, failure: StartFailure) {
        self.starting.retain(|&other| other != slot);
        self.machine.on_not_started(slot, failure, self.now);
        self.settle();
    }

    pub(super) fn alive(&self) -> Vec<SlotId> {
        self.machine.ranks().alive().map(|(slot, _)| slot).collect()
    }

    /// Ends the process together with its pipes.
    pub(super) fn exit(&mut self, slot: SlotId, exit: RankExit) {
        self.exit_with(slot, exit, Vec::new());
        for _ in 0..2 {
            self.end_output(slot);
        }
    }

    pub(super) fn exit_with(&mut self, slot: SlotId, exit: RankExit, reasons: Vec<(JobNumber, EndReason)>) {
        self.exit_beside(slot, exit, reasons, &[]);
    }

    /// The same, before the machine has received the ends of `others`.
    pub(super) fn exit_beside(
        &mut self,
        slot: SlotId,
        exit: RankExit,
        reasons: Vec<(JobNumber, EndReason)>,
        others: &[UnreportedEnd],
    ) {
        let end = UnreportedEnd { slot, exit, reached: Some(DialoguePoint { phase: Dialogue::Finalized, fences: 1 }) };
        self.machine.on_exit(end, reasons, others, self.now);
        self.settle();
    }

    pub(super) fn end_output(&mut self, slot: SlotId) {
        if let Some(open) = self.outputs.get_mut(&slot).filter(|open| **open > 0) {
            *open -= 1;
            self.machine.on_output_end(slot);
            self.settle();
        }
    }

    pub(super) fn reason(&mut self, job: JobNumber, reason: EndReason) {
        self.machine.on_end_reason(job, reason, &[], self.now);
        self.settle();
    }

    /// A server reports that a rank has died, and that the other ranks continue.
    pub(super) fn died(&mut self, job: JobNumber, death: Death) {
        self.machine.on_died(job, death);
        self.settle();
    }

    pub(super) fn control(&mut self, control: Control) {
        self.machine.on_control(control, self.now);
        self.settle();
    }

    pub(super) fn tell(&mut self, ticket: u64, detail: GatherDetail) {
        self.machine.on_tell(ticket, detail, self.now);
        self.settle();
    }

    /// Sets how long servers of other nodes may ask this node's servers.
    pub(super) fn need(&mut self, need: Need) {
        self.machine.on_need(need, self.now);
        self.settle();
    }

    pub(super) fn lose_control(&mut self) {
        self.machine.on_control_lost(self.now);
        self.settle();
    }

    /// Requests a new job for a rank of `job`.
    pub(super) fn spawn(&mut self, job: JobNumber, ranks: u32) {
        self.tickets += 1;
        let request = SpawnRequest {
            apps: vec![SpawnApp { program: "child".into(), ranks, ..SpawnApp::default() }],
            ..SpawnRequest::default()
        };
        self.machine.on_spawn_request(SpawnTicket(self.tickets), job, Rank(0), &request);
        self.settle();
    }

    /// Runs `act`. The preparation of the first job that it adds has this result.
    pub(super) fn prepare_next(&mut self, preparation: Preparation, act: impl FnOnce(&mut Self)) {
        self.preparations.push(preparation);
        act(self);
        self.preparations.clear();
    }

    /// Advances the clock by `time`, with every wake-up on the way.
    pub(super) fn advance(&mut self, time: Duration) {
        let end = self.now + time;
        let mut wakes = 0;
        while let Some(at) = self.machine.next_wake().filter(|&at| at <= end) {
            wakes += 1;
            assert!(wakes < 100_000, "the machine does not rest");
            self.now = self.now.max(at);
            self.machine.on_time(self.now);
            self.settle();
        }
        self.now = end;
    }

    /// Time since the start.
    pub(super) fn age(&self) -> Duration {
        self.now - self.start
    }

    /// Runs the session to its end. Ranks end when they are killed; otherwise they end by themselves.
    pub(super) fn finish(&mut self) {
        self.control(Control::Release);
        for _ in 0..10_000 {
            if matches!(self.machine.phase(), Phase::Done { .. }) {
                return self.check_the_end();
            }
            self.start_all();
            for slot in self.alive() {
                let killed = self.signals.get(&slot).is_some_and(|sent| sent.contains(&Signal::SIGKILL));
                if killed {
                    self.exit(slot, KILLED);
                } else if !matches!(self.machine.phase(), Phase::Ending(_)) {
                    self.exit(slot, RankExit::Code(0));
                }
            }
            self.advance(Duration::from_millis(100));
        }
        panic!("the session never ends: {:?}", self.machine);
    }

    pub(super) fn is_done(&self) -> bool {
        matches!(self.machine.phase(), Phase::Done { .. })
    }

    pub(super) fn cause(&self) -> Option<CauseKind> {
        self.machine.report().cause.map(|cause| cause.kind)
    }

    pub(super) fn notices(&self) -> Vec<&Notice> {
        let notice = |event: &'_ Event| matches!(event, Event::Notice(_));
        let events = self.events.iter().filter(|event| notice(event));
        events.map(|event| if let Event::Notice(notice) = event { notice } else { unreachable!() }).collect()
    }

    /// Answers the last look at call stacks.
    pub(super) fn see_stacks(&mut self) {
        self.answer_look();
        self.settle();
    }

    fn answer_look(&mut self) {
        let (look, slots) = self.looks.last().cloned().unwrap();
        let text = |slot: SlotId| match &self.stack {
            Some(text) => text,
            None if self.machine.ranks().get(slot).rank.0.is_multiple_of(2) => "wait\n",
            None => "solve\n",
        };
        let seen = slots.into_iter().map(|slot| (slot, text(slot).to_owned())).collect();
        self.machine.on_stacks_seen(look, seen, self.now);
    }

    /// Carries out all effects, and checks the invariants.
    pub(super) fn settle(&mut self) {
        while let Some(effect) = self.machine.poll_effect() {
            self.carry_out(effect);
        }
        // Tolerated failures end nothing: there is no alarm before the report.
        let cause = self.machine.report().cause.filter(|cause| !matches!(cause.kind, CauseKind::FailedRanks { .. }));
        assert_eq!(cause.as_ref(), self.alarms.first(), "the first cause is the one that was told");
        assert!(self.alarms.len() <= 1 && self.stdin_fed <= 1 && self.sweeps <= 1);
        let running = self.machine.ranks().alive().count();
        assert_eq!(running, self.machine.ranks().running());
        if matches!(self.machine.phase(), Phase::Draining { .. } | Phase::Done { .. }) {
            assert_eq!((running, self.machine.next_wake()), (0, None), "nothing is left to wait for");
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::PrepareJob { job, .. } => {
                let next = if self.preparations.is_empty() { None } else { Some(self.preparations.remove(0)) };
                let failure = PrepareFailure { class: StartClass::NotFound, reason: "no such program".to_owned() };
                let prepared = if next == Some(Preparation::Failed) { Err(failure) } else { Ok(()) };
                self.machine.on_job_prepared(job, prepared, self.now);
            }
            Effect::StartRanks { job } => {
                let ranks = self.machine.ranks().iter();
                let new: Vec<SlotId> = ranks.filter(|(_, slot)| slot.job == job).map(|(slot, _)| slot).collect();
                assert!(new.iter().all(|slot| !self.starting.contains(slot) && !self.outputs.contains_key(slot)));
                self.starting.extend(new);
            }
            Effect::ReleaseJob { slots, .. } => {
                assert!(slots.iter().all(|slot| self.machine.ranks().find(*slot).is_none()));
                self.released += 1;
            }
            Effect::FeedStdin => self.stdin_fed += 1,
            Effect::Signal { signal, slots } => {
                for slot in slots {
                    let state = self.machine.ranks().get(slot).state;
                    assert!(matches!(state, RankState::Running { .. }), "{signal} for a rank that is {state:?}");
                    self.signals.entry(slot).or_default().push(signal);
                }
            }
            Effect::ResizeTerminal(size) => self.terminal_size = Some(size),
            Effect::AnnounceDeaths { job, deaths } => self.announced.push((job, deaths)),
            Effect::Report(event) => self.hear(event),
            Effect::Alarm(cause) => self.alarms.push(cause),
            Effect::AnswerSpawn { ticket, outcome } => {
                assert!(self.answers.insert(ticket.0, outcome).is_none(), "{ticket:?} was answered twice");
            }
            Effect::Tell { ticket, told } => self.told.push((ticket, told)),
            Effect::Look(look) => self.answer(look),
            Effect::LookAtStacks { look, slots, until } => {
                assert!(until > self.now);
                self.looks.push((look, slots));
                if self.stacks == StackAnswer::AtOnce {
                    self.answer_look();
                }
            }
            Effect::GiveWay => {
                assert_eq!(self.gave_way_after, None, "once is enough");
                self.gave_way_after = Some(self.signals.values().map(Vec::len).sum());
            }
            Effect::Sweep => {
                self.sweeps += 1;
                let survivors = std::mem::take(&mut self.survivors);
                self.machine.on_swept(survivors);
            }
            Effect::DrainOutputs => {
                for (slot, open) in std::mem::take(&mut self.outputs) {
                    (0..open).for_each(|_| self.machine.on_output_end(slot));
                }
                let silent = self.silent.clone();
                self.machine.on_drained(&silent, self.now);
            }
        }
    }

    fn hear(&mut self, event: Event) {
        match &event {
            Event::Exited { rank, .. } => assert!(self.exits_told.insert(*rank), "the exit of {rank} was told twice"),
            Event::Started { rank, .. } => assert!(!self.exits_told.contains(rank), "{rank} started after its exit"),
            Event::Ending(cause) => assert_eq!(self.alarms.as_slice(), std::slice::from_ref(cause)),
            _ => {}
        }
        self.events.push(event);
    }

    fn answer(&mut self, look: Look) {
        match look {
            Look::Silent(look) => {
                let silent = self.silent.clone();
                self.machine.on_silent_seen(look, &silent, self.now);
                assert_ne!(look, WatchLook::Stuck, "that is a look at fences");
            }
            Look::Fences(look @ (FenceLook::Waits | FenceLook::Stuck { .. })) => {
                let fences = self.fences.clone();
                self.machine.on_fences_seen(look, &fences, self.now);
            }
            Look::Progress { asker, detail } => {
                let seen = vec![RankSeen::default(); self.machine.ranks().iter().count()];
                let fences = self.fences.clone();
                self.machine.on_progress_seen(asker, detail, seen, &fences);
            }
        }
    }

    fn check_the_end(&self) {
        assert!(self.starting.is_empty());
        let mut reaped: HashSet<Rank> = self.machine.ranks().forgotten().iter().map(|(rank, _)| rank).collect();
        for (_, slot) in self.machine.ranks().iter() {
            match slot.state {
                RankState::Ended { .. } => assert!(reaped.insert(slot.rank)),
                state => assert_eq!(state, RankState::NeverStarted, "{}", slot.rank),
            }
        }
        let report = self.machine.report();
        let reported: HashSet<Rank> = report.exits.iter().map(|&(rank, _)| rank).collect();
        assert_eq!(reported, reaped, "the report has each rank that ran");
        assert_eq!(self.exits_told.iter().copied().collect::<HashSet<_>>(), reaped, "each exit was told once");
        assert_eq!(self.answers.len() as u64, self.tickets, "each spawn was answered");
    }
}
