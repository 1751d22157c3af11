//! The agent of a node: registers, renews its lease, relays between session and API server, and kills processes that do not end. It
//! is a stand-in for the agent's tasks, and follows the rules of `agent-bin/src/daemon/launch.rs` and `report/line.rs`.

mod launch;
mod report;

use std::time::Duration;

use lattice_session::cause::{Cause, CauseKind};
use lattice_session::event::{Event as SessionEvent, Report};
use lattice_session::{timeouts, wire};
use pmi_transport::proto::v1 as proto;
use prost::Message as _;
use proto::node_command::What as CommandWhat;
use proto::to_session::What as ToWhat;

use self::launch::Launch;
use super::fork_server::{End, ForkServer};
use crate::connection::{Host, Side};
use crate::event::{AgentEvent, Call};
use crate::surroundings::{LEASE, Surroundings};
use crate::time::Time;

/// Interval between checks of the deadlines.
const LOOK: Duration = Duration::from_millis(250);

/// One agent.
#[derive(Debug)]
pub(super) struct Agent {
    node: u32,
    process: u64,
    is_registered: bool,
    lease_until: Option<Time>,
    launch: Option<Launch>,
}

impl Agent {
    /// Creates a newly started agent, which adopts the launch of its fork server, if there is one.
    pub(super) fn new(node: u32, process: u64, takes_launch_up: bool, now: Time) -> Self {
        let lease_until = takes_launch_up.then(|| now + LEASE);
        let launch = takes_launch_up.then(Launch::taken_up);
        Self { node, process, is_registered: false, lease_until, launch }
    }

    pub(super) fn process(&self) -> u64 {
        self.process
    }

    pub(super) fn has_launch(&self) -> bool {
        self.launch.is_some()
    }

    /// A launch begins on its node.
    pub(super) fn take_launch(&mut self) {
        self.launch = Some(Launch::begun());
    }

    /// Starts the timers of the agent.
    pub(super) fn begin(&self, around: &mut Surroundings) {
        let (node, agent) = (self.node, self.process);
        if self.has_launch() {
            around.after(LEASE, AgentEvent::Lease { node, agent });
            around.after(Duration::from_millis(50), AgentEvent::OpenStream { node, agent });
        }
        around.after(Duration::from_millis(1), AgentEvent::Beat { node, agent });
        around.after(LOOK, AgentEvent::AgentLook { node, agent });
    }

    pub(super) fn on_event(&mut self, event: AgentEvent, fork_server: &mut ForkServer, around: &mut Surroundings) {
        match event {
            AgentEvent::Beat { .. } => self.beat(around),
            AgentEvent::AgentLook { .. } => self.look(fork_server, around),
            AgentEvent::Lease { .. } => self.lease_over(fork_server, around),
            AgentEvent::OpenStream { .. } => self.open_stream(fork_server, around),
            AgentEvent::FromSession { bytes, .. } => self.hear_session(bytes, fork_server, around),
        }
    }

    // The node.

    /// The agent had registered before the launch was ordered.
    pub(super) fn has_registered(&mut self, around: &mut Surroundings) {
        let until = around.now() + LEASE;
        (self.is_registered, self.lease_until) = (true, Some(until));
        around.at(until, AgentEvent::Lease { node: self.node, agent: self.process });
    }

    fn beat(&self, around: &mut Surroundings) {
        let (node, agent, asked) = (self.node, self.process, around.now());
        let call = match self.is_registered {
            true => Call::Beat { node, agent, asked },
            false => Call::Register { node, agent, asked },
        };
        around.call(Host(node), Host::API, call);
        around.after(timeouts::HEARTBEAT, AgentEvent::Beat { node, agent });
    }

    pub(super) fn registered(
        &mut self,
        must_end: bool,
        asked: Time,
        fork_server: &mut ForkServer,
        around: &mut Surroundings,
    ) {
        self.is_registered = true;
        self.renew(asked, around);
        if must_end {
            self.end_by(CommandWhat::GiveUp(proto::Nothing {}), fork_server, around);
            // The API server does not accept its report any more.
            if let Some(launch) = &mut self.launch {
                launch.is_delivered = true;
                launch.connection = None;
            }
            self.dismiss(fork_server, around);
        }
    }

    pub(super) fn beat_answered(&mut self, again: bool, asked: Time, around: &mut Surroundings) {
        if again {
            self.is_registered = false;
        } else {
            self.renew(asked, around);
        }
    }

    fn renew(&mut self, asked: Time, around: &mut Surroundings) {
        let until = asked + LEASE;
        self.lease_until = Some(self.lease_until.map_or(until, |before| before.max(until)));
        around.at(until, AgentEvent::Lease { node: self.node, agent: self.process });
    }

    /// Checks whether the lease has expired.
    fn lease_over(&mut self, fork_server: &mut ForkServer, around: &mut Surroundings) {
        if self.lease_until.is_some_and(|until| until <= around.now()) {
            self.lose_launch("the API server has not been heard", fork_server, around);
            around.after(timeouts::HEARTBEAT, AgentEvent::Lease { node: self.node, agent: self.process });
        }
    }

    // Ends of the session.

    /// Ends the session because the launch has lost this node, and reports this as the cause.
    fn lose_launch(&mut self, reason: &str, fork_server: &mut ForkServer, around: &mut Surroundings) {
        let Some(launch) = &mut self.launch else { return };
        if std::mem::replace(&mut launch.is_lost, true) || launch.has_last_words {
            return;
        }
        around.truth.struck.insert(self.node);
        self.push_own(lost_cause(self.node, reason), around);
        self.end_by(CommandWhat::GiveUp(proto::Nothing {}), fork_server, around);
    }

    /// The API server ends the launch on this node.
    pub(super) fn abort(&mut self, signal: i32, fork_server: &mut ForkServer, around: &mut Surroundings) {
        let how = match signal {
            0 => CommandWhat::GiveUp(proto::Nothing {}),
            9 => CommandWhat::Kill(signal),
            signal => CommandWhat::End(signal),
        };
        self.end_by(how, fork_server, around);
    }

    /// Ends the session by an order that is not from the client of the launch.
    fn end_by(&mut self, how: CommandWhat, fork_server: &mut ForkServer, around: &mut Surroundings) {
        let limit = match how {
            CommandWhat::Kill(_) => timeouts::KILL,
            _ => {
                let grace = around.scenario.spec(self.node).settings.timeouts.grace_max();
                grace.min(timeouts::GRACE_OF_OTHERS) + timeouts::END
            }
        };
        let then = around.now() + limit;
        let Some(launch) = self.launch.as_mut().filter(|launch| !launch.has_last_words) else { return };
        launch.killed_at = Some(launch.killed_at.map_or(then, |before| before.min(then)));
        let command = proto::NodeCommand { what: Some(how), ..proto::NodeCommand::default() };
        say(ToWhat::Command(command), fork_server, around);
    }

    /// Checks the deadlines.
    fn look(&mut self, fork_server: &mut ForkServer, around: &mut Surroundings) {
        let now = around.now();
        around.after(LOOK, AgentEvent::AgentLook { node: self.node, agent: self.process });
        let due = |time: Option<Time>| time.is_some_and(|time| time <= now);
        let Some(launch) = &mut self.launch else { return };
        if due(launch.killed_at) && !launch.is_session_gone {
            launch.killed_at = None;
            around.note(format_args!("the session of node {} does not end; it is killed", self.node));
            return fork_server.kill_session(around);
        }
        if due(launch.dismissed_at) && !launch.is_session_gone {
            launch.dismissed_at = None;
            return fork_server.kill_session(around);
        }
        if due(launch.asked_again_at) {
            launch.asked_again_at = None;
            if let Some(connection) = launch.connection.take() {
                around.close(connection, Side::Opener);
                self.stream_over(fork_server, around);
            }
            return;
        }
        if launch.last_words_at.is_some_and(|since| since + timeouts::REPORT_KEPT <= now) {
            launch.is_delivered = true;
            self.dismiss(fork_server, around);
        }
    }

    /// Dismisses the session, which is not needed any more.
    fn dismiss(&mut self, fork_server: &mut ForkServer, around: &mut Surroundings) {
        say(ToWhat::Dismissed(proto::Nothing {}), fork_server, around);
        let then = around.now() + timeouts::KILL;
        // The session has sent its last event. Before that, `killed_at` limits its time.
        if let Some(launch) = self.launch.as_mut().filter(|launch| launch.has_last_words) {
            launch.dismissed_at = Some(then);
        }
        self.look_if_over(fork_server, around);
    }

    /// The fork server reports that the session has ended, and that none of its processes runs.
    pub(super) fn session_ended(&mut self, end: End, fork_server: &mut ForkServer, around: &mut Surroundings) {
        let Some(launch) = &mut self.launch else { return };
        launch.is_session_gone = true;
        let has_said_all = launch.has_last_words && end == End::InOrder;
        if !has_said_all && !launch.is_delivered {
            around.truth.struck.insert(self.node);
            let report = Report::default();
            self.push_own(lost_cause(self.node, "the session process was killed"), around);
            self.push_own(wire::event::encode_report(&report), around);
            if let Some(launch) = &mut self.launch {
                launch.has_last_words = true;
                launch.last_words_at = Some(around.now());
            }
        }
        self.look_if_over(fork_server, around);
    }

    fn look_if_over(&mut self, fork_server: &mut ForkServer, around: &mut Surroundings) {
        if self.launch.as_ref().is_some_and(Launch::is_over) {
            self.launch = None;
            fork_server.forget();
            around.note(format_args!("the launch has left node {}", self.node));
        }
    }
}

/// Sends a message to the session.
fn say(what: ToWhat, fork_server: &mut ForkServer, around: &mut Surroundings) {
    fork_server.say(proto::ToSession { what: Some(what) }.encode_to_vec().into(), around);
}

fn lost_cause(node: u32, reason: &str) -> proto::NodeEvent {
    let cause = Cause { host: format!("n{node}"), kind: CauseKind::NodeLost { reason: reason.to_owned() } };
    wire::event::encode(&SessionEvent::Ending(cause))
}
