//! Command `lattice`: a launch from its words to its exit code, and the composition of the other commands.
//!
//! A library, so that the binary is a thin wrapper. A launch passes through the modules in this order. A module imports only modules to its left
//! ([`args`] imports none of them):
//!
//! ```text
//! words ─> args ─> request ─> prepared > launch ──────────────────────────────────────> exit code
//!          parsed   checked    every     session here, or                                ^
//!                   once       rank has  attached on a cluster                           │
//!                              a place         │ updates                                 │
//!                                              └──> lattice_render ──> lattice_console::exit
//!                                                   bytes              first cause
//! ```
//!
//! `lattice_dialects` converts lines of `mpiexec`, `mpirun` and `srun` to lines of `lattice launch`. `lattice_private_cluster` runs
//! `lattice start`, `lattice dev-cluster` and launches with `--via`. `lattice_commands` has the commands that query a cluster or a launch on
//! this machine.

pub mod args;
mod build;
mod client_libraries;
mod documents;
mod failure;
pub mod launch;
pub mod pmi_command;
pub mod prepared;
mod remote_shell;
pub mod request;
mod signal_forwarder;
mod stdin;

use std::error::Error;
use std::ffi::OsString;

use clap::error::ErrorKind;
use lattice_commands::{self as commands, args::AttachArgs, pki};
use lattice_console::machine::Machine;
use lattice_console::{Verbosity, exit, print, report, signals, styled, write_stderr};
use lattice_private_cluster::{dev_cluster, via};
use lattice_session::request::LaunchRequest;
use tracing::level_filters::LevelFilter;

use self::args::{Cli, Command, Remarks};
use self::build::BUILD;
use self::failure::Failure;
use self::launch::LaunchError;
use self::request::LaunchCommand;

/// Runs a command line. Its first word is the name of the called program. Returns the exit code. If Ctrl-C has ended a command, this function
/// does not return: SIGINT ends the process, as the calling shell expects.
///
/// Must be called while this process has one thread.
pub fn run(words: impl IntoIterator<Item = OsString>) -> u8 {
    // Without this call, signals keep the settings of the parent process.
    let _ = signals::prepare();
    let words: Vec<OsString> = words.into_iter().collect();
    let outcome = match args::parse(words.iter().cloned()) {
        Ok(cli) => {
            start_log(&cli.command);
            let verbosity = verbosity(&cli);
            match cli.command {
                Command::Launch(args) => launch(&args, &cli.remarks, &words, verbosity),
                command => carry_out(command, verbosity),
            }
        }
        Err(error) => answer(&error, &words),
    };
    let code = outcome.unwrap_or_else(|Failure { text, code }| {
        report(&text);
        code
    });
    signals::end_if_interrupted(code);
    code
}

fn carry_out(command: Command, verbosity: Verbosity) -> Result<u8, Failure> {
    Ok(match command {
        Command::Launch(args) => launch::run(&args, verbosity)?,
        Command::Start(args) => via::start(&args, verbosity)?,
        Command::Exec(args) => exec(&args, verbosity)?,
        Command::RemoteShell(args) => remote_shell::run(&args)?,
        Command::Attach(args) => attach(&args, verbosity)?,
        Command::Batch(args) => commands::batch(&args, verbosity, launch_request)?,
        Command::BatchScript(args) => commands::run_script(&args)?,
        Command::Queue(args) => commands::queue(&args)?,
        Command::Cancel(args) => commands::cancel(&args, verbosity)?,
        Command::Alloc(command) => commands::alloc(&command, verbosity)?,
        Command::Nodes(args) => commands::nodes(&args, verbosity)?,
        Command::Launches(args) => commands::launches(&args)?,
        Command::Doctor(args) => commands::doctor(&args, verbosity, BUILD, container_runtimes)?,
        Command::Explain(args) => commands::explain(&args)?,
        Command::Top(args) => commands::top(&args)?,
        Command::Debug(args) => commands::debug(&args, |command| exec(&command.into(), verbosity))?,
        Command::Stacks(args) => commands::stacks(&args)?,
        Command::Status(args) => commands::status(&args.launch, &args.table)?,
        Command::Signal(args) => commands::signal(&args, verbosity)?,
        Command::Set(command) => commands::set(&command)?,
        Command::Proctable(args) => commands::proctable(&args.launch, &args.table)?,
        Command::Cxi(command) => commands::cxi(&command)?,
        Command::DevCluster(args) => dev_cluster::run(&args, verbosity)?,
        Command::Pmi(command) => pmi_command::run(command.into_inner())?,
        Command::Pki(command) => {
            let made = pki::run(command.into_inner())?;
            if verbosity == Verbosity::Quiet { 0 } else { show(made.as_bytes())? }
        }
        Command::Api(args) => serve_api(&args)?,
        Command::Scontrol(args) => commands::scontrol(&args)?,
        Command::Completions { shell } => show(&documents::completions(shell))?,
        Command::Man { all: Some(directory), .. } => documents::write_man_pages(&directory).map(|()| 0)?,
        Command::Man { command, all: None } => show(&documents::man_page(&command)?)?,
    })
}

/// Follows a launch. Searches this machine first, unless an API server is named, and then the cluster.
fn attach(args: &AttachArgs, verbosity: Verbosity) -> Result<u8, Failure> {
    launch::attach(args, verbosity).map_err(|error| match error {
        LaunchError::Cluster(error) if args.api.api.is_none() && error.is_absence() => {
            commands::not_here(&args.launch, &error).into()
        }
        other => other.into(),
    })
}

/// Runs a command on nodes of an allocation.
fn exec(args: &args::ExecArgs, verbosity: Verbosity) -> Result<u8, Failure> {
    let args = args.launch().map_err(|error| Failure::ours(&error))?;
    launch::need_allocation(&args)?;
    Ok(launch::run(&args, verbosity)?)
}

/// The request of a launch of one program, from words of `lattice launch`.
fn launch_request(words: Vec<OsString>, machine: &Machine) -> Result<LaunchRequest, Box<dyn Error + Send + Sync>> {
    let args = args::launch_of_one_program(words).map_err(|error| error.to_string())?;
    Ok(LaunchCommand::new(&args, machine)?.request)
}

fn container_runtimes(machine: &Machine) -> Result<Vec<String>, Box<dyn Error + Send + Sync>> {
    Ok(request::container_runtimes(machine)?)
}

/// Launches on this machine or on the available cluster. If `--via` or the surrounding allocation selects other means to reach nodes, first
/// creates a cluster on these nodes. The same command line then runs there, and reports the remarks.
fn launch(args: &args::LaunchArgs, remarks: &Remarks, words: &[OsString], verbosity: Verbosity) -> Result<u8, Failure> {
    match via::Way::of_launch(&args.way_flags())? {
        Some(way) => Ok(via::launch(&way, words, verbosity)?),
        None => {
            remarks.report(verbosity);
            Ok(launch::run(args, verbosity)?)
        }
    }
}

fn verbosity(cli: &Cli) -> Verbosity {
    match (cli.verbosity.quiet, cli.verbosity.verbose) {
        (true, _) => Verbosity::Quiet,
        (false, true) => Verbosity::Verbose,
        (false, false) => Verbosity::Normal,
    }
}

/// Answers a command line that clap rejects: prints requested text unchanged, or fails with a message of Lattice.
fn answer(error: &clap::Error, words: &[OsString]) -> Result<u8, Failure> {
    let rendered = error.render();
    let text = rendered.to_string();
    // clap writes this prefix before every text from a value parser, also before the answer to `--pmi=list`.
    let unmarked = text.strip_prefix("error: ");
    let is_help = unmarked.is_none();
    let text = unmarked.unwrap_or(&text);
    match error.kind() {
        // This help was not requested, so it is neither a message of Lattice nor a result.
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            write_stderr(text.as_bytes());
            Ok(exit::OURS)
        }
        _ if error.use_stderr() => {
            let text = text.trim_end().replace("try '--help'", &format!("try '{}'", args::help_line(words)));
            Err(Failure { text, code: exit::OURS })
        }
        ErrorKind::DisplayVersion if is_build_requested(words) => show(BUILD.to_string().as_bytes()),
        _ if is_help => show(styled(&rendered).as_bytes()),
        _ => show(text.as_bytes()),
    }
}

/// True for `lattice --version -v`.
fn is_build_requested(words: &[OsString]) -> bool {
    let words: Option<Vec<&str>> = words.iter().skip(1).map(|word| word.to_str()).collect();
    words.is_some_and(lattice_daemon::build::is_requested)
}

/// Starts logging to standard error, with the filter in `LATTICE_LOG`. Without the filter, a daemon logs events for operators, as the agents do,
/// and a command logs nothing.
fn start_log(command: &Command) {
    lattice_daemon::log::start(is_daemon(command).then_some(LevelFilter::INFO));
}

fn is_daemon(command: &Command) -> bool {
    matches!(command, Command::Api(args) if !args.check_config)
}

fn show(bytes: &[u8]) -> Result<u8, Failure> {
    print(bytes).map_err(|error| Failure::ours(&error))
}

/// Number of connections of nodes and clients for which an API server reserves its table of open files, of 128 KiB.
const CONNECTIONS: usize = 16_000;

/// Runs the API server. Each connection and each spool needs a descriptor, so the server raises its limit to the maximum.
fn serve_api(args: &lattice_api_server::args::ApiArgs) -> Result<u8, Failure> {
    if let Err(errno) = rank_spawner::raise_descriptor_limit() {
        tracing::warn!("cannot raise the limit of open files: {}", errno.desc());
    }
    rank_spawner::DescriptorPlan { ranks: 0, others: CONNECTIONS }.reserve();
    match lattice_api_server::run(args).map_err(|error| Failure::ours(&error))? {
        lattice_api_server::Outcome::Served => Ok(0),
        lattice_api_server::Outcome::Checked => show(b"lattice: the settings make sense\n"),
    }
}
