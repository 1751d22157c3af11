//! A launch on a cluster. The API server places and starts it, and then this process attaches to it.

use std::io::{self, IsTerminal};
use std::thread;
use std::time::Duration;

use lattice_cluster_client::messages::Role;
use lattice_cluster_client::{ApiServer, Attachment, Cluster, ClusterError, LaunchAction, Started, Templates};
use lattice_commands::args::AttachArgs;
use lattice_console::machine::Machine;
use lattice_console::{Verbosity, print, report, runtime, signals, write_stderr};
use lattice_render::trace::ClusterTrace;
use lattice_render::{Fault, LineLabel, OpenFiles, OutputRequest, PreparedLaunch, map, name, settings};
use lattice_session::placed::PlacedLaunch;
use lattice_session::request::Ownership;
use lattice_session::settings::StdinTarget;
use lattice_session::timeouts::LEASE;
use pmi_transport::proto::v1 as proto;
use rank_spawner::CpuBind;
use tokio::sync::{mpsc, oneshot};

use super::attached::{AttachSettings, AttachedLaunch};
use super::frontend::Frontend;
use super::idle::report_idle;
use super::start_watch::StartWatch;
use super::{LaunchError, full_screen, nodes, open_files, show_plan, viewed};
use crate::prepared::{self, NodeBindError};
use crate::request::{Action, Count, LaunchCommand};
use crate::signal_forwarder::{EarlySignals, RankLocation};
use crate::stdin;

/// Starts a launch in `allocation` and attaches to it, unless it is detached. Or only prints its plan, for which `allocation` may be empty.
/// Returns the exit code.
///
/// # Errors
/// Fails if the launch cannot start, or contact to it is lost.
pub(crate) fn run(
    mut command: LaunchCommand,
    server: &ApiServer,
    allocation: String,
    verbosity: Verbosity,
) -> Result<u8, LaunchError> {
    runtime::block_on(async {
        let cluster = server.connect()?;
        nodes::give_slots(&mut command, &cluster, &allocation).await?;
        let LaunchCommand { request, output, action, count, .. } = command;
        // A shell on a terminal is for one user, so one rank is intended.
        let has_terminal = matches!(request.settings.stdin, StdinTarget::Terminal(_));
        let is_noted = verbosity > Verbosity::Quiet && !has_terminal && !is_rank();
        if (count, action) == (Count::Usual, Action::Start) && is_noted {
            report_idle(&cluster, &request.placement, &allocation).await?;
        }
        let wanted = match action {
            Action::Start => LaunchAction::Launch,
            Action::Plan => LaunchAction::Plan,
        };
        // Ranks may write before this process is attached.
        let mut signals = EarlySignals::listen()?;
        let start = cluster.start_launch(&request, allocation, wanted);
        let started = during(&mut signals, start).await??;
        show_notes(&started.notes, verbosity);
        if action == Action::Plan {
            if verbosity != Verbosity::Quiet {
                started.absent.iter().for_each(|line| report(&format!("note: {line}")));
            }
            let (launch, bound) = planned(&cluster, started.placed?, output, action).await;
            bound?;
            return show_plan(&launch);
        }
        let (launch_id, lease) = (started.launch_id.clone(), started.lease);
        let outcome = match request.ownership {
            Ownership::Detached => leave(&cluster, started, output, verbosity).await,
            Ownership::Client => show(&cluster, &launch_id, (Role::Owner, lease), signals, (output, verbosity)).await,
        };
        if let Err(error) = &outcome
            && !matches!(error, LaunchError::LostSight { .. })
        {
            // No process reads its output. If this fails, the API server ends it soon. A further signal ends this process.
            let _ = signals::end_us();
            let _ = cluster.abort_launch(&launch_id, &format!("its client failed: {error}")).await;
        }
        outcome
    })?
}

/// True in a rank of a launch, which starts other launches on purpose.
fn is_rank() -> bool {
    std::env::var_os("LATTICE_RANK").is_some()
}

/// Shows notes on a launch that starts, if a user may read them.
pub(super) fn show_notes(notes: &[String], verbosity: Verbosity) {
    if is_noted(verbosity, &io::stderr()) {
        notes.iter().for_each(|note| report(&format!("note: {note}")));
    }
}

/// True if notes are shown. Scripts that put more ranks than cores on a node do so every time, on purpose.
fn is_noted(verbosity: Verbosity, stderr: &impl IsTerminal) -> bool {
    verbosity == Verbosity::Verbose || verbosity == Verbosity::Normal && stderr.is_terminal()
}

/// Attaches to a running launch, as a viewer; returns the exit code.
///
/// # Errors
/// Fails if the launch does not exist, or contact to it is lost.
pub(crate) fn attach(args: &AttachArgs, verbosity: Verbosity) -> Result<u8, LaunchError> {
    let environment = Machine::this()?.environment;
    let here = if args.api.api.is_some() { None } else { lattice_local_launches::find(&args.launch, &environment) };
    let output = OutputRequest {
        label: if args.label { LineLabel::Rank } else { LineLabel::None },
        timestamp: args.timestamp,
        json: args.json,
        ..OutputRequest::default()
    };
    if let Some(here) = here {
        return runtime::block_on(viewed::view(&here, output, verbosity))?;
    }
    let server = ApiServer::find(args.api.api.as_deref(), &environment)?;
    runtime::block_on(async {
        let signals = EarlySignals::listen()?;
        show(&server.connect()?, &args.launch, (Role::Viewer, LEASE), signals, (output, verbosity)).await
    })?
}

/// A launch that the API server has placed, with the CPUs of its ranks as far as their nodes are known. Also the error for a launch that
/// cannot bind them.
async fn planned(
    cluster: &Cluster,
    placed: PlacedLaunch,
    output: OutputRequest,
    action: Action,
) -> (PreparedLaunch, Result<(), NodeBindError>) {
    let mut launch = PreparedLaunch::on_cluster(placed, output);
    let templates = match launch.placed.settings.cpu_bind {
        CpuBind::None => Templates::default(),
        // An older API server has no data about nodes.
        _ if action == Action::Plan => cluster.known_templates().await.unwrap_or_default(),
        _ => cluster.told_templates().await.unwrap_or_default(),
    };
    let bound = prepared::bind(&mut launch, &templates);
    (launch, bound)
}

/// As `planned`, for a launch that starts. If a node cannot bind its ranks, the node ends the launch and reports the reason.
async fn prepared(cluster: &Cluster, placed: PlacedLaunch, output: OutputRequest) -> PreparedLaunch {
    match output.show_map {
        true => planned(cluster, placed, output, Action::Start).await.0,
        false => PreparedLaunch::on_cluster(placed, output),
    }
}

/// Prints the id of a detached launch.
async fn leave(
    cluster: &Cluster,
    started: Started,
    output: OutputRequest,
    verbosity: Verbosity,
) -> Result<u8, LaunchError> {
    let launch = prepared(cluster, started.placed?, output).await;
    if verbosity == Verbosity::Verbose {
        report(&settings(&launch));
    }
    if launch.output.show_map {
        write_stderr(map::table(&launch).as_bytes());
    }
    Ok(print(&name(&launch))?)
}

/// Runs a step of the start, which a signal can end.
async fn during<T>(signals: &mut EarlySignals, step: impl Future<Output = T>) -> Result<T, LaunchError> {
    signals.during(step).await.map_err(|signal| LaunchError::Interrupted { signal })
}

/// Opens the files of a launch on a separate thread: opening a named pipe blocks without a reader, and would delay signals that end this
/// process.
async fn open_all(
    launch: PreparedLaunch,
    faults: mpsc::UnboundedSender<Fault>,
) -> Result<(PreparedLaunch, Option<ClusterTrace>, OpenFiles), LaunchError> {
    let open = move || {
        // Before the files, because opening them empties them.
        let trace = launch.output.pmi_trace.as_deref().map(|path| ClusterTrace::create(path, faults)).transpose()?;
        let files = open_files(&launch)?;
        Ok((launch, trace, files))
    };
    let (done, opened) = oneshot::channel();
    thread::Builder::new().spawn(move || drop(done.send(open())))?;
    opened.await.expect("the thread has not panicked")
}

/// Attaches to a launch and shows it to its end. Its API server may be away for no longer than the lease.
async fn show(
    cluster: &Cluster,
    launch_id: &str,
    (role, lease): (Role, Duration),
    mut signals: EarlySignals,
    (output, verbosity): (OutputRequest, Verbosity),
) -> Result<u8, LaunchError> {
    let open = async || Attachment::open(cluster, launch_id, 0, role).await;
    let attach = cluster.patiently(ClusterError::is_passing, open);
    let (attachment, placed) = during(&mut signals, attach).await??;
    let launch = prepared(cluster, placed, output).await;
    if role == Role::Owner {
        show_notes(full_screen::note(&launch.placed).as_slice(), verbosity);
    }
    let (faults, reported) = mpsc::unbounded_channel();
    let (launch, trace, files) = during(&mut signals, open_all(launch, faults.clone())).await??;
    let stdin = match launch.placed.settings.stdin {
        StdinTarget::Rank(_) | StdinTarget::All | StdinTarget::Terminal(_) if role == Role::Owner => {
            Some(stdin::pieces()?)
        }
        _ => None,
    };
    let signals = (signals, RankLocation::Cluster);
    let (mut frontend, controls) = Frontend::new(&launch, signals, verbosity, files, (faults, reported))?;
    match role {
        Role::Owner => frontend.hand_terminal_over(&launch)?,
        Role::Viewer => frontend.renderer.ignore_interrupts(),
    }
    let settings =
        AttachSettings { cluster: cluster.clone(), launch_id: launch_id.to_owned(), role, lease, stdin, trace };
    let (attached, updates) = AttachedLaunch::new(settings, controls);
    let asked = (cluster.clone(), launch_id.to_owned());
    let ask = move || {
        let (cluster, id) = asked.clone();
        let question = proto::GetLaunchRequest { id, stacks: false };
        async move { cluster.ask(cluster.launches().get_launch(question)).await.ok() }
    };
    let updates = StartWatch::new(updates, &launch, verbosity, ask);
    let work = async { attached.run(attachment).await };
    frontend.run(&launch, updates, work).await
}
