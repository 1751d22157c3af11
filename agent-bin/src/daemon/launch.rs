//! One launch on this node: the session process, and everything between it and the rest of the cluster.
//!
//! ```text
//!              ToSession              FromSession
//! commands ─┐                                    ┌─> events ──> Delivery (the API server's streams)
//! answers  ─┼──> write ──> session process ──> read ─> calls ─> Callee ──> answers
//! questions ┘                                    └─> replies ─> SessionQuestions
//! ```
//!
//! A launch is over when its session has reported and the report was acknowledged; until then the session process stays, as it keeps
//! what the API server has not taken, and then it is dismissed. A session that ends without a report has been killed, by us if it did
//! not end in time: an order to end gives it the launch's grace, if that is no long one, and a little more, an order to kill hardly
//! any. Sessions outlive the agent: one that starts has a label for the agent after this one, and one that is taken up was started by the
//! agent before.

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

/// Starts the session of a launch that was entered into the table; it removes itself from there.
pub(super) async fn start(
    node: &Arc<Node>,
    Admitted { assignment, order, fabric }: &Admitted,
    orders: mpsc::UnboundedReceiver<LaunchOrder>,
    offers: Option<mpsc::Receiver<Offer>>,
) -> Result<(), Refusal> {
    // A process that hears nothing ends by itself; services that nobody uses are given back when they are dropped.
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

/// Tells a new session process what to be, and the fork server to keep it for later agents.
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
    // Unless it is forgotten its door is not closed, and it waits for ever.
    let connection = connect(&forked).inspect_err(|_| forked.forget())?;
    let session = Session { forked, connection, first: Some(first), claimed };
    Ok(Launch::new(node, assignment, session, inboxes))
}

/// Takes up the session of a launch that was entered into the table; the launch removes itself from there.
pub(super) fn take_up(
    node: &Arc<Node>,
    assignment: &Assignment,
    forked: Forked,
    claimed: Option<Claimed>,
    orders: mpsc::UnboundedReceiver<LaunchOrder>,
) {
    // One that cannot be connected to is told of as lost.
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

/// Orders to a launch, and offers to relay its reports; `None` for one that reports to the API server itself.
type Inboxes = (mpsc::UnboundedReceiver<LaunchOrder>, Option<mpsc::Receiver<Offer>>);

/// Session of a launch, as it is when its launch begins here.
struct Session {
    forked: Forked,
    connection: Option<Connection>,
    /// What it is told first; `None` for one that the agent before this one began.
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
    /// Exit of the session process; `Err` if the fork server is gone.
    exit: Option<Result<RankExit, RecvError>>,
    orders: mpsc::UnboundedReceiver<LaunchOrder>,
    to_session: ToSession,
    writing: JoinHandle<()>,
    reading: JoinHandle<()>,
    last_words: oneshot::Receiver<LastWords>,
    events: Arc<Events>,
    delivering: JoinHandle<Delivered>,
    /// Time limit for ranks to end, as the launch says.
    grace: Duration,
    /// Time at which the session is killed.
    killed_at: Option<Instant>,
    /// Number of looks in a row that found the session process stopped.
    looks_stopped: u32,
    /// The ranks are being ended because this node is lost to the launch.
    is_lost: bool,
    /// Services that it uses.
    claimed: Option<Claimed>,
    /// Lets links through to the session.
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
        // Those of a session that was taken up ended with the agent before.
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
            // Its last words are nothing.
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
            // It does not panic, and nobody cancels it.
            let _ = giving_back.await;
        }
        self.dismiss().await;
        self.forked.forget();
        self.node.launches.remove(&self.id);
        tracing::info!(launch = self.id, "ended");
    }

    /// Carries out orders until the session has reported, or is gone.
    async fn until_session_ends(&mut self, delivered: &mut Option<Delivered>) -> LastWords {
        let mut looks = interval_at(Instant::now() + timeouts::STOPPED_LOOK, timeouts::STOPPED_LOOK);
        // Looks that are late say no more than one.
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
                        tracing::warn!(launch = self.id, "nobody wants this launch: {}", status.message());
                        self.end(Ending::GiveUp);
                    }
                    // What it keeps would be taken by nobody.
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

    /// Kills a session that was stopped: it would keep no time limit, and end for nobody.
    fn look_if_stopped(&mut self) {
        let is_stopped = self.forked.process.as_ref().is_some_and(|process| process.is_stopped());
        self.looks_stopped = if is_stopped { self.looks_stopped + 1 } else { 0 };
        if self.looks_stopped == timeouts::STOPPED_LOOKS {
            tracing::warn!(launch = self.id, "the session was stopped by a signal; it is killed");
            self.forked.kill();
        }
    }

    /// Ends the session, by an order that is not the launch's client's. A later order can shorten the time limit, never extend it.
    fn end(&mut self, how: Ending) {
        let limit = match how {
            Ending::Kill(_) => timeouts::KILL,
            Ending::GiveUp | Ending::Signal(_) => self.grace.min(timeouts::GRACE_OF_OTHERS) + timeouts::END,
        };
        self.to_session.end(how);
        let then = Instant::now() + limit;
        self.killed_at = Some(self.killed_at.map_or(then, |before| before.min(then)));
    }

    /// Ends the session because this node is lost to the launch, and reports that as the cause.
    fn lose(&mut self, reason: String) {
        if std::mem::replace(&mut self.is_lost, true) {
            return;
        }
        tracing::warn!(launch = self.id, "its ranks are ended: {reason}");
        let cause = self.node_lost(reason);
        let events = Arc::clone(&self.events);
        // There may be no room for it as long as nobody takes events. It is in line before the report is.
        tokio::spawn(async move { events.push_cause(cause).await });
        self.end(Ending::GiveUp);
    }

    /// Reports in place of a session that ended without a report.
    async fn tell_of_lost_session(&mut self) {
        self.node.metrics.lost.inc();
        // Whatever it does, nobody listens to it any more.
        self.forked.kill();
        if self.exit.is_none() {
            self.exit = timeout(timeouts::EXIT, &mut self.forked.ended).await.ok();
        }
        let reason = match self.exit {
            // In order, when it had waited for an agent for too long.
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
        // Unless something of it cannot be killed: then the API server gives this node up, and holds it until nothing is left.
        let is_over = self.exit.is_some();
        let report = Report::default();
        let events = Arc::clone(&self.events);
        // There may be no room as long as nobody takes events.
        tokio::spawn(async move {
            events.push_cause(cause).await;
            if is_over {
                events.push_report(&report).await;
            }
        });
    }

    /// The loss of this node to the launch, as a cause.
    fn node_lost(&self, reason: String) -> Cause {
        Cause { host: self.node.config.node_id.clone(), kind: CauseKind::NodeLost { reason } }
    }

    /// Lets the session process go; one that does not is killed. Returns when the fork server says that it has ended, and nothing that it
    /// started runs: as long as that is not so, heartbeats name the launch.
    async fn dismiss(&mut self) {
        if !self.reading.is_finished() {
            // It has said everything, and the fork server tells of its end: nobody need be woken by the end of its socket.
            self.reading.abort();
            self.to_session.dismiss();
        }
        if self.exit.is_none() && timeout(timeouts::KILL, &mut self.forked.ended).await.is_err() {
            tracing::warn!(launch = self.id, "the session does not leave; it is killed");
            self.forked.kill();
            // What cannot be killed holds the node, and nothing else.
            let _ = (&mut self.forked.ended).await;
        }
        self.writing.abort();
    }

    /// Waits until the report is acknowledged, or nobody takes it any more. A session that is killed meanwhile takes along what was
    /// not taken of it.
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
