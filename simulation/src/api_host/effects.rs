//! Executes the effects of the API server's state machines: commands, calls, writes to the disk, messages to clients.

use lattice_api_server::simulation::{ApiEffect, ClientEvent, Port, Record};
use lattice_session::timeouts;
use pmi_core::ids::NodeIndex;
use pmi_transport::proto::v1 as proto;
use prost::Message as _;

use super::ApiHost;
use crate::client::Client;
use crate::connection::{Host, Side};
use crate::event::{ApiEvent, Call, Event, Message, StreamEnd};
use crate::surroundings::Surroundings;
use crate::truth::Completed;

impl ApiHost {
    /// Executes all effects of the state machines, and schedules their next wake-up.
    pub(super) fn carry_out(&mut self, around: &mut Surroundings) {
        while let Some(effect) = self.server.as_mut().and_then(|server| server.machines.poll_effect()) {
            self.carry_out_one(effect, around);
        }
        let clock = around.schedule.clock(Host::API);
        let Some(server) = &mut self.server else { return };
        let wake = server.machines.next_wake().map(|wake| clock.when(wake));
        if let Some(at) = wake.filter(|&at| server.woken != Some(at)) {
            server.woken = Some(at);
            around.at(at, ApiEvent::ApiWake { process: self.process });
        }
    }

    fn carry_out_one(&mut self, effect: ApiEffect, around: &mut Surroundings) {
        match effect {
            ApiEffect::Command { node, stream, command } => self.send_command(node.0, stream, &command, around),
            ApiEffect::EndStream { node, stream, in_order } => {
                let connection = self.server.as_mut().and_then(|server| server.streams.remove(&(node.0, stream)));
                if let Some(connection) = connection {
                    let how = if in_order { StreamEnd::Acknowledged } else { StreamEnd::Replaced };
                    around.send(connection, Side::Opener, Message::StreamEnd(how));
                    around.close(connection, Side::Accepter);
                }
            }
            ApiEffect::Abort { node: NodeIndex(node), signal } => {
                around.call(Host::API, Host(node), Call::Abort { node, signal });
            }
            ApiEffect::AskPort { node } => self.ask_port(node.0, around),
            ApiEffect::Store(record) => self.store(record, around),
            ApiEffect::Happened { sequence, event } => note_event(sequence, &event, around),
            ApiEffect::Deliver { client, sequence, event } => {
                if let Some(connection) = self.server.as_ref().and_then(|server| server.connection_of(client)) {
                    around.send(connection, Side::Opener, Message::Tell { sequence, event });
                }
            }
            ApiEffect::GrantInput { client, bytes } => {
                if let Some(connection) = self.server.as_ref().and_then(|server| server.connection_of(client)) {
                    around.send(connection, Side::Opener, Message::Credit(bytes));
                }
            }
            ApiEffect::Refused { reason, .. } => around.truth.wrong(format!("I8: the client is refused: {reason}")),
            ApiEffect::EndClient { client } => {
                if let Some(connection) = self.server.as_ref().and_then(|server| server.connection_of(client)) {
                    around.close(connection, Side::Accepter);
                }
            }
            ApiEffect::Started(is_started) => {
                self.has_answered = true;
                if is_started && !around.scenario.is_detached {
                    self.owner = Some(Client::start(around));
                }
            }
            ApiEffect::AnswerSpawn { ticket, answer } => {
                around.note(format_args!("a new job: {answer:?}"));
                let wish = ticket as usize;
                if let Some(node) = self.server.as_mut().and_then(|server| server.wishes.remove(&wish)) {
                    around.answers.push(answer);
                    let answer = around.answers.len() - 1;
                    around.call(Host::API, Host(node), Call::SpawnAnswer { node, wish, answer });
                }
            }
            ApiEffect::Concluded { .. } => around.note(format_args!("the launch is concluded")),
            ApiEffect::Lost { node, reason } => around.note(format_args!("node {node} is lost: {reason}")),
        }
    }

    fn send_command(&self, node: u32, stream: u64, command: &proto::NodeCommand, around: &mut Surroundings) {
        let connection = self.server.as_ref().and_then(|server| server.streams.get(&(node, stream)).copied());
        if let Some(connection) = connection {
            let command = command.encode_to_vec();
            around.journal.hash(&command);
            around.send(connection, Side::Opener, Message::Command(command.into()));
        }
    }

    /// Requests the port of an agent. The answer is determined at once, and arrives later.
    fn ask_port(&self, node: u32, around: &mut Surroundings) {
        let (caller, host) = (self.process, Host(node));
        let is_reached = around.network.reaches(Host::API, host) && around.network.is_up(host);
        let (port, time) = match (is_reached, around.network.listener(host)) {
            (false, _) => (Port::Nothing, timeouts::PORT_ANSWER),
            (true, Some(_)) => (Port::Accepted, around.some_time(50, 2000)),
            (true, None) => (Port::Refused, around.some_time(50, 2000)),
        };
        around.after(time, Event::Call { to: Host::API, call: Call::PortAnswer { node, caller, port } });
    }

    fn store(&self, record: Record, around: &mut Surroundings) {
        let process = self.process;
        let (time, is_durable) = match self.disk.fails {
            true => (around.some_time(100, 1_000_000), false),
            false => (around.some_time(200, 30_000), true),
        };
        around.after(time, ApiEvent::Written { process, record, is_durable });
    }
}

/// Records an event of the launch.
fn note_event(sequence: u64, event: &ClientEvent, around: &mut Surroundings) {
    around.note(format_args!("the launch tells {sequence} {event:?}"));
    match event {
        ClientEvent::Ending(cause) => around.truth.ending(cause),
        ClientEvent::Complete { cause, ends, .. } => {
            around.truth.completed(&Completed { cause: cause.clone(), ends: ends.clone() });
        }
        _ => {}
    }
}
