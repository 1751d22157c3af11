//! The commands about sets, and calls to their processes.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use lattice_overlay::address::{SetId, Uid};
use lattice_overlay::method::Method;

use super::cluster::ServerArgs;
use super::value::whole;

pub(super) const SETS_AFTER_HELP: &str = "Examples:\n  \
    lattice sets\n  \
    lattice sets graph --format svg >sets.svg";

pub(super) const PING_AFTER_HELP: &str = "Examples:\n  \
    lattice ping lattice://4129319450/3        # rank 3 of a set, as lattice sets shows it\n  \
    lattice ping lattice://4129319450/node/0   # the session of its node 0";

pub(super) const CALL_AFTER_HELP: &str = "Examples:\n  \
    lattice call lattice://4129319450/0 set-info\n  \
    lattice call lattice://4129319450/0 300 'some words'";

/// The flags of `lattice sets`.
#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct SetsArgs {
    /// Another form than the list of sets.
    #[command(subcommand)]
    pub command: Option<SetsCommand>,
    /// The API server.
    #[command(flatten)]
    pub api: ServerArgs,
    /// Show the sets of all users on the cluster, as an administrator.
    #[arg(long)]
    pub all: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// The commands about sets.
#[derive(Clone, Debug, Subcommand)]
pub enum SetsCommand {
    /// Print the members of sets and the links between them as a graph.
    Graph {
        /// Show only this set [default: all sets].
        #[arg(long, value_name = "ID")]
        set: Option<SetId>,
        /// Form of the graph.
        #[arg(long, value_enum, default_value_t)]
        format: GraphFormat,
    },
}

/// Forms of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, ValueEnum)]
pub enum GraphFormat {
    /// For Graphviz.
    #[default]
    Dot,
    /// For programs.
    Json,
    /// A drawing, for browsers and documents.
    Svg,
}

/// The flags of `lattice ping`.
#[derive(Clone, Debug, Args)]
pub struct PingArgs {
    /// The process: lattice://SET/RANK, or lattice://SET/node/I.
    #[arg(value_name = "UID")]
    pub to: Uid,
    /// Number of calls.
    #[arg(short = 'c', long, value_name = "N", default_value_t = 4, value_parser = whole(1..=u32::MAX))]
    pub count: u32,
    /// Time limit for each answer.
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    pub timeout: Duration,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// The API server.
    #[command(flatten)]
    pub api: ServerArgs,
}

/// The flags of `lattice call`.
#[derive(Clone, Debug, Args)]
pub struct CallArgs {
    /// The process: lattice://SET/RANK, or lattice://SET/node/I.
    #[arg(value_name = "UID")]
    pub to: Uid,
    /// The method: set-info, ping, connectivity, communicator, connect, lookup, publish, unpublish, or a number.
    #[arg(value_parser = method)]
    pub method: Method,
    /// Argument of the call; for connect and publish: a name, a blank and the remaining data.
    #[arg(default_value = "")]
    pub body: OsString,
    /// Time limit for the answer.
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub timeout: Duration,
    /// The API server.
    #[command(flatten)]
    pub api: ServerArgs,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "it is no number of seconds".to_owned())?;
    // The maximum of calls, 32 bits of milliseconds, is above this range.
    let is_possible = (0.001..=86_400.0).contains(&seconds);
    is_possible.then(|| Duration::from_secs_f64(seconds)).ok_or_else(|| "possible is 0.001 to 86400".to_owned())
}

fn method(text: &str) -> Result<Method, String> {
    let number = || text.parse().ok().map(Method);
    Method::named(text)
        .or_else(number)
        .ok_or_else(|| format!("possible is {}, or a number", Method::NAMED.map(|(name, _)| name).join(", ")))
}
