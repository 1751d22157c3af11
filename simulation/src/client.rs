//! The launcher: follows its launch, acknowledges what it has shown, attaches again when its connection breaks.

use std::time::Duration;

use lattice_api_server::simulation::ClientEvent;
use lattice_session::timeouts;

use crate::connection::{ConnectionId, End, Host, Purpose, Side};
use crate::event::{ClientTimer, ConnectionEvent, Event, Message};
use crate::surroundings::{LEASE, Surroundings};
use crate::time::Time;

/// The client's process.
#[derive(Debug, Default)]
pub(crate) struct Client {
    /// 0 before the launch is started, and after it was killed.
    process: u64,
    connection: Option<ConnectionId>,
    /// Its number, once it is attached.
    number: Option<u64>,
    /// The number of the last event that it has shown.
    seen: u64,
    /// Events that are not acknowledged.
    untold: bool,
    /// It reads nothing until then.
    blocked_until: Time,
    /// Since when it tries to attach.
    trying_since: Time,
    is_done: bool,
}

impl Client {
    /// A client goes on that ordered a launch, and is told that it was started. Returns its process.
    pub(crate) fn start(around: &mut Surroundings) -> u64 {
        let process = around.schedule.next_process();
        let time = around.some_time(100, 5000);
        around.after(time, ClientTimer::Attach { attempt: 0 });
        process
    }

    /// It is this process.
    pub(crate) fn begin(&mut self, process: u64, now: Time) {
        (self.process, self.trying_since) = (process, now);
    }

    fn end(&self) -> End {
        End { host: Host::CLIENT, process: self.process }
    }

    pub(crate) fn has_process(&self, process: u64) -> bool {
        self.process == process
    }

    /// Returns true while there is a client that follows.
    pub(crate) fn waits(&self) -> bool {
        self.process != 0 && !self.is_done
    }

    pub(crate) fn on_timer(&mut self, timer: ClientTimer, around: &mut Surroundings) {
        if !self.waits() {
            return;
        }
        match timer {
            ClientTimer::Attach { attempt } => self.attach(attempt, around),
            ClientTimer::Read => self.acknowledge(around),
        }
    }

    fn attach(&mut self, attempt: u64, around: &mut Surroundings) {
        if self.connection.is_some() {
            return;
        }
        if around.now() > self.trying_since + timeouts::COME_BACK + LEASE {
            self.is_done = true;
            return around.note(format_args!("the client gives up"));
        }
        let Some(api) = around.network.listener(Host::API) else {
            return around.after(Duration::from_secs(1), ClientTimer::Attach { attempt: attempt + 1 });
        };
        let connection = around.network.open(Purpose::Attachment, self.end(), api);
        self.connection = Some(connection);
        around.send(connection, Side::Accepter, Message::Attach { after: self.seen });
    }

    /// A message of the API server has come.
    pub(crate) fn on_message(&mut self, connection: ConnectionId, message: Message, around: &mut Surroundings) {
        if self.connection != Some(connection) {
            return;
        }
        match message {
            Message::Attached { client } => self.number = Some(client),
            // The launch is over, and nobody remembers it.
            Message::Unknown => {
                self.is_done = true;
                around.close(connection, Side::Opener);
            }
            Message::Tell { sequence, event } => self.hear(connection, sequence, event, around),
            _ => {}
        }
    }

    fn hear(&mut self, connection: ConnectionId, sequence: u64, event: ClientEvent, around: &mut Surroundings) {
        if self.blocked_until > around.now() {
            let message = Message::Tell { sequence, event };
            let again = ConnectionEvent::Arrival { connection, to: Side::Opener, message };
            return around.at(self.blocked_until, Event::Connection(again));
        }
        if sequence != u64::MAX {
            if sequence <= self.seen && !around.truth.forgets {
                around.truth.wrong(format!("I8: event {sequence} comes again after {}", self.seen));
            }
            self.seen = sequence;
        }
        around.truth.told(&event);
        if matches!(event, ClientEvent::Complete { .. }) {
            self.is_done = true;
            self.acknowledge(around);
            return around.close(connection, Side::Opener);
        }
        if !std::mem::replace(&mut self.untold, true) {
            let time = around.some_time(10, 20_000);
            around.after(time, ClientTimer::Read);
        }
    }

    fn acknowledge(&mut self, around: &mut Surroundings) {
        self.untold = false;
        if let (Some(connection), Some(client)) = (self.connection, self.number) {
            around.send(connection, Side::Accepter, Message::Acknowledge { client, sequence: self.seen });
        }
    }

    /// Ends the launch with a signal.
    pub(crate) fn signal(&mut self, signal: i32, around: &mut Surroundings) {
        if let (Some(connection), Some(client)) = (self.connection, self.number) {
            around.truth.is_ended_by_others = true;
            around.send(connection, Side::Accepter, Message::Signal { client, signal });
        }
    }

    /// Its connection has broken.
    pub(crate) fn on_broken(&mut self, connection: ConnectionId, around: &mut Surroundings) {
        if self.connection != Some(connection) {
            return;
        }
        (self.connection, self.number) = (None, None);
        if !self.is_done {
            self.trying_since = around.now();
            let time = around.some_time(1000, 1_000_000);
            around.after(time, ClientTimer::Attach { attempt: 0 });
        }
    }

    /// It is killed.
    pub(crate) fn kill(&mut self, around: &mut Surroundings) {
        if !self.waits() {
            return;
        }
        around.truth.is_ended_by_others = true;
        around.close_all(self.end());
        self.is_done = true;
        self.connection = None;
        self.process = 0;
    }

    /// It reads nothing until then.
    pub(crate) fn stop_reading(&mut self, until: Time) {
        self.blocked_until = until.max(self.blocked_until);
    }

    /// Its connection is reset.
    pub(crate) fn reset(&self, around: &mut Surroundings) {
        if let Some(connection) = self.connection {
            around.network.reset(&mut around.schedule, connection);
        }
    }
}
