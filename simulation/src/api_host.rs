//! The host of the API server: its process, its disk, its wall clock. Received messages are inputs of the server's state machines.
//! Their effects are executed at once.

mod effects;
mod streams;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, Instant};

use lattice_api_server::simulation::{LaunchTerms, Port, Record, SimulatedApiServer};
use lattice_session::timeouts;
use pmi_core::ids::NodeIndex;

use crate::connection::{ConnectionId, End, Host};
use crate::event::{ApiEvent, Call};
use crate::scenario::Scenario;
use crate::surroundings::{LEASE, Surroundings};
use crate::time::Time;
use crate::truth::Completed;

/// Wall clock of the API server at the start, in seconds since 1970.
const WALL: u64 = 1_795_000_000;

/// The host.
#[derive(Debug)]
pub(crate) struct ApiHost {
    process: u64,
    server: Option<Server>,
    disk: Disk,
    /// Seconds by which the wall clock was changed.
    clock_set: i64,
    /// Process of the client that ordered the launch, after it has just received the result of the start.
    owner: Option<u64>,
    /// The client that ordered the launch has received the result of the start.
    has_answered: bool,
}

/// Disk of the API server.
#[derive(Debug)]
struct Disk {
    record: Record,
    /// The end of a completed launch.
    end: Option<Completed>,
    fails: bool,
}

/// Contents of the process: the state machines, and the data around them.
struct Server {
    machines: SimulatedApiServer,
    /// Number of the start request, and the nodes that have not answered it.
    asked: Option<(u64, BTreeSet<u32>)>,
    /// By node and number of the stream.
    streams: BTreeMap<(u32, u64), ConnectionId>,
    /// Numbers of the clients, by connection.
    clients: BTreeMap<ConnectionId, u64>,
    /// Unanswered requests for new jobs: the node, by number of the request.
    wishes: BTreeMap<usize, u32>,
    woken: Option<Time>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}

impl Server {
    fn new(machines: SimulatedApiServer) -> Self {
        let (streams, clients, wishes) = Default::default();
        Self { machines, asked: None, streams, clients, wishes, woken: None }
    }

    /// The connection of a client.
    fn connection_of(&self, client: u64) -> Option<ConnectionId> {
        self.clients.iter().find(|(_, known)| **known == client).map(|(connection, _)| *connection)
    }

    /// The node and the number of the stream on a connection.
    fn stream_of(&self, connection: ConnectionId) -> Option<(u32, u64)> {
        self.streams.iter().find(|(_, known)| **known == connection).map(|(key, _)| *key)
    }
}

impl ApiHost {
    pub(crate) fn new() -> Self {
        let disk = Disk { record: Record::Running(Vec::new()), end: None, fails: false };
        Self { process: 0, server: None, disk, clock_set: 0, owner: None, has_answered: false }
    }

    // The process.

    /// A client has ordered the launch, and its record is durable.
    pub(crate) fn order_launch(&mut self, around: &mut Surroundings) {
        let machines = SimulatedApiServer::begin(&terms(&around.scenario), around.shown(Host::API));
        self.run(machines, around);
    }

    /// A node had registered before the launch was ordered.
    pub(crate) fn has_registered(&mut self, node: u32, agent: u64, around: &mut Surroundings) {
        self.with_server(around, |server, now| server.machines.register(NodeIndex(node), agent, false, now));
    }

    /// Sends the start request to the nodes.
    pub(crate) fn ask_nodes(&mut self, around: &mut Surroundings) {
        let (caller, nodes) = (self.process, around.scenario.nodes());
        if let Some(server) = &mut self.server {
            server.asked = Some((caller, (0..nodes).collect()));
        }
        for node in 0..nodes {
            around.call(Host::API, Host(node), Call::Start { node, caller });
        }
        around.after(timeouts::NODE_ANSWER, ApiEvent::StartTimeout { process: caller });
        around.after(around.scenario.tick, ApiEvent::ApiTick { process: caller });
        self.carry_out(around);
    }

    /// The API server restarts.
    fn come_back(&mut self, around: &mut Surroundings) {
        let wall = self.wall(around.now());
        let age = Duration::from_secs(wall.saturating_sub(WALL));
        let (terms, now) = (terms(&around.scenario), around.shown(Host::API));
        let machines = SimulatedApiServer::resume(&terms, &self.disk.record, wall, age, now);
        self.run(machines, around);
        around.after(around.scenario.tick, ApiEvent::ApiTick { process: self.process });
        self.carry_out(around);
    }

    fn run(&mut self, machines: SimulatedApiServer, around: &mut Surroundings) {
        self.process = around.schedule.next_process();
        self.server = Some(Server::new(machines));
        around.network.listen(End { host: Host::API, process: self.process });
    }

    fn wall(&self, now: Time) -> u64 {
        (WALL + now.0 / 1_000_000).saturating_add_signed(self.clock_set)
    }

    /// The API server is killed, and restarts after this time.
    pub(crate) fn crash(&mut self, back: Duration, around: &mut Surroundings) {
        if self.server.take().is_some() {
            around.truth.api_killed();
            around.truth.is_orphaned |= !self.has_answered && !around.scenario.is_detached;
            around.truth.forgot_causes |= self.disk.fails;
            around.network.stop_listening(Host::API);
            around.close_all(End { host: Host::API, process: self.process });
            around.after(back, ApiEvent::ApiBack);
        }
    }

    pub(crate) fn has_process(&self, process: u64) -> bool {
        self.process == process && self.server.is_some()
    }

    pub(crate) fn is_running(&self) -> bool {
        self.server.is_some()
    }

    pub(crate) fn set_disk_fails(&mut self, fails: bool) {
        self.disk.fails = fails;
    }

    pub(crate) fn set_clock(&mut self, seconds: i64) {
        self.clock_set += seconds;
    }

    // The launch.

    /// Returns the process of the client that ordered the launch, once, after the client has received the result of the start.
    pub(crate) fn take_owner(&mut self) -> Option<u64> {
        self.owner.take()
    }

    /// Returns true if the launch is over according to the disk.
    pub(crate) fn is_launch_over(&self) -> bool {
        self.disk.record == Record::Over
    }

    /// Returns true if the server runs, and waits for nodes.
    pub(crate) fn runs_launch(&self) -> bool {
        self.server.as_ref().is_some_and(|server| server.machines.runs_launch())
    }

    /// Returns true if the server runs, and processes of the launch may remain on a node.
    pub(crate) fn is_unclean(&self, node: u32) -> bool {
        self.server.as_ref().is_some_and(|server| server.machines.is_unclean(NodeIndex(node)))
    }

    /// An administrator ends the launch.
    pub(crate) fn abort_launch(&mut self, around: &mut Surroundings) {
        around.truth.is_ended_by_others = true;
        self.with_server(around, |server, now| server.machines.abort(now));
    }

    // Events and calls.

    pub(crate) fn on_event(&mut self, event: ApiEvent, around: &mut Surroundings) {
        match event {
            ApiEvent::ApiTick { process } if self.has_process(process) => self.on_tick(around),
            ApiEvent::ApiWake { process } if self.process == process => {
                self.with_server(around, |server, now| {
                    server.woken = None;
                    server.machines.on_tick(now);
                });
            }
            ApiEvent::ApiTick { .. } | ApiEvent::ApiWake { .. } => {}
            ApiEvent::ApiBack => self.come_back(around),
            ApiEvent::StartTimeout { process } => self.start_timed_out(process, around),
            ApiEvent::Written { process, record, is_durable } => self.written(process, record, is_durable, around),
        }
    }

    fn on_tick(&mut self, around: &mut Surroundings) {
        self.with_server(around, |server, now| server.machines.on_tick(now));
        around.after(around.scenario.tick, ApiEvent::ApiTick { process: self.process });
    }

    /// A node has accepted the launch, or refused it.
    pub(crate) fn start_answered(&mut self, node: u32, caller: u64, accepted: bool, around: &mut Surroundings) {
        let is_refused = self.with_server(around, |server, now| {
            let Some((asked_by, open)) = &mut server.asked else { return false };
            if *asked_by != caller || !open.remove(&node) {
                return false;
            }
            if !accepted || open.is_empty() {
                server.asked = None;
                server.machines.fanned_out((!accepted).then_some(NodeIndex(node)), now);
            }
            !accepted
        });
        if is_refused == Some(true) {
            self.roll_back(around);
        }
    }

    /// A rank of a node requests a new job. A session repeats the request until it receives an answer.
    pub(crate) fn spawn(&mut self, node: u32, number: usize, around: &mut Surroundings) {
        let wish = around.wishes[number].clone();
        self.with_server(around, |server, now| {
            if server.wishes.insert(number, node).is_none() {
                let parent = (wish.parent, wish.rank);
                server.machines.spawn((NodeIndex(node), wish.call), number as u64, parent, wish.request, now);
            }
        });
    }

    /// Ends the launch on nodes that have accepted it, after another node has refused it.
    fn roll_back(&self, around: &mut Surroundings) {
        for node in 0..around.scenario.nodes() {
            around.call(Host::API, Host(node), Call::Abort { node, signal: 15 });
        }
    }

    fn start_timed_out(&mut self, process: u64, around: &mut Surroundings) {
        let open = self.server.as_ref().and_then(|server| server.asked.as_ref());
        let late = open.and_then(|(_, open)| open.first().copied());
        if let Some(node) = late.filter(|_| self.process == process) {
            self.start_answered(node, process, false, around);
        }
    }

    pub(crate) fn node_registers(
        &mut self,
        node: u32,
        agent: u64,
        has_launch: bool,
        asked: Time,
        around: &mut Surroundings,
    ) {
        let must_end =
            self.with_server(around, |server, now| server.machines.register(NodeIndex(node), agent, has_launch, now));
        if let Some(must_end) = must_end {
            around.call(Host::API, Host(node), Call::Registered { node, agent, must_end, asked });
        }
    }

    pub(crate) fn node_beats(
        &mut self,
        node: u32,
        agent: u64,
        has_launch: bool,
        asked: Time,
        around: &mut Surroundings,
    ) {
        let again =
            self.with_server(around, |server, now| server.machines.heartbeat(NodeIndex(node), agent, has_launch, now));
        if let Some(again) = again {
            around.call(Host::API, Host(node), Call::BeatAnswer { node, agent, again, asked });
        }
    }

    pub(crate) fn port_answered(&mut self, node: u32, caller: u64, port: Port, around: &mut Surroundings) {
        if self.process == caller {
            self.with_server(around, |server, now| server.machines.port_answered(NodeIndex(node), port, now));
        }
    }

    fn written(&mut self, process: u64, record: Record, is_durable: bool, around: &mut Surroundings) {
        // A record on the disk remains, even if the process that wrote it is gone.
        if is_durable {
            around.truth.written(&record);
            self.disk.end = (record == Record::Over).then(|| around.truth.completion().cloned()).flatten();
            self.disk.record = record;
        }
        if self.process == process {
            self.with_server(around, |server, now| server.machines.stored(is_durable, now));
        }
    }

    fn with_server<T>(&mut self, around: &mut Surroundings, act: impl FnOnce(&mut Server, Instant) -> T) -> Option<T> {
        let now = around.shown(Host::API);
        let result = self.server.as_mut().map(|server| act(server, now));
        self.carry_out(around);
        result
    }
}

fn terms(scenario: &Scenario) -> LaunchTerms {
    LaunchTerms {
        spec: scenario.spec(0),
        output_window: scenario.output_window,
        input_window: scenario.input.as_ref().map_or(0, |input| input.window),
        is_detached: scenario.is_detached,
        lease: LEASE,
    }
}
