//! `lattice debug`: gdb on ranks of a launch, here or on their node of the cluster.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::unix::process::CommandExt;
use std::process::Command;

use lattice_session::cause::RankNumbers;
use pmi_core::ids::Rank;

use super::status::{Extent, RankView, get, ranks};
use super::{CommandError, here};
use crate::args::{DebugArgs, ExecArgs};
use crate::console::Verbosity;
use crate::failure::Failure;
use crate::launch;

/// The debugger.
const GDB: &str = "gdb";
/// Most ranks in one debugger.
const RANKS_MAX: usize = 64;

/// Runs a debugger on ranks; returns its exit code.
pub(crate) fn debug(args: &DebugArgs, verbosity: Verbosity) -> Result<u8, Failure> {
    let (answer, _) = get(&args.launch, &args.api, Extent::Progress)?;
    let all = ranks(&answer);
    let (node, pids) = chosen(&all, args)?;
    let words = words(&pids, &args.arguments);
    if here(&args.launch, &args.api).is_some() {
        // Only returns if there is no such program.
        let error = Command::new(GDB).args(&words).exec();
        return Err(CommandError::NoDebugger { error }.into());
    }
    let allocation = answer.summary.as_ref().map(|summary| summary.allocation_id.clone());
    let exec = ExecArgs {
        nodes: vec![node.to_owned()],
        command: std::iter::once(GDB.into()).chain(words).collect(),
        pty: io::stdin().is_terminal(),
        chdir: None,
        alloc: allocation.filter(|id| !id.is_empty()),
        api: args.api.clone(),
    };
    Ok(launch::run(&exec.launch().map_err(|error| Failure::ours(&error))?, verbosity)?)
}

/// The node of the ranks that are named, and their processes.
fn chosen<'a>(all: &'a [RankView<'a>], args: &DebugArgs) -> Result<(&'a str, Vec<u32>), CommandError> {
    let is_named = |rank: Rank| args.ranks.as_ref().map_or(rank == Rank(0), |ranks| ranks.contains(rank));
    let named: Vec<&RankView<'_>> = all.iter().filter(|view| is_named(view.progress.rank)).collect();
    let launch = || args.launch.clone();
    let running = |view: &&RankView<'a>| view.progress.pid.filter(|_| view.progress.exit.is_none());
    let pids: Vec<u32> = named.iter().filter_map(running).collect();
    let Some(first) = named.first() else { return Err(CommandError::NoSuchRanks { launch: launch() }) };
    if pids.len() < named.len() {
        let gone: Vec<Rank> =
            named.iter().filter(|view| running(view).is_none()).map(|view| view.progress.rank).collect();
        return Err(CommandError::RanksDoNotRun { launch: launch(), ranks: RankNumbers(&gone).to_string() });
    }
    if let Some(other) = named.iter().find(|view| view.node != first.node) {
        let here: Vec<Rank> =
            named.iter().filter(|view| view.node == first.node).map(|view| view.progress.rank).collect();
        return Err(CommandError::RanksApart {
            launch: launch(),
            nodes: [first.node.to_owned(), other.node.to_owned()],
            here: RankNumbers(&here).to_string(),
        });
    }
    match pids.len() {
        0..=RANKS_MAX => Ok((first.node, pids)),
        count => Err(CommandError::RanksInDebugger { count, max: RANKS_MAX }),
    }
}

/// Words of the debugger: each process is an inferior of its own, and all of them run when one is continued.
fn words(pids: &[u32], more: &[OsString]) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["-q".into()];
    let mut command = |text: String| words.extend(["-ex".into(), text.into()]);
    for (number, pid) in (1..).zip(pids) {
        if number > 1 {
            command("add-inferior".to_owned());
            command(format!("inferior {number}"));
        }
        command(format!("attach {pid}"));
    }
    if pids.len() > 1 {
        command("inferior 1".to_owned());
        command("set schedule-multiple on".to_owned());
    }
    words.extend_from_slice(more);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_process_is_an_inferior() {
        let one: Vec<OsString> = words(&[7], &["-batch".into()]);
        assert_eq!(one, ["-q", "-ex", "attach 7", "-batch"]);
        let two = words(&[7, 9], &[]);
        let commands: Vec<&OsString> = two.iter().skip(2).step_by(2).collect();
        let expected = ["attach 7", "add-inferior", "inferior 2", "attach 9", "inferior 1", "set schedule-multiple on"];
        assert_eq!(commands, expected);
    }
}
