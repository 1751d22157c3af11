//! The commands about sets, and calls to their processes.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Subcommand};
use lattice_cluster_client::args::ServerArgs;
use lattice_console::values::{self, whole};
use lattice_overlay::address::{SetId, Uid};
use lattice_overlay::method::Method;

use super::cluster::TableArgs;

/// Shortest time limit of a call.
const CALL_MIN: Duration = Duration::from_millis(1);
/// Longest time limit of a call. The maximum of the protocol, 32 bits of milliseconds, is above it.
const CALL_MAX: Duration = Duration::from_secs(86_400);

/// End of the help of `lattice set`.
pub const SET_AFTER_HELP: &str = "Examples:\n  \
    lattice set list\n  \
    lattice set graph >sets.svg";

const PING_AFTER_HELP: &str = "Examples:\n  \
    lattice set ping lattice://4129319450/3        # rank 3 of a set, as lattice set list shows it\n  \
    lattice set ping lattice://4129319450/node/0   # the session of its node 0";

const CALL_AFTER_HELP: &str = "Examples:\n  \
    lattice set call lattice://4129319450/0 set-info\n  \
    lattice set call lattice://4129319450/0 300 'some words'";

/// The commands about sets.
#[derive(Clone, Debug, Subcommand)]
pub enum SetCommand {
    /// Show the sets that you can call: your launches on this machine and on the cluster, and this command.
    List {
        /// Show the sets of all users on the cluster, as an administrator.
        #[arg(long)]
        all: bool,
        /// Server and form of the answer.
        #[command(flatten)]
        table: TableArgs,
    },
    /// Draw the members of sets and the links between them, as SVG.
    Graph {
        /// Show only this set [default: all sets].
        #[arg(long, value_name = "ID")]
        set: Option<SetId>,
        /// Server and form of the answer.
        #[command(flatten)]
        table: TableArgs,
    },
    /// Measure the round-trip time of a call to a process of a launch.
    #[command(after_help = PING_AFTER_HELP)]
    Ping(PingArgs),
    /// Call a method of a process of a launch, and print its answer.
    #[command(after_help = CALL_AFTER_HELP)]
    Call(CallArgs),
}

/// The flags of `lattice set ping`.
#[derive(Clone, Debug, Args)]
pub struct PingArgs {
    /// The process: lattice://SET/RANK, or lattice://SET/node/I.
    #[arg(value_name = "UID")]
    pub to: Uid,
    /// Number of calls.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = whole(1..=u32::MAX))]
    pub count: u32,
    /// Time limit for each answer.
    #[arg(long, value_name = values::TIME, default_value = "5s", value_parser = values::time(CALL_MIN, CALL_MAX))]
    pub timeout: Duration,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// The API server.
    #[command(flatten)]
    pub api: ServerArgs,
}

/// The flags of `lattice set call`.
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
    #[arg(long, value_name = values::TIME, default_value = "30s", value_parser = values::time(CALL_MIN, CALL_MAX))]
    pub timeout: Duration,
    /// The API server.
    #[command(flatten)]
    pub api: ServerArgs,
}

fn method(text: &str) -> Result<Method, String> {
    let number = || text.parse().ok().map(Method);
    Method::named(text)
        .or_else(number)
        .ok_or_else(|| format!("possible is {}, or a number", Method::NAMED.map(|(name, _)| name).join(", ")))
}
