//! The task of a launch: its state, its loop, and the few things that time brings about.

use std::sync::Arc;
use std::time::Duration;

use lattice_session::timeouts;
use parking_lot::Mutex;
use pmi_core::job::Placement;
use pmi_transport::proto::v1::stdin_target::Target;
use pmi_transport::proto::v1::{
    Cause, EndedBy, FenceTimeout, LaunchSpec, LaunchState, LaunchStatus, LaunchSummary, NodeEvent, StuckStart,
    attach_response, node_command, node_event,
};
use pmi_transport::proto::v1::{Nothing, cause::Kind};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tracing::Instrument;

use super::audience::Audience;
use super::course::Unwritten;
use super::fan_out::{FanOut, NotStarted};
use super::following::StartNews;
use super::input::{Flow, Input};
use super::inquiry::Inquiries;
use super::journal::Journal;
use super::judge::Judge;
use super::nodes::Link;
use super::over::words;
use super::silence::Silence;
use super::spawning::Spawns;
use super::tape::Tape;
use super::{Ask, INBOX, LaunchHandle, Outlet, Part};
use crate::fabric::Asked;
use crate::order::Order;
use crate::server::{Server, unix_now};
use crate::store::LaunchRecord;

/// How often the clock is looked at: for deadlines of a second and more.
const TICK: Duration = Duration::from_millis(100);

/// Everything about one launch.
pub(super) struct Launch {
    pub(super) server: Arc<Server>,
    pub(super) spec: LaunchSpec,
    pub(super) placement: Placement,
    pub(super) record: LaunchRecord,
    pub(super) summary: Arc<Mutex<LaunchSummary>>,
    pub(super) parts: Arc<Mutex<Vec<Part>>>,
    pub(super) nodes: Vec<Link>,
    pub(super) phase: Phase,
    /// Since when it is coming to its end.
    pub(super) ending: Option<Instant>,
    /// It was begun by a server that has ended.
    pub(super) resumed: bool,
    pub(super) begun: Instant,
    pub(super) judge: Judge,
    /// Since when a cause is held that may follow from another one.
    pub(super) held_since: Option<Instant>,
    pub(super) tape: Arc<Tape>,
    pub(super) journal: Journal,
    pub(super) input: Input,
    pub(super) inquiries: Inquiries<Purpose>,
    /// Since when a rank is suspected of having left others that wait for it.
    pub(super) suspicion: Option<Instant>,
    /// When nodes were asked last for exits that they could not tell of.
    pub(super) asked_for_exits: Instant,
    pub(super) silence: Silence,
    /// Whether the client was told of a start that is stuck.
    pub(super) stuck_told: bool,
    /// Nodes without ranks were told that they are not needed.
    pub(super) released: bool,
    pub(super) spawns: Spawns,
    pub(super) unwritten: Unwritten,
    pub(super) audience: Audience,
    pub(super) start_news: StartNews,
    /// Somebody else than its owner wants it to end: it does so whether the owner reads on or not.
    pub(super) overruled: bool,
    inbox: mpsc::Receiver<Ask>,
}

/// Where a launch is.
#[derive(Debug)]
pub(super) enum Phase {
    /// Nodes are being asked; who ordered it waits.
    Starting(oneshot::Sender<Result<(), NotStarted>>),
    /// Every node has accepted; or the server was started anew, and nodes are expected back until then.
    Active { nodes_by: Instant },
    /// Nothing more happens; until then a client may still fetch what did.
    Over { until: Instant },
}

/// What nodes were asked for about their progress.
#[derive(Debug)]
pub(super) enum Purpose {
    /// Somebody wants to know.
    Status(oneshot::Sender<LaunchStatus>),
    /// The start is stuck, as a node says.
    Stuck(StuckStart),
    /// A fence was not complete in time, says a node, which is ending its ranks; all others wait to be told why.
    FenceTimeout { node: u32, host: String, timeout: FenceTimeout },
    /// A rank that finalized may be waited for.
    Desertion,
    /// A rank that others wait for may have ended behind output that its node has no credit for.
    Exits,
}

/// A rank that left is certainly missed if others still wait for it after this time: the last fence with it is complete by then.
const SUSPICION: Duration = Duration::from_secs(1);

/// Starts a launch whose record is durable. The receiver hears whether all nodes have accepted it.
pub(crate) fn start(
    server: &Arc<Server>,
    order: Order,
    record: LaunchRecord,
    mut fan_out: FanOut,
    credentials: Option<Asked>,
) -> (LaunchHandle, oneshot::Receiver<Result<(), NotStarted>>) {
    let (reply, accepted) = oneshot::channel();
    let (sender, inbox) = mpsc::channel(INBOX);
    let launch = Launch::new(server, order, record, Phase::Starting(reply), 1, inbox);
    let handle = launch.handle(sender.clone());
    let span = tracing::info_span!("launch", id = launch.spec.launch_id);
    let asking = {
        let server = Arc::clone(server);
        let limit = launch.spec.patience.as_ref().and_then(|patience| patience.timeout_ms);
        let limit = limit.map_or(Duration::MAX, Duration::from_millis);
        async move {
            let equipped = match credentials {
                Some(asked) => {
                    fan_out.make_way(&server.channels, &server.config.launches);
                    asked.equip(&server, &mut fan_out, limit).await.map_err(NotStarted::from)
                }
                None => Ok(()),
            };
            let timer = server.metrics.time_fan_out();
            let result = match equipped {
                Ok(()) => fan_out.run(&server.channels, &server.config.launches).await.map_err(NotStarted::from),
                Err(error) => Err(error),
            };
            timer.stop();
            // The launch outlives this.
            let _ = sender.send(Ask::FannedOut(result)).await;
        }
    };
    tokio::spawn(asking.instrument(span.clone()));
    tokio::spawn(launch.run().instrument(span));
    (handle, accepted)
}

/// Takes up a launch that ran when the server ended. Its nodes are expected to report again.
pub(crate) fn resume(server: &Arc<Server>, order: Order, record: LaunchRecord) -> LaunchHandle {
    let (sender, inbox) = mpsc::channel(INBOX);
    // Numbers must go on counting up, and what they had come to is not known.
    let now = unix_now();
    let (started, stopped) =
        record.summary.as_ref().map_or((now, 0), |summary| (summary.started_at, summary.client_stopped_at));
    let age = Duration::from_secs(now.saturating_sub(started));
    let course = record.course.clone().unwrap_or_default();
    let phase = Phase::Active { nodes_by: Instant::now() + timeouts::REPORT_AFTER_RESTART };
    let mut launch = Launch { resumed: true, ..Launch::new(server, order, record, phase, now << 20, inbox) };
    launch.begun = launch.begun.checked_sub(age).unwrap_or(launch.begun);
    if stopped > 0 {
        launch.audience.resume_away(stopped);
    }
    launch.resume_course(&course);
    let handle = launch.handle(sender);
    let span = tracing::info_span!("launch", id = launch.spec.launch_id);
    tokio::spawn(launch.run().instrument(span));
    handle
}

impl Launch {
    fn new(
        server: &Arc<Server>,
        order: Order,
        record: LaunchRecord,
        phase: Phase,
        first_event: u64,
        inbox: mpsc::Receiver<Ask>,
    ) -> Self {
        let Order { launch, spec, nodes, detached } = order;
        let placement = launch.job.placement;
        let hosts: Vec<String> = nodes.iter().map(|node| node.name.clone()).collect();
        let now = Instant::now();
        let spool = if detached { server.spools.open() } else { None };
        // What a launch tells waits for its owner, or for its spool.
        let waits = !detached || spool.is_some();
        let tape = Tape::new(first_event, waits, spool.clone());
        Self {
            server: Arc::clone(server),
            summary: Arc::new(Mutex::new(record.summary.clone().unwrap_or_default())),
            record,
            parts: Arc::new(Mutex::new(vec![Part::Expected; nodes.len()])),
            phase,
            ending: None,
            resumed: false,
            begun: now,
            judge: Judge::new(&hosts, &placement),
            held_since: None,
            journal: Journal::new(nodes.len(), u64::from(spec.output_window), waits, Arc::clone(&tape)),
            input: Input::new(&readers(&spec, &placement), u64::from(spec.stdin_window)),
            nodes: nodes.into_iter().map(|recipient| Link::new(recipient, now)).collect(),
            inquiries: Inquiries::default(),
            suspicion: None,
            asked_for_exits: now,
            silence: Silence::default(),
            stuck_told: false,
            released: false,
            spawns: Spawns::default(),
            unwritten: Unwritten::default(),
            audience: Audience::new(detached, first_event, Arc::clone(&tape), spool, now),
            tape,
            start_news: StartNews::new(now),
            overruled: false,
            spec,
            placement,
            inbox,
        }
    }

    fn handle(&self, inbox: mpsc::Sender<Ask>) -> LaunchHandle {
        let outlet = |link: &Link| Outlet { name: link.recipient.name.clone(), outbox: link.outbox.clone() };
        LaunchHandle {
            inbox,
            nodes: self.nodes.iter().map(outlet).collect(),
            summary: Arc::clone(&self.summary),
            parts: Arc::clone(&self.parts),
            resumed: self.resumed,
            begun: self.begun,
        }
    }

    async fn run(mut self) {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !self.is_forgotten() {
            let hold_ends = self.hold_ends();
            tokio::select! {
                ask = self.inbox.recv() => match ask {
                    Some(ask) => self.on_ask(ask).await,
                    None => break,
                },
                change = self.audience.changed() => self.on_audience(change),
                () = sleep_until(hold_ends.unwrap_or_else(Instant::now)), if hold_ends.is_some() => self.settle_cause(),
                now = tick.tick() => {
                    self.on_tick();
                    self.write_in_time(now).await;
                }
            }
            self.close_inquiries();
            if self.judge.is_over() && !matches!(self.phase, Phase::Over { .. } | Phase::Starting(_)) {
                self.finish().await;
            }
        }
        self.server.forget(&self.spec.launch_id);
    }

    async fn on_ask(&mut self, ask: Ask) {
        match ask {
            Ask::FannedOut(result) => self.on_fanned_out(result).await,
            Ask::Opened { node, stream } => self.on_opened(node, stream),
            Ask::Event { node, event } => self.on_event(node, event),
            Ask::Closed { node, stream } => self.on_closed(node, stream),
            Ask::NodeLost { node, reason } => {
                if let Some(index) = self.nodes.iter().position(|link| link.recipient.name == node) {
                    self.lose(index as u32, &reason);
                }
            }
            Ask::Attach { after, owns, client, reply } => self.on_attach(after, owns, client, reply),
            Ask::Said { client, what } => self.on_said(client, what),
            Ask::Goodbye { client } => self.audience.on_goodbye(client),
            Ask::Signal(command) => self.tell_all(&command),
            Ask::Abort { who, reason } => self.abort(who, reason),
            Ask::Status(reply) => self.inquire(Purpose::Status(reply)),
            Ask::Spawn { node, call, reply } => self.on_spawn(node, call, reply).await,
            Ask::Forget => self.phase = Phase::Over { until: Instant::now() },
        }
    }

    async fn on_fanned_out(&mut self, result: Result<(), NotStarted>) {
        let now = Instant::now();
        let phase = std::mem::replace(&mut self.phase, Phase::Active { nodes_by: now + timeouts::FIRST_REPORT });
        match (result, phase) {
            (Ok(()), Phase::Starting(reply)) => {
                self.note_state();
                self.audience.expect_owner(now);
                // Who ordered it may have gone.
                let _ = reply.send(Ok(()));
                self.spawn_early().await;
            }
            (Err(error), Phase::Starting(reply)) => {
                tracing::info!(%error, "the launch is rolled back");
                self.refuse(&error).await;
                let _ = reply.send(Err(error));
            }
            (_, other) => self.phase = other,
        }
    }

    fn on_tick(&mut self) {
        let now = Instant::now();
        self.check_streams(now);
        self.check_stragglers(now);
        self.check_spawns(now);
        self.check_audience(now);
        self.tell_of_silence(now, false);
        self.ask_for_exits(now);
        if self.suspicion.is_some_and(|since| now.duration_since(since) >= SUSPICION)
            && !self.inquiries.any(|purpose| matches!(purpose, Purpose::Desertion))
        {
            self.inquire(Purpose::Desertion);
        }
    }

    /// Something ends the launch that was seen here. All nodes are told to give up.
    pub(super) fn fail(&mut self, cause: Cause) {
        if self.judge.fail(cause) {
            self.announce(None);
        }
    }

    /// Tells everybody of the cause, but the node that ends its part for it by itself.
    pub(super) fn announce(&mut self, by: Option<u32>) {
        let Some(cause) = self.judge.cause().cloned() else { return };
        tracing::info!(cause = words(&cause), "the launch is ending");
        self.note_ending(cause);
        let give_up = node_command::What::GiveUp(Nothing {});
        for node in self.judge.live().filter(|&node| Some(node) != by) {
            self.nodes[node as usize].outbox.push(give_up.clone());
        }
    }

    /// The client ends the launch in order, or its absence does.
    pub(super) fn end_by(&mut self, signal: i32, reason: &str) {
        tracing::info!(signal, reason, "the launch is to end");
        self.interrupted(signal);
        self.tell_all(&node_command::What::End(signal));
    }

    /// The client ends the launch with a signal.
    pub(super) fn interrupted(&mut self, signal: i32) {
        self.ended(Kind::InterruptedBy(signal));
    }

    /// Somebody else ends the launch, in order.
    fn abort(&mut self, who: String, reason: String) {
        self.overruled = true;
        tracing::info!(who, reason, "the launch is to end");
        self.ended(Kind::Ended(EndedBy { who, reason }));
        self.tell_all(&node_command::What::End(nix::libc::SIGTERM));
    }

    /// Nodes end their ranks by themselves when they are told to end, so none is told to give up.
    fn ended(&mut self, kind: Kind) {
        self.settle_cause();
        let cause = Cause { host: String::new(), kind: Some(kind) };
        if !matches!(self.phase, Phase::Over { .. }) && self.judge.fail(cause.clone()) {
            self.note_ending(cause);
        }
    }

    fn note_ending(&mut self, cause: Cause) {
        self.ending = Some(Instant::now());
        self.unwritten.note();
        self.note_state();
        let ending = NodeEvent { what: Some(node_event::What::Ending(cause)) };
        self.journal.push_own(attach_response::What::Event(ending));
    }

    /// Gives a command to every node from which more is to be expected.
    pub(super) fn tell_all(&self, command: &node_command::What) {
        for node in self.judge.live() {
            self.nodes[node as usize].outbox.push(command.clone());
        }
    }

    /// Carries out what follows from a change of the input.
    pub(super) fn pass_on(&mut self, flow: Flow) {
        for node in self.input.readers() {
            let outbox = &self.nodes[node as usize].outbox;
            flow.pieces.iter().for_each(|piece| outbox.push(node_command::What::Stdin(piece.clone())));
            if flow.end {
                outbox.push(node_command::What::StdinEnd(Nothing {}));
            }
        }
        if let Some(owner) = self.audience.owner()
            && flow.credit > 0
        {
            self.tape.tell(owner, |aside| aside.input_credit += flow.credit);
        }
    }

    /// Grants nodes room for output.
    pub(super) fn grant(&self, grants: impl IntoIterator<Item = (u32, u64)>) {
        for (node, bytes) in grants {
            self.nodes[node as usize].outbox.push(node_command::What::OutputCredit(bytes));
        }
    }

    /// Brings the summary up to date.
    pub(super) fn note_state(&self) {
        let state = match self.phase {
            Phase::Over { .. } => return,
            _ if self.ending.is_some() => LaunchState::Ending,
            Phase::Starting(_) => LaunchState::Starting,
            Phase::Active { .. } => LaunchState::Active,
        };
        let mut summary = self.summary.lock();
        summary.state = state.into();
        summary.ranks = self.judge.size();
        summary.cause = self.judge.cause().map(words).unwrap_or_default();
    }
}

/// The nodes whose ranks read the launch's input.
fn readers(spec: &LaunchSpec, placement: &Placement) -> Vec<u32> {
    match spec.stdin.as_ref().and_then(|stdin| stdin.target.as_ref()) {
        Some(Target::Rank(rank)) => {
            placement.node_of(pmi_core::ids::Rank(*rank)).map(|node| node.0).into_iter().collect()
        }
        Some(Target::All(_)) => {
            let mut nodes: Vec<u32> = Vec::new();
            for block in placement.blocks() {
                nodes.extend(block.first_node.0..block.first_node.0 + block.nodes);
            }
            nodes.sort_unstable();
            nodes.dedup();
            nodes
        }
        Some(Target::File(_)) | None => Vec::new(),
    }
}
