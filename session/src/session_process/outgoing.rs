//! Messages of a session process to its agent, in an order of their own.
//!
//! ```text
//! alarm, calls, replies, warnings ─────────────────────┐
//! events that are not a rank's output or exit ─────────┼──> socket
//! output, trace, exits ──> held while there is no credit ┘
//! ```
//!
//! A rank's output and its exit stay in order; nothing else waits for credit. Starts and exits wait a moment for the next event: all
//! events of a launch that ends at once wake the agent, and the API server, once.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use pmi_core::quiet::WriteHalf;
use pmi_transport::proto::v1 as proto;
use proto::node_event::What;
use tokio::io::AsyncWriteExt;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use super::credit::OutputCredit;
use super::frames::ToAgent;
use crate::cause::Cause;
use crate::event::{Event, Report};
use crate::wire;

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
    pub(super) credit: Arc<OutputCredit>,
}

/// Input of the loop that writes.
enum Happening {
    Urgent(ToAgent),
    Alarm(Cause),
    Event(Event),
    Trace(Bytes),
    /// Credit or the limit of held events has changed.
    Credit,
    /// The batch has waited for [`MOMENT`].
    Due,
    /// The session has ended, and all its events have been taken.
    End,
}

/// Events of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EventStream {
    Open,
    /// The session has ended, and all its events have been taken.
    Ended,
}

/// Time at which a message is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Haste {
    /// As soon as no more is at hand.
    Now,
    /// Within [`MOMENT`].
    Moment,
}

impl Outgoing {
    /// Writes until the session has ended and all its messages are written; the report comes last.
    ///
    /// Messages are taken and dropped when the agent is gone, so that the session can still end.
    ///
    /// # Errors
    /// Fails at the end if the agent did not read everything.
    pub(super) async fn run(mut self, socket: WriteHalf, report: oneshot::Receiver<Report>) -> io::Result<()> {
        let mut held = Held::default();
        let mut batch = Batch::new(socket);
        let mut stream = EventStream::Open;
        while stream == EventStream::Open || !held.queue.is_empty() {
            let before = batch.bytes.len();
            let happening = self.next(&held, stream, batch.due).await;
            match happening {
                Happening::Due => batch.due = None,
                Happening::End => stream = EventStream::Ended,
                _ => {}
            }
            let haste = self.take(happening, &mut held, &mut batch.bytes);
            held.release(&self.credit, &mut batch.bytes);
            batch.schedule(before, haste);
            if batch.is_full() || (batch.due.is_none() && !self.has_more(&held, stream)) {
                batch.write().await;
            }
        }
        while let Ok(frame) = self.urgent.try_recv() {
            frame.append_to(&mut batch.bytes);
        }
        if let Ok(report) = report.await {
            ToAgent::event(wire::event::encode_report(&report)).append_to(&mut batch.bytes);
        }
        batch.finish().await
    }

    async fn next(&mut self, held: &Held, stream: EventStream, due: Option<Instant>) -> Happening {
        let room = held.bytes < self.credit.held_max();
        tokio::select! {
            biased;
            Some(cause) = alarm(&mut self.alarm) => Happening::Alarm(cause),
            Some(frame) = self.urgent.recv() => Happening::Urgent(frame),
            () = self.credit.changed(), if !held.queue.is_empty() => Happening::Credit,
            Some(line) = self.traces.recv(), if room => Happening::Trace(line),
            happened = self.events.recv(), if room && stream == EventStream::Open => {
                happened.map_or(Happening::End, Happening::Event)
            }
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => Happening::Due,
            else => Happening::End,
        }
    }

    /// Appends what may be written at once to `batch`, and holds the rest.
    fn take(&self, happening: Happening, held: &mut Held, batch: &mut BytesMut) -> Haste {
        match happening {
            Happening::Urgent(frame) => frame.append_to(batch),
            Happening::Alarm(cause) => {
                held.first_cause = FirstCause::Told;
                ToAgent::event(wire::event::encode(&Event::Ending(cause))).append_to(batch);
            }
            // The alarm was it.
            Happening::Event(Event::Ending(_)) if held.first_cause == FirstCause::Told => {}
            Happening::Event(happened) => {
                if matches!(happened, Event::Progress { .. }) {
                    self.credit.answered();
                }
                let may_wait = matches!(happened, Event::Started { .. } | Event::Exited { .. });
                held.take(&happened, batch);
                return if may_wait { Haste::Moment } else { Haste::Now };
            }
            Happening::Trace(line) => held.push(proto::NodeEvent { what: Some(What::Trace(line)) }),
            Happening::Credit | Happening::Due | Happening::End => {}
        }
        Haste::Now
    }

    /// True if the next message is there already, so that it can be written with those of the batch.
    fn has_more(&self, held: &Held, stream: EventStream) -> bool {
        let event = !self.events.is_empty() || (self.events.is_closed() && stream == EventStream::Open);
        let report = stream == EventStream::Ended && held.queue.is_empty();
        !self.urgent.is_empty() || (event && held.bytes < self.credit.held_max()) || report
    }
}

/// Waits for the first cause; for ever `None` after that.
async fn alarm(alarm: &mut Option<oneshot::Receiver<Cause>>) -> Option<Cause> {
    let cause = alarm.as_mut()?.await.ok();
    *alarm = None;
    cause
}

/// Frames that are gathered for one write.
struct Batch {
    socket: WriteHalf,
    bytes: BytesMut,
    /// Time at which the batch is written though nothing more came; set while nothing in it is in haste.
    due: Option<Instant>,
    /// First failure of a write: the agent is gone.
    written: io::Result<()>,
}

impl Batch {
    fn new(socket: WriteHalf) -> Self {
        Self { socket, bytes: BytesMut::new(), due: None, written: Ok(()) }
    }

    fn is_full(&self) -> bool {
        self.bytes.len() >= BATCH
    }

    /// Decides when frames are written that came after the first `before` bytes.
    fn schedule(&mut self, before: usize, haste: Haste) {
        match haste {
            Haste::Moment if before == 0 => self.due = Some(Instant::now() + MOMENT),
            Haste::Now if self.bytes.len() > before => self.due = None,
            Haste::Moment | Haste::Now => {}
        }
    }

    async fn write(&mut self) {
        self.due = None;
        if self.written.is_ok() {
            self.written = self.socket.write_all(&self.bytes).await;
        }
        self.bytes.clear();
    }

    async fn finish(mut self) -> io::Result<()> {
        self.write().await;
        self.written?;
        self.socket.shutdown().await
    }
}

/// Events that wait for credit, each with its cost ([`wire::event::cost`]).
#[derive(Default)]
struct Held {
    queue: VecDeque<(proto::NodeEvent, usize)>,
    /// Sum of their costs.
    bytes: usize,
    first_cause: FirstCause,
}

/// The first cause, which is sent once, ahead of held events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FirstCause {
    #[default]
    Untold,
    Told,
}

impl Held {
    /// Holds what must keep its place in a rank's output; appends everything else to `batch`.
    fn take(&mut self, happened: &Event, batch: &mut BytesMut) {
        let encoded = wire::event::encode(happened);
        match happened {
            Event::Output(_) | Event::Exited { .. } => self.push(encoded),
            _ => ToAgent::event(with_program(encoded)).append_to(batch),
        }
    }

    fn push(&mut self, happened: proto::NodeEvent) {
        let cost = wire::event::cost(&happened);
        self.bytes += cost;
        self.queue.push_back((happened, cost));
    }

    /// Appends the events to `batch` that there is credit for.
    fn release(&mut self, credit: &OutputCredit, batch: &mut BytesMut) {
        while let Some((happened, cost)) = self.queue.pop_front_if(|(_, cost)| credit.spend(*cost)) {
            self.bytes -= cost;
            ToAgent::event(happened).append_to(batch);
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
