//! The launcher: follows its launch, acknowledges displayed events, and attaches again after its connection
//! breaks.

use std::collections::VecDeque;
use std::mem;
use std::time::Duration;

use lattice_api_server::simulation::ClientEvent;
use lattice_session::timeouts;

use crate::connection::{ConnectionId, End, Host, Purpose, Side};
use crate::event::{ClientTimer, Message};
use crate::input::{ClientInput, Next};
use crate::surroundings::{LEASE, Surroundings};
use crate::time::Time;

/// The client's process.
#[derive(Debug, Default)]
pub(crate) struct Client {
    /// 0 before the start of the launch, and after the client was killed.
    process: u64,
    connection: Option<ConnectionId>,
    /// The API server has answered on the connection.
    is_attached: bool,
    /// Received events that the client has not read.
    unread: VecDeque<(u64, ClientEvent)>,
    /// Number of the last displayed event.
    seen: u64,
    /// Some displayed events are not acknowledged.
    untold: bool,
    /// The next read is scheduled.
    will_read: bool,
    /// The client reads nothing before this time.
    blocked_until: Time,
    /// Start of the current attempts to attach.
    trying_since: Time,
    is_done: bool,
    input: ClientInput,
}

impl Client {
    /// A client that ordered a launch continues after the start of the launch. Returns its process.
    pub(crate) fn start(around: &mut Surroundings) -> u64 {
        let process = around.schedule.next_process();
        let time = around.some_time(100, 5000);
        around.after(time, ClientTimer::Attach { attempt: 0 });
        process
    }

    /// Sets the process of the client.
    pub(crate) fn begin(&mut self, process: u64, around: &mut Surroundings) {
        (self.process, self.trying_since) = (process, around.now());
        if let Some(input) = &around.scenario.input {
            self.input = ClientInput::new(input.length);
            around.after(Duration::ZERO, ClientTimer::Give);
        }
    }

    fn end(&self) -> End {
        End { host: Host::CLIENT, process: self.process }
    }

    pub(crate) fn has_process(&self, process: u64) -> bool {
        self.process == process
    }

    /// Returns true while a client follows the launch.
    pub(crate) fn waits(&self) -> bool {
        self.process != 0 && !self.is_done
    }

    pub(crate) fn on_timer(&mut self, timer: ClientTimer, around: &mut Surroundings) {
        if !self.waits() {
            return;
        }
        match timer {
            ClientTimer::Attach { attempt } => self.attach(attempt, around),
            ClientTimer::Read => {
                self.will_read = false;
                self.read_all(around);
            }
            ClientTimer::Give => self.give(around),
            ClientTimer::Acknowledge => self.acknowledge(around),
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

    /// Handles a message of the API server.
    pub(crate) fn on_message(&mut self, connection: ConnectionId, message: Message, around: &mut Surroundings) {
        if self.connection != Some(connection) {
            return;
        }
        match message {
            // The launch is over, and no record of it is left.
            Message::Unknown => {
                self.is_done = true;
                around.close(connection, Side::Opener);
            }
            Message::Credit(bytes) => {
                self.is_attached = true;
                self.input.grant(bytes);
                self.send_input(around);
            }
            Message::Tell { sequence, event } => {
                self.unread.push_back((sequence, event));
                self.read_all(around);
            }
            _ => {}
        }
    }

    /// The source provides more input.
    fn give(&mut self, around: &mut Surroundings) {
        let Some(plan) = around.scenario.input.clone() else { return };
        let piece = around.some_time(1, plan.piece as u64).as_micros() as usize;
        if self.input.give(piece) {
            let time = around.some_time(1, plan.pace.as_micros() as u64);
            around.after(time, ClientTimer::Give);
        }
        self.send_input(around);
    }

    /// Sends input up to the credit.
    fn send_input(&mut self, around: &mut Surroundings) {
        // The connection exists only after the answer of the API server.
        let Some(connection) = self.connection.filter(|_| self.is_attached) else { return };
        if around.scenario.input.is_none() {
            return;
        }
        while let Some(next) = self.input.next() {
            let message = match next {
                Next::Piece(piece) => Message::Input(piece),
                Next::End => Message::InputEnd,
            };
            around.send(connection, Side::Accepter, message);
        }
    }

    /// Reads the received events in order, unless the client reads nothing for a while.
    fn read_all(&mut self, around: &mut Surroundings) {
        if self.blocked_until > around.now() {
            if !mem::replace(&mut self.will_read, true) {
                around.at(self.blocked_until, ClientTimer::Read);
            }
            return;
        }
        while let Some(connection) = self.connection
            && let Some((sequence, event)) = self.unread.pop_front()
        {
            self.read(connection, sequence, event, around);
        }
    }

    fn read(&mut self, connection: ConnectionId, sequence: u64, event: ClientEvent, around: &mut Surroundings) {
        if sequence != u64::MAX {
            if sequence <= self.seen {
                // The launcher skips events that it has already received.
                return around.truth.wrong(format!("I8: event {sequence} comes again after {}", self.seen));
            }
            self.seen = sequence;
        }
        around.truth.told(&event);
        if matches!(event, ClientEvent::Complete { .. }) {
            self.is_done = true;
            self.acknowledge(around);
            return around.close(connection, Side::Opener);
        }
        if !mem::replace(&mut self.untold, true) {
            let time = around.some_time(10, 20_000);
            around.after(time, ClientTimer::Acknowledge);
        }
    }

    fn acknowledge(&mut self, around: &mut Surroundings) {
        self.untold = false;
        if let Some(connection) = self.connection {
            around.send(connection, Side::Accepter, Message::Acknowledge { sequence: self.seen });
        }
    }

    /// Ends the launch with a signal.
    pub(crate) fn signal(&mut self, signal: i32, around: &mut Surroundings) {
        if let Some(connection) = self.connection {
            around.truth.is_ended_by_others = true;
            around.send(connection, Side::Accepter, Message::Signal { signal });
        }
    }

    /// The connection of the client has broken.
    pub(crate) fn on_broken(&mut self, connection: ConnectionId, around: &mut Surroundings) {
        if self.connection != Some(connection) {
            return;
        }
        (self.connection, self.is_attached) = (None, false);
        self.unread.clear();
        let warned = self.input.forget_connection();
        if warned > 0 {
            around.note(format_args!("the client warns of {warned} bytes of input"));
            around.truth.input.may_have_gaps = true;
        }
        if !self.is_done {
            self.trying_since = around.now();
            let time = around.some_time(1000, 1_000_000);
            around.after(time, ClientTimer::Attach { attempt: 0 });
        }
    }

    /// Kills the client.
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

    /// Makes the client read nothing before this time.
    pub(crate) fn stop_reading(&mut self, until: Time) {
        self.blocked_until = until.max(self.blocked_until);
    }

    /// Resets the connection of the client.
    pub(crate) fn reset(&self, around: &mut Surroundings) {
        if let Some(connection) = self.connection {
            around.network.reset(&mut around.schedule, connection);
        }
    }
}
