//! The process of the API server: its calls, its streams, its disk, its wall clock.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use lattice_api_server::simulation::{ApiEffect, ClientEvent, LaunchTerms, Port, Record, SimulatedApiServer};
use lattice_session::timeouts;
use pmi_transport::proto::v1 as proto;
use prost::Message as _;

use super::{Call, Event, LEASE, Message, StreamEnd, World};
use crate::network::{ConnectionId, End, Host, Purpose, Side};
use crate::time::Time;
use crate::truth::Completed;

/// Wall clock of the API server at the beginning, in seconds since 1970.
const WALL: u64 = 1_795_000_000;

/// The API server's machine.
#[derive(Debug)]
pub(super) struct ApiHost {
    pub(super) process: u64,
    pub(super) server: Option<Server>,
    /// What the disk has; with the end of a launch that is over.
    pub(super) disk: (Record, Option<Completed>),
    /// The disk fails.
    pub(super) disk_fails: bool,
    /// Seconds by which the wall clock was set.
    pub(super) clock_set: i64,
    begun: u64,
}

/// What lives in the process beside the machines.
pub(super) struct Server {
    pub(super) machines: SimulatedApiServer,
    /// Events of the launch since the process was started.
    log: Vec<(u64, ClientEvent)>,
    /// Nodes that have not answered the request to start, and the number of that request.
    asked: Option<(u64, BTreeSet<u32>)>,
    /// By node and number.
    streams: BTreeMap<(u32, u64), ConnectionId>,
    /// The client that follows, and how many events of the log it was sent.
    follower: Option<(ConnectionId, usize)>,
    /// Numbers of the clients, by connection.
    clients: BTreeMap<ConnectionId, u64>,
    woken: Option<Time>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}

impl Server {
    fn new(machines: SimulatedApiServer) -> Self {
        let (log, streams, clients) = Default::default();
        Self { machines, log, asked: None, streams, follower: None, clients, woken: None }
    }
}

impl ApiHost {
    pub(super) fn new() -> Self {
        Self {
            process: 0,
            server: None,
            disk: (Record::Running(Vec::new()), None),
            disk_fails: false,
            clock_set: 0,
            begun: WALL,
        }
    }
}

impl World {
    fn terms(&self) -> LaunchTerms {
        LaunchTerms {
            spec: self.scenario.spec(0),
            output_window: self.scenario.output_window,
            is_detached: self.scenario.is_detached,
            lease: LEASE,
        }
    }

    /// The launch is ordered: its record is durable, its nodes have registered and are asked.
    pub(super) fn begin_launch(&mut self) {
        let (terms, now) = (self.terms(), self.at(Host::API));
        self.api.process = self.next_process();
        self.api.server = Some(Server::new(SimulatedApiServer::begin(&terms, now)));
        for node in 0..self.scenario.nodes() {
            let agent = self.nodes[node as usize].agent_process().unwrap_or_default();
            self.with_server(|server, now| server.machines.register(node, agent, false, now));
            self.agent_registered(node);
        }
        let (caller, nodes) = (self.api.process, self.scenario.nodes());
        if let Some(server) = &mut self.api.server {
            server.asked = Some((caller, (0..nodes).collect()));
        }
        for node in 0..nodes {
            self.call(Host::API, Host(node), Call::Start { node, caller });
        }
        self.after(timeouts::NODE_ANSWER, Event::StartTimeout { process: caller });
        self.after(self.scenario.tick, Event::ApiTick { process: caller });
        self.carry_out_api();
    }

    fn with_server<T>(&mut self, act: impl FnOnce(&mut Server, std::time::Instant) -> T) -> Option<T> {
        let now = self.at(Host::API);
        let result = self.api.server.as_mut().map(|server| act(server, now));
        self.carry_out_api();
        result
    }

    fn wall(&self) -> u64 {
        (WALL + self.now.0 / 1_000_000).saturating_add_signed(self.api.clock_set)
    }

    /// The API server is started anew.
    pub(super) fn api_back(&mut self) {
        let (terms, now) = (self.terms(), self.at(Host::API));
        let age = Duration::from_secs(self.wall().saturating_sub(self.api.begun));
        self.api.process = self.next_process();
        let machines = SimulatedApiServer::resume(&terms, &self.api.disk.0, self.wall() << 20, age, now);
        self.api.server = Some(Server::new(machines));
        self.after(self.scenario.tick, Event::ApiTick { process: self.api.process });
        self.carry_out_api();
    }

    pub(super) fn kill_api(&mut self) {
        if self.api.server.take().is_some() {
            self.truth.api_killed();
            self.close_all(End { host: Host::API, process: self.api.process });
        }
    }

    pub(super) fn api_tick(&mut self, process: u64) {
        if self.api.process != process || self.api.server.is_none() {
            return;
        }
        self.with_server(|server, now| {
            let is_delivered = server.follower.is_some_and(|(_, sent)| sent == server.log.len());
            server.machines.on_tick(is_delivered, now);
        });
        self.after(self.scenario.tick, Event::ApiTick { process });
    }

    pub(super) fn api_wake(&mut self, process: u64) {
        if self.api.process == process {
            self.with_server(|server, now| {
                server.woken = None;
                server.machines.on_tick(false, now);
            });
        }
    }

    /// A node has accepted the launch, or refused.
    pub(super) fn start_answered(&mut self, node: u32, caller: u64, accepted: bool) {
        let is_refused = self.with_server(|server, now| {
            let Some((asked_by, open)) = &mut server.asked else { return false };
            if *asked_by != caller || !open.remove(&node) {
                return false;
            }
            if !accepted || open.is_empty() {
                server.asked = None;
                server.machines.fanned_out((!accepted).then_some(node), now);
            }
            !accepted
        });
        if is_refused == Some(true) {
            self.roll_back();
        }
    }

    /// Those that have accepted a launch that another node has refused are told to end it.
    fn roll_back(&mut self) {
        let nodes: Vec<u32> = (0..self.scenario.nodes()).collect();
        for node in nodes {
            self.call(Host::API, Host(node), Call::Abort { node, signal: 15 });
        }
    }

    pub(super) fn start_timed_out(&mut self, process: u64) {
        let open = self.api.server.as_ref().and_then(|server| server.asked.as_ref());
        let late = open.and_then(|(_, open)| open.first().copied());
        if let Some(node) = late.filter(|_| self.api.process == process) {
            self.start_answered(node, process, false);
        }
    }

    pub(super) fn node_registers(&mut self, node: u32, agent: u64, has_launch: bool, asked: Time) {
        let must_end = self.with_server(|server, now| server.machines.register(node, agent, has_launch, now));
        if let Some(must_end) = must_end {
            self.call(Host::API, Host(node), Call::Registered { node, agent, must_end, asked });
        }
    }

    pub(super) fn node_beats(&mut self, node: u32, agent: u64, has_launch: bool, asked: Time) {
        let again = self.with_server(|server, now| server.machines.heartbeat(node, agent, has_launch, now));
        if let Some(again) = again {
            self.call(Host::API, Host(node), Call::BeatAnswer { node, agent, again, asked });
        }
    }

    pub(super) fn port_answered(&mut self, node: u32, caller: u64, port: Port) {
        if self.api.process == caller {
            self.with_server(|server, now| server.machines.port_answered(node, port, now));
        }
    }

    pub(super) fn stream_opens(&mut self, connection: ConnectionId, _: End, again: bool) {
        let Some(Purpose::Report { node }) = self.network.get(connection).map(|known| known.purpose) else { return };
        let now = self.at(Host::API);
        let Some(server) = &mut self.api.server else { return };
        match server.machines.open_stream(node, again, now) {
            Ok(stream) => drop(server.streams.insert((node, stream), connection)),
            Err(_) => {
                self.send(connection, Side::Opener, Message::StreamEnd(StreamEnd::Unwanted));
                self.close(connection, Side::Accepter);
            }
        }
        self.carry_out_api();
    }

    pub(super) fn report_comes(&mut self, connection: ConnectionId, report: Bytes) {
        self.journal.hash(&report);
        let Ok(report) = proto::LaunchReport::decode(report) else { return };
        self.with_server(|server, now| {
            let stream = server.streams.iter().find(|(_, known)| **known == connection).map(|(key, _)| *key);
            if let Some((node, stream)) = stream {
                server.machines.on_report(node, stream, report, now);
            }
        });
    }

    pub(super) fn report_stream_broke(&mut self, connection: ConnectionId) {
        self.with_server(|server, now| {
            let stream = server.streams.iter().find(|(_, known)| **known == connection).map(|(key, _)| *key);
            if let Some((node, stream)) = stream {
                server.streams.remove(&(node, stream));
                server.machines.stream_closed(node, stream, now);
            }
        });
    }

    /// A client follows.
    pub(super) fn client_attaches(&mut self, connection: ConnectionId, after: u64) {
        if let (Record::Over, Some(completed)) = &self.api.disk
            && self.api.server.as_ref().is_some_and(|server| !server.machines.knows_launch())
        {
            let Completed { cause, ends } = completed.clone();
            let event = ClientEvent::Complete { cause, ends, message: String::new() };
            return self.send(connection, Side::Opener, Message::Tell { sequence: u64::MAX, event });
        }
        let joined = self.with_server(|server, now| {
            let client = server.machines.attach_owner(after, now)?;
            // As the event log counts: what a client has that was never there is nothing that it misses.
            let latest = server.log.last().map_or(0, |(sequence, _)| *sequence);
            let after = after.min(latest);
            let sent = server.log.iter().take_while(|(sequence, _)| *sequence <= after).count();
            server.follower = Some((connection, sent));
            server.clients.insert(connection, client);
            Some(client)
        });
        match joined.flatten() {
            Some(client) => self.send(connection, Side::Opener, Message::Attached { client }),
            None => self.send(connection, Side::Opener, Message::Unknown),
        }
        self.tell_follower();
    }

    fn tell_follower(&mut self) {
        loop {
            let Some(server) = &mut self.api.server else { return };
            let Some((connection, sent)) = &mut server.follower else { return };
            let Some((sequence, event)) = server.log.get(*sent).cloned() else { return };
            *sent += 1;
            let connection = *connection;
            self.send(connection, Side::Opener, Message::Tell { sequence, event });
        }
    }

    pub(super) fn client_acknowledges(&mut self, client: u64, sequence: u64) {
        self.with_server(|server, now| server.machines.acknowledge(client, sequence, now));
    }

    pub(super) fn client_signals(&mut self, client: u64, signal: i32) {
        self.with_server(|server, now| server.machines.end_by_owner(client, signal, now));
    }

    /// The connection of the client that follows has broken.
    pub(super) fn follower_gone(&mut self, connection: ConnectionId) {
        self.with_server(|server, now| {
            let Some(client) = server.clients.remove(&connection) else { return };
            if server.follower.is_some_and(|(known, _)| known == connection) {
                server.follower = None;
            }
            server.machines.owner_gone(client, now);
        });
    }

    pub(super) fn abort_launch(&mut self) {
        self.with_server(|server, now| server.machines.abort(now));
    }

    pub(super) fn written(&mut self, process: u64, record: Record, is_durable: bool) {
        // What the disk has it has, whoever asked for it.
        if is_durable {
            let end = (record == Record::Over).then(|| self.truth.completion().cloned()).flatten();
            self.api.disk = (record, end);
        }
        if self.api.process == process {
            self.with_server(|server, now| server.machines.stored(is_durable, now));
        }
    }

    fn carry_out_api(&mut self) {
        while let Some(effect) = self.api.server.as_mut().and_then(|server| server.machines.poll_effect()) {
            self.carry_out_api_effect(effect);
        }
        self.tell_follower();
        let clock = self.clock(Host::API);
        let process = self.api.process;
        let Some(server) = &mut self.api.server else { return };
        let wake = server.machines.next_wake().map(|wake| clock.when(wake));
        if let Some(at) = wake.filter(|&at| server.woken != Some(at)) {
            server.woken = Some(at);
            self.schedule(at, Event::ApiWake { process });
        }
    }

    fn carry_out_api_effect(&mut self, effect: ApiEffect) {
        match effect {
            ApiEffect::Command { node, stream, command } => {
                let connection =
                    self.api.server.as_ref().and_then(|server| server.streams.get(&(node, stream)).copied());
                if let Some(connection) = connection {
                    let command = command.encode_to_vec();
                    self.journal.hash(&command);
                    self.send(connection, Side::Opener, Message::Command(command.into()));
                }
            }
            ApiEffect::EndStream { node, stream, in_order } => {
                let connection = self.api.server.as_mut().and_then(|server| server.streams.remove(&(node, stream)));
                if let Some(connection) = connection {
                    let how = if in_order { StreamEnd::Acknowledged } else { StreamEnd::Replaced };
                    self.send(connection, Side::Opener, Message::StreamEnd(how));
                    self.close(connection, Side::Accepter);
                }
            }
            ApiEffect::Abort { node, signal } => self.call(Host::API, Host(node), Call::Abort { node, signal }),
            ApiEffect::AskPort { node } => self.ask_port(node),
            ApiEffect::Store(record) => self.store(record),
            ApiEffect::Tell { sequence, event } => {
                self.journal.note(self.now, format_args!("the launch tells {sequence} {event:?}"));
                match &event {
                    ClientEvent::Ending(cause) => self.truth.ending(cause),
                    ClientEvent::Complete { cause, ends, .. } => {
                        self.truth.completed(&Completed { cause: cause.clone(), ends: ends.clone() });
                    }
                    _ => {}
                }
                if let Some(server) = &mut self.api.server {
                    server.log.push((sequence, event));
                }
            }
            ApiEffect::Started(is_started) => self.launch_started(is_started),
            ApiEffect::Concluded { .. } => self.journal.note(self.now, format_args!("the launch is concluded")),
            ApiEffect::Lost { node, reason } => {
                self.journal.note(self.now, format_args!("node {node} is lost: {reason}"));
            }
        }
    }

    /// Asks the port of an agent; the answer is known at once, and comes later.
    fn ask_port(&mut self, node: u32) {
        let caller = self.api.process;
        let host = Host(node);
        let reaches = !self.network.is_cut(Host::API, host) && !self.network.is_cut(host, Host::API);
        let known = &self.nodes[node as usize];
        let (port, time) = match (reaches && known.is_up, known.agent.is_some()) {
            (false, _) => (Port::Nothing, timeouts::PORT_ANSWER),
            (true, true) => (Port::Accepted, self.some_time(50, 2000)),
            (true, false) => (Port::Refused, self.some_time(50, 2000)),
        };
        self.after(time, Event::Call { to: Host::API, call: Call::PortAnswer { node, caller, port } });
    }

    fn store(&mut self, record: Record) {
        let process = self.api.process;
        let (time, is_durable) = match self.api.disk_fails {
            true => (self.some_time(100, 1_000_000), false),
            false => (self.some_time(200, 30_000), true),
        };
        self.after(time, Event::Written { process, record, is_durable });
    }

    /// Returns true while the API server runs, and runs the launch.
    pub(super) fn is_launch_over(&self) -> bool {
        self.api.disk.0 == Record::Over
    }
}
