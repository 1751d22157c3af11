//! `lattice`, the command: what its arguments mean, how a launch on this machine is run, and what is printed of it.
//!
//! A library, so that the binary is a thin shell around it. The way of a launch: [`args`] → [`request`] (checked once, nothing
//! downstream checks again) → [`launch`] (runs the session in this process) → [`output`] (events become bytes) → [`exit`]
//! (the first cause becomes an exit code).

pub mod args;
pub mod cluster;
mod commands;
pub mod dev_cluster;
mod documents;
pub mod exit;
pub mod hostfile;
mod human;
pub mod launch;
pub mod limits;
mod map;
mod news;
pub mod output;
pub mod pki;
pub mod placed;
pub mod pmi_command;
pub mod request;
mod signal_forwarder;
mod stdin;
mod table;
mod trace;

use std::ffi::OsString;
use std::io::{self, Write};

use clap::error::ErrorKind;
use nix::sys::signal::Signal;
use pmi_transport::error_chain::chain;
use tracing_subscriber::EnvFilter;

use self::args::{Cli, Command};
use self::output::Verbosity;

/// Does what a command line asks for; its first word is the name that we were called by. Returns the exit code.
///
/// Must be called while this process has one thread.
pub fn run(words: impl IntoIterator<Item = OsString>) -> u8 {
    let cli = match args::parse(words) {
        Ok(cli) => cli,
        Err(error) => return answer(&error),
    };
    log(&cli.command);
    let verbosity = verbosity(&cli);
    match cli.command {
        Command::Launch(args) => launch::run(&args, verbosity).unwrap_or_else(|error| {
            complain(&error.to_string());
            exit::of_error(&error)
        }),
        Command::Attach(args) => launch::attach(&args, verbosity).unwrap_or_else(|error| {
            complain(&error.to_string());
            exit::of_error(&error)
        }),
        Command::Alloc(command) => answered(commands::alloc(&command, verbosity)),
        Command::Nodes(args) => answered(commands::nodes(&args, verbosity)),
        Command::Launches { all, table } => answered(commands::launches(all, &table)),
        Command::Status { launch, table } => answered(commands::status(&launch, &table)),
        Command::Signal(args) => answered(commands::signal(&args)),
        Command::Abort(args) => answered(commands::abort(&args)),
        Command::Proctable { launch, table } => answered(commands::proctable(&launch, &table)),
        Command::Cxi(command) => answered(commands::cxi(&command)),
        Command::DevCluster(args) => dev_cluster::run(&args, verbosity).unwrap_or_else(|error| {
            complain(&error.to_string());
            error.exit_code()
        }),
        Command::Pmi(command) => match pmi_command::run(command) {
            Ok(()) => 0,
            Err(error) => {
                complain(&chain(&error));
                exit::PROBE_FAILED
            }
        },
        Command::Pki(command) => match pki::run(command) {
            Ok(_) if cli.quiet => 0,
            Ok(made) => show(made.as_bytes()),
            Err(error) => {
                complain(&chain(&error));
                exit::OURS
            }
        },
        Command::Api(args) => match lattice_api_server::run(&args) {
            Ok(lattice_api_server::Outcome::Served) => 0,
            Ok(lattice_api_server::Outcome::Checked) => show(b"lattice: the settings make sense\n"),
            Err(error) => {
                complain(&chain(&error));
                exit::OURS
            }
        },
        Command::Completions { shell } => show(&documents::completions(shell)),
        Command::Man { command } => match documents::man_page(&command) {
            Ok(page) => show(&page),
            Err(error) => {
                complain(&error.to_string());
                exit::OURS
            }
        },
    }
}

fn answered(outcome: Result<u8, commands::CommandError>) -> u8 {
    outcome.unwrap_or_else(|error| {
        complain(&error.to_string());
        exit::OURS
    })
}

fn verbosity(cli: &Cli) -> Verbosity {
    match (cli.quiet, cli.verbose) {
        (true, _) => Verbosity::Quiet,
        (false, true) => Verbosity::Verbose,
        (false, false) => Verbosity::Normal,
    }
}

/// Answers a command line that clap did not take: what was asked for as it is, an error as a message of ours.
fn answer(error: &clap::Error) -> u8 {
    let text = error.render().to_string();
    // clap writes this before all that a parser of ours says, also before the answer to `--pmi=list`.
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    match error.kind() {
        // Nobody asked for it, and it is no message.
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = io::stderr().write_all(text.as_bytes());
            exit::OURS
        }
        _ if error.use_stderr() => {
            complain(text.trim_end());
            exit::OURS
        }
        _ => show(text.as_bytes()),
    }
}

/// Logs to standard error what the filter in `LATTICE_LOG` lets through. Without it a daemon tells what an operator should know, as
/// its agents do, and a command nothing.
fn log(command: &Command) {
    let filter = match (EnvFilter::try_from_env("LATTICE_LOG"), command) {
        (Ok(filter), _) => Some(filter),
        (Err(_), Command::Api(args)) if !args.check_config => Some(EnvFilter::new("info")),
        (Err(_), _) => None,
    };
    if let Some(filter) = filter {
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).init();
    }
}

fn complain(text: &str) {
    // There is no other place to say that standard error is closed.
    let _ = io::stderr().write_all(&output::message(text));
}

fn show(bytes: &[u8]) -> u8 {
    print(bytes).unwrap_or_else(|error| {
        complain(&format!("cannot write to standard output: {error}"));
        exit::OURS
    })
}

/// Writes to standard output. A reader that goes away, as `head` does, ends us as SIGPIPE would: that is the exit code.
fn print(bytes: &[u8]) -> io::Result<u8> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(0),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(exit::by_signal(Signal::SIGPIPE as i32)),
        Err(error) => Err(error),
    }
}
