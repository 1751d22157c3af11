//! One launch on this node: its session process, and all messages between it and the rest of the cluster.
//!
//! ```text
//!              ToSession              FromSession
//! commands ─┐                                    ┌─> events ──> Delivery (the API server's streams)
//! answers  ─┼──> write ──> session process ──> read ─> calls ─> Callee ──> answers
//! questions ┘                                    └─> replies ─> SessionQuestions
//! ```
//!
//! A launch is over when its session has reported and the report was acknowledged. Until then the session process stays, because it keeps the
//! events that the API server has not taken; then it is dismissed. A session that ends without a report was killed, by the agent if it exceeded
//! its time limit. An order to end allows the launch's grace period, up to a maximum, and a little more. An order to kill allows hardly any
//! time. Sessions outlive the agent: a new session has a label for the next agent, and an adopted session was started by an earlier agent.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use lattice_session::cause::{Cause, CauseKind};
use lattice_session::deadline::until;
use lattice_session::event::Report;
use lattice_session::fabric::NodeFabric;
use lattice_session::session_process::door;
use lattice_session::timeouts;
use pmi_core::quiet::{self, ReadHalf, WriteHalf};
use pmi_transport::session_link::Visitable;
use rank_spawner::RankExit;
use tokio::sync::oneshot::error::RecvError;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until, timeout};

use super::Node;
use super::admission::Admitted;
use super::calls::{Callee, SessionQuestions};
use super::ending::Ending;
use super::fabric::{Claimed, FabricError, Wish};
use super::forks::{Forked, NotStarted};
use super::from_session::{FromSession, LastWords};
use super::launches::LaunchOrder;
use super::links;
use super::refusal::{Refusal, RefusalReason};
use super::report::{Delivered, Delivery, Events, ReportFor, Ways};
use super::report_relay::Offer;
use super::to_session::{ToSession, first_frame};
use super::wire::label;
use super::wire::launch_request::Assignment;

/// Starts the session of a launch that is in the table; the launch removes itself from there.
pub(super) async fn start(
    node: &Arc<Node>,
    Admitted { assignment, order, fabric }: &Admitted,
    orders: mpsc::UnboundedReceiver<LaunchOrder>,
    offers: Option<mpsc::Receiver<Offer>>,
) -> Result<(), Refusal> {
    // A process that receives no message ends by itself. Unused services are released when they are dropped.
    let launch = match tokio::join!(reach_fabric(node, fabric.clone()), node.forks.start(order)) {
        (Ok(fabric), Ok(forked)) => begin(node, assignment, fabric, forked, (orders, offers)).map_err(busy),
        (_, Err(NotStarted::Refused(why))) => Err((RefusalReason::Signature, why)),
        (Err(error), _) => Err(busy(error)),
        (_, Err(error)) => Err(busy(error)),
    };
    match launch {
        Ok(launch) => {
            node.metrics.started.inc();
            tokio::spawn(launch.run());
            Ok(())
        }
        Err((reason, text)) => {
            node.launches.remove(&assignment.launch_id);
            Err(Refusal::of(node, reason, text))
        }
    }
}

fn busy(error: impl ToString) -> (RefusalReason, String) {
    (RefusalReason::Busy, error.to_string())
}

/// Makes the first message to a new session process, and has the fork server keep the process for later agents.
fn begin(
    node: &Arc<Node>,
    assignment: &Assignment,
    (fabric, claimed): Reached,
    forked: Forked,
    inboxes: Inboxes,
) -> io::Result<Launch> {
    if assignment.outlives_agent() {
        forked.keep(&label::encode(assignment, claimed.as_ref().and_then(Claimed::uses)))?;
    }
    let first = first_frame(&fabric);
    // Without `forget` its door stays open, and the process waits indefinitely.
    let connection = connect(&forked).inspect_err(|_| forked.forget())?;
    let session = Session { forked, connection, first: Some(first), claimed };
    Ok(Launch::new(node, assignment, session, inboxes))
}

/// Adopts the session of a launch that is in the table; the launch removes itself from there.
pub(super) fn take_up(
    node: &Arc<Node>,
    assignment: &Assignment,
    forked: Forked,
    claimed: Option<Claimed>,
    orders: mpsc::UnboundedReceiver<LaunchOrder>,
) {
    // A session without a connection is reported as lost.
    let connection = connect(&forked).unwrap_or_else(|error| {
        tracing::error!(launch = assignment.launch_id, %error, "its session cannot be taken up");
        None
    });
    let session = Session { forked, connection, first: None, claimed };
    tokio::spawn(Launch::new(node, assignment, session, (orders, None)).run());
}

/// Connects to a session process; `None` if it has ended.
fn connect(forked: &Forked) -> io::Result<Option<Connection>> {
    forked.process.as_ref().map(|process| door::connect(&process.door).and_then(quiet::split)).transpose()
}

/// Both directions of the connection to a session process.
type Connection = (ReadHalf, WriteHalf);

/// Orders to a launch, and offers to relay its reports; `None` for a launch that reports to the API server itself.
type Inboxes = (mpsc::UnboundedReceiver<LaunchOrder>, Option<mpsc::Receiver<Offer>>);

/// Session of a launch at the start of the launch in this agent.
struct Session {
    forked: Forked,
    connection: Option<Connection>,
    /// First message to the session; `None` for an adopted session.
    first: Option<BytesMut>,
    claimed: Option<Claimed>,
}

/// Fabric settings for the ranks, and the services that were made for them.
type Reached = (NodeFabric, Option<Claimed>);

async fn reach_fabric(node: &Node, wish: Option<Wish>) -> Result<Reached, FabricError> {
    let Some(wish) = wish else { return Ok((node.fabric.bare(), None)) };
    let (told, claimed) = node.fabric.claim(wish).await?;
    Ok((told, Some(claimed)))
}

/// Running launch.
struct Launch {
    node: Arc<Node>,
    id: String,
    forked: Forked,
    /// Exit of the session process; `Err` if the fork server has ended.
    exit: Option<Result<RankExit, RecvError>>,
    orders: mpsc::UnboundedReceiver<LaunchOrder>,
    to_session: ToSession,
    writing: JoinHandle<()>,
    reading: JoinHandle<()>,
    last_words: oneshot::Receiver<LastWords>,
    events: Arc<Events>,
    delivering: JoinHandle<Delivered>,
    /// Grace period of the launch: time limit for its ranks to end.
    grace: Duration,
    /// Time at which the session is killed.
    killed_at: Option<Instant>,
    /// Number of consecutive checks that found the session process stopped.
    looks_stopped: u32,
    /// The ranks are being ended because the launch has lost this node.
    is_lost: bool,
    /// Services that the launch uses.
    claimed: Option<Claimed>,
    /// Admits links to the session.
    _visitable: Option<Visitable>,
}

impl Launch {
    fn new(node: &Arc<Node>, assignment: &Assignment, session: Session, (orders, offers): Inboxes) -> Self {
        let Session { forked, connection, first, claimed } = session;
        let is_taken_up = first.is_none();
        let visitable = forked.process.as_ref().and_then(|process| links::let_through(node, assignment, process));
        let id = assignment.launch_id.clone();
        let (to_session, waiting) = ToSession::new();
        let questions = Arc::new(SessionQuestions::new(id.clone(), to_session.clone()));
        // The fences of an adopted session ended with the earlier agent.
        let membership = assignment.membership().filter(|_| !is_taken_up);
        let fences = membership.map(|membership| node.fences.join(membership, Arc::clone(&questions) as _));
        let callee = Arc::new(Callee { node: Arc::clone(node), launch_id: id.clone(), fences });
        let of = ReportFor { launch_id: id.clone(), node_id: node.config.node_id.clone(), node: assignment.index };
        let delivered_by = Ways { api: node.api.place(), offers };
        let (delivery, events) = Delivery::new(delivered_by, of, to_session.clone(), is_taken_up);
        let events = Arc::new(events);
        let (said, last_words) = oneshot::channel();
        let (reading, writing) = match connection {
            Some((reader, writer)) => {
                let session = FromSession {
                    launch_id: id.clone(),
                    callee: Some(callee),
                    to_session: to_session.clone(),
                    events: Arc::clone(&events),
                    questions,
                    last_words: Some(said),
                };
                let writing = waiting.write(writer, first.unwrap_or_default());
                (tokio::spawn(session.read(reader)), tokio::spawn(writing))
            }
            // Without a sender, the last words are `Nothing`.
            None => (tokio::spawn(async {}), tokio::spawn(async {})),
        };
        let delivering = tokio::spawn(delivery.run());
        let node = Arc::clone(node);
        Self {
            node,
            id,
            forked,
            exit: None,
            orders,
            to_session,
            writing,
            reading,
            last_words,
            events,
            delivering,
            grace: assignment.grace,
            killed_at: None,
            looks_stopped: 0,
            is_lost: false,
            claimed,
            _visitable: visitable,
        }
    }

    /// Runs the launch to its end.
    async fn run(mut self) {
        tracing::info!(launch = self.id, pid = self.forked.pid.as_raw(), "its session runs");
        let mut delivered = None;
        let last_words = self.until_session_ends(&mut delivered).await;
        if last_words == LastWords::Nothing {
            self.tell_of_lost_session().await;
        }
        let giving_back = self.claimed.take().map(|claimed| tokio::spawn(claimed.release()));
        if delivered.is_none() {
            self.until_delivered(last_words).await;
        }
        self.delivering.abort();
        if let Some(giving_back) = giving_back {
            // The task does not panic, and is never cancelled.
            let _ = giving_back.await;
        }
        self.dismiss().await;
        self.forked.forget();
        self.node.launches.remove(&self.id);
        tracing::info!(launch = self.id, "ended");
    }

    /// Executes orders until the session has reported or ended.
    async fn until_session_ends(&mut self, delivered: &mut Option<Delivered>) -> LastWords {
        let mut looks = interval_at(Instant::now() + timeouts::STOPPED_LOOK, timeouts::STOPPED_LOOK);
        // Missed checks are not made up for.
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = looks.tick(), if self.exit.is_none() => self.look_if_stopped(),
                last_words = &mut self.last_words => return last_words.unwrap_or(LastWords::Nothing),
                Some(order) = self.orders.recv() => match order {
                    LaunchOrder::End(how) => self.end(how),
                    LaunchOrder::NodeLost { reason } => self.lose(reason),
                    LaunchOrder::Forget => self.delivering.abort(),
                },
                result = &mut self.delivering, if delivered.is_none() => {
                    if let Ok(Delivered::Unwanted(status)) = &result {
                        tracing::warn!(launch = self.id, "no client waits for this launch: {}", status.message());
                        self.end(Ending::GiveUp);
                    }
                    // No server takes the events that the session keeps.
                    self.to_session.dismiss();
                    *delivered = Some(result.unwrap_or(Delivered::All));
                },
                () = until(self.killed_at), if self.killed_at.is_some() => {
                    tracing::warn!(launch = self.id, "the session does not end; it is killed");
                    self.forked.kill();
                    self.killed_at = None;
                }
                exit = &mut self.forked.ended, if self.exit.is_none() => {
                    if exit.is_err() {
                        self.lose("its fork server ended".to_owned());
                    }
                    self.exit = Some(exit);
                }
            }
        }
    }

    /// Kills a session that a signal has stopped: it keeps no time limit, and follows no order to end.
    fn look_if_stopped(&mut self) {
        let is_stopped = self.forked.process.as_ref().is_some_and(|process| process.is_stopped());
        self.looks_stopped = if is_stopped { self.looks_stopped + 1 } else { 0 };
        if self.looks_stopped == timeouts::STOPPED_LOOKS {
            tracing::warn!(launch = self.id, "the session was stopped by a signal; it is killed");
            self.forked.kill();
        }
    }

    /// Ends the session on an order that is not from the launch's client. A later order can shorten the time limit, never extend it.
    fn end(&mut self, how: Ending) {
        let limit = match how {
            Ending::Kill(_) => timeouts::KILL,
            Ending::GiveUp | Ending::Signal(_) => self.grace.min(timeouts::GRACE_OF_OTHERS) + timeouts::END,
        };
        self.to_session.end(how);
        let then = Instant::now() + limit;
        self.killed_at = Some(self.killed_at.map_or(then, |before| before.min(then)));
    }

    /// Ends the session because the launch has lost this node, and reports that cause.
    fn lose(&mut self, reason: String) {
        if std::mem::replace(&mut self.is_lost, true) {
            return;
        }
        tracing::warn!(launch = self.id, "its ranks are ended: {reason}");
        let cause = self.node_lost(reason);
        let events = Arc::clone(&self.events);
        // The queue may be full while no events are taken. The cause is queued before the report.
        tokio::spawn(async move { events.push_cause(cause).await });
        self.end(Ending::GiveUp);
    }

    /// Reports the loss of a session that ended without a report.
    async fn tell_of_lost_session(&mut self) {
        self.node.metrics.lost.inc();
        // The agent reads no more messages of the session, whatever its state.
        self.forked.kill();
        if self.exit.is_none() {
            self.exit = timeout(timeouts::EXIT, &mut self.forked.ended).await.ok();
        }
        let reason = match self.exit {
            // The session ended in order, after it had waited too long for an agent.
            Some(Ok(RankExit::Code(_))) if self.forked.process.is_none() => {
                "its agent was gone for too long".to_owned()
            }
            Some(Ok(_)) if self.looks_stopped >= timeouts::STOPPED_LOOKS => {
                "the session process was stopped by a signal, and did not go on".to_owned()
            }
            Some(Ok(exit)) => format!("the session process {exit}"),
            Some(Err(_)) | None => "the session process is gone".to_owned(),
        };
        tracing::error!(launch = self.id, "{reason}");
        let cause = self.node_lost(reason);
        // Without an exit, some process cannot be killed. The API server then gives this node up, and reserves it until no process is left.
        let is_over = self.exit.is_some();
        let report = Report::default();
        let events = Arc::clone(&self.events);
        // The queue may be full while no events are taken.
        tokio::spawn(async move {
            events.push_cause(cause).await;
            if is_over {
                events.push_report(&report).await;
            }
        });
    }

    /// The launch's loss of this node, as a cause.
    fn node_lost(&self, reason: String) -> Cause {
        Cause { host: self.node.config.node_id.clone(), kind: CauseKind::NodeLost { reason } }
    }

    /// Dismisses the session process; kills it if it does not end. Returns when the fork server reports that the session and all processes that
    /// it started have ended. Until then heartbeats list the launch.
    async fn dismiss(&mut self) {
        if !self.reading.is_finished() {
            // The session has sent all messages, and the fork server reports its end. The end of its socket need not wake this task.
            self.reading.abort();
            self.to_session.dismiss();
        }
        if self.exit.is_none() && timeout(timeouts::KILL, &mut self.forked.ended).await.is_err() {
            tracing::warn!(launch = self.id, "the session does not leave; it is killed");
            self.forked.kill();
            // A process that cannot be killed occupies this node, and blocks nothing else.
            let _ = (&mut self.forked.ended).await;
        }
        self.writing.abort();
    }

    /// Waits until the report is acknowledged, or until no server takes it any more. If the session is killed meanwhile, its remaining events
    /// are lost.
    async fn until_delivered(&mut self, mut last_words: LastWords) {
        let deadline = Instant::now() + timeouts::REPORT_KEPT;
        loop {
            tokio::select! {
                _ = &mut self.delivering => return,
                _ = &mut self.reading, if last_words == LastWords::Kept => {
                    last_words = LastWords::Nothing;
                    self.tell_of_lost_session().await;
                }
                order = self.orders.recv() => match order {
                    // The launch has already ended.
                    Some(LaunchOrder::End(_) | LaunchOrder::NodeLost { .. }) => {}
                    Some(LaunchOrder::Forget) | None => return,
                },
                () = sleep_until(deadline) => {
                    tracing::error!(launch = self.id, "the end was never reported to the API server");
                    return;
                }
            }
        }
    }
}
