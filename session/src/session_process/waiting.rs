//! Messages of a session that are not written yet, or may have to be written again, each kind in its own order. Pure: its inputs are
//! messages and connection updates, its outputs are frames.
//!
//! ```text
//! calls, replies, warnings ───────────────────────────────────────────────────────────────────────────┐
//! alarm, events that are not a rank's output or exit ──────┬──> kept until the API server has them ──┼──> frames
//! output, trace, exits ──> held while there is no credit ──┘        └──again on each new stream──┘
//! ```
//!
//! Output and exit of a rank stay in order. All other messages need no credit. Kept messages are written again on each new stream from the
//! agent to the API server. The session process therefore continues after its report until the report is acknowledged.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use pmi_transport::proto::v1 as proto;

use super::confirmations::{Confirmations, End, News};
use super::credit::OutputCredit;
use super::failure_policy::{SentCause, Way};
use super::frames::ToAgent;
use super::kept_events::KeptEvents;
use crate::cause::Cause;
use crate::event::{Event, Report};
use crate::wire;
use crate::wire::event::{NodeHappening, encode_happening};

/// A message of a session.
pub(super) enum Word {
    /// A call, a reply or a warning.
    Urgent(ToAgent),
    /// The first cause, ahead of all events.
    Alarm(Cause),
    /// The first cause that the sessions selected.
    Chosen(Cause),
    /// An event and its encoding.
    Event(Event, proto::NodeEvent),
    /// A message of a traced launch.
    Trace(Bytes),
    /// The session has ended, and all its events were received.
    End,
    /// The report of the session; `None` if there is none.
    Report(Option<Report>),
}

/// Time of the write of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Haste {
    /// When no further message is available.
    Now,
    /// Within a few milliseconds.
    Moment,
    /// With the report, which follows soon.
    LastOfAll,
}

/// Stage of the session, according to its events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// More events follow.
    #[default]
    Running,
    /// The session has ended, and all its events were received.
    Ended,
    /// The report is kept as the last event.
    Reported,
}

/// Messages between the session and the socket.
#[derive(Default)]
pub(super) struct Waiting {
    held: Held,
    kept: KeptEvents,
    /// The first cause. It is sent once, before held events.
    cause: Option<Cause>,
    way: Way,
    stage: Stage,
    /// Reason why the session can discard its kept events.
    end: Option<End>,
}

impl Waiting {
    /// Returns true after all messages were sent and none must be sent again.
    pub(super) fn is_over(&self) -> bool {
        self.has_reported() && self.end.is_some()
    }

    pub(super) fn has_reported(&self) -> bool {
        self.stage == Stage::Reported
    }

    /// Returns true while more events follow.
    pub(super) fn expects_events(&self) -> bool {
        self.stage == Stage::Running
    }

    /// Returns true when only the report is left to send.
    pub(super) fn expects_report(&self) -> bool {
        self.stage == Stage::Ended && !self.waits_for_credit()
    }

    pub(super) fn waits_for_credit(&self) -> bool {
        !self.held.queue.is_empty()
    }

    /// Returns true while more messages are accepted.
    pub(super) fn has_room(&self, credit: &OutputCredit) -> bool {
        self.held.bytes < credit.held_max() && self.kept.has_room()
    }

    /// Appends messages without events to `batch`. Keeps events that may be sent at once, and holds all other events.
    pub(super) fn take(&mut self, word: Word, credit: &OutputCredit, batch: &mut BytesMut) -> Haste {
        match word {
            Word::Urgent(frame) => self.take_urgent(frame, batch),
            // The sessions have selected another cause, or the cause arrived both as alarm and as event.
            Word::Alarm(_) | Word::Event(Event::Ending(_), _) if self.cause.is_some() => {}
            Word::Alarm(cause) | Word::Event(Event::Ending(cause), _) => {
                self.kept.push(wire::event::encode(&Event::Ending(cause.clone())));
                self.cause = Some(cause);
            }
            // No message follows the report.
            Word::Chosen(_) if self.has_reported() => {}
            Word::Chosen(cause) if self.cause.as_ref() == Some(&cause) => {}
            Word::Chosen(cause) => {
                self.kept.choose(wire::event::encode(&Event::Ending(cause.clone())));
                self.cause = Some(cause);
            }
            Word::Event(happened, encoded) => {
                if matches!(happened, Event::Progress { .. }) {
                    credit.answered();
                }
                // Events with a fixed position in a rank's output are held. All other events may be sent.
                match happened {
                    Event::Output(_) | Event::Exited { .. } => self.held.push(encoded),
                    _ => self.kept.push(encoded),
                }
                let may_wait = matches!(happened, Event::Started { .. } | Event::Exited { .. });
                return if may_wait { Haste::Moment } else { Haste::Now };
            }
            Word::Trace(line) => self.held.push(encode_happening(&NodeHappening::Trace(line))),
            Word::End => {
                self.stage = Stage::Ended;
                return Haste::LastOfAll;
            }
            Word::Report(report) => {
                // The report follows all other messages of the session.
                if let Some(report) = &report {
                    self.kept.push(wire::event::encode_report(report));
                }
                self.stage = Stage::Reported;
            }
        }
        Haste::Now
    }

    /// Accepts a message that needs no credit.
    fn take_urgent(&mut self, mut frame: ToAgent, batch: &mut BytesMut) {
        match frame.take_event() {
            // No message follows the report.
            Some(_) if self.has_reported() => {}
            Some(event) => self.kept.push(event),
            None => frame.append_to(batch),
        }
    }

    /// Handles a broken or replaced connection. No event is written before the order to resume.
    pub(super) fn break_off(&mut self) {
        self.kept.break_off();
    }

    /// Handles updates from the connection, and appends the answers to `batch`.
    pub(super) fn learn(&mut self, news: &News, confirmations: &Confirmations, batch: &mut BytesMut) {
        self.kept.confirm(news.confirmed);
        if let Some(resume) = news.resume {
            let after = self.kept.resume(resume.position);
            ToAgent::resumed(resume.stream, after, confirmations.commands_taken()).append_to(batch);
        }
        if confirmations.must_tell() {
            ToAgent::commands_taken(confirmations.commands_to_tell()).append_to(batch);
        }
        if news.end.is_some() {
            self.kept.give_up();
        }
        self.end = self.end.or(news.end);
        self.way = news.way.unwrap_or(self.way);
    }

    /// Appends the frames to `batch` that may be written now: events with credit, and events that must be written again.
    pub(super) fn let_go(&mut self, credit: &OutputCredit, confirmations: &Confirmations, batch: &mut BytesMut) {
        self.held.release(credit, &mut self.kept);
        self.kept.write(batch, || confirmations.commands_to_tell());
    }

    /// The cause that was sent to the API server, with its state.
    pub(super) fn told(&self) -> SentCause {
        SentCause { cause: self.cause.clone(), is_heard: self.is_heard(), way: self.way }
    }

    /// Returns true if the given cause and state are still current.
    pub(super) fn has_told(&self, told: &SentCause) -> bool {
        (told.is_heard, told.way) == (self.is_heard(), self.way) && told.cause == self.cause
    }

    fn is_heard(&self) -> bool {
        self.cause.is_some() && self.kept.has_told_cause()
    }
}

/// Events that wait for credit, each with its cost ([`wire::event::cost`]).
#[derive(Default)]
struct Held {
    queue: VecDeque<(proto::NodeEvent, usize)>,
    /// Sum of the costs.
    bytes: usize,
}

impl Held {
    fn push(&mut self, happened: proto::NodeEvent) {
        let cost = wire::event::cost(&happened);
        self.bytes += cost;
        self.queue.push_back((happened, cost));
    }

    /// Releases the events that have credit. The credit is spent once, even if the events are written several times.
    fn release(&mut self, credit: &OutputCredit, kept: &mut KeptEvents) {
        while let Some((happened, cost)) = self.queue.pop_front_if(|(_, cost)| credit.spend(*cost)) {
            self.bytes -= cost;
            kept.push(happened);
        }
    }
}
