//! What a session says to its agent, in an order of its own.
//!
//! ```text
//! alarm, calls, replies ───────────────────────────────┐
//! events: what is not a rank's output or exit ─────────┼──> socket
//! output, trace, exits ──> held while there is no credit ┘
//! ```
//!
//! A rank's output and its exit stay in order; nothing else waits for credit. That a rank runs, or has ended, waits a moment for
//! more to say: all that is said of a launch which ends at once wakes the agent, and the API server, once.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use pmi_core::quiet::WriteHalf;
use pmi_transport::proto::v1 as proto;
use proto::node_event::What;
use tokio::io::AsyncWriteExt;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use super::frames::append_frame;
use crate::cause::Cause;
use crate::event::{Event, Report};
use crate::wire;

/// What events that are held may cost, in bytes; beyond that the session's events are not taken, which slows its ranks down.
const HELD_MAX: usize = 1 << 20;

/// The same while the answer to a question of the launch is among the events that are not taken.
const HELD_MAX_FOR_ANSWER: usize = 16 << 20;

/// How many bytes are gathered for one write.
const BATCH: usize = 256 << 10;

/// How long the news of starts and exits may wait, if there is nothing else to say.
const MOMENT: Duration = Duration::from_millis(5);

/// An event as a frame.
pub(super) fn event(event: proto::NodeEvent) -> proto::FromSession {
    proto::FromSession { what: Some(proto::from_session::What::Event(event)) }
}

/// How much output may be sent, in what events cost. It may run into the negative by one piece, so that a small window is no dead end.
pub(super) struct Credit {
    bytes: AtomicI64,
    /// How many questions of the launch wait for their answers, which come behind the output that nobody has credit for.
    questions: AtomicI64,
    more: Notify,
}

impl Credit {
    pub(super) fn new(window: u64) -> Self {
        Self { bytes: AtomicI64::new(amount(window)), questions: AtomicI64::new(0), more: Notify::new() }
    }

    pub(super) fn add(&self, bytes: u64) {
        let add = |now: i64| Some(now.saturating_add(amount(bytes)));
        // It never says no.
        let _ = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        self.more.notify_one();
    }

    /// An answer is wanted from the session.
    pub(super) fn expect_answer(&self) {
        self.questions.fetch_add(1, Ordering::Relaxed);
        self.more.notify_one();
    }

    /// How much may be held at present.
    fn held_max(&self) -> usize {
        if self.questions.load(Ordering::Relaxed) > 0 { HELD_MAX_FOR_ANSWER } else { HELD_MAX }
    }

    /// The agent is gone: what is said goes nowhere, and need not wait.
    pub(super) fn lift(&self) {
        self.bytes.store(i64::MAX / 2, Ordering::Relaxed);
        self.more.notify_one();
    }

    fn is_there(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > 0
    }

    fn spend(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes as i64, Ordering::Relaxed);
    }
}

/// Half of what fits, so that sums of two do.
fn amount(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX).min(i64::MAX / 2)
}

/// The ways from the session to the socket.
pub(super) struct Outgoing {
    pub(super) urgent: mpsc::Receiver<proto::FromSession>,
    pub(super) events: mpsc::Receiver<Event>,
    pub(super) traces: mpsc::Receiver<Bytes>,
    /// `None` once it was heard.
    pub(super) alarm: Option<oneshot::Receiver<Cause>>,
    pub(super) credit: Arc<Credit>,
}

/// What can happen on the way out.
enum Happening {
    Urgent(proto::FromSession),
    Alarm(Cause),
    Event(Event),
    Trace(Bytes),
    Credit,
    /// What waited a moment for more has waited long enough.
    Due,
    /// The session has ended, and all its events have been taken.
    End,
}

/// What waits for credit, with what it will cost ([`wire::event::cost`]).
struct Held {
    queue: VecDeque<(proto::NodeEvent, usize)>,
    bytes: usize,
}

impl Outgoing {
    /// Writes until the session has ended and everything it said is written; the report comes last.
    ///
    /// When the agent is gone the session must still be able to end: what it says is then taken and thrown away.
    pub(super) async fn run(mut self, mut socket: WriteHalf, report: oneshot::Receiver<Report>) -> io::Result<()> {
        let mut held = Held { queue: VecDeque::new(), bytes: 0 };
        let mut batch = BytesMut::new();
        // When the batch is written though nothing more came; set while nothing is in it that is urgent.
        let mut due = None;
        let mut written = Ok(());
        let (mut alarmed, mut told_all) = (false, false);
        while !told_all || !held.queue.is_empty() {
            let before = batch.len();
            let mut may_wait = false;
            match self.next(&held, told_all, due).await {
                Happening::Urgent(frame) => append_frame(&mut batch, &frame),
                Happening::Alarm(cause) => {
                    alarmed = true;
                    append_frame(&mut batch, &event(wire::event::encode(&Event::Ending(cause))));
                }
                // The alarm was it.
                Happening::Event(Event::Ending(_)) if alarmed => {}
                Happening::Event(happened) => {
                    if matches!(happened, Event::Progress { .. }) {
                        self.credit.questions.fetch_sub(1, Ordering::Relaxed);
                    }
                    may_wait = matches!(happened, Event::Started { .. } | Event::Exited { .. });
                    held.take(happened, &mut batch);
                }
                Happening::Trace(line) => held.push(proto::NodeEvent { what: Some(What::Trace(line)) }),
                Happening::Credit => {}
                Happening::Due => due = None,
                Happening::End => told_all = true,
            }
            held.release(&self.credit, &mut batch);
            if may_wait && before == 0 {
                due = Some(Instant::now() + MOMENT);
            } else if !may_wait && batch.len() > before {
                due = None;
            }
            let more = !self.events.is_empty() || (self.events.is_closed() && !told_all);
            let report_follows = told_all && held.queue.is_empty();
            let at_hand = !self.urgent.is_empty() || (more && held.bytes < self.credit.held_max()) || report_follows;
            if (!at_hand && due.is_none()) || batch.len() >= BATCH {
                due = None;
                if written.is_ok() {
                    written = socket.write_all(&batch).await;
                }
                batch.clear();
            }
        }
        while let Ok(frame) = self.urgent.try_recv() {
            append_frame(&mut batch, &frame);
        }
        if let Ok(report) = report.await {
            append_frame(&mut batch, &event(wire::event::encode_report(&report)));
        }
        written?;
        socket.write_all(&batch).await?;
        socket.shutdown().await
    }

    async fn next(&mut self, held: &Held, told_all: bool, due: Option<Instant>) -> Happening {
        let room = held.bytes < self.credit.held_max();
        tokio::select! {
            biased;
            Some(cause) = alarm(&mut self.alarm) => Happening::Alarm(cause),
            Some(frame) = self.urgent.recv() => Happening::Urgent(frame),
            () = self.credit.more.notified(), if !held.queue.is_empty() => Happening::Credit,
            Some(line) = self.traces.recv(), if room => Happening::Trace(line),
            happened = self.events.recv(), if room && !told_all => happened.map_or(Happening::End, Happening::Event),
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => Happening::Due,
            else => Happening::End,
        }
    }
}

/// The first cause, if there is one; for ever `None` after that.
async fn alarm(alarm: &mut Option<oneshot::Receiver<Cause>>) -> Option<Cause> {
    let cause = alarm.as_mut()?.await.ok();
    *alarm = None;
    cause
}

impl Held {
    /// Holds what must keep its place in a rank's output; everything else goes at once.
    fn take(&mut self, happened: Event, batch: &mut BytesMut) {
        match &happened {
            Event::Output(_) | Event::Exited { .. } => self.push(wire::event::encode(&happened)),
            _ => append_frame(batch, &event(with_program(wire::event::encode(&happened)))),
        }
    }

    fn push(&mut self, happened: proto::NodeEvent) {
        let cost = wire::event::cost(&happened);
        self.bytes += cost;
        self.queue.push_back((happened, cost));
    }

    /// Lets go what there is credit for.
    fn release(&mut self, credit: &Credit, batch: &mut BytesMut) {
        while let Some((_, cost)) = self.queue.front() {
            if *cost > 0 && !credit.is_there() {
                break;
            }
            if let Some((happened, cost)) = self.queue.pop_front() {
                credit.spend(cost);
                self.bytes -= cost;
                append_frame(batch, &event(happened));
            }
        }
    }
}

/// Says which program a rank runs: when it was started, and whenever it is asked, as a script becomes its program by `exec`. A rank
/// that has ended runs none.
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

/// The program that a process runs; empty if there is no such process.
fn program_of(pid: u32) -> Bytes {
    std::fs::read_link(format!("/proc/{pid}/exe")).map_or(Bytes::new(), |program| wire::bytes(program.as_os_str()))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
    use pmi_core::ids::Rank;
    use rank_spawner::RankExit;
    use tokio::task::JoinHandle;

    use super::*;
    use crate::event::Notice;

    /// What a session can say, and what is written of it: one packet for each write.
    struct Ends {
        events: mpsc::Sender<Event>,
        report: oneshot::Sender<Report>,
        packets: UnixStream,
        running: JoinHandle<io::Result<()>>,
        /// Nobody says anything here, but could.
        _others: (mpsc::Sender<proto::FromSession>, mpsc::Sender<Bytes>, oneshot::Sender<Cause>),
    }

    fn run() -> Ends {
        let packets = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
        let (_reader, writer) = pmi_core::quiet::split(UnixStream::from(packets.0)).unwrap();
        let (urgent, outgoing_urgent) = mpsc::channel(8);
        let (events, happened) = mpsc::channel(8);
        let (traces, traced) = mpsc::channel(8);
        let (alarm, alarmed) = oneshot::channel();
        let (report, finish) = oneshot::channel();
        let credit = Arc::new(Credit::new(1 << 20));
        let outgoing =
            Outgoing { urgent: outgoing_urgent, events: happened, traces: traced, alarm: Some(alarmed), credit };
        let running = tokio::spawn(outgoing.run(writer, finish));
        Ends { events, report, packets: packets.1.into(), running, _others: (urgent, traces, alarm) }
    }

    fn started() -> Event {
        Event::Started { rank: Rank(0), pid: std::process::id() }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_launch_that_ends_at_once_is_told_of_in_one_piece() {
        let mut ends = run();
        ends.events.send(started()).await.unwrap();
        tokio::task::yield_now().await;
        ends.events.send(Event::Exited { rank: Rank(0), exit: RankExit::Code(0), phase: None }).await.unwrap();
        ends.events.send(Event::Notice(Notice::Leftover { pids: vec![1] })).await.unwrap();
        drop(ends.events);
        let report = Report { exits: Vec::new(), cause: None, duration: Duration::ZERO };
        ends.report.send(report).unwrap();
        ends.running.await.unwrap().unwrap();
        let mut bytes = [0; 4096];
        assert!(ends.packets.read(&mut bytes).unwrap() > 0);
        assert_eq!(ends.packets.read(&mut bytes).unwrap(), 0, "there was a second write");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_start_is_told_of_though_nothing_follows() {
        let Ends { events, report: _report, mut packets, running, _others } = run();
        events.send(started()).await.unwrap();
        packets.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let read = tokio::task::spawn_blocking(move || packets.read(&mut [0; 4096]));
        assert!(read.await.unwrap().unwrap() > 0);
        running.abort();
    }
}
