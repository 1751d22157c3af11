//! Runs one launch: the same request, output and exit code, wherever its ranks are.
//!
//! ```text
//!                             ┌──────── Control ───────┐
//! signals ──> SignalForwarder │                        v
//!     ^ hung up               └──interrupts──┐    a session in this process  ──News──> Renderer ──> writer threads
//!     └──────────────────────────────────────┼─── or the API server's word of many ──────┘
//!                                            └─────────────> (says so)
//! ```
//!
//! `here` and `elsewhere` differ in where news come from and where commands go; `Show` is what they share. All of it is one
//! task on one thread, apart from the writers and a reader of input.

mod elsewhere;
mod following;
mod here;

use std::io;

use lattice_session::event::Report;
use lattice_session::session::Control;
use nix::sys::resource::{Resource, setrlimit};
use rank_spawner::{KeeperError, ProgramFailure, raise_descriptor_limit};
use tokio::sync::mpsc;

pub(crate) use self::elsewhere::{abort, attach};
use crate::args::LaunchArgs;
use crate::cluster::{self, ApiServer, ClusterError};
use crate::console::{Verbosity, print};
use crate::exit;
use crate::news::NewsSource;
use crate::output::{Fault, FileError, OpenFiles, Renderer, RendererChannels, plan};
use crate::placed::PlacedLaunch;
use crate::request::{LaunchRequest, Machine, RequestError};
use crate::signal_forwarder::{Handles, RankLocation, SignalForwarder};
use crate::trace::TraceError;

/// Why a launch did not start, or was lost sight of. Once it runs, whatever happens becomes its [`lattice_session::event::Report`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// It makes no sense, or not on this machine.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The cluster refused it, or cannot be reached.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The API server cannot be reached any more.
    #[error(
        "launch {launch} was lost sight of: {source}\n\
         try: lattice attach {launch}"
    )]
    LostSight {
        /// The launch.
        launch: String,
        /// What was seen last.
        source: Box<ClusterError>,
    },
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

impl LaunchError {
    /// Class of the error, if the program of a launch cannot be started.
    pub fn program_failure(&self) -> Option<ProgramFailure> {
        match self {
            Self::Request(RequestError::Program(error)) => Some(error.failure()),
            _ => None,
        }
    }
}

/// Runs a launch, or only says what it would be; returns its exit code.
///
/// Must be called while this process has one thread.
///
/// # Errors
/// Fails if the launch cannot start; then no rank was started. One on a cluster may also be lost sight of.
pub fn run(args: &LaunchArgs, verbosity: Verbosity) -> Result<u8, LaunchError> {
    let machine = Machine::this()?;
    let request = LaunchRequest::new(args, &machine)?;
    match cluster::allocation(args.cluster.alloc.as_deref(), &machine.environment)? {
        Some(allocation) => {
            let server = ApiServer::find(args.cluster.api.api.as_deref(), &machine.environment)?;
            elsewhere::run(request, &server, allocation, verbosity)
        }
        None if args.cluster.api.api.is_some() => Err(RequestError::NoAllocation { flag: "--api" }.into()),
        None => here::run(request, &machine, verbosity),
    }
}

/// Says where the ranks of a launch would run that is not started; returns the exit code.
fn show_plan(launch: &PlacedLaunch) -> Result<u8, LaunchError> {
    Ok(print(&plan(launch))?)
}

/// Runs `work` on a runtime of this thread. A thread that is stuck in a write is left behind.
fn block_on<T>(work: impl Future<Output = Result<T, LaunchError>>) -> Result<T, LaunchError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(work);
    runtime.shutdown_background();
    outcome
}

/// Opens the files for ranks' output, however many the hard limit allows.
fn open_files(launch: &PlacedLaunch) -> Result<OpenFiles, LaunchError> {
    let former = raise_descriptor_limit().map_err(LaunchError::DescriptorLimit)?;
    let files = OpenFiles::open(launch);
    // A session raises it for itself, and gives its ranks what it finds: they shall get what we were given.
    setrlimit(Resource::RLIMIT_NOFILE, former.soft, former.hard).map_err(LaunchError::DescriptorLimit)?;
    Ok(files?)
}

/// Where faults of writers are reported, and how.
type Faults = (mpsc::UnboundedSender<Fault>, mpsc::UnboundedReceiver<Fault>);

/// A launch as it is shown and steered, wherever it runs.
struct Show {
    forwarder: SignalForwarder,
    renderer: Renderer,
}

/// How a launch ended for those who followed it.
enum End {
    /// No process of it is left.
    Over(Report),
    /// The user does not follow it any more, because of this signal; it goes on.
    Left(i32),
}

impl Show {
    /// Takes over this process's signals, and starts the writers. What the user wants of the launch comes from the receiver.
    ///
    /// # Errors
    /// Fails if our streams or signals cannot be used.
    fn new(
        launch: &PlacedLaunch,
        location: RankLocation,
        verbosity: Verbosity,
        files: OpenFiles,
        faults: Faults,
    ) -> Result<(Self, mpsc::Receiver<Control>), LaunchError> {
        let (forwarder, handles) = SignalForwarder::new(location)?;
        let Handles { control, hung_up, interrupts, abandoned } = handles;
        let renderer =
            Renderer::start(launch, verbosity, files, RendererChannels { hung_up, interrupts, abandoned, faults })?;
        Ok((Self { forwarder, renderer }, control))
    }

    /// Shows what `source` tells, until `work` has come to its end; returns the exit code.
    ///
    /// # Errors
    /// Fails if `work` does.
    async fn run(
        self,
        launch: &PlacedLaunch,
        source: impl NewsSource,
        work: impl Future<Output = Result<End, LaunchError>>,
    ) -> Result<u8, LaunchError> {
        let Self { forwarder, mut renderer } = self;
        let shown = async {
            renderer.open(launch).await;
            let (end, ()) = tokio::join!(work, renderer.run(source));
            match end {
                Ok(End::Over(report)) => Ok(renderer.finish(&report).await),
                Ok(End::Left(signal)) => {
                    renderer.abandon().await;
                    Ok(exit::by_signal(signal))
                }
                Err(error) => {
                    renderer.abandon().await;
                    Err(error)
                }
            }
        };
        tokio::select! {
            code = shown => code,
            never = forwarder.run() => match never {},
        }
    }
}
