//! Events of a session from the moment at which they may be sent until the API server has taken them: numbered, and written again to a
//! connection that follows one that broke.

use bytes::BytesMut;
use pmi_transport::proto::v1 as proto;
use proto::node_event::What;

use super::frames::ToAgent;
use crate::numbered::Unconfirmed;

/// Memory of events that the API server has not taken, in bytes; beyond it the session's events are not taken, which slows its ranks
/// down. Output alone stays far below, by its credit.
const KEPT_MAX: usize = 32 << 20;

/// Memory of an event beyond its content, in bytes.
const EVENT_OVERHEAD: usize = 256;

/// What is known of the events that the API server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Position {
    /// It has everything up to this number.
    After(u64),
    /// It does not know what the API server before it had, to which everything up to `handed` was handed, or all that was written.
    Unknown {
        /// Number of the last one that is known to have been handed to it.
        handed: Option<u64>,
    },
}

/// Events that the API server has not taken.
#[derive(Default)]
pub(super) struct KeptEvents {
    sent: Unconfirmed<proto::NodeEvent>,
    /// Memory of the events.
    bytes: usize,
    /// Number of causes among the events.
    causes: usize,
    /// The first cause, which an API server that knows nothing must be told, whoever was told before.
    first_cause: Option<proto::NodeEvent>,
    /// Deaths of ranks that others go on without, one of each at most: they are no part of what a rank's end tells, and the API server before
    /// may not have written them down.
    deaths: Vec<proto::NodeEvent>,
    /// The report, which an API server that knows nothing must be told as well: the one before may not have written down what it took.
    report: Option<proto::NodeEvent>,
    taker: Taker,
}

/// The API server, as far as it matters for what is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Taker {
    /// It takes events, now or later.
    #[default]
    Awaited,
    /// Nobody will take any: nothing need be kept.
    Nobody,
}

impl KeptEvents {
    /// Numbers an event, and keeps it.
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

    /// Keeps the first cause that sessions have chosen, in place of those that the API server has not taken. To one that may read an
    /// earlier one still, it is said after that.
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

    /// Returns true if the API server has taken every cause that it was told.
    pub(super) fn has_told_cause(&self) -> bool {
        self.causes == 0 && self.taker == Taker::Awaited
    }

    /// True while more events may be taken.
    pub(super) fn has_room(&self) -> bool {
        self.bytes < KEPT_MAX || self.taker == Taker::Nobody
    }

    /// Appends the events to `batch` that were not written to the present connection; the first one says that the session has taken
    /// its commands up to `commands`, unless that is nothing new.
    pub(super) fn write(&mut self, batch: &mut BytesMut, mut commands: impl FnMut() -> u64) {
        while let Some((sequence, event)) = self.sent.next_to_write() {
            (event.sequence, event.commands_taken) = (sequence, commands());
            ToAgent::event(event.clone()).append_to(batch);
        }
        if self.taker == Taker::Nobody {
            self.forget();
        }
    }

    /// The API server has taken everything up to this number.
    pub(super) fn confirm(&mut self, through: u64) {
        let taken: Vec<_> = self.sent.confirm(through).collect();
        self.remove(&taken);
    }

    /// The connection has broken: nothing is written before [`Self::resume`].
    pub(super) fn break_off(&mut self) {
        self.sent.break_off();
    }

    /// There is a new connection. Returns the number after which it goes on.
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

    /// Of what was handed to an API server that is no more, only deaths, the cause and the report are sent again, even if it has taken them.
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

    /// Nobody will take events any more: they are written if there is a connection, and not kept.
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

/// Memory of an event, in bytes; its numbers do not count.
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
