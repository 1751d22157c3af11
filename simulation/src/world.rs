//! A cluster in virtual time: the machines of the crates, the processes around them, one queue of everything that is going to happen.

mod agent;
mod api;
mod client;
mod disturbance;
mod ending;
mod node;
mod session;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::{Duration, Instant};

use bytes::Bytes;
use lattice_api_server::simulation::{ClientEvent, Port, Record};
use pmi_core::ids::Rank;

use self::api::ApiHost;
use self::client::Client;
use self::node::Node;
use crate::faults::{Fault, LONGEST};
use crate::journal::Journal;
use crate::network::{ConnectionId, End, Host, KEEP_ALIVE, Network, Side};
use crate::random::Random;
use crate::scenario::Scenario;
use crate::time::{Clock, Time};
use crate::truth::Truth;

/// Pause before the end of a connection is looked for again that a cut network holds up.
const HELD_UP: Duration = Duration::from_millis(20);

/// Interval between looks whether everything is over.
const LOOK: Duration = Duration::from_millis(500);

/// Lease of the API server, and of sessions without an agent.
pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// A cluster that runs one launch.
pub(crate) struct World {
    pub(crate) scenario: Scenario,
    faults: Vec<Fault>,
    base: Instant,
    pub(crate) now: Time,
    queue: BinaryHeap<Reverse<Scheduled>>,
    scheduled: u64,
    random: Random,
    pub(crate) journal: Journal,
    pub(crate) truth: Truth,
    network: Network<Message>,
    processes: u64,
    /// Machines on which nothing runs until then.
    paused: BTreeMap<Host, Time>,
    api: ApiHost,
    nodes: Vec<Node>,
    client: Client,
}

/// Something that is going to happen; what was scheduled first comes first among what is at the same time.
#[derive(Debug)]
struct Scheduled {
    at: Time,
    number: u64,
    event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// What goes over connections.
#[derive(Clone, Debug)]
enum Message {
    /// A `LaunchReport`; the first one on a stream says whether there was one before.
    Open {
        again: bool,
    },
    Report(Bytes),
    /// A `NodeCommand`.
    Command(Bytes),
    /// The stream is over: in order, or because nobody wants it or another one took over.
    StreamEnd(StreamEnd),
    /// A `LinkFrame`, of the session of this node.
    Frame {
        from: u32,
        frame: Bytes,
    },
    Attach {
        after: u64,
    },
    Attached {
        client: u64,
    },
    /// The API server knows no such launch.
    Unknown,
    Tell {
        sequence: u64,
        event: ClientEvent,
    },
    Acknowledge {
        client: u64,
        sequence: u64,
    },
    Signal {
        client: u64,
        signal: i32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamEnd {
    Acknowledged,
    Replaced,
    Unwanted,
}

/// Calls, and their answers: they arrive or they do not.
#[derive(Clone, Copy, Debug)]
enum Call {
    Start { node: u32, caller: u64 },
    StartAnswer { node: u32, caller: u64, accepted: bool },
    Abort { node: u32, signal: i32 },
    Register { node: u32, agent: u64, asked: Time },
    Registered { node: u32, agent: u64, must_end: bool, asked: Time },
    Beat { node: u32, agent: u64, asked: Time },
    BeatAnswer { node: u32, agent: u64, again: bool, asked: Time },
    PortAnswer { node: u32, caller: u64, port: Port },
}

#[derive(Debug)]
enum Event {
    Arrival {
        connection: ConnectionId,
        to: Side,
        message: Message,
    },
    /// A side learns that a connection is over.
    Broken {
        connection: ConnectionId,
        to: Side,
    },
    Call {
        to: Host,
        call: Call,
    },
    ApiTick {
        process: u64,
    },
    ApiWake {
        process: u64,
    },
    ApiBack,
    StartTimeout {
        process: u64,
    },
    Written {
        process: u64,
        record: Record,
        is_durable: bool,
    },
    Beat {
        node: u32,
        agent: u64,
    },
    AgentLook {
        node: u32,
        agent: u64,
    },
    AgentBack {
        node: u32,
    },
    Lease {
        node: u32,
        agent: u64,
    },
    OpenStream {
        node: u32,
        agent: u64,
    },
    FromSession {
        node: u32,
        agent: u64,
        bytes: Bytes,
    },
    ToSession {
        node: u32,
        session: u64,
        agent: u64,
        bytes: Bytes,
    },
    SessionWake {
        node: u32,
        session: u64,
        at: Time,
    },
    SessionGone {
        node: u32,
    },
    SessionAlone {
        node: u32,
        session: u64,
        since: Time,
    },
    OpenLink {
        node: u32,
        session: u64,
        to: u32,
        since: Time,
    },
    Start {
        node: u32,
        session: u64,
        rank: Rank,
    },
    Step {
        node: u32,
        session: u64,
        rank: Rank,
    },
    ToServer {
        node: u32,
        session: u64,
        rank: Rank,
        bytes: Bytes,
    },
    ToRank {
        node: u32,
        session: u64,
        rank: Rank,
        bytes: Bytes,
    },
    Print {
        node: u32,
        session: u64,
        rank: Rank,
        line: Bytes,
    },
    Signal {
        node: u32,
        session: u64,
        rank: Rank,
        signal: i32,
    },
    Dies {
        node: u32,
        session: u64,
        rank: Rank,
        signal: i32,
    },
    Reaped {
        node: u32,
        session: u64,
        rank: Rank,
    },
    Swept {
        node: u32,
        session: u64,
    },
    NodeBack {
        node: u32,
    },
    Client(ClientTimer),
    Fault(usize),
    /// It has lasted for as long as connections bear.
    FaultLasts(usize),
    FaultOver(usize),
}

#[derive(Clone, Copy, Debug)]
enum ClientTimer {
    Attach { attempt: u64 },
    Read,
}

impl World {
    pub(crate) fn new(seed: u64, scenario: Scenario, faults: Vec<Fault>, keeps_lines: bool) -> Self {
        let base = Instant::now() + Duration::from_secs(1 << 20);
        let nodes = (0..scenario.nodes()).map(|_| Node::default()).collect();
        let mut world = Self {
            truth: Truth::new(&scenario),
            faults,
            base,
            now: Time::default(),
            queue: BinaryHeap::new(),
            scheduled: 0,
            random: Random::new(seed, 4),
            journal: Journal::new(keeps_lines),
            network: Network::new(seed),
            processes: 0,
            paused: BTreeMap::new(),
            api: ApiHost::new(),
            nodes,
            client: Client::default(),
            scenario,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        for index in 0..self.faults.len() {
            self.schedule(self.faults[index].at, Event::Fault(index));
        }
        (0..self.scenario.nodes()).for_each(|node| self.start_agent(node));
        self.begin_launch();
    }

    /// Runs until the launch is over everywhere after the last fault, or this time has come.
    pub(crate) fn run_until(&mut self, end: Time) {
        let mut next_look = self.faults.iter().map(|fault| fault.at + LONGEST.min(fault.kind.lasts())).max();
        while let Some(Reverse(next)) = self.queue.pop() {
            if next.at > end {
                return;
            }
            self.now = next.at;
            self.happen(next.event);
            if next_look.is_none_or(|look| self.now >= look) {
                if self.is_at_rest() {
                    return;
                }
                next_look = Some(self.now + LOOK);
            }
        }
    }

    fn schedule(&mut self, at: Time, event: Event) {
        self.scheduled += 1;
        self.queue.push(Reverse(Scheduled { at: at.max(self.now), number: self.scheduled, event }));
    }

    fn after(&mut self, time: Duration, event: Event) {
        self.schedule(self.now + time, event);
    }

    /// A time between two bounds, in microseconds.
    fn some_time(&mut self, first: u64, last: u64) -> Duration {
        Duration::from_micros(self.random.between(first, last))
    }

    fn next_process(&mut self) -> u64 {
        self.processes += 1;
        self.processes
    }

    fn clock(&self, host: Host) -> Clock {
        let index = if host == Host::API { self.scenario.nodes() } else { host.0 };
        let pace = self.scenario.paces.get(index as usize).copied().unwrap_or(1_000_000);
        Clock::new(self.base, pace)
    }

    /// What the clock of a machine shows.
    fn at(&self, host: Host) -> Instant {
        self.clock(host).at(self.now)
    }

    fn happen(&mut self, event: Event) {
        if let Some(host) = self.host_of(&event)
            && let Some(&until) = self.paused.get(&host)
        {
            if until > self.now {
                return self.schedule(until, event);
            }
            self.paused.remove(&host);
        }
        self.note(&event);
        match event {
            Event::Arrival { connection, to, message } => self.arrive(connection, to, message),
            Event::Broken { connection, to } => self.connection_broke(connection, to),
            Event::Call { call, .. } => self.called(call),
            Event::ApiTick { process } => self.api_tick(process),
            Event::ApiWake { process } => self.api_wake(process),
            Event::ApiBack => self.api_back(),
            Event::StartTimeout { process } => self.start_timed_out(process),
            Event::Written { process, record, is_durable } => self.written(process, record, is_durable),
            Event::Beat { node, agent } => self.beat(node, agent),
            Event::AgentLook { node, agent } => self.agent_look(node, agent),
            Event::AgentBack { node } => self.agent_back(node),
            Event::Lease { node, agent } => self.lease_over(node, agent),
            Event::OpenStream { node, agent } => self.open_stream(node, agent),
            Event::FromSession { node, agent, bytes } => self.session_says(node, agent, bytes),
            Event::ToSession { node, session, agent, bytes } => self.session_hears(node, session, agent, bytes),
            Event::SessionWake { node, session, at } => self.session_wake(node, session, at),
            Event::SessionGone { node } => self.session_gone(node),
            Event::SessionAlone { node, session, since } => self.session_alone(node, session, since),
            Event::OpenLink { node, session, to, since } => self.open_link(node, session, to, since),
            Event::Start { node, session, rank } => self.start_rank(node, session, rank),
            Event::Step { node, session, rank } => self.step_rank(node, session, rank),
            Event::ToServer { node, session, rank, bytes } => self.server_hears(node, session, rank, &bytes),
            Event::ToRank { node, session, rank, bytes } => self.rank_hears(node, session, rank, &bytes),
            Event::Print { node, session, rank, line } => self.print(node, session, rank, line),
            Event::Signal { node, session, rank, signal } => self.signal_rank(node, session, rank, signal),
            Event::Dies { node, session, rank, signal } => self.rank_dies(node, session, rank, signal),
            Event::Reaped { node, session, rank } => self.reaped(node, session, rank),
            Event::Swept { node, session } => self.swept(node, session),
            Event::NodeBack { node } => self.node_back(node),
            Event::Client(timer) => self.client_timer(timer),
            Event::Fault(index) => self.fault(index),
            Event::FaultLasts(index) => self.fault_lasts(index),
            Event::FaultOver(index) => self.fault_over(index),
        }
    }

    /// The machine on which something happens.
    fn host_of(&self, event: &Event) -> Option<Host> {
        Some(match event {
            Event::Arrival { connection, to, .. } | Event::Broken { connection, to } => {
                self.network.get(*connection)?.end(*to).host
            }
            Event::Call { to, .. } => *to,
            Event::ApiTick { .. } | Event::ApiWake { .. } | Event::StartTimeout { .. } | Event::Written { .. } => {
                Host::API
            }
            Event::Beat { node, .. }
            | Event::AgentLook { node, .. }
            | Event::Lease { node, .. }
            | Event::OpenStream { node, .. }
            | Event::FromSession { node, .. }
            | Event::ToSession { node, .. }
            | Event::SessionWake { node, .. }
            | Event::SessionGone { node, .. }
            | Event::SessionAlone { node, .. }
            | Event::OpenLink { node, .. }
            | Event::Start { node, .. }
            | Event::Step { node, .. }
            | Event::ToServer { node, .. }
            | Event::ToRank { node, .. }
            | Event::Print { node, .. }
            | Event::Signal { node, .. }
            | Event::Dies { node, .. }
            | Event::Reaped { node, .. }
            | Event::Swept { node, .. } => Host(*node),
            Event::ApiBack
            | Event::AgentBack { .. }
            | Event::NodeBack { .. }
            | Event::Client(_)
            | Event::Fault(_)
            | Event::FaultLasts(_)
            | Event::FaultOver(_) => return None,
        })
    }

    fn note(&mut self, event: &Event) {
        match event {
            // They come all the time, and say nothing.
            Event::ApiTick { .. } | Event::Beat { .. } | Event::AgentLook { .. } | Event::SessionWake { .. } => {}
            event => self.journal.note(self.now, format_args!("{event:?}")),
        }
    }

    /// Sends a message over a connection.
    fn send(&mut self, connection: ConnectionId, to: Side, message: Message) {
        if let Some((at, message)) = self.network.send(connection, to, message, self.now) {
            self.schedule(at, Event::Arrival { connection, to, message });
        }
    }

    fn arrive(&mut self, connection: ConnectionId, to: Side, message: Message) {
        let Some(known) = self.network.get(connection) else { return };
        let end = known.end(to);
        if !self.network.takes(connection, to) || !self.lives(end) {
            return;
        }
        match message {
            Message::Open { again } => self.stream_opens(connection, end, again),
            Message::Report(report) => self.report_comes(connection, report),
            Message::Command(command) => self.command_comes(connection, end, &command),
            Message::StreamEnd(how) => self.stream_ends(connection, end, how),
            Message::Frame { from, frame } => self.frame_comes(connection, end, from, &frame),
            Message::Attach { after } => self.client_attaches(connection, after),
            Message::Acknowledge { client, sequence } => self.client_acknowledges(client, sequence),
            Message::Signal { client, signal } => self.client_signals(client, signal),
            Message::Attached { client } => self.attached(connection, client),
            Message::Unknown => self.unknown(connection),
            Message::Tell { sequence, event } => self.client_hears(connection, sequence, event),
        }
    }

    /// A process ends its side of a connection; the other side hears of it after all that was sent.
    fn close(&mut self, connection: ConnectionId, side: Side) {
        if !self.network.takes(connection, side) {
            return;
        }
        self.network.shut(connection, side);
        let to = side.other();
        let at = self.network.arrival(connection, to, self.now);
        self.end_at(at, connection, to);
    }

    /// All connections of a process that has ended.
    fn close_all(&mut self, end: End) {
        for connection in self.network.of(end) {
            if let Some(side) = self.network.get(connection).and_then(|known| known.side_of(end)) {
                self.close(connection, side);
            }
        }
    }

    /// A connection is reset; both sides learn that soon.
    fn reset(&mut self, connection: ConnectionId) {
        for to in [Side::Opener, Side::Accepter] {
            if self.network.takes(connection, to) {
                self.network.shut(connection, to);
                let time = self.some_time(10, 1000);
                self.end_at(self.now + time, connection, to);
            }
        }
    }

    /// A machine is gone: others learn that when it does not acknowledge anything.
    fn drop_connections(&mut self, host: Host) {
        for connection in self.network.of_host(host) {
            for to in [Side::Opener, Side::Accepter] {
                let is_there = self.network.get(connection).is_some_and(|known| known.end(to).host != host);
                self.network.shut(connection, to.other());
                if is_there {
                    self.end_at(self.now + KEEP_ALIVE, connection, to);
                }
            }
        }
    }

    fn connection_broke(&mut self, connection: ConnectionId, to: Side) {
        let Some(known) = self.network.get(connection) else { return };
        // An end comes behind what was sent before.
        if self.network.is_held_up(connection, to) {
            return self.after(HELD_UP, Event::Broken { connection, to });
        }
        let (purpose, end) = (known.purpose, known.end(to));
        // What was on its way to the other side is nobody's concern any more.
        self.network.shut(connection, to);
        if self.lives(end) {
            self.side_broke(connection, purpose, end);
        }
        self.network.ended(connection);
    }

    fn end_at(&mut self, at: Time, connection: ConnectionId, to: Side) {
        self.network.expect_end(connection);
        self.schedule(at, Event::Broken { connection, to });
    }

    /// Makes a call; nobody learns whether it has arrived.
    fn call(&mut self, from: Host, to: Host, call: Call) {
        if !self.network.is_cut(from, to) {
            let delay = self.network.delay(from, to);
            self.after(delay, Event::Call { to, call });
        }
    }

    /// Returns true if a process runs.
    fn lives(&self, end: End) -> bool {
        match end.host {
            Host::API => self.api.process == end.process && self.api.server.is_some(),
            Host::CLIENT => self.client.process == end.process,
            Host(node) => self.nodes[node as usize].has_process(end.process),
        }
    }
}
