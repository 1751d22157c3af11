//! A launch on this machine, in this process: the session that an agent would run elsewhere.

use std::io;
use std::sync::Arc;

use lattice_session::services::LocalServices;
use lattice_session::session::{self, Alone, Surroundings};
use pmi_core::ids::JobId;
use rank_spawner::{Keeper, LaunchTag, become_subreaper};
use tokio::sync::mpsc;

use super::{End, LaunchError, Show, block_on, open_files, show_plan};
use crate::console::Verbosity;
use crate::output::OpenFiles;
use crate::placed::PlacedLaunch;
use crate::request::{LaunchRequest, Machine, RequestError};
use crate::signal_forwarder::RankLocation;
use crate::{stdin, trace};

/// How many events may wait for the renderer.
const EVENTS: usize = 64;

/// Runs a launch on this machine, or only says what it would be; returns its exit code.
pub(super) fn run(request: LaunchRequest, machine: &Machine, verbosity: Verbosity) -> Result<u8, LaunchError> {
    let dry_run = request.dry_run;
    let launch = PlacedLaunch::here(request, machine)?;
    if dry_run {
        return show_plan(&launch);
    }
    let keeper = Keeper::fork()?;
    become_subreaper().map_err(io::Error::from)?;
    // Last, as it empties files.
    let files = open_files(&launch)?;
    block_on(drive(launch, files, keeper, verbosity))
}

async fn drive(
    launch: PlacedLaunch,
    files: OpenFiles,
    keeper: Keeper,
    verbosity: Verbosity,
) -> Result<u8, LaunchError> {
    let (faults, reported) = mpsc::unbounded_channel();
    let (events, happened) = mpsc::channel(EVENTS);
    let trace = launch.output.pmi_trace.as_deref().map(|path| trace::sink(path, faults.clone())).transpose()?;
    let stdin = stdin::source(&launch.spec.stdin)?;
    let (show, control) = Show::new(&launch, RankLocation::Local, verbosity, files, (faults, reported))?;
    let surroundings = Surroundings {
        nodes: Arc::new(Alone),
        services: Arc::new(LocalServices::default()),
        events,
        alarm: None,
        control,
        stdin,
        trace,
        tag: LaunchTag::new(JobId::new(&launch.spec.launch_id).map_err(RequestError::JobId)?),
        fabric: None,
        keeper: Some(keeper),
    };
    let spec = launch.spec.clone();
    show.run(&launch, happened, async { Ok(End::Over(session::run(spec, surroundings).await)) }).await
}
