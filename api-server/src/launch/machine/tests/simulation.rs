//! A launch in virtual time: a machine, the time, and the results of its effects. After each input, the simulation checks the invariants of the
//! effects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use lattice_session::cause::{Cause, CauseKind, RankExit};
use lattice_session::event::{Event, Notice, Output, RankProgress, Stream};
use lattice_session::settings::{FailedRanks, LostNodes};
use lattice_session::wire::event::{NodeHappening, happening_cost};
use pmi_core::ids::{JobId, NodeIndex, Rank};
use pmi_core::job::Placement;
use pmi_core::services::{SpawnApp, SpawnError, SpawnRequest};
use pmi_core::{DialoguePoint, Phase as RankPhase};
use tokio::time::Instant;

use super::super::attachments::{Joined, Role, TooManyViewers};
use super::super::checkpoint::{Progressed, Snapshot};
use super::super::effect::Effect;
use super::super::event::{
    ClientRequest, Completion, LogEvent, NodeCommand, NodeEvent, Overview, Programs, SpawnAsked, SpawnWish,
    StartProgress, Status, StatusDetail,
};
use super::super::facts::{Facts, Origin, Ownership, Settler};
use super::super::state::NodePhase;
use super::super::{Delivery, Machine, Resumed, Stored};
use crate::launch::Part;
use crate::launch::outbox::Attempt;
use crate::launch::summary::Course;

/// Bytes of output that a node may send before it is granted more.
pub(super) const WINDOW: u64 = 10_000;
/// Grace period of ranks.
pub(super) const GRACE: Duration = Duration::from_secs(5);
/// Interval of the machine's ticks.
pub(super) const TICK: Duration = Duration::from_millis(100);

/// The state of a dialogue in this phase, before the first fence is complete.
pub(super) fn reached(phase: RankPhase) -> Option<DialoguePoint> {
    Some(DialoguePoint { phase, fences: 0 })
}

/// A launch of `ranks_per_node` ranks on each of `nodes` nodes. Its owner settles events.
pub(super) fn facts(nodes: u32, ranks_per_node: u32) -> Facts {
    Facts {
        id: "l".into(),
        allocation_id: "a".to_owned(),
        job: JobId::new("kvs_l_0").unwrap(),
        nodes: (0..nodes).map(|node| format!("n{node}")).collect(),
        placement: Placement::block(&vec![ranks_per_node; nodes as usize]),
        output_window: WINDOW,
        input_window: 100,
        input_readers: vec![NodeIndex(0)],
        grace: GRACE,
        failed_ranks: FailedRanks::EndLaunch,
        lost_nodes: LostNodes::EndLaunch,
        after_first_exit: None,
        time_limit: None,
        directory: "/".into(),
        universe_size: None,
        ownership: Ownership::Owned,
        settler: Settler::Owner,
        origin: Origin::Here,
        gather_above: 64,
    }
}

/// The results of a machine's effects.
pub(super) struct Simulation {
    pub machine: Machine,
    pub start: Instant,
    pub now: Instant,
    pub ranks_per_node: u32,
    /// The commands that each node was sent.
    pub commands: Vec<Vec<NodeCommand>>,
    pub closed: BTreeSet<u32>,
    pub aborted: Vec<(u32, i32)>,
    pub unclean: BTreeSet<u32>,
    pub lost: BTreeSet<u32>,
    pub parts: Vec<Part>,
    /// All events, by number.
    pub log: Vec<(u64, LogEvent)>,
    pub settled: u64,
    pub snapshot: Option<Snapshot>,
    /// True while an attempt to store is in progress.
    pub storing: bool,
    /// The last state that became durable.
    pub durable: Progressed,
    pub spawn_answers: BTreeMap<u64, Result<JobId, SpawnError>>,
    pub status_answers: BTreeMap<u64, Arc<Status>>,
    pub started: Vec<bool>,
    /// The published overviews of the launch.
    pub overviews: Vec<Overview>,
    /// The reports on the start to clients.
    pub start_reports: Vec<StartProgress>,
    pub concluded: Option<bool>,
    /// Its course, once it is over.
    pub course: Option<Course>,
    pub dismissed: Vec<u64>,
    /// Bytes that each node may send, according to its grants.
    pub credit: Vec<u64>,
    /// The number of each node's last event.
    sent: Vec<u64>,
    /// The number up to which the events of each node were acknowledged.
    pub acknowledged: Vec<u64>,
    /// Nodes that were sent the number of their last received event.
    resumed: Vec<(u32, Option<u64>)>,
    tickets: u64,
}

impl Simulation {
    pub(super) fn new(facts: Facts, ranks_per_node: u32) -> Self {
        let now = Instant::now();
        let nodes = facts.nodes.len();
        Self::with(Machine::new(facts, 1, now), nodes, ranks_per_node, now)
    }

    /// A launch that all nodes have accepted. All nodes report.
    pub(super) fn running(nodes: u32, ranks_per_node: u32) -> Self {
        Self::running_with(facts(nodes, ranks_per_node), ranks_per_node)
    }

    /// The same with other facts.
    pub(super) fn running_with(facts: Facts, ranks_per_node: u32) -> Self {
        let nodes = facts.nodes.len() as u32;
        let mut simulation = Self::new(facts, ranks_per_node);
        simulation.input(|machine, now| machine.on_fan_out(Ok(()), now));
        (0..nodes).for_each(|node| simulation.open(node, 1));
        simulation
    }

    /// The launch after another server has resumed it from the durable state.
    pub(super) fn resumed(&self) -> Self {
        let nodes = self.commands.len() as u32;
        let facts = Facts { origin: Origin::Resumed, ..facts(nodes, self.ranks_per_node) };
        let resumed = Resumed { progressed: self.durable.clone(), client_stopped_at: 0, begun: self.start };
        let machine = Machine::resume(facts, 1 << 20, resumed, self.now);
        let mut simulation = Self::with(machine, nodes as usize, self.ranks_per_node, self.now);
        simulation.durable = self.durable.clone();
        simulation.take();
        simulation
    }

    fn with(machine: Machine, nodes: usize, ranks_per_node: u32, now: Instant) -> Self {
        Self {
            machine,
            start: now,
            now,
            ranks_per_node,
            commands: vec![Vec::new(); nodes],
            closed: BTreeSet::new(),
            aborted: Vec::new(),
            unclean: BTreeSet::new(),
            lost: BTreeSet::new(),
            parts: vec![Part::Expected; nodes],
            log: Vec::new(),
            settled: 0,
            snapshot: None,
            storing: false,
            durable: Progressed::default(),
            spawn_answers: BTreeMap::new(),
            status_answers: BTreeMap::new(),
            started: Vec::new(),
            overviews: Vec::new(),
            start_reports: Vec::new(),
            concluded: None,
            course: None,
            dismissed: Vec::new(),
            credit: vec![WINDOW; nodes],
            sent: vec![0; nodes],
            acknowledged: vec![0; nodes],
            resumed: Vec::new(),
            tickets: 0,
        }
    }

    /// Passes an input to the machine, and applies the effects.
    pub(super) fn input<R>(&mut self, input: impl FnOnce(&mut Machine, Instant) -> R) -> R {
        let result = input(&mut self.machine, self.now);
        self.take();
        result
    }

    fn take(&mut self) {
        loop {
            for effect in self.machine.take_effects() {
                self.take_one(effect);
            }
            if !self.machine.is_complete() {
                return;
            }
            let unclean: Vec<String> = self.unclean.iter().map(|node| format!("n{node}")).collect();
            self.machine.on_complete(&unclean, self.now);
        }
    }

    fn take_one(&mut self, effect: Effect) {
        match effect {
            Effect::Command { node, command } => {
                if let NodeCommand::OutputCredit(bytes) = &command {
                    self.credit[node.index()] += bytes;
                    assert!(self.credit[node.index()] <= WINDOW, "a node was granted more than its window");
                }
                self.commands[node.index()].push(command);
            }
            Effect::Resume { node, after, .. } => self.resumed.push((node.0, after)),
            Effect::Acknowledge { node, through } => {
                assert!(through <= self.sent[node.index()], "never sent");
                self.acknowledged[node.index()] = through;
            }
            Effect::CloseStream { node } => drop(self.closed.insert(node.0)),
            Effect::AbortNode { node, signal, .. } => self.aborted.push((node.0, signal)),
            Effect::MarkUnclean { node } => drop(self.unclean.insert(node.0)),
            Effect::PublishPart { node, part } => self.parts[node.index()] = part,
            Effect::Append { sequence, event, .. } => {
                let expected = self.log.last().map_or(sequence, |(last, _)| last + 1);
                assert_eq!(sequence, expected, "events are numbered without a gap");
                assert!(self.completion().is_none(), "{event:?} after the end");
                self.log.push((sequence, event));
            }
            Effect::Settle { sequence } => {
                assert!(self.log.last().map_or(sequence, |(last, _)| *last) >= sequence, "what has not happened yet");
                self.settled = self.settled.max(sequence);
            }
            Effect::Store(snapshot) => {
                assert!(!self.storing, "one attempt at a time");
                (self.snapshot, self.storing) = (Some(snapshot), true);
            }
            Effect::AnswerStart(result) => self.started.push(result.is_ok()),
            Effect::AnswerStatus { ticket, status } => {
                assert!(self.status_answers.insert(ticket, status).is_none(), "answered twice");
            }
            Effect::AnswerSpawn { ticket, answer } => {
                assert!(self.spawn_answers.insert(ticket, answer).is_none(), "answered twice");
            }
            Effect::Conclude(completion) => {
                assert_eq!(self.concluded.replace(completion.cause.is_none()), None, "concluded twice");
            }
            Effect::CountLostNode { node, .. } => assert!(self.lost.insert(node.0), "lost twice"),
            Effect::Dismiss { client, .. } => self.dismissed.push(client),
            Effect::Publish(overview) => self.overviews.push(overview),
            Effect::ReportStart(progress) => self.start_reports.push(progress),
            Effect::Finish { course, .. } => self.course = Some(course),
            Effect::StopKeeping | Effect::GrantInput { .. } | Effect::Forget { .. } => {}
        }
    }

    /// The completion, if it was appended.
    pub(super) fn completion(&self) -> Option<&Completion> {
        match self.log.last() {
            Some((_, LogEvent::Complete(completion))) => Some(completion),
            _ => None,
        }
    }

    /// The causes that clients received.
    pub(super) fn endings(&self) -> Vec<Cause> {
        let cause = |(_, event): &(u64, LogEvent)| match event {
            LogEvent::Node(NodeEvent::Happened(NodeHappening::Event(Event::Ending(cause)), _)) => Some(cause.clone()),
            _ => None,
        };
        self.log.iter().filter_map(cause).collect()
    }

    /// The jobs of which a node was ordered to start a part.
    pub(super) fn spawned(&self, node: usize) -> Vec<JobId> {
        let job = |command: &NodeCommand| match command {
            NodeCommand::Spawn(order) => Some(order.job.id.clone()),
            _ => None,
        };
        self.commands[node].iter().filter_map(job).collect()
    }

    /// The notices that clients received.
    pub(super) fn notices(&self) -> Vec<Notice> {
        let notice = |(_, event): &(u64, LogEvent)| match event {
            LogEvent::Node(NodeEvent::Happened(NodeHappening::Event(Event::Notice(notice)), _)) => Some(notice.clone()),
            _ => None,
        };
        self.log.iter().filter_map(notice).collect()
    }

    /// A node answers the last query that it was sent.
    pub(super) fn answer(&mut self, node: u32, ranks: Vec<RankProgress>) {
        let question = self.commands[node as usize].iter().rev().find_map(|command| match command {
            NodeCommand::AskProgress(question) | NodeCommand::AskUsage(question) => Some(*question),
            _ => None,
        });
        self.event(node, Event::Progress { question: question.expect("it was asked"), ranks, stacks: None });
    }

    /// Returns true if a node was sent such a command.
    pub(super) fn was_told(&self, node: u32, is: impl Fn(&NodeCommand) -> bool) -> bool {
        self.commands[node as usize].iter().any(is)
    }

    pub(super) fn open(&mut self, node: u32, stream: u64) {
        let again = self.machine.nodes.state.phase(NodeIndex(node)) == NodePhase::Reporting
            || self.machine.facts.origin == Origin::Resumed;
        let attempt = if again { Attempt::Again } else { Attempt::First };
        self.input(|machine, now| machine.on_stream_opened(NodeIndex(node), stream, attempt, now));
        for (node, after) in std::mem::take(&mut self.resumed) {
            if after.is_none() {
                // Grants of the previous server may have been lost, and are repeated.
                self.credit[node as usize] = 0;
            }
            let sent = self.sent[node as usize];
            assert_eq!(after.unwrap_or(sent), sent, "every event has come");
            self.input(|machine, now| machine.on_resumed(NodeIndex(node), sent, now));
        }
    }

    pub(super) fn event(&mut self, node: u32, event: Event) {
        self.happened(node, NodeEvent::of_session(event));
    }

    /// A node's event arrives twice, as over a new stream after a broken one.
    pub(super) fn happened(&mut self, node: u32, event: NodeEvent) {
        self.sent[node as usize] += 1;
        let sequence = self.sent[node as usize];
        for _ in 0..2 {
            self.input(|machine, now| machine.on_numbered(NodeIndex(node), sequence, Some(event.clone()), now));
        }
    }

    pub(super) fn exit(&mut self, rank: u32, phase: Option<RankPhase>) {
        let event = Event::Exited {
            rank: Rank(rank),
            exit: RankExit::Code(0),
            reached: phase.and_then(reached),
            ran: Duration::ZERO,
        };
        self.event(rank / self.ranks_per_node, event);
    }

    /// A node's rank writes output, if the node has enough credit.
    pub(super) fn output(&mut self, rank: u32, bytes: usize) {
        let output = Output { rank: Rank(rank), stream: Stream::Stdout, bytes: vec![b'x'; bytes].into() };
        let cost = happening_cost(&NodeHappening::Event(Event::Output(output.clone()))) as u64;
        let node = rank / self.ranks_per_node;
        if self.machine.nodes.state.phase(NodeIndex(node)).is_live() && self.credit[node as usize] >= cost {
            self.credit[node as usize] -= cost;
            self.event(node, Event::Output(output));
        }
    }

    pub(super) fn cause(&mut self, node: u32, kind: CauseKind) {
        self.event(node, Event::Ending(Cause { host: format!("n{node}"), kind }));
    }

    pub(super) fn report(&mut self, node: u32) {
        let report = NodeHappening::Report { exits: Vec::new(), duration: Duration::ZERO, usage: None };
        self.happened(node, NodeEvent::Happened(report, Programs::new()));
    }

    pub(super) fn attach(&mut self, role: Role) -> Result<Joined, TooManyViewers> {
        self.input(|machine, _| machine.on_attach(0, role))
    }

    pub(super) fn request(&mut self, client: u64, request: ClientRequest) {
        self.input(|machine, now| machine.on_client_request(client, request, now));
    }

    pub(super) fn abort(&mut self) {
        self.input(|machine, now| machine.on_abort("user 7".to_owned(), String::new(), now));
    }

    /// A rank of `node` requests a job of `ranks` ranks. Returns the number of the query.
    pub(super) fn spawn(&mut self, node: u32, ranks: u32) -> u64 {
        self.tickets += 1;
        let ticket = self.tickets;
        let parent = JobId::new("kvs_l_0").unwrap();
        let app = SpawnApp { program: "./child".into(), ranks, ..Default::default() };
        let request = SpawnRequest { apps: vec![app], preput: Vec::new(), parent: None };
        let rank = Rank(node * self.ranks_per_node);
        let cores = vec![4; self.commands.len()].into();
        self.input(|machine, now| {
            machine.on_spawn(
                SpawnWish {
                    asked: SpawnAsked { node: NodeIndex(node), call: 0 },
                    ticket,
                    parent,
                    rank,
                    request,
                    cores,
                },
                now,
            );
        });
        ticket
    }

    /// A caller requests the status. Returns the number of the query.
    pub(super) fn status(&mut self) -> u64 {
        self.tickets += 1;
        let ticket = self.tickets;
        self.input(|machine, now| machine.on_status(ticket, StatusDetail::Progress, now));
        ticket
    }

    /// The attempt to store that is in progress ends.
    pub(super) fn stored(&mut self, stored: Stored) {
        if !std::mem::replace(&mut self.storing, false) {
            return;
        }
        if let (Stored::Durable, Some(Snapshot::Running(progressed))) = (stored, self.snapshot.take()) {
            self.durable = *progressed;
        }
        self.input(|machine, now| machine.on_stored(stored, now));
    }

    /// Time passes in ticks. Each write succeeds at once.
    pub(super) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now = end.min(self.now + TICK);
            self.input(Machine::on_tick);
            self.stored(Stored::Durable);
        }
    }

    pub(super) fn is_forgotten(&self) -> bool {
        self.machine.is_forgotten(Delivery::Complete, self.now)
    }
}

/// Progress of a running rank, which may wait in a fence.
pub(super) fn progress(rank: u32, waiting: bool) -> RankProgress {
    RankProgress {
        pid: Some(100 + rank),
        phase: Some(RankPhase::Open),
        last_command: Some("put".to_owned()),
        waiting,
        waits_for_all: waiting,
        ..RankProgress::unknown(Rank(rank))
    }
}
