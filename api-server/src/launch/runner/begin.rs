//! Start of a launch's task: for a new launch, or for a launch of an earlier server.

use pmi_core::ids::NodeIndex;
use pmi_transport::task;
use std::sync::Arc;
use std::time::Duration;

use lattice_session::request::Ownership;
use lattice_session::settings::StdinTarget;
use lattice_session::unix_time;
use parking_lot::Mutex;
use pmi_core::job::Placement;
use pmi_transport::signature::Serial;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tracing::Instrument;

use super::Runner;
use super::replies::{Replies, StartReply};
use crate::launch::deliveries::Deliveries;
use crate::launch::event_log::{EventLog, Retention};
use crate::launch::facts::{self, Facts, Origin, Settler};
use crate::launch::fan_out::{self, CredentialsToCome, FanOut, NotStarted, Recipient};
use crate::launch::machine::{Machine, Resumed};
use crate::launch::outbox::Outbox;
use crate::launch::relayed_reports::RelayedReports;
use crate::launch::spool::Spool;
use crate::launch::surroundings::Surroundings;
use crate::launch::{INBOX, LaunchHandle, Outlet, Part, Request, Shared};
use crate::order::Order;
use crate::store::LaunchRecord;
use crate::wire;

/// Starts a launch with a durable record. The receiver gets the result of the request to all nodes.
pub(crate) fn start(
    surroundings: Surroundings,
    order: Order,
    record: LaunchRecord,
    mut fan_out: FanOut,
    credentials: Option<CredentialsToCome>,
) -> (LaunchHandle, oneshot::Receiver<Result<(), NotStarted>>) {
    let (reply, accepted) = oneshot::channel();
    let (sender, inbox) = mpsc::channel(INBOX);
    let span = tracing::info_span!("launch", id = %order.id());
    let now = surroundings.clock.now();
    let serial = fan_out.serial;
    fan_out.relays_reports = fan_out.nodes.len() as u32 > surroundings.settings.relay_above;
    let begin = Beginning {
        surroundings: surroundings.clone(),
        order,
        record,
        origin: Origin::Here,
        serial,
        first_event: 1,
        start: Some(reply),
        inbox,
    };
    let (runner, handle) = begin.with(sender, now, |facts, first| Machine::new(facts, first, now));
    task::spawn(ask_nodes(surroundings, fan_out, credentials, handle.clone()).instrument(span.clone()));
    task::spawn(runner.run().instrument(span));
    (handle, accepted)
}

/// Obtains fabric credentials for a launch, and asks all nodes to start it. Sends the result to the task of the launch.
async fn ask_nodes(
    surroundings: Surroundings,
    mut fan_out: FanOut,
    credentials: Option<CredentialsToCome>,
    launch: LaunchHandle,
) {
    let Surroundings { channels, metrics, settings, .. } = &surroundings;
    let equipped = match credentials {
        Some(credentials) => {
            fan_out.make_way(channels, settings);
            credentials.await.map(Some)
        }
        None => Ok(None),
    };
    let timer = metrics.time_fan_out();
    let result = match equipped {
        Ok(credentials) => {
            fan_out.credentials = credentials;
            fan_out.run(channels, settings).await.map_err(NotStarted::from)
        }
        Err(error) => Err(error.into()),
    };
    timer.stop();
    if result.is_ok() && fan_out.relays_reports {
        fetch_reports(&surroundings, fan_out, &launch);
    }
    // The task of the launch outlives this task.
    launch.send(Request::FannedOut(result)).await;
}

/// Collects the reports of all nodes through the relays that forwarded the launch.
fn fetch_reports(surroundings: &Surroundings, FanOut { launch_id, nodes, .. }: FanOut, launch: &LaunchHandle) {
    let Surroundings { channels, nodes: registry, metrics, settings, .. } = surroundings;
    let nodes: Arc<[Recipient]> = nodes.into();
    for part in fan_out::parts(nodes.len(), settings) {
        let reports = RelayedReports {
            launch: launch.clone(),
            launch_id: launch_id.clone(),
            part,
            fan_out: settings.relay_fan_out,
            nodes: Arc::clone(&nodes),
            channels: channels.clone(),
            registry: Arc::clone(registry),
            metrics: Arc::clone(metrics),
        };
        task::spawn(reports.fetch().in_current_span());
    }
}

/// Resumes a launch that ran when the previous server ended. Its nodes must report again.
pub(crate) fn resume(surroundings: Surroundings, order: Order, record: LaunchRecord) -> LaunchHandle {
    let (sender, inbox) = mpsc::channel(INBOX);
    let unix = unix_time::seconds();
    let (started, client_stopped_at) =
        record.summary.as_ref().map_or((unix, 0), |summary| (summary.started_at, summary.client_stopped_at));
    let age = Duration::from_secs(unix.saturating_sub(started));
    let kept = record.checkpoint.clone().unwrap_or_default();
    let progressed = wire::launch::decode_progressed(&kept, order.launch.hosts.len());
    let now = surroundings.clock.now();
    let begun = now.checked_sub(age).unwrap_or(now);
    let span = tracing::info_span!("launch", id = %order.id());
    let first_event = progressed.first_event(unix);
    let (origin, serial) = (Origin::Resumed, Serial(0));
    let begin = Beginning { surroundings, order, record, origin, serial, first_event, start: None, inbox };
    let resumed = Resumed { progressed, client_stopped_at, begun };
    let (runner, handle) = begin.with(sender, begun, |facts, first| Machine::resume(facts, first, resumed, now));
    task::spawn(runner.run().instrument(span));
    handle
}

/// Initial state of a task.
struct Beginning {
    surroundings: Surroundings,
    order: Order,
    record: LaunchRecord,
    origin: Origin,
    serial: Serial,
    first_event: u64,
    start: Option<StartReply>,
    inbox: mpsc::Receiver<Request>,
}

impl Beginning {
    /// The task, and the handle through which the rest of the server reaches it.
    fn with(
        self,
        sender: mpsc::Sender<Request>,
        begun: tokio::time::Instant,
        machine: impl FnOnce(Facts, u64) -> Machine,
    ) -> (Runner, LaunchHandle) {
        let Self { surroundings, order, record, origin, serial, first_event, start, inbox } = self;
        let spool = match order.ownership {
            Ownership::Detached => surroundings.spools.open(order.terms.uid),
            Ownership::Client => None,
        };
        let settler = settler(order.ownership, spool.as_ref());
        let retention = if settler == Settler::Nobody { Retention::Bounded } else { Retention::UntilSettled };
        let log = EventLog::new(first_event, retention, spool.clone(), surroundings.all_kept.clone());
        let facts = facts(&order, settler, origin);
        let facts = Facts { gather_above: surroundings.settings.relay_above, ..facts };
        let outlet = |name: &String| Outlet { name: name.clone(), outbox: Outbox::default() };
        let outlets: Arc<[Outlet]> = facts.nodes.iter().map(outlet).collect();
        let shared = Arc::new(Shared {
            summary: Mutex::new(wire::summary::decode(record.summary.clone().unwrap_or_default())),
            parts: Mutex::new(vec![Part::Expected; facts.nodes.len()]),
        });
        let handle = LaunchHandle {
            inbox: sender,
            nodes: Arc::clone(&outlets),
            indices: Arc::new(
                (0..).map(NodeIndex).zip(&*outlets).map(|(index, outlet)| (outlet.name.clone(), index)).collect(),
            ),
            shared: Arc::clone(&shared),
            certificate: record.certificate.clone(),
            origin,
            serial,
            begun,
            clock: Arc::clone(&surroundings.clock),
        };
        let runner = Runner {
            ownership: facts.ownership,
            machine: machine(facts, first_event),
            deliveries: Deliveries::new(first_event, Arc::clone(&log), spool),
            replies: Replies::new(order.terms.uid, start),
            surroundings,
            recipients: order.recipients(),
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

/// Returns the party that settles a launch's events: its owner, or its spool if it has no owner.
fn settler(ownership: Ownership, spool: Option<&Arc<Spool>>) -> Settler {
    match (ownership, spool) {
        (Ownership::Client, _) => Settler::Owner,
        (Ownership::Detached, Some(_)) => Settler::Spool,
        (Ownership::Detached, None) => Settler::Nobody,
    }
}

/// Returns the fixed part of the launch of an order.
fn facts(order: &Order, settler: Settler, origin: Origin) -> Facts {
    let Order { launch, terms, ownership } = order;
    Facts {
        job: launch.job.id.clone(),
        id: order.id(),
        allocation_id: launch.allocation_id.clone().unwrap_or_default(),
        nodes: launch.hosts.clone(),
        placement: launch.job.placement.clone(),
        output_window: u64::from(terms.output_window),
        input_window: u64::from(terms.stdin_window),
        input_readers: input_readers(&launch.settings.stdin, &launch.job.placement),
        grace: launch.settings.timeouts.grace_max(),
        failed_ranks: launch.settings.failed_ranks,
        lost_nodes: launch.settings.lost_nodes,
        after_first_exit: launch.settings.timeouts.after_first_exit,
        time_limit: launch.settings.timeouts.time_limit,
        directory: launch.apps.first().map(|app| app.directory.clone()).unwrap_or_default(),
        universe_size: launch.job.universe_size,
        ownership: match ownership {
            Ownership::Client => facts::Ownership::Owned,
            Ownership::Detached => facts::Ownership::Detached,
        },
        settler,
        origin,
        gather_above: u32::MAX,
    }
}

/// The nodes with ranks that read the launch's input.
pub(crate) fn input_readers(stdin: &StdinTarget, placement: &Placement) -> Vec<NodeIndex> {
    match stdin {
        StdinTarget::Rank(_) | StdinTarget::Terminal(_) => {
            let node = stdin.one_reader().and_then(|rank| placement.node_of(rank));
            node.into_iter().collect()
        }
        StdinTarget::All => {
            let blocks = placement.blocks().iter();
            let mut nodes: Vec<NodeIndex> =
                blocks.flat_map(|block| block.first_node.0..block.first_node.0 + block.nodes).map(NodeIndex).collect();
            nodes.sort_unstable();
            nodes.dedup();
            nodes
        }
        StdinTarget::File(_) | StdinTarget::None => Vec::new(),
    }
}
