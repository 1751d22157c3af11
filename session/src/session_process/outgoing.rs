//! Messages from a session process to its agent. Collects messages from their sources, and writes them to the present agent as [`Waiting`]
//! releases them. Start and exit events wait briefly for the next event. The events of a launch that ends at once thus wake the agent and
//! the API server once.

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

use super::confirmations::{Confirmations, Connection, News};
use super::credit::OutputCredit;
use super::failure_policy::SentCause;
use super::frames::ToAgent;
use super::waiting::{Haste, Waiting, Word};
use crate::cause::Cause;
use crate::event::{Event, Report};
use crate::wire;

/// Limit of one write, in bytes.
const BATCH: usize = 256 << 10;

/// Time for which start and exit events may wait, to be written together with other events.
const MOMENT: Duration = Duration::from_millis(5);

/// Sources of a session's messages.
pub(super) struct Outgoing {
    /// Calls, replies and warnings, which need no credit.
    pub(super) urgent: mpsc::Receiver<ToAgent>,
    pub(super) events: mpsc::Receiver<Event>,
    pub(super) traces: mpsc::Receiver<Bytes>,
    /// The first cause; `None` after it has arrived or can no longer arrive.
    pub(super) alarm: Option<oneshot::Receiver<Cause>>,
    /// The first cause, if the sessions have selected it. It is sent in place of this session's own cause.
    pub(super) chosen: mpsc::Receiver<Cause>,
    /// Receiver of the cause that was sent to the API server.
    pub(super) told: watch::Sender<SentCause>,
    pub(super) credit: Arc<OutputCredit>,
    pub(super) confirmations: Arc<Confirmations>,
}

/// Input of the writing loop.
#[allow(clippy::large_enum_variant, reason = "there is one at a time")]
enum Happening {
    /// A message to send.
    Word(Word),
    /// Credit or the limit of held events has changed.
    Credit,
    /// The state of the connection has changed, or an update has arrived over it.
    News,
    /// The batch has waited for [`MOMENT`].
    Due,
}

impl Outgoing {
    /// Writes until the session has ended and its report, which is the last event, is acknowledged or cannot be delivered.
    ///
    /// After the agent is gone, messages are received and dropped, so that the session can still end.
    ///
    /// # Errors
    /// Fails at the end if the agent did not read everything.
    pub(super) async fn run(mut self, socket: WriteHalf, report: oneshot::Receiver<Report>) -> io::Result<()> {
        let mut batch = Batch::new(socket);
        let mut waiting = Waiting::default();
        let mut report = Some(report);
        while !waiting.is_over() {
            let before = batch.bytes.len();
            let haste = match self.next(&waiting, batch.due, &mut report).await {
                Happening::News => self.learn(self.confirmations.take(), &mut waiting, &mut batch),
                Happening::Due => {
                    batch.due = None;
                    Haste::Now
                }
                Happening::Credit => Haste::Now,
                Happening::Word(word) => waiting.take(word, &self.credit, &mut batch.bytes),
            };
            waiting.let_go(&self.credit, &self.confirmations, &mut batch.bytes);
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
        let room = waiting.has_room(&self.credit);
        let word = tokio::select! {
            biased;
            () = self.confirmations.changed() => return Happening::News,
            Some(cause) = once(&mut self.alarm) => Word::Alarm(cause),
            Some(cause) = self.chosen.recv() => Word::Chosen(cause),
            Some(frame) = self.urgent.recv() => Word::Urgent(frame),
            () = self.credit.changed(), if waiting.waits_for_credit() => return Happening::Credit,
            Some(line) = self.traces.recv(), if room && !waiting.has_reported() => Word::Trace(line),
            happened = self.events.recv(), if room && waiting.expects_events() => match happened {
                Some(event) => {
                    let encoded = with_program(wire::event::encode(&event));
                    Word::Event(event, encoded)
                }
                None => Word::End,
            },
            report = once(report), if waiting.expects_report() => Word::Report(report),
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => return Happening::Due,
        };
        Happening::Word(word)
    }

    /// Handles updates of the connection. Unwritten data of the previous connection is dropped.
    fn learn(&self, mut news: News, waiting: &mut Waiting, batch: &mut Batch) -> Haste {
        if let Some(connection) = news.connection.take() {
            batch.reconnect(connection);
            waiting.break_off();
        }
        waiting.learn(&news, &self.confirmations, &mut batch.bytes);
        Haste::Now
    }

    /// Publishes the cause that was sent to the API server, if it has changed.
    fn tell_of_cause(&self, waiting: &Waiting) {
        self.told.send_if_modified(|told| {
            let is_new = !waiting.has_told(told);
            if is_new {
                *told = waiting.told();
            }
            is_new
        });
    }

    /// Returns true if the next message is already available, so that it can be part of the batch.
    fn has_more(&self, waiting: &Waiting) -> bool {
        let event = waiting.expects_events() && (!self.events.is_empty() || self.events.is_closed());
        !self.urgent.is_empty() || (event && waiting.has_room(&self.credit))
    }
}

/// Waits for the one value of the receiver. Returns `None` at once after that.
async fn once<T>(receiver: &mut Option<oneshot::Receiver<T>>) -> Option<T> {
    let value = receiver.as_mut()?.await.ok();
    *receiver = None;
    value
}

/// Frames for one write.
struct Batch {
    /// `None` while there is no connection to an agent.
    socket: Option<WriteHalf>,
    bytes: BytesMut,
    /// Time at which the batch is written without further events. Set while all messages of the batch may wait.
    due: Option<Instant>,
    /// First failed write to the present connection. It means that the agent is gone.
    written: io::Result<()>,
}

impl Batch {
    fn new(socket: WriteHalf) -> Self {
        Self { socket: Some(socket), bytes: BytesMut::new(), due: None, written: Ok(()) }
    }

    fn is_full(&self) -> bool {
        self.bytes.len() >= BATCH
    }

    /// Replaces the connection, or removes it.
    fn reconnect(&mut self, connection: Connection) {
        self.bytes.clear();
        match connection {
            Connection::New(socket) => (self.socket, self.written) = (Some(socket), Ok(())),
            Connection::Broken => self.socket = None,
        }
    }

    /// Sets the time of the write for frames after the first `before` bytes.
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

/// Adds the program of a rank to its start event and to each progress answer, because a script may replace itself by `exec`. A rank that
/// has ended has no program.
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

/// Path of a process's program; empty if there is no such process.
pub(super) fn program_of(pid: u32) -> Bytes {
    std::fs::read_link(format!("/proc/{pid}/exe")).map_or(Bytes::new(), |program| wire::bytes(program.as_os_str()))
}

#[cfg(test)]
mod tests;
