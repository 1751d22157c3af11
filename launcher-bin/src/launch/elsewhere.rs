//! A launch on a cluster: the API server places and starts it, and then it is followed.

use std::io::{self, IsTerminal};
use std::time::Duration;

use bytes::Bytes;
use lattice_session::spec::StdinTarget;
use lattice_session::timeouts::{LEASE, START_ANSWER};
use lattice_session::wire;
use pmi_core::ids::{JobId, NodeIndex};
use pmi_core::job::{App, Job, Placement};
use pmi_transport::proto::v1 as proto;
use tokio::sync::mpsc;

use super::following::{Attachment, Following, Role};
use super::{LaunchError, Show, block_on, open_files, show_plan};
use crate::args::{AttachArgs, Distribution};
use crate::cluster::{ApiServer, Cluster, ClusterError};
use crate::console::{Verbosity, print, report, write_stderr};
use crate::output::{name, settings};
use crate::placed::PlacedLaunch;
use crate::request::{LaunchRequest, Machine, OutputRequest, PlacementRequest};
use crate::signal_forwarder::RankLocation;
use crate::trace::ClusterTrace;
use crate::{map, stdin};

/// Starts a launch in `allocation`, and follows it, unless it is detached, or only says what it would be; returns its exit code.
pub(super) fn run(
    request: LaunchRequest,
    server: &ApiServer,
    allocation: String,
    verbosity: Verbosity,
) -> Result<u8, LaunchError> {
    block_on(async {
        let cluster = server.connect()?;
        let (dry_run, detach) = (request.dry_run, request.detach);
        let output = request.output.clone();
        let started = submit(&cluster, request, allocation).await?;
        if is_noted(verbosity, io::stderr().is_terminal()) {
            started.notes.iter().for_each(|note| report(&format!("note: {note}")));
        }
        if dry_run {
            return show_plan(&answered(&cluster, started, output)?);
        }
        let launch_id = started.task_launch_id.clone();
        let lease = if started.lease_ms == 0 { LEASE } else { Duration::from_millis(started.lease_ms) };
        let outcome = if detach {
            leave(&cluster, started, output, verbosity)
        } else {
            follow(&cluster, &launch_id, (Role::Owner, lease), output, verbosity).await
        };
        if let Err(error) = &outcome
            && !matches!(error, LaunchError::LostSight { .. })
        {
            // Nobody would see its output, or how it ended. If this fails, the API server misses us soon.
            let _ = abort(&cluster, &launch_id, &format!("its client failed: {error}")).await;
        }
        outcome
    })
}

/// Whether notes on a placement are shown: scripts that put more ranks than cores on a node do so each time, and mean it.
fn is_noted(verbosity: Verbosity, watched: bool) -> bool {
    verbosity == Verbosity::Verbose || watched && verbosity == Verbosity::Normal
}

/// Looks at a launch that runs already; returns its exit code.
///
/// # Errors
/// Fails if there is no such launch, or if it is lost sight of.
pub(crate) fn attach(args: &AttachArgs, verbosity: Verbosity) -> Result<u8, LaunchError> {
    let server = ApiServer::find(args.api.api.as_deref(), &Machine::this()?.environment)?;
    let output =
        OutputRequest { label: args.label, timestamp: args.timestamp, json: args.json, ..OutputRequest::default() };
    block_on(async { follow(&server.connect()?, &args.launch, (Role::Viewer, LEASE), output, verbosity).await })
}

/// Ends a launch; one that has ended is fine.
pub(crate) async fn abort(cluster: &Cluster, launch_id: &str, reason: &str) -> Result<(), ClusterError> {
    let request = proto::AbortLaunchRequest { id: launch_id.to_owned(), reason: reason.to_owned() };
    cluster.ask(cluster.launches().abort_launch(request)).await.map(drop)
}

/// Has the API server start a launch, or plan it; returns when every node has accepted it.
async fn submit(
    cluster: &Cluster,
    request: LaunchRequest,
    allocation_id: String,
) -> Result<proto::LaunchTasksResponse, ClusterError> {
    let question = proto::LaunchTasksRequest {
        allocation_id,
        num_tasks: request.size().unwrap_or_default(),
        tasks_per_node: request.placement.tasks_per_node.unwrap_or_default(),
        placement: Some(placement(&request.placement)),
        detached: request.detach,
        plan_only: request.dry_run,
        spec: Some(unplaced(request)),
        ..proto::LaunchTasksRequest::default()
    };
    let mut service = cluster.allocations();
    cluster.ask_within(START_ANSWER, service.launch_tasks(question)).await
}

/// A launch's spec without what the API server decides.
fn unplaced(request: LaunchRequest) -> proto::LaunchSpec {
    let trace = request.output.pmi_trace.is_some();
    let apps = (0..).zip(&request.programs);
    let job = Job {
        id: JobId::new("unplaced").expect("a name of letters is a job's"),
        placement: Placement::default(),
        apps: apps.map(|(appnum, program)| App { ranks: program.ranks.unwrap_or_default(), appnum }).collect(),
        universe_size: request.universe_size,
        spawner: None,
        preput: Vec::new(),
    };
    let session = request.into_session(String::new(), job, Vec::new(), String::new());
    proto::LaunchSpec { trace, ..wire::spec::encode(&session) }
}

fn placement(request: &PlacementRequest) -> proto::PlacementRequest {
    let distribution = match request.distribution {
        Some(Distribution::Block) => proto::Distribution::Block,
        Some(Distribution::Cyclic) => proto::Distribution::Cyclic,
        None if request.hosts.is_empty() => proto::Distribution::Block,
        None => proto::Distribution::Explicit,
    };
    let hosts = request.hosts.iter().map(|host| proto::HostSlots { node: host.node.clone(), slots: host.slots });
    proto::PlacementRequest {
        nodes: request.nodes.unwrap_or_default(),
        tasks_per_node: request.tasks_per_node.unwrap_or_default(),
        only: request.only.clone().unwrap_or_default(),
        except: request.except.clone().unwrap_or_default(),
        distribution: distribution.into(),
        hosts: hosts.collect(),
    }
}

/// A launch as the API server placed it, as seen from its first node. What only ranks may know is not in it.
fn placed(cluster: &Cluster, spec: proto::LaunchSpec, output: OutputRequest) -> Result<PlacedLaunch, ClusterError> {
    let spec = proto::LaunchSpec { secret: Bytes::from_static(&[0; wire::spec::SECRET_LEN]), ..spec };
    let spec = wire::spec::decode(spec, NodeIndex(0)).map_err(|error| cluster.nonsense(error))?;
    Ok(PlacedLaunch::elsewhere(spec, output))
}

/// The launch that the API server answers with.
fn answered(
    cluster: &Cluster,
    answer: proto::LaunchTasksResponse,
    output: OutputRequest,
) -> Result<PlacedLaunch, ClusterError> {
    placed(cluster, answer.spec.ok_or_else(|| cluster.nonsense("a launch without its spec"))?, output)
}

/// Says which launch it is that nobody follows.
fn leave(
    cluster: &Cluster,
    started: proto::LaunchTasksResponse,
    output: OutputRequest,
    verbosity: Verbosity,
) -> Result<u8, LaunchError> {
    let launch = answered(cluster, started, output)?;
    if verbosity == Verbosity::Verbose {
        report(&settings(&launch));
    }
    if launch.output.show_map {
        write_stderr(map::table(&launch).as_bytes());
    }
    Ok(print(&name(&launch))?)
}

/// Follows a launch to its end, also when its API server is away for no longer than the lease.
async fn follow(
    cluster: &Cluster,
    launch_id: &str,
    (role, lease): (Role, Duration),
    output: OutputRequest,
    verbosity: Verbosity,
) -> Result<u8, LaunchError> {
    let (attachment, spec) = Attachment::open(cluster, launch_id, 0, role).await?;
    let launch = placed(cluster, spec, output)?;
    let (faults, reported) = mpsc::unbounded_channel();
    // Before the files, as they are emptied.
    let trace =
        launch.output.pmi_trace.as_deref().map(|path| ClusterTrace::create(path, faults.clone())).transpose()?;
    let files = open_files(&launch)?;
    let input = match launch.spec.stdin {
        StdinTarget::Rank(_) | StdinTarget::All if role == Role::Owner => Some(stdin::pieces()?),
        _ => None,
    };
    let (mut show, controls) = Show::new(&launch, RankLocation::Cluster, verbosity, files, (faults, reported))?;
    if role == Role::Viewer {
        show.renderer.ignore_interrupts();
    }
    let (following, news) = Following::new(cluster.clone(), launch_id.to_owned(), role, lease, controls, input, trace);
    let work = async { following.run(attachment).await };
    show.run(&launch, news, work).await
}
