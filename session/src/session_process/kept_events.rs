//! Events of a session, from the time at which they may be sent until the API server has received them. They are numbered, and written
//! again to the next connection after a break.

use bytes::BytesMut;
use pmi_transport::proto::v1 as proto;
use proto::node_event::What;

use super::frames::ToAgent;
use crate::numbered::Unconfirmed;

/// Limit of the memory, in bytes, of events that the API server has not received. At the limit, the session's events are no longer
/// received, which slows its ranks down. Output alone stays far below the limit because of its credit.
const KEPT_MAX: usize = 32 << 20;

/// Memory of an event in addition to its content, in bytes.
const EVENT_OVERHEAD: usize = 256;

/// Position of the API server in the events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Position {
    /// The API server has received all events up to this number.
    After(u64),
    /// The API server does not have the position of its predecessor. The predecessor was sent all events up to `handed`, or all written
    /// events.
    Unknown {
        /// Number of the last event that is known to have been sent to the predecessor.
        handed: Option<u64>,
    },
}

/// Events that the API server has not received.
#[derive(Default)]
pub(super) struct KeptEvents {
    sent: Unconfirmed<proto::NodeEvent>,
    /// Memory of the events, in bytes.
    bytes: usize,
    /// Number of causes among the events.
    causes: usize,
    /// The first cause. It is sent again to each API server without stored state.
    first_cause: Option<proto::NodeEvent>,
    /// Deaths of ranks without which other ranks continue, at most one for each rank. A rank's exit does not include its death, and the
    /// previous API server may not have stored it.
    deaths: Vec<proto::NodeEvent>,
    /// The report. It is also sent again to each API server without stored state, because its predecessor may not have stored it.
    report: Option<proto::NodeEvent>,
    taker: Taker,
}

/// State of the API server that determines whether events are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Taker {
    /// An API server receives events, now or later.
    #[default]
    Awaited,
    /// No API server will receive events, so none are kept.
    Nobody,
}

impl KeptEvents {
    /// Numbers an event and keeps it.
    pub(super) fn push(&mut self, event: proto::NodeEvent) {
        if is_cause(&event) {
            self.first_cause.get_or_insert_with(|| event.clone());
        }
        if is_report(&event) {
            self.report = Some(event.clone());
        }
        if is_death(&event) {
            self.deaths.push(event.clone());
        }
        self.add(&event);
        self.sent.push(event);
    }

    /// Keeps the first cause that the sessions selected, in place of causes that the API server has not received. If an API server may
    /// still read an earlier cause, the selected cause is sent after it.
    pub(super) fn choose(&mut self, cause: proto::NodeEvent) {
        self.first_cause = Some(cause.clone());
        let mut stands_in = false;
        for (event, is_written) in self.sent.iter_mut().filter(|(event, _)| is_cause(event)) {
            self.bytes = self.bytes + memory(&cause) - memory(event);
            event.what = cause.what.clone();
            stands_in |= !is_written;
        }
        if !stands_in {
            self.push(cause);
        }
    }

    /// Returns true if the API server has received every cause that was sent to it.
    pub(super) fn has_told_cause(&self) -> bool {
        self.causes == 0 && self.taker == Taker::Awaited
    }

    /// Returns true while more events are accepted.
    pub(super) fn has_room(&self) -> bool {
        self.bytes < KEPT_MAX || self.taker == Taker::Nobody
    }

    /// Appends the events to `batch` that were not written to the present connection. The first of them acknowledges the commands up to
    /// `commands`, unless they are already acknowledged.
    pub(super) fn write(&mut self, batch: &mut BytesMut, mut commands: impl FnMut() -> u64) {
        while let Some((sequence, event)) = self.sent.next_to_write() {
            (event.sequence, event.commands_taken) = (sequence, commands());
            ToAgent::event(event.clone()).append_to(batch);
        }
        if self.taker == Taker::Nobody {
            self.forget();
        }
    }

    /// Removes all events up to this number, which the API server has received.
    pub(super) fn confirm(&mut self, through: u64) {
        let taken: Vec<_> = self.sent.confirm(through).collect();
        self.remove(&taken);
    }

    /// Handles a broken connection. No event is written before [`Self::resume`].
    pub(super) fn break_off(&mut self) {
        self.sent.break_off();
    }

    /// Handles a new connection. Returns the number after which the events continue.
    pub(super) fn resume(&mut self, position: Position) -> u64 {
        let after = match position {
            Position::After(number) => {
                let (after, taken) = self.sent.resume(number);
                let taken: Vec<_> = taken.collect();
                self.remove(&taken);
                after
            }
            Position::Unknown { handed } => self.restart(handed),
        };
        debug_assert_eq!(self.bytes, self.sent.iter().map(memory).sum::<usize>(), "every event is counted once");
        after
    }

    /// Of the events that were sent to the previous API server, only deaths, the cause and the report are sent again. This also applies to
    /// received events.
    fn restart(&mut self, handed: Option<u64>) -> u64 {
        let again = |event: &proto::NodeEvent| is_cause(event) || is_report(event);
        let (after, lost) = self.sent.restart(handed, again);
        self.remove(&lost);
        let deaths = self.deaths.iter().filter(|death| !self.sent.iter().any(|event| event.what == death.what));
        for death in deaths.cloned().collect::<Vec<_>>().into_iter().rev() {
            self.add(&death);
            self.sent.push_first(death);
        }
        if let Some(cause) = self.first_cause.clone().filter(|_| self.causes == 0) {
            self.add(&cause);
            self.sent.push_first(cause);
        }
        if let Some(report) = self.report.clone().filter(|_| !self.sent.iter().any(is_report)) {
            self.add(&report);
            self.sent.push(report);
        }
        after
    }

    fn add(&mut self, event: &proto::NodeEvent) {
        self.bytes += memory(event);
        self.causes += usize::from(is_cause(event));
    }

    fn remove(&mut self, events: &[proto::NodeEvent]) {
        self.bytes -= events.iter().map(memory).sum::<usize>();
        self.causes -= events.iter().filter(|event| is_cause(event)).count();
    }

    /// Stops keeping events, because no API server will receive them. They are still written if there is a connection.
    pub(super) fn give_up(&mut self) {
        self.taker = Taker::Nobody;
    }

    fn forget(&mut self) {
        let is_broken = self.sent.is_broken();
        self.sent = Unconfirmed::after(self.sent.last());
        if is_broken {
            self.sent.break_off();
        }
        (self.bytes, self.causes) = (0, 0);
    }
}

fn is_cause(event: &proto::NodeEvent) -> bool {
    matches!(event.what, Some(What::Ending(_)))
}

fn is_death(event: &proto::NodeEvent) -> bool {
    matches!(event.what, Some(What::Died(_)))
}

fn is_report(event: &proto::NodeEvent) -> bool {
    matches!(event.what, Some(What::Report(_)))
}

/// Memory of an event, in bytes, without its numbers.
fn memory(event: &proto::NodeEvent) -> usize {
    let content = match &event.what {
        Some(What::Output(output)) => output.data.len(),
        Some(What::Trace(line)) => line.len(),
        what => what.as_ref().map_or(0, What::encoded_len),
    };
    content + EVENT_OVERHEAD
}

#[cfg(test)]
mod tests;
