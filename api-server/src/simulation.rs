//! An API server of one launch in virtual time, for the simulation of whole clusters. It uses the real machine and event log of the launch,
//! and the real outboxes of its nodes. The registries of nodes and unclean nodes are real as well. One thread replaces the streams and
//! tasks of services and runners. Inputs are passed in with the time, and the simulation executes the returned [`ApiEffect`]s.

mod effects;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use lattice_session::cause::{Cause, RankExit};
use lattice_session::spec::SessionSpec;
use pmi_core::ids::{JobId, NodeIndex, Rank};
use pmi_core::services::{SpawnError, SpawnRequest};
use pmi_transport::proto::v1::{self as proto, RefusalReason};
use prost::Message;
use proto::launch_report::What;

use crate::launch::attachments::{Joined, Role};
use crate::launch::checkpoint::Stored;
use crate::launch::event::{ClientRequest, SpawnAsked, SpawnWish};
use crate::launch::facts::{Facts, Origin, Ownership, Settler};
use crate::launch::fan_out::Refusal;
use crate::launch::outbox::{Attempt, Outbox};
use crate::launch::{AllKept, EventLog, Machine, Part, Resumed, Retention, Start, input_readers};
use crate::launch_id::LaunchId;
use crate::nodes::{Arrival, Judgement, NodeFacts, PortAnswer, Registration, Registry};
use crate::store::Checkpoint;
use crate::unclean_nodes::UncleanNodes;
use crate::versions;
use crate::wire::launch::decode_progressed;
use crate::wire::node::decode_event;
use crate::wire::spec::ShownSpec;

/// Most suspects that are probed with one tick.
const SUSPECTS: usize = 64;

/// Terms of the launch that a server runs.
#[derive(Clone, Debug)]
pub struct LaunchTerms {
    /// The launch, as each of its nodes receives it.
    pub spec: SessionSpec,
    /// Bytes of output that a node may send before it is granted more.
    pub output_window: u64,
    /// Bytes of input that may be in transit.
    pub input_window: u64,
    /// The launch ends by itself, and has no owner.
    pub is_detached: bool,
    /// Time for which launches outlive the last heartbeat of their node.
    pub lease: Duration,
}

/// Action that the server requests.
#[derive(Debug)]
#[allow(missing_docs, reason = "the names of the fields describe them")]
pub enum ApiEffect {
    /// Send a command on a stream of a node.
    Command { node: NodeIndex, stream: u64, command: proto::NodeCommand },
    /// End a stream of a node: in order, which acknowledges its report, or because another stream replaced it.
    EndStream { node: NodeIndex, stream: u64, in_order: bool },
    /// Call the agent of a node to end its part. The call begins with this signal.
    Abort { node: NodeIndex, signal: i32 },
    /// Probe the port of an agent, and answer with [`SimulatedApiServer::port_answered`].
    AskPort { node: NodeIndex },
    /// Make this durable, and answer with [`SimulatedApiServer::stored`].
    Store(Record),
    /// The launch has this event; [`ApiEffect::Deliver`] sends it to its clients.
    Happened { sequence: u64, event: ClientEvent },
    /// Send a client an event, under the number that the client uses for it.
    Deliver { client: u64, sequence: u64, event: ClientEvent },
    /// Permit a client to send this many more bytes of input.
    GrantInput { client: u64, bytes: u64 },
    /// End the stream of a client.
    EndClient { client: u64 },
    /// A client is refused because of a message that it sent.
    Refused { client: u64, reason: String },
    /// Report to the caller that ordered the launch whether it was started.
    Started(bool),
    /// Answer a call for a new job.
    AnswerSpawn { ticket: u64, answer: Result<JobId, SpawnError> },
    /// The launch is over, except for its clients.
    Concluded { success: bool },
    /// The launch lost a node.
    Lost { node: NodeIndex, reason: String },
}

/// Stored state of a launch.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// The launch was ordered, or runs; this is its encoded checkpoint.
    Running(Vec<u8>),
    /// The launch is over.
    Over,
}

impl Record {
    /// The first cause that a restarted server reads from the record.
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

/// Event of a launch, as far as the simulation uses it.
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

/// Result of a probe of an agent's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// A process accepts connections on the port.
    Accepted,
    /// The machine refuses the connection: no process listens on the port.
    Refused,
    /// No answer arrives.
    Nothing,
}

/// Refusal of a stream: the launch expects no reports from that node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnexpectedStream;

/// An API server, and the one launch that it runs.
pub struct SimulatedApiServer {
    launch_id: LaunchId,
    nodes: Vec<String>,
    lease: Duration,
    origin: Origin,
    registry: Registry,
    unclean: UncleanNodes,
    /// `None` after the launch is removed.
    machine: Option<Machine>,
    outboxes: Vec<Outbox>,
    /// The present stream of each node.
    streams: Vec<Option<u64>>,
    parts: Vec<Part>,
    log: Arc<EventLog>,
    /// The attached client.
    follower: Option<u64>,
    effects: VecDeque<ApiEffect>,
}

impl SimulatedApiServer {
    /// A server with a launch that was just ordered and is being sent to its nodes. The nodes have registered.
    pub fn begin(terms: &LaunchTerms, now: Instant) -> Self {
        let machine = Machine::new(facts(terms, Origin::Here), 1, now.into());
        Self::with(terms, Origin::Here, 1, Some(machine))
    }

    /// A restarted server that takes over the recorded launch. The launch began `age` ago, and the present time is `unix` seconds after
    /// 1970.
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
            launch_id: terms.spec.launch_id.as_str().into(),
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

    /// The next effect to execute.
    pub fn poll_effect(&mut self) -> Option<ApiEffect> {
        self.effects.pop_front()
    }

    /// Time before the next tick at which [`Self::on_tick`] must be called as well.
    pub fn next_wake(&self) -> Option<Instant> {
        self.machine.as_ref()?.deadline().map(tokio::time::Instant::into_std)
    }

    /// Processes the passage of time.
    pub fn on_tick(&mut self, now: Instant) {
        for suspect in self.registry.suspects(SUSPECTS, now.into()) {
            if let Some(node) = self.nodes.iter().position(|name| *name == suspect.node) {
                self.effects.push_back(ApiEffect::AskPort { node: NodeIndex(node as u32) });
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

    /// Returns true if a part of the launch may be left on a node.
    pub fn is_unclean(&self, node: NodeIndex) -> bool {
        self.unclean.has(&self.nodes[node.index()], &self.launch_id)
    }

    /// Processes the answers of the nodes to the launch: all have accepted it, or `refused` has refused it.
    pub fn fanned_out(&mut self, refused: Option<NodeIndex>, now: Instant) {
        let refusal = refused.map(|node| Refusal {
            node: self.nodes[node.index()].clone(),
            message: "it is being stopped".to_owned(),
            reason: RefusalReason::Busy,
        });
        self.input(now, |machine, now| machine.on_fan_out(refusal.map_or(Ok(()), |refusal| Err(refusal.into())), now));
    }

    /// Registers an agent, with the launch if it has it. Returns true if the agent must end the launch.
    pub fn register(&mut self, node: NodeIndex, incarnation: u64, has_launch: bool, now: Instant) -> bool {
        let (name, id) = (self.nodes[node.index()].clone(), has_launch.then(|| self.launch_id.to_string()));
        let facts = NodeFacts {
            grpc_address: format!("{name}:7070"),
            network_addresses: Vec::new(),
            cores: None,
            memory_bytes: None,
            capabilities: Vec::new(),
            version: Some(versions::OURS.to_owned()),
        };
        let registration = Registration { node: name.clone(), incarnation, launches: id.into_iter().collect(), facts };
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

    /// Processes a heartbeat of an agent, with the launch if it still has processes there. Returns true if the agent must register again.
    pub fn heartbeat(&mut self, node: NodeIndex, incarnation: u64, has_launch: bool, now: Instant) -> bool {
        let again = self.registry.heartbeat(&self.nodes[node.index()], incarnation, now.into());
        if !again {
            let id = has_launch.then(|| self.launch_id.to_string());
            self.unclean.on_heartbeat(&self.nodes[node.index()], id.as_slice());
        }
        again
    }

    /// Processes the result of a probe of a suspect's port.
    pub fn port_answered(&mut self, node: NodeIndex, port: Port, now: Instant) {
        let answer = match port {
            Port::Accepted => PortAnswer::Accepted,
            Port::Refused => PortAnswer::Refused,
            Port::Nothing => PortAnswer::Nothing,
        };
        let name = self.nodes[node.index()].clone();
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

    /// Opens a stream of a node; `again` is true if the node had a stream before. Returns the number of the stream.
    ///
    /// # Errors
    /// Refuses a node from which the launch expects no reports.
    pub fn open_stream(&mut self, node: NodeIndex, again: bool, now: Instant) -> Result<u64, UnexpectedStream> {
        let at = node.index();
        if self.machine.is_none() || self.parts[at] == Part::Lost || self.outboxes[at].is_closed() {
            return Err(UnexpectedStream);
        }
        let attempt = if again { Attempt::Again } else { Attempt::First };
        let stream = self.outboxes[at].open(attempt);
        if let Some(before) = self.streams[at].replace(stream) {
            self.effects.push_back(ApiEffect::EndStream { node, stream: before, in_order: false });
        }
        self.input(now, |machine, now| machine.on_stream_opened(node, stream, attempt, now));
        Ok(stream)
    }

    /// Processes the break of a node's stream.
    pub fn stream_closed(&mut self, node: NodeIndex, stream: u64, now: Instant) {
        if self.streams[node.index()] == Some(stream) {
            self.streams[node.index()] = None;
        }
        self.input(now, |machine, now| machine.on_stream_closed(node, stream, now));
    }

    /// Processes a message from a node's stream.
    pub fn on_report(&mut self, node: NodeIndex, stream: u64, report: proto::LaunchReport, now: Instant) {
        match report.what {
            Some(What::Event(event)) => {
                if event.commands_taken > 0 {
                    self.outboxes[node.index()].confirm(event.commands_taken);
                }
                let (sequence, event) = (event.sequence, decode_event(event));
                if sequence > 0 || event.is_some() {
                    self.input(now, |machine, now| machine.on_numbered(node, sequence, event, now));
                }
            }
            Some(What::Resumed(proto::Resumed { after, commands_taken, .. })) => {
                self.outboxes[node.index()].resumed(stream, commands_taken);
                self.input(now, |machine, now| machine.on_resumed(node, after, now));
            }
            Some(What::Of(_)) | None => {}
        }
    }

    /// Attaches the owner, which has processed everything up to `after`. Returns its number, and the bytes of input that it may send.
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

    /// Processes input from the owner, or the end of the input.
    pub fn give_input(&mut self, client: u64, piece: Option<Bytes>, now: Instant) {
        let request = piece.map_or(ClientRequest::StdinEnd, ClientRequest::Stdin);
        self.input(now, |machine, now| machine.on_client_request(client, request, now));
    }

    /// Processes the owner's acknowledgement of everything up to this event.
    pub fn acknowledge(&mut self, client: u64, sequence: u64, now: Instant) {
        let sequence = self.log.acknowledged(client, sequence);
        self.input(now, |machine, now| machine.on_client_request(client, ClientRequest::Acknowledge(sequence), now));
    }

    /// Ends the launch with a signal from the owner.
    pub fn end_by_owner(&mut self, client: u64, signal: i32, now: Instant) {
        self.input(now, |machine, now| machine.on_client_request(client, ClientRequest::End(signal), now));
    }

    /// Processes a message that the owner is stopped, at this time in seconds since 1970.
    pub fn goodbye(&mut self, client: u64, at: u64, now: Instant) {
        self.input(now, |machine, _| machine.on_goodbye(client, at));
    }

    /// Processes the close of the owner's end of the connection.
    pub fn owner_closed(&mut self, client: u64, now: Instant) {
        self.input(now, |machine, now| machine.on_client_closed(client, now));
    }

    /// Detaches the owner.
    pub fn owner_gone(&mut self, client: u64, now: Instant) {
        self.input(now, |machine, now| machine.on_client_gone(client, now));
    }

    /// Processes the request of a rank for a new job, by this call of its session.
    pub fn spawn(
        &mut self,
        (node, call): (NodeIndex, u64),
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

    /// Ends the launch for an administrator.
    pub fn abort(&mut self, now: Instant) {
        self.input(now, |machine, now| machine.on_abort("an administrator".to_owned(), String::new(), now));
    }

    /// Processes the result of an attempt to make something durable.
    pub fn stored(&mut self, is_durable: bool, now: Instant) {
        let stored = if is_durable { Stored::Durable } else { Stored::Failed };
        self.input(now, |machine, now| machine.on_stored(stored, now));
    }

    fn needs(&self, node: NodeIndex) -> bool {
        let is_written_down = || self.outboxes[node.index()].is_closed();
        match self.parts[node.index()] {
            Part::Expected => self.machine.is_some(),
            Part::Ended => self.machine.is_some() && !is_written_down(),
            Part::Lost => false,
        }
    }

    fn runs_on(&self, node: NodeIndex) -> bool {
        self.machine.is_some() && self.parts[node.index()] == Part::Expected
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
    let LaunchTerms { spec, output_window, input_window, is_detached, .. } = terms;
    let timeouts = &spec.settings.timeouts;
    Facts {
        id: spec.launch_id.as_str().into(),
        allocation_id: spec.allocation_id.clone().unwrap_or_default(),
        job: spec.job.id.clone(),
        nodes: spec.hosts.clone(),
        placement: spec.job.placement.clone(),
        output_window: *output_window,
        input_window: *input_window,
        input_readers: input_readers(&spec.settings.stdin, &spec.job.placement),
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
