//! Words of a session that are not written yet, or may have to be written again, in an order of their own. Pure: words and news of the
//! connection go in, frames come out.
//!
//! ```text
//! calls, replies, warnings ───────────────────────────────────────────────────────────────────────────┐
//! alarm, events that are not a rank's output or exit ──────┬──> kept until the API server has them ──┼──> frames
//! output, trace, exits ──> held while there is no credit ──┘        └──again on each new stream──┘
//! ```
//!
//! A rank's output and its exit stay in order; nothing else waits for credit. What was kept is written again when the stream from
//! the agent to the API server is a new one, so the session process stays after its report until that is acknowledged.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use pmi_transport::proto::v1 as proto;

use super::confirmations::{Confirmations, End, News};
use super::credit::OutputCredit;
use super::failure_policy::{Told, Way};
use super::frames::ToAgent;
use super::kept_events::KeptEvents;
use crate::cause::Cause;
use crate::event::{Event, Report};
use crate::wire;
use crate::wire::event::{NodeHappening, encode_happening};

/// Something that a session has to say.
pub(super) enum Word {
    /// A call, a reply or a warning.
    Urgent(ToAgent),
    /// The first cause, ahead of all events.
    Alarm(Cause),
    /// The first cause that sessions have chosen.
    Chosen(Cause),
    /// An event, and how it is encoded.
    Event(Event, proto::NodeEvent),
    /// A message of a traced launch.
    Trace(Bytes),
    /// The session has ended, and all its events have been taken.
    End,
    /// Its report; `None` if there is none.
    Report(Option<Report>),
}

/// Time at which a message is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Haste {
    /// As soon as no more is at hand.
    Now,
    /// Within a moment.
    Moment,
    /// With the report, which comes soon.
    LastOfAll,
}

/// Stage of the session, as far as its events tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// More events come.
    #[default]
    Running,
    /// The session has ended, and all its events have been taken.
    Ended,
    /// Its report is the last event that is kept.
    Reported,
}

/// Messages between the session and the socket.
#[derive(Default)]
pub(super) struct Waiting {
    held: Held,
    kept: KeptEvents,
    /// The first cause, which is told once, ahead of held events.
    cause: Option<Cause>,
    way: Way,
    stage: Stage,
    /// Reason why what is kept need not be kept any longer.
    end: Option<End>,
}

impl Waiting {
    /// Returns true once everything was said, and nobody need be told again.
    pub(super) fn is_over(&self) -> bool {
        self.has_reported() && self.end.is_some()
    }

    pub(super) fn has_reported(&self) -> bool {
        self.stage == Stage::Reported
    }

    /// Returns true while more events come.
    pub(super) fn expects_events(&self) -> bool {
        self.stage == Stage::Running
    }

    /// Returns true once the report is all that is left to say.
    pub(super) fn expects_report(&self) -> bool {
        self.stage == Stage::Ended && !self.waits_for_credit()
    }

    pub(super) fn waits_for_credit(&self) -> bool {
        !self.held.queue.is_empty()
    }

    /// Returns true while more may be taken in.
    pub(super) fn has_room(&self, credit: &OutputCredit) -> bool {
        self.held.bytes < credit.held_max() && self.kept.has_room()
    }

    /// Appends what is no event to `batch`; keeps events that may be sent at once, and holds the rest.
    pub(super) fn take(&mut self, word: Word, credit: &OutputCredit, batch: &mut BytesMut) -> Haste {
        match word {
            Word::Urgent(frame) => self.take_urgent(frame, batch),
            // Another one was chosen, or it came by both ways.
            Word::Alarm(_) | Word::Event(Event::Ending(_), _) if self.cause.is_some() => {}
            Word::Alarm(cause) | Word::Event(Event::Ending(cause), _) => {
                self.kept.push(wire::event::encode(&Event::Ending(cause.clone())));
                self.cause = Some(cause);
            }
            // Nothing follows the report.
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
                // What must keep its place in a rank's output is held; all other events may be sent.
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
                // Behind everything that the session has said.
                if let Some(report) = &report {
                    self.kept.push(wire::event::encode_report(report));
                }
                self.stage = Stage::Reported;
            }
        }
        Haste::Now
    }

    /// Takes a message that waits for no credit.
    fn take_urgent(&mut self, mut frame: ToAgent, batch: &mut BytesMut) {
        match frame.take_event() {
            // Nothing follows the report.
            Some(_) if self.has_reported() => {}
            Some(event) => self.kept.push(event),
            None => frame.append_to(batch),
        }
    }

    /// The connection has broken, or is another one: nothing is written before the order to resume.
    pub(super) fn break_off(&mut self) {
        self.kept.break_off();
    }

    /// Takes in what came over the connection; appends the answers to `batch`.
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

    /// Appends to `batch` what may be written now: events that there is credit for, and those that are to be written again.
    pub(super) fn let_go(&mut self, credit: &OutputCredit, confirmations: &Confirmations, batch: &mut BytesMut) {
        self.held.release(credit, &mut self.kept);
        self.kept.write(batch, || confirmations.commands_to_tell());
    }

    /// The cause that the API server was told.
    pub(super) fn told(&self) -> Told {
        Told { cause: self.cause.clone(), is_heard: self.is_heard(), way: self.way }
    }

    /// Returns true if that is the same as before.
    pub(super) fn has_told(&self, told: &Told) -> bool {
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
    /// Sum of their costs.
    bytes: usize,
}

impl Held {
    fn push(&mut self, happened: proto::NodeEvent) {
        let cost = wire::event::cost(&happened);
        self.bytes += cost;
        self.queue.push_back((happened, cost));
    }

    /// Passes the events on that there is credit for. It is spent once, however often they are written.
    fn release(&mut self, credit: &OutputCredit, kept: &mut KeptEvents) {
        while let Some((happened, cost)) = self.queue.pop_front_if(|(_, cost)| credit.spend(*cost)) {
            self.bytes -= cost;
            kept.push(happened);
        }
    }
}
