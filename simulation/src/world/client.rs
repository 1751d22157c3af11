//! The launcher: follows its launch, acknowledges what it has shown, attaches again when its connection breaks.

use std::time::Duration;

use lattice_api_server::simulation::ClientEvent;
use lattice_session::timeouts;

use super::{ClientTimer, Event, LEASE, Message, World};
use crate::network::{ConnectionId, End, Host, Purpose, Side};
use crate::time::Time;

/// The client's process.
#[derive(Debug, Default)]
pub(super) struct Client {
    pub(super) process: u64,
    connection: Option<ConnectionId>,
    /// Its number, once it is attached.
    number: Option<u64>,
    /// The number of the last event that it has shown.
    seen: u64,
    /// Events that are not acknowledged.
    untold: bool,
    /// It reads nothing until then.
    pub(super) blocked_until: Time,
    /// Since when it tries to attach.
    trying_since: Time,
    pub(super) is_done: bool,
}

impl World {
    /// Who ordered the launch is told how that ended.
    pub(super) fn launch_started(&mut self, is_started: bool) {
        if !is_started || self.scenario.is_detached {
            return;
        }
        self.client.process = self.next_process();
        self.client.trying_since = self.now;
        let time = self.some_time(100, 5000);
        self.after(time, Event::Client(ClientTimer::Attach { attempt: 0 }));
    }

    fn client_end(&self) -> End {
        End { host: Host::CLIENT, process: self.client.process }
    }

    pub(super) fn client_timer(&mut self, timer: ClientTimer) {
        if self.client.process == 0 || self.client.is_done {
            return;
        }
        match timer {
            ClientTimer::Attach { attempt } => self.attach(attempt),
            ClientTimer::Read => self.acknowledge(),
        }
    }

    fn attach(&mut self, attempt: u64) {
        if self.client.connection.is_some() {
            return;
        }
        if self.now > self.client.trying_since + timeouts::COME_BACK + LEASE {
            self.client.is_done = true;
            return self.journal.note(self.now, format_args!("the client gives up"));
        }
        if self.api.server.is_none() {
            return self.after(Duration::from_secs(1), Event::Client(ClientTimer::Attach { attempt: attempt + 1 }));
        }
        let api = End { host: Host::API, process: self.api.process };
        let connection = self.network.open(Purpose::Attachment, self.client_end(), api);
        self.client.connection = Some(connection);
        let after = self.client.seen;
        self.send(connection, Side::Accepter, Message::Attach { after });
    }

    pub(super) fn attached(&mut self, connection: ConnectionId, client: u64) {
        if self.client.connection == Some(connection) {
            self.client.number = Some(client);
        }
    }

    /// The launch is not known: it is over, and nobody remembers it.
    pub(super) fn unknown(&mut self, connection: ConnectionId) {
        if self.client.connection == Some(connection) {
            self.client.is_done = true;
            self.close(connection, Side::Opener);
        }
    }

    pub(super) fn client_hears(&mut self, connection: ConnectionId, sequence: u64, event: ClientEvent) {
        if self.client.connection != Some(connection) {
            return;
        }
        if self.client.blocked_until > self.now {
            let until = self.client.blocked_until;
            let message = Message::Tell { sequence, event };
            return self.schedule(until, Event::Arrival { connection, to: Side::Opener, message });
        }
        if sequence != u64::MAX {
            if sequence <= self.client.seen && !self.truth.forgets {
                self.truth.wrong(format!("I8: event {sequence} comes again after {}", self.client.seen));
            }
            self.client.seen = sequence;
        }
        self.truth.told(&event);
        if matches!(event, ClientEvent::Complete { .. }) {
            self.client.is_done = true;
            self.acknowledge();
            return self.close(connection, Side::Opener);
        }
        if !std::mem::replace(&mut self.client.untold, true) {
            let time = self.some_time(10, 20_000);
            self.after(time, Event::Client(ClientTimer::Read));
        }
    }

    fn acknowledge(&mut self) {
        self.client.untold = false;
        if let (Some(connection), Some(client)) = (self.client.connection, self.client.number) {
            let sequence = self.client.seen;
            self.send(connection, Side::Accepter, Message::Acknowledge { client, sequence });
        }
    }

    pub(super) fn signal_launch(&mut self, signal: i32) {
        if let (Some(connection), Some(client)) = (self.client.connection, self.client.number) {
            self.truth.is_ended_by_others = true;
            self.send(connection, Side::Accepter, Message::Signal { client, signal });
        }
    }

    /// The client's side of its connection has broken.
    pub(super) fn attachment_broke(&mut self, connection: ConnectionId) {
        if self.client.connection != Some(connection) {
            return;
        }
        (self.client.connection, self.client.number) = (None, None);
        if !self.client.is_done {
            self.client.trying_since = self.now;
            let time = self.some_time(1000, 1_000_000);
            self.after(time, Event::Client(ClientTimer::Attach { attempt: 0 }));
        }
    }

    pub(super) fn kill_client(&mut self) {
        if self.client.process == 0 || self.client.is_done {
            return;
        }
        self.truth.is_ended_by_others = true;
        self.close_all(self.client_end());
        self.client.is_done = true;
        self.client.connection = None;
        self.client.process = 0;
    }

    /// The client reads nothing until then.
    pub(super) fn stop_client(&mut self, until: Time) {
        self.client.blocked_until = until.max(self.client.blocked_until);
    }

    pub(super) fn reset_client(&mut self) {
        if let Some(connection) = self.client.connection {
            self.reset(connection);
        }
    }
}
