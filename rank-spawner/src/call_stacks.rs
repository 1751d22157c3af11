//! Call stacks of ranks that hang: the state of their threads in the kernel, and their functions if this node has a debugger.
//!
//! The debugger runs as this process's user and inspects no process of another user, so a user sees nothing new. It reads no file of the
//! user that could make it run a command.

mod debugger;
mod threads;

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use std::{fs, thread};

use nix::unistd::{Pid, geteuid};

use self::debugger::Debugger;
use self::threads::Thread;
use crate::process::RankProcess;
use crate::process_table::ProcessTable;

/// Limit on the text of one process, in bytes.
pub const CALL_STACK_MAX: usize = 16 * 1024;

/// Number of processes that are inspected at the same time.
const AT_ONCE: usize = 4;
/// Limit on the chain of child processes from a rank to the process that computes: shells and wrappers wait for their child.
const FOLLOWED: usize = 8;

/// Returns the stacks of these ranks as text, one for each rank that still runs. Ranks in the same functions have equal texts. Blocks until
/// `deadline` at most, plus the time that `/proc` takes. Ranks that are not inspected before `deadline` are shown without functions.
pub fn call_stacks(ranks: &[&RankProcess], deadline: Instant) -> Vec<Option<String>> {
    let table = ProcessTable::read().ok();
    let debugger = Debugger::find();
    let (texts, next) = (Mutex::new(BTreeMap::new()), AtomicUsize::new(0));
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(rank) = ranks.get(index) else { return };
            if rank.is_reaped() {
                continue;
            }
            let pid = table.as_ref().map_or(rank.pid(), |table| computing(table, rank.pid()));
            let text = stack_of(pid, debugger.as_ref(), deadline);
            // After a reap the number may belong to another process.
            if !rank.is_reaped()
                && let Ok(mut texts) = texts.lock()
            {
                texts.insert(index, text);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..AT_ONCE.min(ranks.len()) {
            // If a thread cannot be started, fewer threads do the work.
            let _ = thread::Builder::new().name("call-stacks".to_owned()).spawn_scoped(scope, work);
        }
        work();
    });
    let mut texts = texts.into_inner().unwrap_or_default();
    (0..ranks.len()).map(|index| texts.remove(&index).flatten()).collect()
}

/// The process that a rank's process waits for: its only child, the only child of that, and so on.
fn computing(table: &ProcessTable, rank: Pid) -> Pid {
    let mut pid = rank;
    for _ in 0..FOLLOWED {
        match table.children_of(pid) {
            [child] => pid = *child,
            _ => break,
        }
    }
    pid
}

/// The stack of a process; `None` if no process has this number.
fn stack_of(pid: Pid, debugger: Option<&Debugger>, deadline: Instant) -> Option<String> {
    let threads = Thread::all(pid);
    if threads.is_empty() {
        return None;
    }
    let left = deadline.saturating_duration_since(Instant::now());
    let seen = match debugger {
        None => Err("no debugger was found (gdb, eu-stack)".to_owned()),
        Some(_) if left.is_zero() => Err("no time was left for the debugger".to_owned()),
        // The debugger would need root for a program that has changed its user.
        Some(_) if owner(pid) != Some(geteuid().as_raw()) => Err("the process is another user's".to_owned()),
        Some(debugger) => debugger.look_at(pid, left),
    };
    // The process may have ended meanwhile.
    let name = fs::read(format!("/proc/{pid}/comm")).ok()?;
    let name = String::from_utf8_lossy(&name);
    let name = if name.trim_end().is_empty() { "a process without a name" } else { name.trim_end() };
    let mut text = format!("{} of {name}\n", count(threads.len()));
    let (frames, reason) = match seen {
        Ok(frames) => (frames, None),
        Err(reason) => (BTreeMap::new(), Some(reason)),
    };
    threads::describe(&threads, &frames, &mut text);
    if let Some(reason) = reason {
        text += &format!("functions are not known: {reason}\n");
    }
    Some(cut(text))
}

fn owner(pid: Pid) -> Option<u32> {
    fs::metadata(format!("/proc/{pid}")).ok().map(|metadata| metadata.uid())
}

fn count(threads: usize) -> String {
    if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") }
}

/// Cuts a text that is too long at the end of a line.
fn cut(mut text: String) -> String {
    const MORE: &str = "...\n";
    if text.len() > CALL_STACK_MAX {
        let fits = text.as_bytes()[..CALL_STACK_MAX - MORE.len()].iter().rposition(|&byte| byte == b'\n');
        text.truncate(fits.map_or(0, |end| end + 1));
        text += MORE;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_ends_with_a_whole_line() {
        assert_eq!(cut("short\n".to_owned()), "short\n");
        let cut = cut("ä line\n".repeat(10_000));
        assert!(cut.len() <= CALL_STACK_MAX && cut.ends_with("ä line\n...\n"));
    }

    #[test]
    fn a_shell_is_followed_to_the_program_that_it_waits_for() {
        let mut shell = std::process::Command::new("bash").args(["-c", "sleep 1000; :"]).spawn().unwrap();
        let pid = Pid::from_raw(shell.id() as i32);
        let name = |pid: Pid| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let found = loop {
            let found = computing(&ProcessTable::read().unwrap(), pid);
            if name(found) == "sleep\n" {
                break found;
            }
        };
        let text = stack_of(found, None, Instant::now()).unwrap();
        assert!(text.starts_with("1 thread of sleep\nthread 1 (sleep) "), "{text}");
        assert!(text.ends_with("functions are not known: no debugger was found (gdb, eu-stack)\n"), "{text}");
        nix::sys::signal::kill(found, nix::sys::signal::Signal::SIGKILL).unwrap();
        shell.wait().unwrap();
        assert_eq!(stack_of(found, None, Instant::now()), None);
    }
}
