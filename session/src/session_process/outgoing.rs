//! Messages of a session process to its agent, in an order of their own.
//!
//! ```text
//! calls, replies, warnings ───────────────────────────────────────────────────────────────────────────┐
//! alarm, events that are not a rank's output or exit ──────┬──> kept until the API server has them ──┼──> socket
//! output, trace, exits ──> held while there is no credit ──┘        └──again on each new stream──┘
//! ```
//!
//! A rank's output and its exit stay in order; nothing else waits for credit. Starts and exits wait a moment for the next event: all
//! events of a launch that ends at once wake the agent, and the API server, once. What was kept is written again when the stream from
//! the agent to the API server is a new one, so the session process stays after its report until that is acknowledged.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use pmi_core::quiet::WriteHalf;
use pmi_transport::proto::v1 as proto;
use proto::node_event::What;
use tokio::io::AsyncWriteExt;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};

use super::confirmations::{Confirmations, Connection, End, News};
use super::credit::OutputCredit;
use super::failure_policy::{Told, Way};
use super::frames::ToAgent;
use super::kept_events::KeptEvents;
use crate::cause::Cause;
use crate::event::{Event, Report};
use crate::wire;
use crate::wire::event::{NodeHappening, encode_happening};

/// Bytes that are gathered for one write, at most.
const BATCH: usize = 256 << 10;

/// Time that the events of starts and exits may wait for others to be written with them.
const MOMENT: Duration = Duration::from_millis(5);

/// Sources of a session's messages.
pub(super) struct Outgoing {
    /// Calls, replies and warnings, which wait for no credit.
    pub(super) urgent: mpsc::Receiver<ToAgent>,
    pub(super) events: mpsc::Receiver<Event>,
    pub(super) traces: mpsc::Receiver<Bytes>,
    /// The first cause; `None` once it has come or cannot come any more.
    pub(super) alarm: Option<oneshot::Receiver<Cause>>,
    /// The first cause, where sessions have chosen it: it is told in place of this session's own.
    pub(super) chosen: mpsc::Receiver<Cause>,
    /// Told of the cause that the API server was told.
    pub(super) told: watch::Sender<Told>,
    pub(super) credit: Arc<OutputCredit>,
    pub(super) confirmations: Arc<Confirmations>,
}

/// Input of the loop that writes.
enum Happening {
    Urgent(ToAgent),
    Alarm(Cause),
    Chosen(Cause),
    Event(Event),
    Trace(Bytes),
    /// Credit or the limit of held events has changed.
    Credit,
    /// Something is known of the connection, or of what came over it.
    News,
    /// The batch has waited for [`MOMENT`].
    Due,
    /// The session has ended, and all its events have been taken.
    End,
    /// Its report; `None` if there is none.
    Report(Option<Report>),
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

/// Time at which a message is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Haste {
    /// As soon as no more is at hand.
    Now,
    /// Within [`MOMENT`].
    Moment,
    /// With the report, which comes soon.
    LastOfAll,
}

impl Outgoing {
    /// Writes until the session has ended and its report, which is the last event, is acknowledged; or nobody will ever take it.
    ///
    /// Messages are taken and dropped when the agent is gone, so that the session can still end.
    ///
    /// # Errors
    /// Fails at the end if the agent did not read everything.
    pub(super) async fn run(mut self, socket: WriteHalf, report: oneshot::Receiver<Report>) -> io::Result<()> {
        let mut batch = Batch::new(socket);
        let mut waiting = Waiting::default();
        let mut report = Some(report);
        while !(waiting.stage == Stage::Reported && waiting.end.is_some()) {
            let before = batch.bytes.len();
            let happening = self.next(&waiting, batch.due, &mut report).await;
            let haste = match happening {
                Happening::News => self.learn(self.confirmations.take(), &mut waiting, &mut batch),
                Happening::Due => {
                    batch.due = None;
                    Haste::Now
                }
                other => self.take(other, &mut waiting, &mut batch.bytes),
            };
            waiting.held.release(&self.credit, &mut waiting.kept);
            waiting.kept.write(&mut batch.bytes, || self.confirmations.commands_to_tell());
            self.tell_of_cause(&waiting);
            batch.schedule(before, haste);
            if batch.is_full() || (batch.due.is_none() && !self.has_more(&waiting)) {
                batch.write().await;
            }
        }
        batch.finish().await
    }

    async fn next(
        &mut self,
        waiting: &Waiting,
        due: Option<Instant>,
        report: &mut Option<oneshot::Receiver<Report>>,
    ) -> Happening {
        let is_next = waiting.stage == Stage::Ended && waiting.held.queue.is_empty();
        let room = waiting.held.bytes < self.credit.held_max() && waiting.kept.has_room();
        tokio::select! {
            biased;
            () = self.confirmations.changed() => Happening::News,
            Some(cause) = once(&mut self.alarm) => Happening::Alarm(cause),
            Some(cause) = self.chosen.recv() => Happening::Chosen(cause),
            Some(frame) = self.urgent.recv() => Happening::Urgent(frame),
            () = self.credit.changed(), if !waiting.held.queue.is_empty() => Happening::Credit,
            Some(line) = self.traces.recv(), if room && waiting.stage != Stage::Reported => Happening::Trace(line),
            happened = self.events.recv(), if room && waiting.stage == Stage::Running => {
                happened.map_or(Happening::End, Happening::Event)
            }
            report = once(report), if is_next => Happening::Report(report),
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => Happening::Due,
        }
    }

    /// Takes in what is known of the connection. What was to be written to the one before is not.
    fn learn(&self, news: News, waiting: &mut Waiting, batch: &mut Batch) -> Haste {
        if let Some(connection) = news.connection {
            batch.reconnect(connection);
            waiting.kept.break_off();
        }
        waiting.kept.confirm(news.confirmed);
        if let Some(resume) = news.resume {
            let after = waiting.kept.resume(resume.position);
            ToAgent::resumed(resume.stream, after, self.confirmations.commands_taken()).append_to(&mut batch.bytes);
        }
        if self.confirmations.must_tell() {
            ToAgent::commands_taken(self.confirmations.commands_to_tell()).append_to(&mut batch.bytes);
        }
        if news.end.is_some() {
            waiting.kept.give_up();
        }
        waiting.end = waiting.end.or(news.end);
        waiting.way = news.way.unwrap_or(waiting.way);
        Haste::Now
    }

    /// Says what the API server was told of a cause, if that has changed.
    fn tell_of_cause(&self, waiting: &Waiting) {
        let is_heard = waiting.cause.is_some() && waiting.kept.has_told_cause();
        self.told.send_if_modified(|told| {
            let is_same = (told.is_heard, told.way) == (is_heard, waiting.way) && told.cause == waiting.cause;
            if !is_same {
                *told = Told { cause: waiting.cause.clone(), is_heard, way: waiting.way };
            }
            !is_same
        });
    }

    /// Appends what is no event to `batch`; keeps events that may be sent at once, and holds the rest.
    fn take(&self, happening: Happening, waiting: &mut Waiting, batch: &mut BytesMut) -> Haste {
        match happening {
            Happening::Urgent(frame) => waiting.take_urgent(frame, batch),
            // Another one was chosen, or it came by both ways.
            Happening::Alarm(_) | Happening::Event(Event::Ending(_)) if waiting.cause.is_some() => {}
            Happening::Alarm(cause) | Happening::Event(Event::Ending(cause)) => {
                waiting.kept.push(wire::event::encode(&Event::Ending(cause.clone())));
                waiting.cause = Some(cause);
            }
            // Nothing follows the report.
            Happening::Chosen(_) if waiting.stage == Stage::Reported => {}
            Happening::Chosen(cause) if waiting.cause.as_ref() == Some(&cause) => {}
            Happening::Chosen(cause) => {
                waiting.kept.choose(wire::event::encode(&Event::Ending(cause.clone())));
                waiting.cause = Some(cause);
            }
            Happening::Event(happened) => {
                if matches!(happened, Event::Progress { .. }) {
                    self.credit.answered();
                }
                let may_wait = matches!(happened, Event::Started { .. } | Event::Exited { .. });
                waiting.take_event(&happened);
                return if may_wait { Haste::Moment } else { Haste::Now };
            }
            Happening::Trace(line) => waiting.held.push(encode_happening(&NodeHappening::Trace(line))),
            Happening::End => {
                waiting.stage = Stage::Ended;
                return Haste::LastOfAll;
            }
            Happening::Report(report) => {
                // Behind everything that the session has said.
                if let Some(report) = &report {
                    waiting.kept.push(wire::event::encode_report(report));
                }
                waiting.stage = Stage::Reported;
            }
            Happening::Credit | Happening::Due | Happening::News => {}
        }
        Haste::Now
    }

    /// True if the next message is there already, so that it can be written with those of the batch.
    fn has_more(&self, waiting: &Waiting) -> bool {
        let is_running = waiting.stage == Stage::Running;
        let event = is_running && (!self.events.is_empty() || self.events.is_closed());
        let room = waiting.held.bytes < self.credit.held_max() && waiting.kept.has_room();
        !self.urgent.is_empty() || (event && room)
    }
}

/// Waits for what comes once; for ever `None` after that.
async fn once<T>(receiver: &mut Option<oneshot::Receiver<T>>) -> Option<T> {
    let value = receiver.as_mut()?.await.ok();
    *receiver = None;
    value
}

/// Frames that are gathered for one write.
struct Batch {
    /// `None` while there is no connection to an agent.
    socket: Option<WriteHalf>,
    bytes: BytesMut,
    /// Time at which the batch is written though nothing more came; set while nothing in it is in haste.
    due: Option<Instant>,
    /// First failure of a write to the present connection: the agent is gone.
    written: io::Result<()>,
}

impl Batch {
    fn new(socket: WriteHalf) -> Self {
        Self { socket: Some(socket), bytes: BytesMut::new(), due: None, written: Ok(()) }
    }

    fn is_full(&self) -> bool {
        self.bytes.len() >= BATCH
    }

    /// Goes on with another connection, or with none.
    fn reconnect(&mut self, connection: Connection) {
        self.bytes.clear();
        match connection {
            Connection::New(socket) => (self.socket, self.written) = (Some(socket), Ok(())),
            Connection::Broken => self.socket = None,
        }
    }

    /// Decides when frames are written that came after the first `before` bytes.
    fn schedule(&mut self, before: usize, haste: Haste) {
        match haste {
            Haste::Moment if before == 0 => self.due = Some(Instant::now() + MOMENT),
            Haste::Now if self.bytes.len() > before => self.due = None,
            Haste::LastOfAll if before > 0 => self.due = self.due.or_else(|| Some(Instant::now() + MOMENT)),
            Haste::Moment | Haste::Now | Haste::LastOfAll => {}
        }
    }

    async fn write(&mut self) {
        self.due = None;
        if let Some(socket) = &mut self.socket
            && self.written.is_ok()
        {
            self.written = socket.write_all(&self.bytes).await;
        }
        self.bytes.clear();
    }

    async fn finish(mut self) -> io::Result<()> {
        self.write().await;
        self.written?;
        match &mut self.socket {
            Some(socket) => socket.shutdown().await,
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

/// Messages between the session and the socket.
#[derive(Default)]
struct Waiting {
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
    /// Holds what must keep its place in a rank's output; all other events may be sent.
    fn take_event(&mut self, happened: &Event) {
        let encoded = wire::event::encode(happened);
        match happened {
            Event::Output(_) | Event::Exited { .. } => self.held.push(encoded),
            _ => self.kept.push(with_program(encoded)),
        }
    }

    /// Takes a message that waits for no credit.
    fn take_urgent(&mut self, mut frame: ToAgent, batch: &mut BytesMut) {
        match frame.take_event() {
            // Nothing follows the report.
            Some(_) if self.stage == Stage::Reported => {}
            Some(event) => self.kept.push(event),
            None => frame.append_to(batch),
        }
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

/// Adds the program that a rank runs: when it was started, and in the answer to each progress query, as a script becomes its program
/// by `exec`. A rank that has ended runs none.
fn with_program(mut happened: proto::NodeEvent) -> proto::NodeEvent {
    match &mut happened.what {
        Some(What::Started(started)) => started.program = program_of(started.pid),
        Some(What::Progress(progress)) => {
            for rank in progress.ranks.iter_mut().filter(|rank| rank.pid != 0 && rank.exit.is_none()) {
                rank.program = program_of(rank.pid);
            }
        }
        _ => {}
    }
    happened
}

/// File of the program that a process runs; empty if there is no such process.
fn program_of(pid: u32) -> Bytes {
    std::fs::read_link(format!("/proc/{pid}/exe")).map_or(Bytes::new(), |program| wire::bytes(program.as_os_str()))
}

#[cfg(test)]
mod tests;
