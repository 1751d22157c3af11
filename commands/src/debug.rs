//! `lattice debug`: gdb on ranks of a launch. gdb runs here for a launch on this machine, and on the node for ranks of one node of the
//! cluster. For ranks on several nodes, gdb runs here with a gdbserver on each node.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::unix::process::CommandExt;
use std::process::Command;

use lattice_cluster_client::args::ServerArgs;
use lattice_session::cause::RankNumbers;
use lattice_session::rank_ranges::RankRanges;
use pmi_core::ids::Rank;

use super::error::CommandError;
use super::questions::here;
use super::status::{Extent, RankView, get, ranks};
use crate::args::DebugArgs;

/// The debugger.
const GDB: &str = "gdb";
/// gdbserver. It uses its standard streams as the connection, and exits when the connection ends.
const GDBSERVER: [&str; 4] = ["gdbserver", "--once", "--multi", "-"];
/// gdb commands before the first connection.
const BEFORE_SERVERS: [&str; 2] = [
    // If a server cannot attach to a process, gdb must not look for the process on this machine.
    "set auto-connect-native-target off",
    // Inferiors of several servers run together only in this mode (gdb's manual, "set schedule-multiple").
    "maintenance set target-non-stop on",
];
/// Maximum number of ranks in one debugger.
const RANKS_MAX: usize = 64;

/// Processes to debug on one node.
#[derive(Debug, PartialEq, Eq)]
struct OnNode<'a> {
    node: &'a str,
    pids: Vec<u32>,
}

/// A command on one node of an allocation, as `lattice exec` runs it.
#[derive(Clone, Debug)]
pub struct NodeCommand {
    /// Name of the node.
    pub node: String,
    /// Program with its arguments.
    pub words: Vec<OsString>,
    /// True if the command gets a terminal.
    pub pty: bool,
    /// Allocation of the node, if known.
    pub allocation: Option<String>,
    /// The API server.
    pub api: ServerArgs,
}

/// Runs a debugger on ranks; returns its exit code. `exec` runs a command on a node.
///
/// # Errors
/// Fails for ranks that cannot be debugged, and if `exec` does.
pub fn debug<E: From<CommandError>>(
    args: &DebugArgs,
    exec: impl FnOnce(NodeCommand) -> Result<u8, E>,
) -> Result<u8, E> {
    let (answer, _) = get(&args.launch, &args.api, Extent::Progress)?;
    let all = ranks(&answer);
    let of_summary = answer.summary.as_ref().map_or(0, |summary| summary.ranks);
    check_ranks(&all, of_summary, args)?;
    let nodes = chosen(&all, args)?;
    let allocation = answer.summary.as_ref().map(|summary| summary.allocation_id.clone());
    let allocation = allocation.filter(|id| !id.is_empty());
    match nodes.as_slice() {
        [only] if here(&args.launch, &args.api).is_none() => exec(on_node(only, allocation, args)),
        [only] => Err(run_here(attach_all(&only.pids), &args.arguments).into()),
        several => {
            let commands = by_servers(several, allocation.as_deref(), args).map_err(CommandError::from)?;
            Err(run_here(commands, &args.arguments).into())
        }
    }
}

/// Replaces this process by gdb. Returns only if gdb cannot be executed.
fn run_here(commands: Vec<String>, more: &[OsString]) -> CommandError {
    let error = Command::new(GDB).args(words(commands, more)).exec();
    CommandError::NoDebugger { error }
}

/// gdb on the node of the processes.
fn on_node(OnNode { node, pids }: &OnNode<'_>, allocation: Option<String>, args: &DebugArgs) -> NodeCommand {
    NodeCommand {
        node: (*node).to_owned(),
        words: std::iter::once(GDB.into()).chain(words(attach_all(pids), &args.arguments)).collect(),
        pty: io::stdin().is_terminal(),
        allocation,
        api: args.api.clone(),
    }
}

/// gdb commands that connect to a gdbserver on each node and attach to the processes there. `lattice exec` starts each gdbserver.
fn by_servers(nodes: &[OnNode<'_>], allocation: Option<&str>, args: &DebugArgs) -> io::Result<Vec<String>> {
    let lattice = std::env::current_exe()?.to_string_lossy().into_owned();
    let flag = |name: &str, value: Option<&str>| value.map(|value| format!("--{name}={value}"));
    let flags: Vec<String> =
        flag("alloc", allocation).into_iter().chain(flag("api", args.api.api.as_deref())).collect();
    let server = |node: &str| {
        let first = [lattice.as_str(), "exec"].into_iter().chain(flags.iter().map(String::as_str));
        let words = first.chain([node, "--"]).chain(GDBSERVER);
        shlex::try_join(words).map_err(io::Error::other)
    };
    let mut commands = BEFORE_SERVERS.map(str::to_owned).to_vec();
    let mut number = 1;
    for OnNode { node, pids } in nodes {
        if number > 1 {
            commands.extend(["add-inferior -no-connection".to_owned(), format!("inferior {number}")]);
        }
        commands.push(format!("target extended-remote | exec {}", server(node)?));
        commands.extend(attach(pids, number));
        number += pids.len();
    }
    commands.extend(together(number - 1));
    Ok(commands)
}

/// gdb commands that attach to each process as an inferior of the current connection. `first` is the number of the current inferior, which
/// takes the first process.
fn attach(pids: &[u32], first: usize) -> Vec<String> {
    let mut commands = Vec::new();
    for (number, pid) in (first..).zip(pids) {
        if number > first {
            commands.extend(["add-inferior".to_owned(), format!("inferior {number}")]);
        }
        commands.push(format!("attach {pid}"));
    }
    commands
}

/// gdb commands that attach to each process on the machine of gdb.
fn attach_all(pids: &[u32]) -> Vec<String> {
    attach(pids, 1).into_iter().chain(together(pids.len())).collect()
}

/// gdb commands after which `continue` resumes all `count` inferiors, and the first inferior is current.
fn together(count: usize) -> impl Iterator<Item = String> {
    ["inferior 1", "set schedule-multiple on"].into_iter().filter(move |_| count > 1).map(str::to_owned)
}

/// Arguments of gdb: these commands, then `more`.
fn words(commands: Vec<String>, more: &[OsString]) -> Vec<OsString> {
    let commands = commands.into_iter().flat_map(|command| ["-ex".into(), command.into()]);
    std::iter::once("-q".into()).chain(commands).chain(more.iter().cloned()).collect()
}

/// Rejects ranks that the launch does not have. `count` is its number of ranks.
fn check_ranks(all: &[RankView<'_>], count: u32, args: &DebugArgs) -> Result<(), CommandError> {
    let listed = all.iter().map(|view| view.progress.rank.0 + 1).max().unwrap_or_default();
    let (count, greatest) = (count.max(listed), args.ranks.as_ref().map_or(Rank(0), RankRanges::greatest));
    match greatest.0 < count {
        true => Ok(()),
        false => Err(CommandError::NoSuchRank {
            launch: args.launch.clone(),
            rank: greatest.0,
            last: count.saturating_sub(1),
        }),
    }
}

/// Processes of the named ranks by node, in rank order. If no rank is named, rank 0.
fn chosen<'a>(all: &'a [RankView<'a>], args: &DebugArgs) -> Result<Vec<OnNode<'a>>, CommandError> {
    let is_named = |rank: Rank| args.ranks.as_ref().map_or(rank == Rank(0), |ranks| ranks.contains(rank));
    let named: Vec<&RankView<'_>> = all.iter().filter(|view| is_named(view.progress.rank)).collect();
    let launch = || args.launch.clone();
    let (mut nodes, mut gone) = (Vec::<OnNode<'_>>::new(), Vec::new());
    for view in &named {
        match (
            view.progress.pid.filter(|_| view.progress.exit.is_none()),
            nodes.iter_mut().find(|on| on.node == view.node),
        ) {
            (None, _) => gone.push(view.progress.rank),
            (Some(pid), Some(on)) => on.pids.push(pid),
            (Some(pid), None) => nodes.push(OnNode { node: view.node, pids: vec![pid] }),
        }
    }
    match named.len() {
        0 => Err(CommandError::NoSuchRanks { launch: launch() }),
        _ if !gone.is_empty() => {
            Err(CommandError::RanksDoNotRun { launch: launch(), ranks: RankNumbers(&gone).to_string() })
        }
        1..=RANKS_MAX => Ok(nodes),
        count => Err(CommandError::RanksInDebugger { count, max: RANKS_MAX }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// gdb commands in these arguments.
    fn commands(words: &[OsString]) -> Vec<String> {
        words.iter().skip(2).step_by(2).map(|word| word.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn a_rank_that_is_not_there_is_refused_by_its_number() {
        let check = |ranks: Option<&str>, count: u32| {
            let ranks = ranks.map(|ranks| ranks.parse().unwrap());
            let args =
                DebugArgs { launch: "x".to_owned(), ranks, arguments: Vec::new(), api: ServerArgs { api: None } };
            check_ranks(&[], count, &args).map_err(|error| error.to_string())
        };
        assert_eq!([check(None, 1), check(Some("0-3"), 4), check(Some("3,1"), 4)], [Ok(()), Ok(()), Ok(())]);
        let refused = check(Some("0,9"), 4).unwrap_err();
        assert!(refused.starts_with("launch x has no rank 9; it has ranks 0 to 3\ntry: --ranks"), "{refused}");
    }

    #[test]
    fn every_process_is_an_inferior() {
        let one: Vec<OsString> = words(attach_all(&[7]), &["-batch".into()]);
        assert_eq!(one, ["-q", "-ex", "attach 7", "-batch"]);
        let expected = ["attach 7", "add-inferior", "inferior 2", "attach 9", "inferior 1", "set schedule-multiple on"];
        assert_eq!(commands(&words(attach_all(&[7, 9]), &[])), expected);
    }

    #[test]
    fn processes_of_several_nodes_are_reached_by_a_server_on_each() {
        let api = ServerArgs { api: Some("unix:/a b".to_owned()) };
        let args = DebugArgs { launch: "x".to_owned(), ranks: None, arguments: Vec::new(), api };
        let nodes = [OnNode { node: "n0", pids: vec![7, 9] }, OnNode { node: "n1", pids: vec![7] }];
        let told = by_servers(&nodes, Some("a1"), &args).unwrap();
        let exe = shlex::try_quote(std::env::current_exe().unwrap().to_str().unwrap()).unwrap().into_owned();
        let server = |node: &str| {
            format!(
                "target extended-remote | exec {exe} exec '--alloc=a1' '--api=unix:/a b' {node} -- gdbserver --once --multi -"
            )
        };
        let rest = [
            &server("n0"),
            "attach 7",
            "add-inferior",
            "inferior 2",
            "attach 9",
            "add-inferior -no-connection",
            "inferior 3",
            &server("n1"),
            "attach 7",
            "inferior 1",
            "set schedule-multiple on",
        ];
        assert_eq!(told[..BEFORE_SERVERS.len()], BEFORE_SERVERS);
        assert_eq!(told[BEFORE_SERVERS.len()..], rest);
    }
}
