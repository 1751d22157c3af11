//! The agent of a node: registers, keeps its lease, relays between session and API server, ends what does not end. It stands for the
//! agent's tasks, and follows `agent-bin/src/daemon/launch.rs` and `report/line.rs` rule by rule.

use std::time::Duration;

use bytes::{Buf, Bytes};
use lattice_session::cause::{Cause, CauseKind};
use lattice_session::event::{Event as SessionEvent, Report};
use lattice_session::{timeouts, wire};
use pmi_transport::proto::v1 as proto;
use prost::Message as _;
use proto::from_session::What as Said;
use proto::launch_report::What as ReportWhat;
use proto::node_command::What as CommandWhat;
use proto::node_event::What as EventWhat;
use proto::to_session::What as ToWhat;

use super::{Call, Event, LEASE, Message, StreamEnd, World};
use crate::network::{ConnectionId, End, Host, Purpose, Side};
use crate::time::Time;

/// The longest pause before a stream is opened again.
const PAUSE: Duration = Duration::from_millis(1000);

/// A session, as the fork server knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    Running,
    /// It has ended, and nothing that it started runs.
    Ended,
}

/// One agent.
#[derive(Debug)]
pub(super) struct Agent {
    pub(super) process: u64,
    is_registered: bool,
    lease_until: Option<Time>,
    pub(super) launch: Option<Launch>,
}

/// A launch on the agent's node.
#[derive(Debug)]
pub(super) struct Launch {
    /// Number of streams so far.
    stream: u64,
    connection: Option<ConnectionId>,
    passes_on: bool,
    /// Events that came before the first stream.
    early: Vec<proto::NodeEvent>,
    handed: Option<u64>,
    put: u64,
    own: Vec<proto::NodeEvent>,
    own_put: usize,
    reported: bool,
    seems_heard: bool,
    accepted: bool,
    /// The session has said its report, or there is none any more.
    has_last_words: bool,
    /// The API server needs nothing more.
    is_delivered: bool,
    is_session_gone: bool,
    is_lost: bool,
    killed_at: Option<Time>,
    dismissed_at: Option<Time>,
    asked_again_at: Option<Time>,
    last_words_at: Option<Time>,
}

impl Launch {
    fn new(is_taken_up: bool) -> Self {
        Self {
            stream: 0,
            connection: None,
            passes_on: !is_taken_up,
            early: Vec::new(),
            handed: (!is_taken_up).then_some(0),
            put: 0,
            own: Vec::new(),
            own_put: 0,
            reported: false,
            seems_heard: true,
            accepted: false,
            has_last_words: false,
            is_delivered: false,
            is_session_gone: false,
            is_lost: false,
            killed_at: None,
            dismissed_at: None,
            asked_again_at: None,
            last_words_at: None,
        }
    }
}

impl World {
    /// An agent is started; it takes up the session that is there.
    pub(super) fn start_agent(&mut self, node: u32) {
        let process = self.next_process();
        let known = &mut self.nodes[node as usize];
        known.is_up = true;
        let kept = known.kept;
        let has_launch = kept.is_some();
        let lease_until = has_launch.then(|| self.now + LEASE);
        let launch = kept.map(|_| Launch::new(true));
        known.agent = Some(Agent { process, is_registered: false, lease_until, launch });
        match kept {
            Some(Kept::Running) => self.connect_session(node, process),
            Some(Kept::Ended) => self.session_ended(node, false),
            None => {}
        }
        if has_launch {
            self.after(LEASE, Event::Lease { node, agent: process });
            self.after(Duration::from_millis(50), Event::OpenStream { node, agent: process });
        }
        self.after(Duration::from_millis(1), Event::Beat { node, agent: process });
        self.after(Duration::from_millis(250), Event::AgentLook { node, agent: process });
    }

    pub(super) fn agent_back(&mut self, node: u32) {
        let known = &self.nodes[node as usize];
        if known.is_up && known.agent.is_none() {
            self.start_agent(node);
        }
    }

    /// An agent is killed; its session goes on.
    pub(super) fn kill_agent(&mut self, node: u32) {
        let Some(agent) = self.nodes[node as usize].agent.take() else { return };
        self.close_all(End { host: Host(node), process: agent.process });
        self.session_loses_agent(node, agent.process);
    }

    fn agent(&mut self, node: u32, process: u64) -> Option<&mut Agent> {
        self.nodes[node as usize].agent.as_mut().filter(|agent| agent.process == process)
    }

    fn launch_of(&mut self, node: u32) -> Option<&mut Launch> {
        self.nodes[node as usize].agent.as_mut()?.launch.as_mut()
    }

    pub(super) fn agent_has_launch(&self, node: u32) -> bool {
        self.nodes[node as usize].agent.as_ref().is_some_and(|agent| agent.launch.is_some())
    }

    /// The agent was there before the launch was ordered.
    pub(super) fn agent_registered(&mut self, node: u32) {
        let until = self.now + LEASE;
        if let Some(agent) = &mut self.nodes[node as usize].agent {
            (agent.is_registered, agent.lease_until) = (true, Some(until));
            let process = agent.process;
            self.schedule(until, Event::Lease { node, agent: process });
        }
    }

    pub(super) fn beat(&mut self, node: u32, process: u64) {
        let asked = self.now;
        let Some(agent) = self.agent(node, process) else { return };
        let call = match agent.is_registered {
            true => Call::Beat { node, agent: process, asked },
            false => Call::Register { node, agent: process, asked },
        };
        self.call(Host(node), Host::API, call);
        self.after(timeouts::HEARTBEAT, Event::Beat { node, agent: process });
    }

    pub(super) fn registered(&mut self, node: u32, process: u64, must_end: bool, asked: Time) {
        let Some(agent) = self.agent(node, process) else { return };
        agent.is_registered = true;
        self.renew(node, process, asked);
        if must_end {
            self.end_on(node, proto::node_command::What::GiveUp(proto::Nothing {}));
            // Nobody takes its report any more.
            if let Some(launch) = self.launch_of(node) {
                launch.is_delivered = true;
                launch.connection = None;
            }
            self.dismiss(node);
        }
    }

    pub(super) fn beat_answered(&mut self, node: u32, process: u64, again: bool, asked: Time) {
        let Some(agent) = self.agent(node, process) else { return };
        if again {
            agent.is_registered = false;
        } else {
            self.renew(node, process, asked);
        }
    }

    fn renew(&mut self, node: u32, process: u64, asked: Time) {
        let until = asked + LEASE;
        if let Some(agent) = self.agent(node, process) {
            agent.lease_until = Some(agent.lease_until.map_or(until, |before| before.max(until)));
            self.schedule(until, Event::Lease { node, agent: process });
        }
    }

    /// A lease may be over.
    pub(super) fn lease_over(&mut self, node: u32, process: u64) {
        let now = self.now;
        let Some(agent) = self.agent(node, process) else { return };
        if agent.lease_until.is_some_and(|until| until <= now) {
            self.lose_launch(node, "the API server has not been heard".to_owned());
            self.after(timeouts::HEARTBEAT, Event::Lease { node, agent: process });
        }
    }

    /// Ends the session because this node is lost to the launch, and reports that as the cause.
    fn lose_launch(&mut self, node: u32, reason: String) {
        let Some(launch) = self.launch_of(node) else { return };
        if std::mem::replace(&mut launch.is_lost, true) || launch.has_last_words {
            return;
        }
        self.truth.struck.insert(node);
        self.push_own(node, &lost_cause(node, reason));
        self.end_on(node, CommandWhat::GiveUp(proto::Nothing {}));
    }

    fn push_own(&mut self, node: u32, event: &proto::NodeEvent) {
        if let Some(launch) = self.launch_of(node) {
            launch.own.push(event.clone());
        }
        self.pass_own_on(node);
    }

    /// The launch is to be started here.
    pub(super) fn start_session(&mut self, node: u32, caller: u64) {
        let host = Host(node);
        let known = &mut self.nodes[node as usize];
        let answer = |accepted| Call::StartAnswer { node, caller, accepted };
        if !known.is_up {
            return;
        }
        let Some(agent) = &mut known.agent else { return self.call(host, Host::API, answer(false)) };
        if known.has_had_launch || agent.launch.is_some() {
            return self.call(host, Host::API, answer(false));
        }
        known.has_had_launch = true;
        agent.launch = Some(Launch::new(false));
        let process = agent.process;
        self.fork_session(node, process);
        self.call(host, Host::API, answer(true));
        let time = self.some_time(100, 50_000);
        self.after(time, Event::OpenStream { node, agent: process });
    }

    pub(super) fn abort_on(&mut self, node: u32, signal: i32) {
        if !self.nodes[node as usize].is_up {
            return;
        }
        self.end_on(
            node,
            match signal {
                0 => CommandWhat::GiveUp(proto::Nothing {}),
                9 => CommandWhat::Kill(signal),
                signal => CommandWhat::End(signal),
            },
        );
    }

    /// Ends the session by an order that is not the launch's client's.
    fn end_on(&mut self, node: u32, how: CommandWhat) {
        let grace = self.scenario.spec(node).settings.timeouts.grace_max();
        let limit = match how {
            CommandWhat::Kill(_) => timeouts::KILL,
            _ => grace.min(timeouts::GRACE_OF_OTHERS) + timeouts::END,
        };
        let then = self.now + limit;
        let Some(launch) = self.launch_of(node).filter(|launch| !launch.has_last_words) else { return };
        launch.killed_at = Some(launch.killed_at.map_or(then, |before| before.min(then)));
        let command = proto::NodeCommand { what: Some(how), ..proto::NodeCommand::default() };
        self.say_to_session(node, ToWhat::Command(command));
    }

    fn say_to_session(&mut self, node: u32, what: ToWhat) {
        let bytes = proto::ToSession { what: Some(what) }.encode_to_vec();
        self.agent_to_session(node, bytes.into());
    }

    /// Looks at what is due.
    pub(super) fn agent_look(&mut self, node: u32, process: u64) {
        let now = self.now;
        if self.agent(node, process).is_none() {
            return;
        }
        self.after(Duration::from_millis(250), Event::AgentLook { node, agent: process });
        let due = |time: Option<Time>| time.is_some_and(|time| time <= now);
        let Some(launch) = self.launch_of(node) else { return };
        if due(launch.killed_at) && !launch.is_session_gone {
            launch.killed_at = None;
            self.journal.note(now, format_args!("the session of node {node} does not end; it is killed"));
            return self.kill_session(node);
        }
        if due(launch.dismissed_at) && !launch.is_session_gone {
            launch.dismissed_at = None;
            return self.kill_session(node);
        }
        if due(launch.asked_again_at) {
            launch.asked_again_at = None;
            if let Some(connection) = launch.connection.take() {
                self.close(connection, Side::Opener);
                self.stream_over(node);
            }
            return;
        }
        if launch.last_words_at.is_some_and(|since| since + timeouts::REPORT_KEPT <= now) {
            launch.is_delivered = true;
            self.dismiss(node);
        }
    }

    /// Opens the next stream to the API server.
    pub(super) fn open_stream(&mut self, node: u32, process: u64) {
        if self.agent(node, process).is_none() {
            return;
        }
        let is_cut = self.network.is_cut(Host(node), Host::API) || self.network.is_cut(Host::API, Host(node));
        let is_there = self.api.server.is_some() && !is_cut;
        let Some(launch) = self.launch_of(node).filter(|launch| !launch.is_delivered && launch.connection.is_none())
        else {
            return;
        };
        let again = launch.stream > 0 || launch.handed.is_none();
        launch.stream += 1;
        (launch.passes_on, launch.put, launch.own_put, launch.accepted) = (!again, 0, 0, false);
        let early = std::mem::take(&mut launch.early);
        if !is_there {
            return self.stream_over(node);
        }
        let api = End { host: Host::API, process: self.api.process };
        let me = End { host: Host(node), process };
        let connection = self.network.open(Purpose::Report { node }, me, api);
        let due = self.now + timeouts::REPORT_ACK;
        if let Some(launch) = self.launch_of(node) {
            launch.connection = Some(connection);
            launch.accepted = true;
            launch.asked_again_at = launch.reported.then_some(due);
        }
        self.send(connection, Side::Accepter, Message::Open { again });
        self.pass_own_on(node);
        early.into_iter().for_each(|event| self.put(node, connection, ReportWhat::Event(event)));
    }

    /// Puts what the agent says itself into the present stream.
    fn pass_own_on(&mut self, node: u32) {
        while let Some(launch) = self.launch_of(node)
            && let Some(event) = launch.own.get(launch.own_put).cloned()
            && let Some(connection) = launch.connection
        {
            launch.own_put += 1;
            self.put(node, connection, ReportWhat::Event(event));
        }
    }

    fn put(&mut self, node: u32, connection: ConnectionId, what: ReportWhat) {
        let due = self.now + timeouts::REPORT_ACK;
        if let (Some(launch), ReportWhat::Event(event)) = (self.launch_of(node), &what) {
            launch.put = launch.put.max(event.sequence);
            if matches!(event.what, Some(EventWhat::Report(_))) {
                launch.reported = true;
                launch.asked_again_at = Some(due);
            }
        }
        let report = proto::LaunchReport { what: Some(what) }.encode_to_vec();
        self.send(connection, Side::Accepter, Message::Report(report.into()));
    }

    /// The present stream has ended: what follows is dropped, until there is another.
    fn stream_over(&mut self, node: u32) {
        let Some(process) = self.nodes[node as usize].agent_process() else { return };
        let Some(launch) = self.launch_of(node) else { return };
        launch.passes_on = false;
        launch.connection = None;
        launch.asked_again_at = None;
        if launch.accepted && launch.put > 0 {
            launch.handed = launch.handed.max(Some(launch.put));
        }
        launch.seems_heard |= launch.accepted;
        if std::mem::take(&mut launch.seems_heard) {
            self.say_to_session(node, ToWhat::Unheard(proto::Nothing {}));
        }
        let time = self.some_time(50_000, PAUSE.as_micros() as u64);
        self.after(time, Event::OpenStream { node, agent: process });
    }

    pub(super) fn stream_broke(&mut self, node: u32, connection: ConnectionId) {
        if self.launch_of(node).is_some_and(|launch| launch.connection == Some(connection)) {
            self.stream_over(node);
        }
    }

    pub(super) fn stream_ends(&mut self, connection: ConnectionId, end: End, how: StreamEnd) {
        let node = end.host.0;
        let Some(launch) = self.launch_of(node).filter(|launch| launch.connection == Some(connection)) else { return };
        match how {
            StreamEnd::Acknowledged if launch.reported => {
                (launch.connection, launch.is_delivered) = (None, true);
                self.dismiss(node);
            }
            StreamEnd::Unwanted => {
                (launch.connection, launch.is_delivered) = (None, true);
                self.end_on(node, CommandWhat::GiveUp(proto::Nothing {}));
                self.dismiss(node);
            }
            StreamEnd::Acknowledged | StreamEnd::Replaced => self.stream_over(node),
        }
        self.close(connection, Side::Opener);
    }

    pub(super) fn command_comes(&mut self, connection: ConnectionId, end: End, command: &Bytes) {
        let node = end.host.0;
        let Some(launch) = self.launch_of(node).filter(|launch| launch.connection == Some(connection)) else { return };
        let (stream, handed) = (launch.stream, launch.handed);
        let Ok(command) = proto::NodeCommand::decode(command.clone()) else { return };
        self.say_to_session(
            node,
            match command.what {
                Some(CommandWhat::Resume(proto::Resume { after })) => {
                    let handed = if after.is_none() { handed } else { None };
                    ToWhat::Resume(proto::ResumeEvents { stream, after, handed })
                }
                _ => ToWhat::Command(command),
            },
        );
    }

    /// Frames of the session have come.
    pub(super) fn session_says(&mut self, node: u32, process: u64, mut bytes: Bytes) {
        if self.agent(node, process).is_none() {
            return;
        }
        self.journal.hash(&bytes);
        while bytes.len() >= 4 {
            let length = bytes.get_u32() as usize;
            let frame = bytes.split_to(length.min(bytes.len()));
            if let Ok(proto::FromSession { what: Some(said) }) = proto::FromSession::decode(frame) {
                self.hear_session(node, said);
            }
        }
    }

    fn hear_session(&mut self, node: u32, said: Said) {
        let now = self.now;
        let Some(launch) = self.launch_of(node) else { return };
        match said {
            Said::Event(event) => {
                if matches!(event.what, Some(EventWhat::Report(_))) {
                    launch.has_last_words = true;
                    launch.killed_at = None;
                    launch.last_words_at = Some(now);
                    if launch.is_delivered {
                        self.dismiss(node);
                    }
                }
                let Some(launch) = self.launch_of(node) else { return };
                match launch.connection {
                    Some(connection) if launch.passes_on => self.put(node, connection, ReportWhat::Event(event)),
                    None if launch.stream == 0 && launch.passes_on => launch.early.push(event),
                    _ => {}
                }
            }
            Said::Resumed(resumed) => {
                let is_answer = resumed.stream == launch.stream && !launch.passes_on;
                if let Some(connection) = launch.connection.filter(|_| is_answer) {
                    launch.passes_on = true;
                    self.put(node, connection, ReportWhat::Resumed(resumed));
                }
            }
            _ => {}
        }
    }

    /// Nothing more of the session is wanted.
    fn dismiss(&mut self, node: u32) {
        self.say_to_session(node, ToWhat::Dismissed(proto::Nothing {}));
        let then = self.now + timeouts::KILL;
        if let Some(launch) = self.launch_of(node) {
            // It has said everything; before that, `killed_at` bounds how long it takes.
            if launch.has_last_words {
                launch.dismissed_at = Some(then);
            }
        }
        self.look_if_over(node);
    }

    /// The fork server says that the session has ended, and nothing that it started runs.
    pub(super) fn session_ended(&mut self, node: u32, in_order: bool) {
        let Some(launch) = self.launch_of(node) else { return };
        launch.is_session_gone = true;
        let has_said_all = launch.has_last_words && (in_order || launch.is_delivered);
        if !has_said_all && !launch.is_delivered {
            self.truth.struck.insert(node);
            let report = Report { exits: Vec::new(), cause: None, duration: Duration::ZERO, usage: None };
            self.push_own(node, &lost_cause(node, "the session process was killed".to_owned()));
            self.push_own(node, &wire::event::encode_report(&report));
            let now = self.now;
            if let Some(launch) = self.launch_of(node) {
                launch.has_last_words = true;
                launch.last_words_at = Some(now);
            }
        }
        self.look_if_over(node);
    }

    fn look_if_over(&mut self, node: u32) {
        let Some(agent) = &mut self.nodes[node as usize].agent else { return };
        if agent.launch.as_ref().is_some_and(|launch| launch.is_session_gone && launch.is_delivered) {
            agent.launch = None;
            self.nodes[node as usize].kept = None;
            self.journal.note(self.now, format_args!("the launch has left node {node}"));
        }
    }
}

fn lost_cause(node: u32, reason: String) -> proto::NodeEvent {
    let cause = Cause { host: format!("n{node}"), kind: CauseKind::NodeLost { reason } };
    wire::event::encode(&SessionEvent::Ending(cause))
}
