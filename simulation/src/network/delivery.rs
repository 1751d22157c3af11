//! Delivery of messages and of ends of connections, as events of the schedule.

use std::time::Duration;

use super::{HeldCall, Network};
use crate::connection::{ConnectionId, End, Host, KEEP_ALIVE, Side};
use crate::event::{Call, ConnectionEvent, Event, Message};
use crate::schedule::Schedule;
use crate::time::Time;

impl Network {
    /// Sends a message to a side of a connection.
    pub(crate) fn send(&mut self, schedule: &mut Schedule, connection: ConnectionId, to: Side, message: Message) {
        let Some(known) = self.connections.get_mut(&connection) else { return };
        let is_cut = self.cuts.contains(&known.hosts_of_way(to));
        let way = known.way_mut(to);
        if way.is_shut {
            return;
        }
        if is_cut || !way.held.is_empty() {
            return way.held.push_back(message);
        }
        way.in_transit += 1;
        let at = self.arrival(connection, to, schedule.now());
        schedule.at(at, Event::Connection(ConnectionEvent::Arrival { connection, to, message }));
    }

    /// Returns the time at which a message sent now arrives at a side.
    fn arrival(&mut self, id: ConnectionId, to: Side, now: Time) -> Time {
        let Some((from, receiver)) = self.get(id).map(|connection| connection.hosts_of_way(to)) else { return now };
        let earliest = now + self.delay(from, receiver);
        let Some(connection) = self.connections.get_mut(&id) else { return now };
        let way = connection.way_mut(to);
        way.last = way.last.max(earliest);
        way.last
    }

    /// Records the arrival of a message at a side.
    pub(crate) fn arrived(&mut self, id: ConnectionId, to: Side) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.way_mut(to).in_transit -= 1;
        }
    }

    /// Makes a call, or answers one. The sender receives no confirmation. A call on a cut direction is repeated until the keep-alive limit
    /// of its connection.
    pub(crate) fn call(&mut self, schedule: &mut Schedule, from: Host, to: Host, call: Call) {
        if self.is_cut(from, to) {
            let until = schedule.now() + KEEP_ALIVE;
            return self.held_calls.push(HeldCall { from, to, call, until });
        }
        let delay = self.delay(from, to);
        schedule.after(delay, Event::Call { to, call });
    }

    /// Delivers calls with directions that work again, and drops calls with broken connections. The remaining calls continue to wait.
    fn release_calls(&mut self, schedule: &mut Schedule) {
        for held in std::mem::take(&mut self.held_calls) {
            if self.is_cut(held.from, held.to) {
                self.held_calls.push(held);
            } else if schedule.now() <= held.until {
                self.call(schedule, held.from, held.to, held.call);
            }
        }
    }

    /// A process closes its side of a connection. The other side receives the end after all sent messages.
    pub(crate) fn close(&mut self, schedule: &mut Schedule, connection: ConnectionId, side: Side) {
        if !self.takes(connection, side) {
            return;
        }
        self.shut(connection, side);
        let to = side.other();
        let at = self.arrival(connection, to, schedule.now());
        self.end_at(schedule, at, connection, to);
    }

    /// A process has ended. Closes its sides of connections.
    pub(crate) fn close_all(&mut self, schedule: &mut Schedule, end: End) {
        for connection in self.those(|connection| connection.side_of(end).is_some()) {
            if let Some(side) = self.side_of(connection, end) {
                self.close(schedule, connection, side);
            }
        }
    }

    /// Resets a connection. Both sides receive the end soon.
    pub(crate) fn reset(&mut self, schedule: &mut Schedule, connection: ConnectionId) {
        self.break_off(connection);
        for to in Side::BOTH {
            if self.takes(connection, to) {
                self.shut(connection, to);
                let time: Duration = schedule.some_time(10, 1000);
                self.end_at(schedule, schedule.now() + time, connection, to);
            }
        }
    }

    /// Resets all connections of a host.
    pub(crate) fn reset_host(&mut self, schedule: &mut Schedule, host: Host) {
        for connection in self.those(|connection| connection.is_of_host(host)) {
            self.reset(schedule, connection);
        }
    }

    /// Resets the connections on cut directions, on which messages were lost for the keep-alive limit.
    pub(crate) fn reset_cut(&mut self, schedule: &mut Schedule) {
        let cut = self.those(|connection| {
            let (one, other) = connection.hosts_of_way(Side::Opener);
            !self.reaches(one, other)
        });
        cut.into_iter().for_each(|connection| self.reset(schedule, connection));
    }

    /// A host fails. Other hosts detect this when acknowledgements are missing.
    pub(crate) fn crash(&mut self, schedule: &mut Schedule, host: Host) {
        self.up.remove(&host);
        self.stop_listening(host);
        self.held_calls.retain(|held| held.from != host);
        for connection in self.those(|connection| connection.is_of_host(host)) {
            self.break_off(connection);
            for to in Side::BOTH {
                let is_there = self.get(connection).is_some_and(|known| known.end(to).host != host);
                self.shut(connection, to.other());
                if is_there {
                    self.end_at(schedule, schedule.now() + KEEP_ALIVE, connection, to);
                }
            }
        }
    }

    /// Removes one cut of each of these directions, and sends the waiting messages.
    pub(crate) fn heal(&mut self, schedule: &mut Schedule, ways: &[(Host, Host)]) {
        ways.iter().for_each(|&(from, to)| self.undo_cut(from, to));
        for (connection, to, message) in self.take_held() {
            self.send(schedule, connection, to, message);
        }
        self.release_calls(schedule);
    }

    /// Returns the waiting messages of open directions, by connection and side.
    fn take_held(&mut self) -> Vec<(ConnectionId, Side, Message)> {
        let mut released = Vec::new();
        for (&id, connection) in &mut self.connections {
            for to in Side::BOTH {
                if !self.cuts.contains(&connection.hosts_of_way(to)) {
                    released.extend(connection.way_mut(to).held.drain(..).map(|message| (id, to, message)));
                }
            }
        }
        released
    }

    fn end_at(&mut self, schedule: &mut Schedule, at: Time, connection: ConnectionId, to: Side) {
        if let Some(known) = self.connections.get_mut(&connection) {
            known.untold += 1;
        }
        schedule.at(at, Event::Connection(ConnectionEvent::Broken { connection, to }));
    }
}
