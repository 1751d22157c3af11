//! The streams of an agent to the API server. The events of the session and of the agent go up, commands come down.

use std::time::Duration;

use bytes::{Buf, Bytes};
use lattice_session::timeouts;
use pmi_transport::proto::v1 as proto;
use prost::Message as _;
use proto::from_session::What as Said;
use proto::launch_report::What as ReportWhat;
use proto::node_command::What as CommandWhat;
use proto::node_event::What as EventWhat;
use proto::to_session::What as ToWhat;

use super::{Agent, ForkServer, say};
use crate::connection::{ConnectionId, End, Host, Purpose, Side};
use crate::event::{AgentEvent, Message, StreamEnd};
use crate::surroundings::Surroundings;

/// Maximum pause before the next stream is opened.
const PAUSE: Duration = Duration::from_millis(1000);

impl Agent {
    /// Opens the next stream.
    pub(super) fn open_stream(&mut self, fork_server: &mut ForkServer, around: &mut Surroundings) {
        let is_reached = around.network.reaches(Host(self.node), Host::API);
        let api = around.network.listener(Host::API).filter(|_| is_reached);
        let wanted = self.launch.as_mut().filter(|launch| !launch.is_delivered && launch.connection.is_none());
        let Some(launch) = wanted else { return };
        let again = launch.stream > 0 || launch.handed.is_none();
        launch.stream += 1;
        (launch.passes_on, launch.put, launch.own_put, launch.accepted) = (!again, 0, 0, false);
        let early = std::mem::take(&mut launch.early);
        let Some(api) = api else { return self.stream_over(fork_server, around) };
        let me = End { host: Host(self.node), process: self.process };
        let connection = around.network.open(Purpose::Report { node: self.node }, me, api);
        launch.connection = Some(connection);
        launch.accepted = true;
        launch.asked_again_at = launch.reported.then_some(around.now() + timeouts::REPORT_ACK);
        around.send(connection, Side::Accepter, Message::Open { again });
        self.pass_own_on(around);
        early.into_iter().for_each(|event| self.put(connection, ReportWhat::Event(event), around));
    }

    /// Adds an event of the agent itself.
    pub(super) fn push_own(&mut self, event: proto::NodeEvent, around: &mut Surroundings) {
        if let Some(launch) = &mut self.launch {
            launch.own.push(event);
        }
        self.pass_own_on(around);
    }

    /// Sends events of the agent itself on the present stream.
    fn pass_own_on(&mut self, around: &mut Surroundings) {
        while let Some(launch) = &mut self.launch
            && let Some(event) = launch.own.get(launch.own_put).cloned()
            && let Some(connection) = launch.connection
        {
            launch.own_put += 1;
            self.put(connection, ReportWhat::Event(event), around);
        }
    }

    fn put(&mut self, connection: ConnectionId, what: ReportWhat, around: &mut Surroundings) {
        if let (Some(launch), ReportWhat::Event(event)) = (&mut self.launch, &what) {
            launch.put = launch.put.max(event.sequence);
            if matches!(event.what, Some(EventWhat::Report(_))) {
                launch.reported = true;
                launch.asked_again_at = Some(around.now() + timeouts::REPORT_ACK);
            }
        }
        let report = proto::LaunchReport { what: Some(what) }.encode_to_vec();
        around.send(connection, Side::Accepter, Message::Report(report.into()));
    }

    /// The present stream has ended. Later events are dropped until the next stream is open.
    pub(super) fn stream_over(&mut self, fork_server: &mut ForkServer, around: &mut Surroundings) {
        let Some(launch) = &mut self.launch else { return };
        launch.passes_on = false;
        launch.connection = None;
        launch.asked_again_at = None;
        if launch.accepted && launch.put > 0 {
            launch.handed = launch.handed.max(Some(launch.put));
        }
        launch.seems_heard |= launch.accepted;
        if std::mem::take(&mut launch.seems_heard) {
            say(ToWhat::Unheard(proto::Nothing {}), fork_server, around);
        }
        let time = around.some_time(50_000, PAUSE.as_micros() as u64);
        around.after(time, AgentEvent::OpenStream { node: self.node, agent: self.process });
    }

    fn has_stream(&self, connection: ConnectionId) -> bool {
        self.launch.as_ref().is_some_and(|launch| launch.connection == Some(connection))
    }

    pub(crate) fn stream_broke(
        &mut self,
        connection: ConnectionId,
        fork_server: &mut ForkServer,
        around: &mut Surroundings,
    ) {
        if self.has_stream(connection) {
            self.stream_over(fork_server, around);
        }
    }

    /// Handles a message of the API server.
    pub(crate) fn on_message(
        &mut self,
        connection: ConnectionId,
        message: Message,
        fork_server: &mut ForkServer,
        around: &mut Surroundings,
    ) {
        if !self.has_stream(connection) {
            return;
        }
        match message {
            Message::Command(command) => self.pass_command(command, fork_server, around),
            Message::StreamEnd(how) => {
                self.stream_ends(how, fork_server, around);
                around.close(connection, Side::Opener);
            }
            _ => {}
        }
    }

    fn stream_ends(&mut self, how: StreamEnd, fork_server: &mut ForkServer, around: &mut Surroundings) {
        let Some(launch) = &mut self.launch else { return };
        match how {
            StreamEnd::Acknowledged if launch.reported => {
                (launch.connection, launch.is_delivered) = (None, true);
                self.dismiss(fork_server, around);
            }
            StreamEnd::Unwanted => {
                (launch.connection, launch.is_delivered) = (None, true);
                self.end_by(CommandWhat::GiveUp(proto::Nothing {}), fork_server, around);
                self.dismiss(fork_server, around);
            }
            StreamEnd::Acknowledged | StreamEnd::Replaced => self.stream_over(fork_server, around),
        }
    }

    fn pass_command(&self, command: Bytes, fork_server: &mut ForkServer, around: &mut Surroundings) {
        let Some(launch) = &self.launch else { return };
        let Ok(command) = proto::NodeCommand::decode(command) else { return };
        let what = match command.what {
            Some(CommandWhat::Resume(proto::Resume { after })) => {
                let handed = if after.is_none() { launch.handed } else { None };
                ToWhat::Resume(proto::ResumeEvents { stream: launch.stream, after, handed })
            }
            _ => ToWhat::Command(command),
        };
        say(what, fork_server, around);
    }

    /// Handles frames of the session.
    pub(super) fn hear_session(&mut self, mut bytes: Bytes, fork_server: &mut ForkServer, around: &mut Surroundings) {
        around.journal.hash(&bytes);
        while bytes.len() >= 4 {
            let length = bytes.get_u32() as usize;
            let frame = bytes.split_to(length.min(bytes.len()));
            match proto::FromSession::decode(frame).ok().and_then(|said| said.what) {
                Some(Said::Event(event)) => self.hear_event(event, fork_server, around),
                Some(Said::Resumed(resumed)) => self.hear_resumed(resumed, around),
                _ => {}
            }
        }
    }

    fn hear_event(&mut self, event: proto::NodeEvent, fork_server: &mut ForkServer, around: &mut Surroundings) {
        let Some(launch) = &mut self.launch else { return };
        if matches!(event.what, Some(EventWhat::Report(_))) {
            launch.has_last_words = true;
            launch.killed_at = None;
            launch.last_words_at = Some(around.now());
            if launch.is_delivered {
                self.dismiss(fork_server, around);
            }
        }
        let Some(launch) = &mut self.launch else { return };
        match launch.connection {
            Some(connection) if launch.passes_on => self.put(connection, ReportWhat::Event(event), around),
            None if launch.stream == 0 && launch.passes_on => launch.early.push(event),
            _ => {}
        }
    }

    fn hear_resumed(&mut self, resumed: proto::Resumed, around: &mut Surroundings) {
        let Some(launch) = &mut self.launch else { return };
        let is_answer = resumed.stream == launch.stream && !launch.passes_on;
        if let Some(connection) = launch.connection.filter(|_| is_answer) {
            launch.passes_on = true;
            self.put(connection, ReportWhat::Resumed(resumed), around);
        }
    }
}
