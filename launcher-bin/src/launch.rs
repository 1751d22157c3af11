//! Runs one launch. Request, output and exit code are the same wherever its ranks run.
//!
//! ```text
//!                             ┌──────── Control ───────┐
//! signals ──> SignalForwarder │                        v
//!     ^ hung up               └──interrupts──┐    a session in this process  ──Update──> Renderer ──> writer threads
//!     └──────────────────────────────────────┼─── or an attach stream of many ─────────────┘
//!                                            └─────────────> (reports it)
//! ```
//!
//! `local` and `remote` differ in the source of updates and the destination of commands. `frontend` is common to both. Everything is one
//! task on one thread, except the writers and a reader of input.

mod acquisition;
mod attached;
mod broadcast;
mod error;
mod frontend;
mod full_screen;
mod idle;
mod local;
mod nodes;
mod remote;
mod scripts;
mod start_watch;
mod viewed;

use lattice_cluster_client::ApiServer;
use lattice_console::machine::Machine;
use lattice_console::{Verbosity, print, report, signals};
use lattice_dialects::idle::Allocation;
use lattice_render::{OpenFiles, PreparedLaunch, plan};
use nix::sys::resource::{Resource, setrlimit};
use rank_spawner::{DescriptorPlan, raise_descriptor_limit};

use self::broadcast::Broadcast;
pub use self::broadcast::BroadcastError;
pub use self::error::LaunchError;
pub(crate) use self::remote::{attach, run as run_on_cluster};
use crate::args::LaunchArgs;
use crate::request::{Action, LaunchCommand, RequestError};

/// Runs a launch, or prints its plan; returns the exit code.
///
/// Must be called while this process has one thread.
///
/// # Errors
/// Fails if the launch cannot start; no rank has started then. Also fails if the contact to a launch on a cluster is lost.
pub fn run(args: &LaunchArgs, verbosity: Verbosity) -> Result<u8, LaunchError> {
    let machine = Machine::this()?;
    let allocation = lattice_cluster_client::allocation(args.cluster.alloc.as_deref(), &machine.environment)?;
    let given = if allocation.is_some() { Allocation::Given } else { Allocation::Missing };
    args.idle.notes(given, verbosity).for_each(|note| report(&note));
    let mut args = args.clone();
    if allocation.is_none() {
        // The programs are already on the machine where they run.
        args.copies.bcast = None;
    }
    let mut command = LaunchCommand::new(&args, &machine)?;
    if command.action == Action::Plan {
        return started(command, &args, allocation, &machine, verbosity);
    }
    if allocation.is_none() {
        command.check_task_scripts(&args.scripts, &machine)?;
    }
    scripts::prolog(&args, &mut command.request.settings.environment)?;
    let code = started(command, &args, allocation, &machine, verbosity);
    scripts::epilog(&args);
    code
}

/// Descriptors for a launch with ranks on other machines: two files for each rank, if it has output files and the number of ranks is known.
fn descriptors_of_files(command: &LaunchCommand) -> DescriptorPlan {
    let has_files = command.output.stdout.is_some() || command.output.stderr.is_some();
    let ranks = command.request.programs.size().filter(|_| has_files).unwrap_or(0);
    DescriptorPlan { ranks: 0, others: 2 * ranks as usize }
}

/// Rejects a launch that requires an allocation, if it has none.
///
/// # Errors
/// Fails if neither the flags nor the environment name an allocation.
pub(crate) fn need_allocation(args: &LaunchArgs) -> Result<(), LaunchError> {
    let environment: Vec<_> = std::env::vars_os().collect();
    match lattice_cluster_client::allocation(args.cluster.alloc.as_deref(), &environment)? {
        Some(_) => Ok(()),
        None => Err(RequestError::NoNodes { nodes: args.placement.nodelist.clone().unwrap_or_default() }.into()),
    }
}

fn started(
    mut command: LaunchCommand,
    args: &LaunchArgs,
    allocation: Option<String>,
    machine: &Machine,
    verbosity: Verbosity,
) -> Result<u8, LaunchError> {
    let is_copied = command.action == Action::Start && command.copies.files().next().is_some();
    match allocation {
        Some(allocation) => {
            descriptors_of_files(&command).reserve();
            let server = ApiServer::find(args.cluster.api.api.as_deref(), &machine.environment)?;
            let copies = match is_copied {
                true => {
                    let hosts = nodes::keep(&mut command, &server, &allocation)?;
                    Some(Broadcast::to_nodes(&command.copies, args, &allocation, &hosts)?)
                }
                false => None,
            };
            with_copies(copies, || remote::run(command, &server, allocation, verbosity))
        }
        // A plan for all known nodes. It needs no allocation.
        None if args.cluster.api.api.is_some() && command.action == Action::Plan => {
            let server = ApiServer::find(args.cluster.api.api.as_deref(), &machine.environment)?;
            remote::run(command, &server, String::new(), verbosity)
        }
        None if args.cluster.api.api.is_some() => Err(RequestError::NoAllocation { flag: "--api" }.into()),
        None => {
            let copies = is_copied.then(|| Broadcast::here(&command.copies)).transpose()?;
            with_copies(copies, || local::run(command, machine, verbosity))
        }
    }
}

/// Runs a launch, and then removes the copies that were made for it. From then on, signals end this process as by default.
fn with_copies(copies: Option<Broadcast>, run: impl FnOnce() -> Result<u8, LaunchError>) -> Result<u8, LaunchError> {
    let code = run();
    // If this fails, signals have no effect.
    let _ = signals::end_us();
    drop(copies);
    code
}

/// Prints where the ranks of a launch would run; the launch is not started. Returns the exit code.
fn show_plan(launch: &PreparedLaunch) -> Result<u8, LaunchError> {
    Ok(print(&plan(launch))?)
}

/// Opens the files for ranks' output. Their number is limited only by the hard limit of descriptors.
fn open_files(launch: &PreparedLaunch) -> Result<OpenFiles, LaunchError> {
    let former = raise_descriptor_limit().map_err(LaunchError::DescriptorLimit)?;
    let files = OpenFiles::open(launch);
    // A session raises the limit for itself, and gives its ranks the limit that it found. Ranks must get the limit that this process was
    // given.
    setrlimit(Resource::RLIMIT_NOFILE, former.soft, former.hard).map_err(LaunchError::DescriptorLimit)?;
    Ok(files?)
}
