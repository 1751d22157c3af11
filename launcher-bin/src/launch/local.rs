//! A launch on this machine, in this process. It runs the session that an agent runs on a cluster.

use lattice_console::machine::Machine;
use lattice_console::{Verbosity, report, runtime};
use lattice_local_launches::own_set;
use lattice_local_launches::{LaunchHere, LocalService, Watched};
use lattice_render::{OpenFiles, PreparedLaunch, trace};
use pmi_transport::task;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use lattice_session::count::counted;
use lattice_session::session_io::{HostProcess, SessionIo};
use lattice_session::set::OwnSet;
use lattice_session::spec::LaunchSecret;
use pmi_core::ids::NodeIndex;
use rank_spawner::{CpuBind, DescriptorPlan, Keeper, NotPrivate, become_subreaper, usable_cpus};
use tokio::sync::mpsc;

use super::frontend::{End, Frontend};
use super::remote::show_notes;
use super::start_watch::StartWatch;
use super::{LaunchError, full_screen, open_files, show_plan};
use crate::request::{Action, LaunchCommand, RequestError};
use crate::signal_forwarder::{EarlySignals, RankLocation};
use crate::{prepared, stdin};

/// Maximum number of events that wait for the renderer.
const EVENTS: usize = 64;

/// Time after which other commands find a launch: `lattice launches` finds its socket, and `lattice set list` makes it a set. Shorter launches
/// have no such cost.
const SEEN_AFTER: Duration = Duration::from_millis(250);

/// Time after which a launch becomes a set without any request for it, if other machines may share the directory. Their commands find it
/// then.
const FOUNDED_AFTER: Duration = Duration::from_secs(2);

/// Runs a launch on this machine, or prints its plan; returns the exit code.
pub(super) fn run(command: LaunchCommand, machine: &Machine, verbosity: Verbosity) -> Result<u8, LaunchError> {
    let action = command.action;
    let launch = prepared::on_this_machine(command, machine)?;
    if action == Action::Plan {
        return show_plan(&launch);
    }
    show_notes(crowding(&launch).as_slice(), verbosity);
    show_notes(full_screen::note(&launch.placed).as_slice(), verbosity);
    DescriptorPlan { ranks: launch.ranks.len(), others: 0 }.reserve();
    let keeper = Keeper::fork()?;
    // If the keeper is unreachable, that is reported when it receives the launch.
    let _ = keeper.guard_socket(&LocalService::path(&launch.placed, &machine.environment));
    become_subreaper().map_err(io::Error::from)?;
    // Last, because this empties files.
    let files = open_files(&launch)?;
    let set = OwnSet::new(own_set::place(&machine.environment), own_set::facts(&launch.placed));
    runtime::block_on(async {
        let founding = task::spawn(found_later(set.clone()));
        let code = drive(launch, files, keeper, set.clone(), machine, verbosity).await;
        founding.abort();
        set.leave().await;
        code
    })?
}

/// Note on more ranks than CPUs that this process may use, like the note of the API server about nodes.
fn crowding(launch: &PreparedLaunch) -> Option<String> {
    let (ranks, cpus) = (launch.ranks.len(), usable_cpus().get());
    let host = launch.placed.host(NodeIndex(0));
    let are_bound = launch.ranks.iter().any(|row| !row.is_free);
    let bind = Some(&launch.placed.settings.cpu_bind).filter(|bind| **bind != CpuBind::None);
    (ranks > cpus)
        .then(|| format!("{ranks} ranks on {} of {host}{}", counted(cpus as u64, "CPU"), sharing(bind, are_bound)))
}

/// Effect of a CPU binding with more ranks than CPUs.
fn sharing(bind: Option<&CpuBind>, are_bound: bool) -> String {
    match (bind, are_bound) {
        (None, _) => String::new(),
        (Some(bind), true) => format!("; --cpu-bind={bind} binds several of them to the same CPUs"),
        (Some(bind), false) => format!("; --cpu-bind={bind} binds none of them"),
    }
}

async fn found_later(set: OwnSet) {
    tokio::time::sleep(SEEN_AFTER).await;
    set.found_on_demand(FOUNDED_AFTER - SEEN_AFTER).await;
}

async fn drive(
    launch: PreparedLaunch,
    files: OpenFiles,
    keeper: Keeper,
    set: OwnSet,
    machine: &Machine,
    verbosity: Verbosity,
) -> Result<u8, LaunchError> {
    let (faults, reported) = mpsc::unbounded_channel();
    let (events, happened) = mpsc::channel(EVENTS);
    let trace = launch.output.pmi_trace.as_deref().map(|path| trace::sink(path, faults.clone())).transpose()?;
    let stdin = stdin::source(&launch.placed.settings.stdin)?;
    let signals = (EarlySignals::listen()?, RankLocation::Local);
    let (mut frontend, control) = Frontend::new(&launch, signals, verbosity, files, (faults, reported))?;
    let secret = LaunchSecret::random().map_err(RequestError::Random)?;
    let spec = launch.placed.clone().session(NodeIndex(0), Vec::new(), secret);
    let alone = SessionIo::on_one_node(&spec, events, control).map_err(RequestError::JobId)?;
    let (keeper, process) = (Some(keeper), HostProcess::Dedicated);
    let communicators = set.communicators();
    let io = SessionIo { services: Arc::new(set), communicators, stdin, trace, keeper, process, ..alone };
    let watched = Watched::new(&launch);
    let here = LaunchHere::new(watched.clone(), frontend.commands());
    let asked = here.clone();
    let placed = &launch.placed;
    let bind = move || LocalService::bind(placed, &machine.environment, here);
    frontend.hand_terminal_over(&launch)?;
    let ask = move || {
        let here = asked.clone();
        async move { here.progress().await }
    };
    let updates = StartWatch::new(watched.updates(happened), &launch, verbosity, ask);
    let work = async {
        let report = lattice_session::run(spec, io).await;
        watched.complete(&report).await;
        Ok(End::Over(report))
    };
    tokio::select! {
        code = frontend.run(&launch, updates, work) => code,
        never = answer(bind, verbosity) => match never {},
    }
}

/// Answers requests about the launch while it is polled, if the launch lasts for a while and a socket can be created.
async fn answer(bind: impl FnOnce() -> Result<LocalService, NotPrivate>, verbosity: Verbosity) -> Infallible {
    tokio::time::sleep(SEEN_AFTER).await;
    match bind() {
        Ok(service) => service.run().await,
        Err(error) => {
            // A directory that another user has put there is always reported.
            if verbosity == Verbosity::Verbose || matches!(error, NotPrivate::Foreign { .. }) {
                report(&format!("warning: lattice status and its like do not find this launch: {error}"));
            }
            std::future::pending().await
        }
    }
}

#[cfg(test)]
mod tests {
    use rank_spawner::Object;

    use super::*;

    #[test]
    fn a_binding_that_lets_ranks_share_cpus_is_told() {
        let cores = CpuBind::to(Object::Core);
        assert_eq!(sharing(None, false), "");
        assert_eq!(sharing(Some(&cores), true), "; --cpu-bind=cores binds several of them to the same CPUs");
        assert_eq!(sharing(Some(&cores), false), "; --cpu-bind=cores binds none of them");
    }
}
