//! An API server of one launch in virtual time, for the simulation of whole clusters: the launch's machine, its event log, the outboxes of
//! its nodes, the registry of nodes and what is unclean, as they are. What services and runners do with streams and tasks, this does in one thread:
//! inputs go in with the time, [`ApiEffect`]s come out, to be carried out by the simulation.

mod effects;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use lattice_session::cause::{Cause, RankExit};
use lattice_session::spec::SessionSpec;
use pmi_core::ids::{JobId, Rank};
use pmi_core::services::{SpawnError, SpawnRequest};
use pmi_transport::proto::v1::{self as proto, RefusalReason};
use prost::Message;
use proto::launch_report::What;

use crate::launch::attachments::{Joined, Role};
use crate::launch::checkpoint::Stored;
use crate::launch::event::{ClientRequest, SpawnAsked, SpawnWish};
use crate::launch::facts::{Facts, Origin, Ownership, Settler};
use crate::launch::fan_out::Refusal;
use crate::launch::input_credit::InputWay;
use crate::launch::outbox::{Attempt, Outbox};
use crate::launch::{AllKept, EventLog, Machine, Part, Resumed, Retention, Start, input_readers};
use crate::nodes::{Arrival, Judgement, NodeFacts, PortAnswer, Registration, Registry};
use crate::store::Checkpoint;
use crate::unclean_nodes::UncleanNodes;
use crate::versions;
use crate::wire::launch::decode_progressed;
use crate::wire::node::decode_event;
use crate::wire::spec::ShownSpec;

/// Most suspects that are looked at with one tick.
const SUSPECTS: usize = 64;

/// Terms of the launch that a server runs.
#[derive(Clone, Debug)]
pub struct LaunchTerms {
    /// The launch, as each of its nodes is told it.
    pub spec: SessionSpec,
    /// Bytes of output that a node may send before it is granted more.
    pub output_window: u64,
    /// Bytes of input that may be under way.
    pub input_window: u64,
    /// All nodes pass input on to each other.
    pub passes_input_on: bool,
    /// The launch ends by itself, and has no owner.
    pub is_detached: bool,
    /// Time that launches outlive the last heartbeat of their node.
    pub lease: Duration,
}

/// Something that the server wants done.
#[derive(Debug)]
#[allow(missing_docs, reason = "the names of the fields say it")]
pub enum ApiEffect {
    /// Send a command on a stream of a node.
    Command { node: u32, stream: u64, command: proto::NodeCommand },
    /// End a stream of a node: in order, which acknowledges its report, or because another one took over.
    EndStream { node: u32, stream: u64, in_order: bool },
    /// Call the agent of a node to end its part, by a call that begins with this signal.
    Abort { node: u32, signal: i32 },
    /// Ask the port of an agent, and answer with [`SimulatedApiServer::port_answered`].
    AskPort { node: u32 },
    /// Make this durable, and answer with [`SimulatedApiServer::stored`].
    Store(Record),
    /// The launch has this event; its clients are sent it by [`ApiEffect::Deliver`].
    Happened { sequence: u64, event: ClientEvent },
    /// Send a client an event, under the number that the client knows it by.
    Deliver { client: u64, sequence: u64, event: ClientEvent },
    /// Tell a client that it may send so much more input.
    GrantInput { client: u64, bytes: u64 },
    /// End the stream of a client.
    EndClient { client: u64 },
    /// A client is refused for what it sent.
    Refused { client: u64, reason: String },
    /// Who ordered the launch is told whether it was started.
    Started(bool),
    /// Answer a call for a new job.
    AnswerSpawn { ticket: u64, answer: Result<JobId, SpawnError> },
    /// The launch is over, for others than its clients.
    Concluded { success: bool },
    /// A node was lost to the launch.
    Lost { node: u32, reason: String },
}

/// State of a launch as it is kept.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// The launch was ordered, or runs: its checkpoint.
    Running(Vec<u8>),
    /// The launch is over.
    Over,
}

impl Record {
    /// The first cause that a server which is started anew finds in it.
    pub fn cause(&self) -> Option<Cause> {
        match self {
            Self::Running(checkpoint) => {
                let checkpoint = Checkpoint::decode(&**checkpoint).unwrap_or_default();
                decode_progressed(&checkpoint, 0).cause
            }
            Self::Over => None,
        }
    }
}

/// Event of a launch, as far as the simulation looks at it.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "events of the session, under the same names")]
pub enum ClientEvent {
    Started(Rank, u32),
    Output(Rank, Bytes),
    Exited(Rank, RankExit),
    Ending(Cause),
    Unclean(Vec<String>),
    Complete { cause: Option<Cause>, ends: Vec<(Rank, RankExit)>, message: String },
    Other,
}

/// Answer of the port of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// Somebody listens there.
    Accepted,
    /// The machine says that nobody does.
    Refused,
    /// Nobody answers.
    Nothing,
}

/// A stream that is refused: nobody wants reports of the launch from that node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unwanted;

/// An API server, and the one launch that it runs.
pub struct SimulatedApiServer {
    launch_id: String,
    nodes: Vec<String>,
    lease: Duration,
    origin: Origin,
    registry: Registry,
    unclean: UncleanNodes,
    /// `None` once it is forgotten.
    machine: Option<Machine>,
    outboxes: Vec<Outbox>,
    /// The stream that each node has.
    streams: Vec<Option<u64>>,
    parts: Vec<Part>,
    log: Arc<EventLog>,
    /// The client that follows.
    follower: Option<u64>,
    effects: VecDeque<ApiEffect>,
}

impl SimulatedApiServer {
    /// A server whose launch was ordered now, and whose nodes are being asked. They have registered.
    pub fn begin(terms: &LaunchTerms, now: Instant) -> Self {
        let machine = Machine::new(facts(terms, Origin::Here), 1, now.into());
        Self::with(terms, Origin::Here, 1, Some(machine))
    }

    /// A server that was started anew, and takes the launch up that is on record: it was begun so long ago, and
    /// it is so many seconds after the beginning of 1970.
    pub fn resume(terms: &LaunchTerms, record: &Record, unix: u64, age: Duration, now: Instant) -> Self {
        let Record::Running(checkpoint) = record else { return Self::with(terms, Origin::Resumed, 1, None) };
        let checkpoint = Checkpoint::decode(&**checkpoint).unwrap_or_default();
        let progressed = decode_progressed(&checkpoint, terms.spec.hosts.len());
        let begun = now.checked_sub(age).unwrap_or(now).into();
        let resumed = Resumed { progressed, client_stopped_at: 0, begun };
        let first_event = resumed.progressed.first_event(unix);
        let machine = Machine::resume(facts(terms, Origin::Resumed), first_event, resumed, now.into());
        let mut server = Self::with(terms, Origin::Resumed, first_event, Some(machine));
        server.carry_out(now);
        server
    }

    fn with(terms: &LaunchTerms, origin: Origin, first_event: u64, machine: Option<Machine>) -> Self {
        let nodes = terms.spec.hosts.clone();
        let retention = if terms.is_detached { Retention::Bounded } else { Retention::UntilSettled };
        Self {
            launch_id: terms.spec.launch_id.clone(),
            lease: terms.lease,
            origin,
            registry: Registry::default(),
            unclean: UncleanNodes::default(),
            machine,
            outboxes: nodes.iter().map(|_| Outbox::default()).collect(),
            streams: vec![None; nodes.len()],
            parts: vec![Part::Expected; nodes.len()],
            log: EventLog::new(first_event, retention, None, AllKept::default()),
            follower: None,
            effects: VecDeque::new(),
            nodes,
        }
    }

    /// The next effect to carry out.
    pub fn poll_effect(&mut self) -> Option<ApiEffect> {
        self.effects.pop_front()
    }

    /// Time before the next tick at which [`Self::on_tick`] is to be called as well.
    pub fn next_wake(&self) -> Option<Instant> {
        self.machine.as_ref()?.deadline().map(tokio::time::Instant::into_std)
    }

    /// Time has passed.
    pub fn on_tick(&mut self, now: Instant) {
        for suspect in self.registry.suspects(SUSPECTS, now.into()) {
            if let Some(node) = self.nodes.iter().position(|name| *name == suspect.node) {
                self.effects.push_back(ApiEffect::AskPort { node: node as u32 });
            }
        }
        self.input(now, Machine::on_tick);
        self.forget_if_over(now);
    }

    /// Returns true while the launch is known.
    pub fn knows_launch(&self) -> bool {
        self.machine.is_some()
    }

    /// Returns true if the launch is known, and is not over.
    pub fn runs_launch(&self) -> bool {
        self.machine.as_ref().is_some_and(|_| self.parts.contains(&Part::Expected))
    }

    /// Returns true if something of the launch may be left on a node.
    pub fn is_unclean(&self, node: u32) -> bool {
        self.unclean.has(&self.nodes[node as usize], &self.launch_id)
    }

    /// All nodes have accepted the launch, or this one has refused.
    pub fn fanned_out(&mut self, refused: Option<u32>, now: Instant) {
        let refusal = refused.map(|node| Refusal {
            node: self.nodes[node as usize].clone(),
            message: "it is being stopped".to_owned(),
            reason: RefusalReason::Busy,
        });
        self.input(now, |machine, now| machine.on_fan_out(refusal.map_or(Ok(()), |refusal| Err(refusal.into())), now));
    }

    /// An agent registers, with the launch if it has it. Returns true if it must end that.
    pub fn register(&mut self, node: u32, incarnation: u64, has_launch: bool, now: Instant) -> bool {
        let name = self.nodes[node as usize].clone();
        let facts = NodeFacts {
            grpc_address: format!("{name}:7070"),
            network_addresses: Vec::new(),
            cores: None,
            memory_bytes: None,
            capabilities: Vec::new(),
            version: Some(versions::OURS.to_owned()),
        };
        let launches = if has_launch { vec![self.launch_id.clone()] } else { Vec::new() };
        let registration = Registration { node: name.clone(), incarnation, launches, facts };
        let arrival = self.registry.register(registration, now.into());
        let is_unknown = has_launch && !self.needs(node);
        self.unclean.forget(&name);
        if is_unknown {
            self.unclean.add(&name, &self.launch_id);
        }
        if self.runs_on(node) {
            match arrival {
                Ok(Arrival::Anew) if !has_launch => {
                    self.input(now, |machine, now| machine.on_agent_anew(node, now));
                }
                Ok(Arrival::First) if !has_launch && self.origin == Origin::Resumed => {
                    self.input(now, |machine, now| machine.on_not_there(node, now));
                }
                _ => {}
            }
            self.input(now, |machine, now| machine.on_node_back(node, now));
        }
        is_unknown
    }

    /// An agent still is there, with the launch at work or not. Returns true if it must register again.
    pub fn heartbeat(&mut self, node: u32, incarnation: u64, has_launch: bool, now: Instant) -> bool {
        let again = self.registry.heartbeat(&self.nodes[node as usize], incarnation, now.into());
        if !again {
            let at_work = if has_launch { vec![self.launch_id.clone()] } else { Vec::new() };
            self.unclean.on_heartbeat(&self.nodes[node as usize], &at_work);
        }
        again
    }

    /// The port of a suspect has answered.
    pub fn port_answered(&mut self, node: u32, port: Port, now: Instant) {
        let answer = match port {
            Port::Accepted => PortAnswer::Accepted,
            Port::Refused => PortAnswer::Refused,
            Port::Nothing => PortAnswer::Nothing,
        };
        let name = self.nodes[node as usize].clone();
        let judgement = self.registry.judge(&name, answer, self.lease, now.into());
        if let Some(Judgement::Lost { .. }) = judgement {
            self.unclean.forget(&name);
        }
        if !self.runs_on(node) {
            return;
        }
        match judgement {
            Some(Judgement::Away) => self.input(now, |machine, now| machine.on_node_away(node, now)),
            Some(Judgement::Lost { reason }) => {
                self.input(now, |machine, now| machine.on_node_lost(node, reason, now));
            }
            None => {}
        }
    }

    /// A node opens a stream, which is not the first `again`. Returns its number.
    ///
    /// # Errors
    /// Refuses a node that the launch wants no reports from.
    pub fn open_stream(&mut self, node: u32, again: bool, now: Instant) -> Result<u64, Unwanted> {
        let at = node as usize;
        if self.machine.is_none() || self.parts[at] == Part::Lost || self.outboxes[at].is_closed() {
            return Err(Unwanted);
        }
        let attempt = if again { Attempt::Again } else { Attempt::First };
        let stream = self.outboxes[at].open(attempt);
        if let Some(before) = self.streams[at].replace(stream) {
            self.effects.push_back(ApiEffect::EndStream { node, stream: before, in_order: false });
        }
        self.input(now, |machine, now| machine.on_stream_opened(node, stream, attempt, now));
        Ok(stream)
    }

    /// A node's stream has broken.
    pub fn stream_closed(&mut self, node: u32, stream: u64, now: Instant) {
        if self.streams[node as usize] == Some(stream) {
            self.streams[node as usize] = None;
        }
        self.input(now, |machine, now| machine.on_stream_closed(node, stream, now));
    }

    /// A message has come over a node's stream.
    pub fn on_report(&mut self, node: u32, stream: u64, report: proto::LaunchReport, now: Instant) {
        match report.what {
            Some(What::Event(event)) => {
                if event.commands_taken > 0 {
                    self.outboxes[node as usize].confirm(event.commands_taken);
                }
                let (sequence, event) = (event.sequence, decode_event(event));
                if sequence > 0 || event.is_some() {
                    self.input(now, |machine, now| machine.on_numbered(node, sequence, event, now));
                }
            }
            Some(What::Resumed(proto::Resumed { after, commands_taken, .. })) => {
                self.outboxes[node as usize].resumed(stream, commands_taken);
                self.input(now, |machine, now| machine.on_resumed(node, after, now));
            }
            Some(What::Of(_)) | None => {}
        }
    }

    /// The owner follows, and has dealt with everything up to `after`. Returns its number, and the bytes of input that it may send.
    pub fn attach_owner(&mut self, after: u64, now: Instant) -> Option<(u64, u64)> {
        let own = self.log.own_number(after);
        let mut joined = None;
        self.input(now, |machine, _| joined = machine.on_attach(own, Role::Owner).ok());
        let Joined { client, input_window, .. } = joined?;
        let start = if after == 0 { Start::Unsettled } else { Start::After(after) };
        self.log.join(client, start, ShownSpec::default());
        self.follower = Some(client);
        self.flush();
        Some((client, input_window))
    }

    /// The owner sends input, or its end.
    pub fn give_input(&mut self, client: u64, piece: Option<Bytes>, now: Instant) {
        let request = piece.map_or(ClientRequest::StdinEnd, ClientRequest::Stdin);
        self.input(now, |machine, now| machine.on_client_request(client, request, now));
    }

    /// The owner has dealt with everything up to this event.
    pub fn acknowledge(&mut self, client: u64, sequence: u64, now: Instant) {
        let sequence = self.log.acknowledged(client, sequence);
        self.input(now, |machine, now| machine.on_client_request(client, ClientRequest::Acknowledge(sequence), now));
    }

    /// The owner ends the launch with a signal.
    pub fn end_by_owner(&mut self, client: u64, signal: i32, now: Instant) {
        self.input(now, |machine, now| machine.on_client_request(client, ClientRequest::End(signal), now));
    }

    /// The owner says that it is stopped, at this time in seconds since 1970.
    pub fn goodbye(&mut self, client: u64, at: u64, now: Instant) {
        self.input(now, |machine, _| machine.on_goodbye(client, at));
    }

    /// The owner's end of the connection was closed.
    pub fn owner_closed(&mut self, client: u64, now: Instant) {
        self.input(now, |machine, now| machine.on_client_closed(client, now));
    }

    /// The owner follows no more.
    pub fn owner_gone(&mut self, client: u64, now: Instant) {
        self.input(now, |machine, now| machine.on_client_gone(client, now));
    }

    /// A rank of a node wants a new job, by this call of its session.
    pub fn spawn(
        &mut self,
        (node, call): (u32, u64),
        ticket: u64,
        (parent, rank): (JobId, Rank),
        request: SpawnRequest,
        now: Instant,
    ) {
        if self.machine.is_none() {
            let answer = Err(SpawnError::Refused { reason: "the launch is over".to_owned() });
            return self.effects.push_back(ApiEffect::AnswerSpawn { ticket, answer });
        }
        let cores = vec![1; self.nodes.len()].into();
        let wish = SpawnWish { asked: SpawnAsked { node, call }, ticket, parent, rank, request, cores };
        self.input(now, |machine, now| machine.on_spawn(wish, now));
    }

    /// An administrator ends the launch.
    pub fn abort(&mut self, now: Instant) {
        self.input(now, |machine, now| machine.on_abort("an administrator".to_owned(), String::new(), now));
    }

    /// An attempt to make something durable has ended.
    pub fn stored(&mut self, is_durable: bool, now: Instant) {
        let stored = if is_durable { Stored::Durable } else { Stored::Failed };
        self.input(now, |machine, now| machine.on_stored(stored, now));
    }

    fn needs(&self, node: u32) -> bool {
        let is_written_down = || self.outboxes[node as usize].is_closed();
        match self.parts[node as usize] {
            Part::Expected => self.machine.is_some(),
            Part::Ended => self.machine.is_some() && !is_written_down(),
            Part::Lost => false,
        }
    }

    fn runs_on(&self, node: u32) -> bool {
        self.machine.is_some() && self.parts[node as usize] == Part::Expected
    }

    fn input(&mut self, now: Instant, input: impl FnOnce(&mut Machine, tokio::time::Instant)) {
        if let Some(machine) = &mut self.machine {
            input(machine, now.into());
            self.carry_out(now);
            self.forget_if_over(now);
        }
    }
}

fn facts(terms: &LaunchTerms, origin: Origin) -> Facts {
    let LaunchTerms { spec, output_window, input_window, passes_input_on, is_detached, .. } = terms;
    let timeouts = &spec.settings.timeouts;
    Facts {
        id: spec.launch_id.clone(),
        allocation_id: spec.allocation_id.clone().unwrap_or_default(),
        job: spec.job.id.clone(),
        nodes: spec.hosts.clone(),
        placement: spec.job.placement.clone(),
        output_window: *output_window,
        input_window: *input_window,
        input_readers: input_readers(&spec.settings.stdin, &spec.job.placement),
        // As the runner chooses it.
        input_way: match origin {
            Origin::Here if *passes_input_on => InputWay::ByNodes,
            _ => InputWay::Straight,
        },
        grace: timeouts.grace_max(),
        failed_ranks: spec.settings.failed_ranks,
        lost_nodes: spec.settings.lost_nodes,
        after_first_exit: timeouts.after_first_exit,
        time_limit: timeouts.time_limit,
        directory: "/".into(),
        universe_size: None,
        ownership: if *is_detached { Ownership::Detached } else { Ownership::Owned },
        settler: if *is_detached { Settler::Nobody } else { Settler::Owner },
        origin,
        gather_above: u32::MAX,
    }
}
