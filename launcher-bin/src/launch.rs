//! Runs one launch on this machine, in this process: the session that an agent would run elsewhere, its output, its signals.
//!
//! ```text
//!                     ┌──────── Control ───────┐
//! signals ──> Steering│                        v
//!     ^ hung up       └──interrupts──┐      session::run ──Event──> Renderer ──> writer threads
//!     └──────────────────────────────┼─────────────────────────────────┘
//!                                    └────────────> (says so)
//! ```
//!
//! All of it is one task on one thread, apart from the writers and a reader of terminal input.

use std::io;
use std::sync::Arc;

use lattice_agent::services::LocalServices;
use lattice_agent::session::{self, Alone, Surroundings};
use nix::sys::resource::{Resource, setrlimit};
use pmi_core::ids::JobId;
use rank_spawner::{Keeper, KeeperError, LaunchTag, become_subreaper, raise_descriptor_limit};
use tokio::sync::mpsc;

use crate::args::LaunchArgs;
use crate::output::{FileError, OpenFiles, Renderer, Verbosity, Wires};
use crate::request::{LaunchRequest, Machine, RequestError};
use crate::steering::Steering;
use crate::trace::{self, TraceError};
use crate::{map, print, stdin};

/// How many events may wait for the renderer.
const EVENTS: usize = 64;

/// Why a launch did not start. Once it runs, whatever happens becomes its [`lattice_agent::event::Report`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// It makes no sense, or not on this machine.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A file for ranks' output cannot be opened.
    #[error(transparent)]
    OutputFile(#[from] FileError),
    /// The trace file cannot be opened.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// Nobody would clean up after us.
    #[error(transparent)]
    Keeper(#[from] KeeperError),
    /// The limit of open files cannot be changed.
    #[error("cannot change the limit of open files: {0}")]
    DescriptorLimit(#[source] nix::Error),
    /// Our own streams, signals or threads cannot be used.
    #[error("cannot set up the launch: {0}")]
    Setup(#[from] io::Error),
}

/// Runs a launch, or only says what it would be; returns its exit code.
///
/// Must be called while this process has one thread.
///
/// # Errors
/// Fails if the launch cannot start; then no rank was started.
pub fn run(args: &LaunchArgs, verbosity: Verbosity) -> Result<u8, LaunchError> {
    let request = LaunchRequest::new(args, &Machine::this()?)?;
    if request.dry_run {
        return Ok(print(map::table(&request).as_bytes())?);
    }
    let keeper = Keeper::fork()?;
    become_subreaper().map_err(io::Error::from)?;
    // Last, as it empties files.
    let files = open_files(&request)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let code = runtime.block_on(drive(request, files, keeper, verbosity));
    // A thread that is stuck in a write is left behind.
    runtime.shutdown_background();
    code
}

/// Opens the files for ranks' output, however many the hard limit allows.
fn open_files(request: &LaunchRequest) -> Result<OpenFiles, LaunchError> {
    let former = raise_descriptor_limit().map_err(LaunchError::DescriptorLimit)?;
    let files = OpenFiles::open(request);
    // The session raises it for itself, and gives its ranks what it finds: they shall get what we were given.
    setrlimit(Resource::RLIMIT_NOFILE, former.soft, former.hard).map_err(LaunchError::DescriptorLimit)?;
    Ok(files?)
}

async fn drive(
    request: LaunchRequest,
    files: OpenFiles,
    keeper: Keeper,
    verbosity: Verbosity,
) -> Result<u8, LaunchError> {
    let (faults, reported) = mpsc::unbounded_channel();
    let (events, happened) = mpsc::channel(EVENTS);
    let (steering, reins) = Steering::new()?;
    let surroundings = Surroundings {
        nodes: Arc::new(Alone),
        services: Arc::new(LocalServices::default()),
        events,
        alarm: None,
        control: reins.control,
        stdin: stdin::source(&request.spec.stdin)?,
        trace: request.pmi_trace.as_deref().map(|path| trace::sink(path, faults.clone())).transpose()?,
        tag: LaunchTag::new(JobId::new(&request.spec.launch_id).map_err(RequestError::JobId)?),
        keeper: Some(keeper),
    };
    let wires = Wires {
        hung_up: reins.hung_up,
        interrupts: reins.interrupts,
        abandoned: reins.abandoned,
        faults: (faults, reported),
    };
    let mut renderer = Renderer::start(&request, verbosity, files, wires)?;
    let work = async {
        renderer.open(&request).await;
        let (report, ()) = tokio::join!(session::run(request.spec, surroundings), renderer.run(happened));
        renderer.finish(&report).await
    };
    tokio::select! {
        code = work => Ok(code),
        never = steering.run() => match never {},
    }
}
