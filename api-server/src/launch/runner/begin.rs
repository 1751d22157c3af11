//! Beginning of a launch's task: with a new launch, or with one that an earlier server left.

use std::sync::Arc;
use std::time::Duration;

use lattice_session::unix_time;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tracing::Instrument;

use super::Runner;
use super::replies::{Replies, StartReply};
use crate::fabric::Asked;
use crate::launch::deliveries::Deliveries;
use crate::launch::event_log::{EventLog, Retention};
use crate::launch::facts::{Facts, Origin, Settler};
use crate::launch::fan_out::{FanOut, NotStarted};
use crate::launch::machine::{Machine, Resumed};
use crate::launch::outbox::Outbox;
use crate::launch::spool::Spool;
use crate::launch::{INBOX, LaunchHandle, Outlet, Part, Request, Shared};
use crate::order::Order;
use crate::server::Server;
use crate::store::LaunchRecord;
use crate::wire;

/// Starts a launch whose record is durable. The receiver is told whether all nodes have accepted it.
pub(crate) fn start(
    server: &Arc<Server>,
    order: Order,
    record: LaunchRecord,
    fan_out: FanOut,
    credentials: Option<Asked>,
) -> (LaunchHandle, oneshot::Receiver<Result<(), NotStarted>>) {
    let (reply, accepted) = oneshot::channel();
    let (sender, inbox) = mpsc::channel(INBOX);
    let limit = order.spec.patience.as_ref().and_then(|timeouts| timeouts.timeout_ms);
    let limit = limit.map_or(Duration::MAX, Duration::from_millis);
    let span = tracing::info_span!("launch", id = order.spec.launch_id);
    let begin = Beginning { server, order, record, origin: Origin::Here, first_event: 1, start: Some(reply), inbox };
    let now = server.clock.now();
    let (runner, handle) = begin.with(sender.clone(), now, |facts, first| Machine::new(facts, first, now));
    let asking = ask_nodes(Arc::clone(server), fan_out, credentials, limit, sender);
    tokio::spawn(asking.instrument(span.clone()));
    tokio::spawn(runner.run().instrument(span));
    (handle, accepted)
}

/// Equips a launch with fabric credentials and asks all nodes to start it; tells its task how that ended.
async fn ask_nodes(
    server: Arc<Server>,
    mut fan_out: FanOut,
    credentials: Option<Asked>,
    limit: Duration,
    launch: mpsc::Sender<Request>,
) {
    let equipped = match credentials {
        Some(asked) => {
            fan_out.make_way(&server.channels, &server.config.launches);
            asked.equip(&server, &mut fan_out, limit).await.map_err(NotStarted::from)
        }
        None => Ok(()),
    };
    let timer = server.metrics.time_fan_out();
    let result = match equipped {
        Ok(()) => fan_out.run(&server.channels, &server.config.launches).await.map_err(NotStarted::from),
        Err(error) => Err(error),
    };
    timer.stop();
    // The launch outlives this.
    let _ = launch.send(Request::FannedOut(result)).await;
}

/// Takes up a launch that ran when the server ended. Its nodes are expected to report again.
pub(crate) fn resume(server: &Arc<Server>, order: Order, record: LaunchRecord) -> LaunchHandle {
    let (sender, inbox) = mpsc::channel(INBOX);
    let unix = unix_time::seconds();
    let (started, client_stopped_at) =
        record.summary.as_ref().map_or((unix, 0), |summary| (summary.started_at, summary.client_stopped_at));
    let age = Duration::from_secs(unix.saturating_sub(started));
    let kept = record.checkpoint.clone().unwrap_or_default();
    let progressed = wire::launch::decode_progressed(&kept, order.nodes.len());
    let now = server.clock.now();
    let begun = now.checked_sub(age).unwrap_or(now);
    let span = tracing::info_span!("launch", id = order.spec.launch_id);
    // Numbers must go on counting up, and what they had come to is not known.
    let first_event = unix << 20;
    let begin = Beginning { server, order, record, origin: Origin::Resumed, first_event, start: None, inbox };
    let resumed = Resumed { progressed, client_stopped_at, begun };
    let (runner, handle) = begin.with(sender, begun, |facts, first| Machine::resume(facts, first, resumed, now));
    tokio::spawn(runner.run().instrument(span));
    handle
}

/// Everything that a task begins with.
struct Beginning<'a> {
    server: &'a Arc<Server>,
    order: Order,
    record: LaunchRecord,
    origin: Origin,
    first_event: u64,
    start: Option<StartReply>,
    inbox: mpsc::Receiver<Request>,
}

impl Beginning<'_> {
    /// The task, and the handle by which others reach it.
    fn with(
        self,
        sender: mpsc::Sender<Request>,
        begun: tokio::time::Instant,
        machine: impl FnOnce(Facts, u64) -> Machine,
    ) -> (Runner, LaunchHandle) {
        let Beginning { server, order, record, origin, first_event, start, inbox } = self;
        let spool = if order.detached { server.spools.open() } else { None };
        let settler = settler(order.detached, spool.as_ref());
        let retention = if settler == Settler::Nobody { Retention::Bounded } else { Retention::UntilSettled };
        let log = EventLog::new(first_event, retention, spool.clone());
        let facts = wire::launch::facts(&order, settler, origin);
        let outlet = |name: &String| Outlet { name: name.clone(), outbox: Outbox::default() };
        let outlets: Arc<[Outlet]> = facts.nodes.iter().map(outlet).collect();
        let shared = Arc::new(Shared {
            summary: Mutex::new(record.summary.clone().unwrap_or_default()),
            parts: Mutex::new(vec![Part::Expected; facts.nodes.len()]),
        });
        let handle = LaunchHandle {
            inbox: sender,
            nodes: Arc::clone(&outlets),
            shared: Arc::clone(&shared),
            origin,
            begun,
            clock: Arc::clone(&server.clock),
        };
        let runner = Runner {
            ownership: facts.ownership,
            machine: machine(facts, first_event),
            deliveries: Deliveries::new(first_event, Arc::clone(&log), spool),
            replies: Replies::new(start),
            server: Arc::clone(server),
            recipients: order.nodes,
            writes: JoinSet::new(),
            record,
            outlets,
            shared,
            log,
            inbox,
        };
        (runner, handle)
    }
}

/// Returns the settler of a launch's events: its owner, or where it has none, its spool.
fn settler(detached: bool, spool: Option<&Arc<Spool>>) -> Settler {
    match (detached, spool) {
        (false, _) => Settler::Owner,
        (true, Some(_)) => Settler::Spool,
        (true, None) => Settler::Nobody,
    }
}
