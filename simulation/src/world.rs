//! A cluster in virtual time: its parts, and the dispatch of events to them.

mod disturbance;
mod ending;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::api_host::ApiHost;
use crate::client::Client;
use crate::connection::{ConnectionId, End, Host, Side};
use crate::event::{Call, ConnectionEvent, Event, FaultEvent, Message, SessionEvent};
use crate::faults::{Fault, LONGEST};
use crate::journal::Journal;
use crate::node::Node;
use crate::scenario::Scenario;
use crate::surroundings::Surroundings;
use crate::time::Time;

/// Pause before the end of a connection is checked again, if a cut network delays it.
const HELD_UP: Duration = Duration::from_millis(20);

/// Interval between checks whether the run is over.
const LOOK: Duration = Duration::from_millis(500);

/// Pause of a machine.
#[derive(Debug)]
struct Pause {
    until: Time,
    /// Events that have reached the host, in order.
    held: Vec<Event>,
}

/// A cluster that runs one launch.
#[derive(Debug)]
pub(crate) struct World {
    around: Surroundings,
    faults: Vec<Fault>,
    /// Paused hosts.
    paused: BTreeMap<Host, Pause>,
    api: ApiHost,
    nodes: Vec<Node>,
    client: Client,
}

impl World {
    pub(crate) fn new(seed: u64, scenario: Scenario, faults: Vec<Fault>, keeps_lines: bool) -> Self {
        let nodes = (0..scenario.nodes()).map(Node::new).collect();
        let mut world = Self {
            around: Surroundings::new(seed, scenario, Journal::new(keeps_lines)),
            faults,
            paused: BTreeMap::new(),
            api: ApiHost::new(),
            nodes,
            client: Client::default(),
        };
        world.begin();
        world
    }

    /// Registers the nodes, and orders a launch.
    fn begin(&mut self) {
        let around = &mut self.around;
        for (number, fault) in self.faults.iter().enumerate() {
            around.at(fault.at, FaultEvent::Fault(number));
        }
        self.nodes.iter_mut().for_each(|node| node.start_agent(around));
        self.api.order_launch(around);
        for (number, node) in self.nodes.iter_mut().enumerate() {
            let agent = node.agent_process().unwrap_or_default();
            self.api.has_registered(number as u32, agent, around);
            node.has_registered(around);
        }
        self.api.ask_nodes(around);
    }

    /// Runs until the launch is over everywhere after the last fault, or until this time.
    pub(crate) fn run_until(&mut self, end: Time) {
        let mut next_look = self.faults.iter().map(|fault| fault.at + LONGEST.min(fault.kind.lasts())).max();
        while let Some(event) = self.around.schedule.next(end) {
            self.happen(event);
            let now = self.around.now();
            if next_look.is_none_or(|look| now >= look) {
                if self.is_at_rest() {
                    return;
                }
                next_look = Some(now + LOOK);
            }
        }
    }

    /// Returns the record of the run, and the violated invariants.
    pub(crate) fn into_record(self) -> (Journal, Vec<String>) {
        let violations = self.around.truth.violations().to_vec();
        (self.around.journal, violations)
    }

    fn happen(&mut self, event: Event) {
        if let Some(pause) = self.pause_of(&event) {
            return pause.held.push(event);
        }
        if event.is_noted() {
            self.around.note(format_args!("{event:?}"));
        }
        self.route(event);
        if let Some(process) = self.api.take_owner() {
            self.client.begin(process, &mut self.around);
        }
    }

    /// Returns the pause of the host of an event.
    fn pause_of(&mut self, event: &Event) -> Option<&mut Pause> {
        let network = &self.around.network;
        let host = event.host(|connection, to| Some(network.get(connection)?.end(to).host))?;
        self.paused.get_mut(&host)
    }

    /// Begins or extends the pause of a host.
    fn pause(&mut self, host: Host, until: Time) {
        let pause = self.paused.entry(host).or_insert_with(|| Pause { until, held: Vec::new() });
        pause.until = until.max(pause.until);
        self.around.at(until, FaultEvent::PauseOver(host));
    }

    /// Handles the events of a pause, if the pause is over.
    fn pause_over(&mut self, host: Host) {
        if self.paused.get(&host).is_some_and(|pause| pause.until <= self.around.now()) {
            let held = self.paused.remove(&host).map(|pause| pause.held).unwrap_or_default();
            held.into_iter().for_each(|event| self.happen(event));
        }
    }

    fn route(&mut self, event: Event) {
        let around = &mut self.around;
        match event {
            Event::Connection(ConnectionEvent::Arrival { connection, to, message }) => {
                self.arrive(connection, to, message);
            }
            Event::Connection(ConnectionEvent::Broken { connection, to }) => self.connection_broke(connection, to),
            Event::Call { call, .. } => self.called(call),
            Event::Api(event) => self.api.on_event(event, around),
            Event::Node(event) => self.nodes[event.node() as usize].on_event(&event, around),
            Event::Agent(event) => self.nodes[event.agent().0 as usize].on_agent_event(event, around),
            Event::Session(SessionEvent::OpenLink { node, session, to, since }) => {
                let target = self.nodes[to as usize].link_target();
                let opened = self.nodes[node as usize].open_link(session, to, since, target, around);
                if let Some((peer, link)) = opened {
                    self.nodes[to as usize].accept_link(peer, node, link, around);
                }
            }
            Event::Session(event) => self.nodes[event.session().0 as usize].on_session_event(event, around),
            Event::Client(timer) => self.client.on_timer(timer, around),
            Event::Fault(event) => self.fault(event),
        }
    }

    fn called(&mut self, call: Call) {
        let around = &mut self.around;
        match call {
            Call::Spawn { node, wish } => self.api.spawn(node, wish, around),
            Call::Start { node, .. }
            | Call::SpawnAnswer { node, .. }
            | Call::Abort { node, .. }
            | Call::Registered { node, .. }
            | Call::BeatAnswer { node, .. } => self.nodes[node as usize].on_call(call, around),
            Call::Register { node, agent, asked } => {
                if let Some(has_launch) = self.nodes[node as usize].agent_has_launch(agent) {
                    self.api.node_registers(node, agent, has_launch, asked, around);
                }
            }
            Call::Beat { node, agent, asked } => {
                if let Some(has_launch) = self.nodes[node as usize].agent_has_launch(agent) {
                    self.api.node_beats(node, agent, has_launch, asked, around);
                }
            }
            Call::StartAnswer { node, caller, accepted } => self.api.start_answered(node, caller, accepted, around),
            Call::PortAnswer { node, caller, port } => self.api.port_answered(node, caller, port, around),
        }
    }

    fn arrive(&mut self, connection: ConnectionId, to: Side, message: Message) {
        self.around.network.arrived(connection, to);
        let Some(end) = self.around.network.get(connection).map(|known| known.end(to)) else { return };
        if !self.around.network.takes(connection, to) || !self.lives(end) {
            return;
        }
        let around = &mut self.around;
        match end.host {
            Host::API => self.api.on_message(connection, message, around),
            Host::CLIENT => self.client.on_message(connection, message, around),
            Host(node) => self.nodes[node as usize].on_message(connection, end, message, around),
        }
    }

    fn connection_broke(&mut self, connection: ConnectionId, to: Side) {
        // An end arrives after all messages before it.
        if self.around.network.is_held_up(connection, to) {
            let again = ConnectionEvent::Broken { connection, to };
            return self.around.after(HELD_UP, Event::Connection(again));
        }
        let Some(known) = self.around.network.get(connection) else { return };
        if known.way(to).in_transit > 0 && !known.way(to).is_shut {
            let (at, again) = (known.way(to).last, ConnectionEvent::Broken { connection, to });
            return self.around.at(at, Event::Connection(again));
        }
        let (purpose, end) = (known.purpose, known.end(to));
        // Messages in transit to the other side are not needed any more.
        self.around.network.shut(connection, to);
        if self.lives(end) {
            let around = &mut self.around;
            match end.host {
                Host::API => self.api.on_broken(connection, purpose, around),
                Host::CLIENT => self.client.on_broken(connection, around),
                Host(node) => self.nodes[node as usize].on_broken(connection, purpose, end, around),
            }
        }
        self.around.network.ended(connection);
    }

    /// Returns true if a process runs.
    fn lives(&self, end: End) -> bool {
        match end.host {
            Host::API => self.api.has_process(end.process),
            Host::CLIENT => self.client.has_process(end.process),
            Host(node) => self.nodes[node as usize].has_process(end.process),
        }
    }
}
