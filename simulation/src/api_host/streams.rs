//! Connections to the API server: streams of nodes, and connections of clients that follow the launch.

use std::time::Instant;

use bytes::Bytes;
use lattice_api_server::simulation::{ClientEvent, Record, SimulatedApiServer};
use pmi_core::ids::NodeIndex;
use pmi_transport::proto::v1 as proto;
use prost::Message as _;

use super::ApiHost;
use crate::connection::{ConnectionId, Host, Purpose, Side};
use crate::event::{Message, StreamEnd};
use crate::surroundings::Surroundings;
use crate::truth::Completed;

impl ApiHost {
    pub(crate) fn on_message(&mut self, connection: ConnectionId, message: Message, around: &mut Surroundings) {
        match message {
            Message::Open { again } => self.stream_opens(connection, again, around),
            Message::Report(report) => self.report_comes(connection, report, around),
            Message::Attach { after } => self.client_attaches(connection, after, around),
            Message::Acknowledge { sequence } => self.hear_client(connection, around, |machines, client, now| {
                machines.acknowledge(client, sequence, now);
            }),
            Message::Input(piece) => self.hear_client(connection, around, |machines, client, now| {
                machines.give_input(client, Some(piece), now);
            }),
            Message::InputEnd => self.hear_client(connection, around, |machines, client, now| {
                machines.give_input(client, None, now);
            }),
            Message::Signal { signal } => self.hear_client(connection, around, |machines, client, now| {
                machines.end_by_owner(client, signal, now);
            }),
            _ => {}
        }
    }

    pub(crate) fn on_broken(&mut self, connection: ConnectionId, purpose: Purpose, around: &mut Surroundings) {
        match purpose {
            Purpose::Report { .. } => self.stream_broke(connection, around),
            Purpose::Attachment => self.client_gone(connection, around),
            Purpose::Link => {}
        }
    }

    fn stream_opens(&mut self, connection: ConnectionId, again: bool, around: &mut Surroundings) {
        let Some(Purpose::Report { node }) = around.network.get(connection).map(|known| known.purpose) else { return };
        let now = around.shown(Host::API);
        let Some(server) = &mut self.server else { return };
        match server.machines.open_stream(NodeIndex(node), again, now) {
            Ok(stream) => drop(server.streams.insert((node, stream), connection)),
            Err(_) => {
                around.send(connection, Side::Opener, Message::StreamEnd(StreamEnd::Unwanted));
                around.close(connection, Side::Accepter);
            }
        }
        self.carry_out(around);
    }

    fn report_comes(&mut self, connection: ConnectionId, report: Bytes, around: &mut Surroundings) {
        around.journal.hash(&report);
        let Ok(report) = proto::LaunchReport::decode(report) else { return };
        self.with_server(around, |server, now| {
            if let Some((node, stream)) = server.stream_of(connection) {
                server.machines.on_report(NodeIndex(node), stream, report, now);
            }
        });
    }

    fn stream_broke(&mut self, connection: ConnectionId, around: &mut Surroundings) {
        self.with_server(around, |server, now| {
            if let Some((node, stream)) = server.stream_of(connection) {
                server.streams.remove(&(node, stream));
                server.machines.stream_closed(NodeIndex(node), stream, now);
            }
        });
    }

    /// A client starts to follow the launch.
    fn client_attaches(&mut self, connection: ConnectionId, after: u64, around: &mut Surroundings) {
        if let (Record::Over, Some(completed)) = (&self.disk.record, &self.disk.end)
            && self.server.as_ref().is_some_and(|server| !server.machines.knows_launch())
        {
            let Completed { cause, ends } = completed.clone();
            let event = ClientEvent::Complete { cause, ends, message: String::new() };
            return around.send(connection, Side::Opener, Message::Tell { sequence: u64::MAX, event });
        }
        let now = around.shown(Host::API);
        let joined = self.server.as_mut().and_then(|server| {
            let (client, window) = server.machines.attach_owner(after, now)?;
            server.clients.insert(connection, client);
            Some(window)
        });
        let answer = joined.map_or(Message::Unknown, Message::Credit);
        around.send(connection, Side::Opener, answer);
        self.carry_out(around);
    }

    /// Handles a message from a client that follows the launch.
    fn hear_client(
        &mut self,
        connection: ConnectionId,
        around: &mut Surroundings,
        said: impl FnOnce(&mut SimulatedApiServer, u64, Instant),
    ) {
        self.with_server(around, |server, now| {
            if let Some(&client) = server.clients.get(&connection) {
                said(&mut server.machines, client, now);
            }
        });
    }

    /// The connection of a client has broken.
    fn client_gone(&mut self, connection: ConnectionId, around: &mut Surroundings) {
        self.with_server(around, |server, now| {
            let Some(client) = server.clients.remove(&connection) else { return };
            server.machines.owner_gone(client, now);
        });
    }
}
