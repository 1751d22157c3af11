//! `lattice`, the command: the meaning of its arguments, a launch on this machine, and what is printed of it.
//!
//! A library, so that the binary is a thin shell around it. A launch passes through the modules in this order, and a module
//! imports only those to its left ([`args`] and [`exit`] import none of them):
//!
//! ```text
//! words ─> args ─> request ─> prepared > launch ─────────────────> exit code
//!          parsed   checked    every     session here, or            ^
//!                   once       rank has  attached on a cluster       │
//!                              a place         │ updates             │
//!                                              └──> output ──> exit ─┘
//!                                                   bytes      first cause
//! ```
//!
//! Lines of `mpiexec`, `mpirun` and `srun` become words of `lattice launch` within [`args`], by one table each.
//!
//! All other commands are `args -> commands -> console`: one question to the API server, one table or JSON document. [`console`]
//! alone prints (but for the ranks' output), and [`exit`] alone chooses exit codes. Calls to the API server are made below [`cluster`];
//! what it and a client say to each other about a launch that runs is in `attachment` as types, and in `wire` as messages.

pub mod args;
mod attachment;
mod bounded_file;
mod client_libraries;
pub mod cluster;
mod commands;
mod config_lines;
pub mod console;
pub mod dev_cluster;
mod documents;
mod environment;
pub mod exit;
mod failure;
mod foreground;
mod formatting;
pub mod hostfile;
mod job_control;
pub mod launch;
pub mod limits;
mod local_launches;
pub mod machine;
mod map;
mod mpirun_setup;
pub mod output;
mod own_set;
pub mod pki;
pub mod pmi_command;
pub mod prepared;
pub mod private_cluster;
mod remote_shell;
pub mod request;
mod runtime;
mod signal_forwarder;
mod signals;
mod stdin;
mod table;
mod terminal;
mod trace;
mod updates;
mod usage;
pub mod via;
mod wire;
mod wrapped_mpiexec;

use std::ffi::OsString;

use clap::error::ErrorKind;
use tracing::level_filters::LevelFilter;

use self::args::{Cli, Command, Remarks};
use self::console::{Verbosity, print, report};
use self::failure::Failure;
use self::launch::LaunchError;

/// Carries out a command line, whose first word is the name that the program was called by; returns the exit code. A command that Ctrl-C has
/// ended does not return: SIGINT ends the process, as the shell above expects.
///
/// Must be called while this process has one thread.
pub fn run(words: impl IntoIterator<Item = OsString>) -> u8 {
    // Without it, signals do what our parent has left them to do.
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
        Command::Wrap(args) => wrapped_mpiexec::run(&args)?,
        Command::Attach(args) => attach(&args, verbosity)?,
        Command::Batch(args) => commands::batch(&args, verbosity)?,
        Command::BatchScript(args) => commands::run_script(&args)?,
        Command::Queue(args) => commands::queue(&args)?,
        Command::Cancel(args) => commands::cancel(&args)?,
        Command::Alloc(command) => commands::alloc(&command, verbosity)?,
        Command::Nodes(args) => commands::nodes(&args, verbosity)?,
        Command::Launches(args) => commands::launches(&args)?,
        Command::Top(args) => commands::top(&args)?,
        Command::Debug(args) => commands::debug(&args, verbosity)?,
        Command::Stacks(args) => commands::stacks(&args)?,
        Command::Status(args) => commands::status(&args.launch, &args.table)?,
        Command::Signal(args) => commands::signal(&args)?,
        Command::Abort(args) => commands::abort(&args)?,
        Command::Sets(args) => commands::sets(&args)?,
        Command::Ping(args) => commands::ping(&args)?,
        Command::Call(args) => commands::call(&args)?,
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
        Command::Man { command } => show(&documents::man_page(&command)?)?,
    })
}

/// Follows a launch of this machine, where it is looked for first unless an API server is named, or of the cluster.
fn attach(args: &args::AttachArgs, verbosity: Verbosity) -> Result<u8, Failure> {
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

/// Launches here or on the cluster at hand; else, where nodes are to be reached by the means of others, on a cluster of them that is
/// made first, by the same words, whose remarks are reported there.
fn launch(args: &args::LaunchArgs, remarks: &Remarks, words: &[OsString], verbosity: Verbosity) -> Result<u8, Failure> {
    match via::Way::of_launch(args)? {
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

/// Answers a command line that clap did not take: with what was asked for as it is, or with a message of ours.
fn answer(error: &clap::Error, words: &[OsString]) -> Result<u8, Failure> {
    let text = error.render().to_string();
    // clap writes this before all that a parser of ours says, also before the answer to `--pmi=list`.
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    match error.kind() {
        // No message of ours, and no answer: nobody asked for help.
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            console::write_stderr(text.as_bytes());
            Ok(exit::OURS)
        }
        _ if error.use_stderr() => {
            let text = text.trim_end().replace("try '--help'", &format!("try '{}'", args::help_line(words)));
            Err(Failure { text, code: exit::OURS })
        }
        _ => show(text.as_bytes()),
    }
}

/// Starts to log to standard error what the filter in `LATTICE_LOG` lets through. Without it a daemon logs what an operator should
/// know, as its agents do, and a command nothing.
fn start_log(command: &Command) {
    lattice_daemon::log::start(is_daemon(command).then_some(LevelFilter::INFO));
}

fn is_daemon(command: &Command) -> bool {
    matches!(command, Command::Api(args) if !args.check_config)
}

fn show(bytes: &[u8]) -> Result<u8, Failure> {
    print(bytes).map_err(|error| Failure::ours(&error))
}

/// Connections of nodes and clients for which an API server reserves its table of open files, of 128 KiB.
const CONNECTIONS: usize = 16_000;

/// Runs the API server, which has a descriptor for each connection and each spool: as many as the system lets it have.
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
