//! One launch on this node: the session process, and everything between it and the rest of the cluster.
//!
//! ```text
//!              ToSession              FromSession
//! commands ─┐                                    ┌─> events ──> Delivery (the API server's stream)
//! answers  ─┼──> write ──> session process ──> read ─> calls ─> Callee ──> answers
//! questions ┘                                    └─> replies ─> SessionQuestions
//! ```
//!
//! A launch is over when its session has ended and its report was acknowledged. A session that ends without a report has been killed,
//! by us if it did not end in time: an order to end gives it the launch's grace, if that is no long one, and a little more, an order
//! to kill hardly any.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use lattice_session::timeouts;
use pmi_core::quiet::{self, ReadHalf, WriteHalf};
use pmi_transport::fence::Membership;
use pmi_transport::proto::v1 as proto;
use prost::Message;
use proto::from_session::What as FromWhat;
use proto::node_command::What as CommandWhat;
use proto::node_event::What as EventWhat;
use proto::to_session::What as ToWhat;
use rank_spawner::{ForkedProcess, RankExit};
use tokio::io::AsyncWriteExt;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_stream::StreamExt;
use tokio_util::codec::FramedRead;
use zeroize::Zeroize;

use super::Node;
use super::admission::{Assignment, Refusal};
use super::calls::{self, Callee, SessionQuestions};
use super::fabric::{Claimed, FabricError};
use super::forks::Forked;
use super::launches::LaunchOrder;
use super::report::{Delivered, Delivery, Events};
use lattice_session::cause::{Cause, CauseKind};
use lattice_session::event::{Event, Report};
use lattice_session::session_process::Order;
use lattice_session::session_process::frames::{FROM_SESSION_MAX, append_frame, codec};
use lattice_session::wire;

/// Number of messages that may wait for a session to read them.
const TO_SESSION: usize = 256;

/// Number of calls of a session that may wait for their answers; more are refused. Some wait for an hour: look-ups of names.
const CALLS_MAX: usize = 4096;

/// Starts the session of a launch that was entered into the table; it removes itself from there.
pub(super) async fn start(
    node: &Arc<Node>,
    assignment: &Assignment,
    orders: mpsc::UnboundedReceiver<LaunchOrder>,
) -> Result<(), Refusal> {
    // A process that hears nothing ends by itself; services that nobody uses are given back when they are dropped.
    let launch = match tokio::join!(reach_fabric(node, assignment), node.forks.start()) {
        (Ok(fabric), Ok(forked)) => {
            Launch::new(node, assignment, fabric, forked, orders).map_err(|error| error.to_string())
        }
        (Err(error), _) => Err(error.to_string()),
        (_, Err(errno)) => Err(format!("no process for a session: {}", errno.desc())),
    };
    match launch {
        Ok(launch) => {
            node.metrics.started.inc();
            tokio::spawn(launch.run());
            Ok(())
        }
        Err(text) => {
            node.launches.remove(&assignment.launch_id);
            Err(Refusal::of(node, proto::RefusalReason::Busy, text))
        }
    }
}

/// Fabric settings for the ranks, and the services that were made for them.
type Reached = (Option<proto::NodeFabric>, Option<Claimed>);

async fn reach_fabric(node: &Node, assignment: &Assignment) -> Result<Reached, FabricError> {
    let Some(wish) = assignment.fabric.clone() else { return Ok((node.fabric.bare(), None)) };
    let (told, claimed) = node.fabric.claim(wish).await?;
    Ok((Some(told), Some(claimed)))
}

/// Running launch.
struct Launch {
    node: Arc<Node>,
    id: String,
    process: ForkedProcess,
    ended: oneshot::Receiver<RankExit>,
    orders: mpsc::UnboundedReceiver<LaunchOrder>,
    to_session: mpsc::Sender<proto::ToSession>,
    writing: JoinHandle<()>,
    reading: JoinHandle<bool>,
    events: Arc<Events>,
    delivering: JoinHandle<Delivered>,
    /// Time limit for ranks to end, as the launch says.
    grace: Duration,
    /// Time at which the session is killed.
    killed_at: Option<Instant>,
    /// The ranks are being ended because this node is lost to the launch.
    is_lost: bool,
    /// Services that it uses.
    claimed: Option<Claimed>,
}

impl Launch {
    fn new(
        node: &Arc<Node>,
        assignment: &Assignment,
        (fabric, claimed): Reached,
        forked: Forked,
        orders: mpsc::UnboundedReceiver<LaunchOrder>,
    ) -> io::Result<Self> {
        let Forked { process, ended } = forked;
        let (reader, writer) = quiet::split(UnixStream::from(process.socket.try_clone()?))?;
        let id = assignment.launch_id.clone();
        let (to_session, queue) = mpsc::channel(TO_SESSION);
        let writing = tokio::spawn(write(writer, first_frames(node, assignment, fabric)?, queue));
        let questions = Arc::new(SessionQuestions::new(id.clone(), to_session.clone()));
        let membership = Membership {
            launch_id: id.clone(),
            me: assignment.index,
            nodes: Arc::clone(&assignment.members),
            fan_out: assignment.fan_out,
        };
        let fences = node.fences.join(membership, Arc::clone(&questions) as _);
        let callee = Arc::new(Callee { node: Arc::clone(node), launch_id: id.clone(), fences });
        let of = proto::ReportFor {
            launch_id: id.clone(),
            node_id: node.config.node_id.clone(),
            node_index: assignment.index.0,
        };
        let (delivery, events) = Delivery::new(node.api.clone(), of, to_session.clone());
        let events = Arc::new(events);
        let session = Session { callee, to_session: to_session.clone(), events: Arc::clone(&events), questions };
        let reading = tokio::spawn(session.read(reader));
        let delivering = tokio::spawn(delivery.run());
        let node = Arc::clone(node);
        Ok(Self {
            node,
            id,
            process,
            ended,
            orders,
            to_session,
            writing,
            reading,
            events,
            delivering,
            grace: assignment.grace,
            killed_at: None,
            is_lost: false,
            claimed,
        })
    }

    /// Runs the launch to its end.
    async fn run(mut self) {
        tracing::info!(launch = self.id, pid = self.process.pid.as_raw(), "started");
        let mut delivered = None;
        let reported = self.until_session_ends(&mut delivered).await;
        self.writing.abort();
        if !reported && timeout(timeouts::REPORT_KEPT, self.tell_of_lost_session()).await.is_err() {
            tracing::error!(launch = self.id, "the API server takes no news of the end");
        }
        let giving_back = self.claimed.take().map(|claimed| tokio::spawn(claimed.release()));
        if delivered.is_none() {
            self.until_delivered().await;
        }
        self.delivering.abort();
        if let Some(giving_back) = giving_back {
            // It does not panic, and nobody cancels it.
            let _ = giving_back.await;
        }
        self.node.launches.remove(&self.id);
        tracing::info!(launch = self.id, "ended");
    }

    /// Carries out orders until the session has said everything; returns whether it reported.
    async fn until_session_ends(&mut self, delivered: &mut Option<Delivered>) -> bool {
        loop {
            tokio::select! {
                reported = &mut self.reading => return reported.unwrap_or(false),
                Some(order) = self.orders.recv() => match order {
                    LaunchOrder::End(how) => self.end(how),
                    LaunchOrder::NodeLost { reason } => self.lose(reason),
                    LaunchOrder::Forget => self.delivering.abort(),
                },
                result = &mut self.delivering, if delivered.is_none() => {
                    if let Ok(Delivered::Unwanted(status)) = &result {
                        tracing::warn!(launch = self.id, "nobody wants this launch: {}", status.message());
                        self.end(CommandWhat::GiveUp(proto::Nothing {}));
                    }
                    *delivered = Some(result.unwrap_or(Delivered::All));
                },
                () = until(self.killed_at), if self.killed_at.is_some() => {
                    tracing::warn!(launch = self.id, "the session does not end; it is killed");
                    // It may have ended this very moment.
                    let _ = self.process.kill();
                    self.killed_at = None;
                }
            }
        }
    }

    /// Ends the session, by an order that is not the launch's client's. A later order can shorten the time limit, never extend it.
    fn end(&mut self, how: CommandWhat) {
        let limit = match how {
            CommandWhat::Kill(_) => timeouts::KILL,
            _ => self.grace.min(timeouts::GRACE_OF_OTHERS) + timeouts::END,
        };
        self.command(how);
        let then = Instant::now() + limit;
        self.killed_at = Some(self.killed_at.map_or(then, |before| before.min(then)));
    }

    /// Ends the session because this node is lost to the launch, and reports that as the cause.
    fn lose(&mut self, reason: String) {
        if std::mem::replace(&mut self.is_lost, true) {
            return;
        }
        tracing::warn!(launch = self.id, "its ranks are ended: {reason}");
        let cause = Cause { host: self.node.config.node_id.clone(), kind: CauseKind::NodeLost { reason } };
        let (events, ending) = (Arc::clone(&self.events), wire::event::encode(&Event::Ending(cause)));
        // There may be no room for it as long as nobody takes events. It is in line before the report is.
        tokio::spawn(async move { events.push(ending).await });
        self.end(CommandWhat::GiveUp(proto::Nothing {}));
    }

    /// Sends a command to the session, unless its queue is full: a session that reads nothing any more is killed in the end.
    fn command(&self, what: CommandWhat) {
        let what = Some(ToWhat::Command(proto::NodeCommand { what: Some(what) }));
        let _ = self.to_session.try_send(proto::ToSession { what });
    }

    /// Reports in place of a session that ended without a report.
    async fn tell_of_lost_session(&mut self) {
        self.node.metrics.lost.inc();
        // Whatever it does, nobody listens to it any more.
        let _ = self.process.kill();
        let reason = match timeout(timeouts::EXIT, &mut self.ended).await {
            Ok(Ok(exit)) => format!("the session process {exit}"),
            _ => "the session process is gone".to_owned(),
        };
        tracing::error!(launch = self.id, "{reason}");
        let cause = Cause { host: self.node.config.node_id.clone(), kind: CauseKind::NodeLost { reason } };
        self.events.push(wire::event::encode(&Event::Ending(cause))).await;
        let report = Report { exits: Vec::new(), cause: None, duration: Duration::ZERO };
        self.events.push(wire::event::encode_report(&report)).await;
    }

    /// Waits until the report is acknowledged, or nobody takes it any more.
    async fn until_delivered(&mut self) {
        let deadline = Instant::now() + timeouts::REPORT_KEPT;
        loop {
            tokio::select! {
                _ = &mut self.delivering => return,
                order = self.orders.recv() => match order {
                    // It has ended.
                    Some(LaunchOrder::End(_) | LaunchOrder::NodeLost { .. }) => {}
                    Some(LaunchOrder::Forget) | None => return,
                },
                () = sleep_until(deadline) => {
                    tracing::error!(launch = self.id, "the API server was never told of the end");
                    return;
                }
            }
        }
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// First frames for a session process: the user to become, then the launch.
fn first_frames(node: &Node, assignment: &Assignment, fabric: Option<proto::NodeFabric>) -> io::Result<BytesMut> {
    let order = serde_json::to_vec(&Order {
        uid: assignment.uid,
        setuid_programs: node.config.setuid_programs,
        limits: node.config.limits.clone(),
        host: node.config.node_id.clone(),
    })?;
    let (spec, node_index) = (assignment.spec.clone(), assignment.index.0);
    let start = proto::StartSession { spec, node_index, environment: Vec::new(), fabric };
    // Enough for both: memory that grows leaves copies behind, of a key here.
    let mut bytes = BytesMut::with_capacity(order.len() + start.encoded_len() + 16);
    bytes.put_u32(order.len() as u32);
    bytes.extend_from_slice(&order);
    append_frame(&mut bytes, &start);
    Ok(bytes)
}

/// Writes what the session must hear first, and what waits for it, until nobody writes to it any more, or it reads no more.
async fn write(mut socket: WriteHalf, mut first: BytesMut, mut queue: mpsc::Receiver<proto::ToSession>) {
    let written = socket.write_all(&first).await;
    // They may hold a key.
    first.as_mut().zeroize();
    if written.is_err() {
        return;
    }
    let mut bytes = BytesMut::new();
    loop {
        while let Ok(message) = queue.try_recv() {
            append_frame(&mut bytes, &message);
        }
        if !bytes.is_empty() && socket.write_all(&bytes).await.is_err() {
            return;
        }
        bytes.clear();
        let Some(message) = queue.recv().await else { return };
        append_frame(&mut bytes, &message);
    }
}

/// Receivers of the session's messages.
struct Session {
    callee: Arc<Callee>,
    to_session: mpsc::Sender<proto::ToSession>,
    events: Arc<Events>,
    questions: Arc<SessionQuestions>,
}

impl Session {
    /// Reads to the end of the socket; returns whether the session reported. Its fences end with it, but not before other nodes
    /// have what it replied to them: ranks there may wait for what a rank committed last here.
    async fn read(self, reader: ReadHalf) -> bool {
        let mut frames = FramedRead::new(reader, codec(FROM_SESSION_MAX));
        let mut under_way = JoinSet::new();
        let mut reported = false;
        while let Some(Ok(frame)) = frames.next().await {
            let Ok(message) = proto::FromSession::decode(frame.freeze()) else { break };
            match message.what {
                Some(FromWhat::Event(event)) => {
                    reported = matches!(event.what, Some(EventWhat::Report(_)));
                    self.events.push(event).await;
                    if reported {
                        break;
                    }
                }
                Some(FromWhat::Call(call)) => {
                    while under_way.try_join_next().is_some() {}
                    if under_way.len() >= CALLS_MAX {
                        let refusal =
                            calls::refusal(&call, &format!("{CALLS_MAX} calls of this node wait for answers"));
                        // It fails when the session has ended.
                        let _ = self.to_session.send(proto::ToSession { what: Some(ToWhat::Answer(refusal)) }).await;
                        continue;
                    }
                    let (callee, to_session) = (Arc::clone(&self.callee), self.to_session.clone());
                    under_way.spawn(async move {
                        let what = Some(ToWhat::Answer(callee.answer(call).await));
                        // A session that has ended needs no answer.
                        let _ = to_session.send(proto::ToSession { what }).await;
                    });
                }
                Some(FromWhat::Reply(reply)) => self.questions.replied(reply),
                None => {}
            }
        }
        self.questions.close();
        // Only a session that still runs, and does not read what it is asked, can hold this up.
        let _ = timeout(timeouts::KILL, self.callee.fences.last_answers()).await;
        reported
    }
}
