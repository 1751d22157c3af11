//! Last resort without control groups: one signal to all processes of a user. No process can escape it by forking, because the kernel
//! forks nothing during the signal. It also reaches the user's unrelated processes on this node. It is therefore used only against
//! processes that still multiply, or that a killed session has left, and never while the user has another session here.
//!
//! ```text
//! in a session process     if the session's user is not root, its fork server runs as root, and the user has no other session
//! in a fork server         on the same conditions; sent by a child that becomes the user
//! ```

#![expect(unsafe_code, reason = "the call of `fork`, and of what follows it in the child")]

use std::ffi::CStr;
use std::fs;

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{ForkResult, Pid, Uid, fork, geteuid, getpid, getppid, setresuid};

use crate::capabilities::drop_capabilities;
use crate::process_table::ProcessTable;
use crate::syscalls::{Child, reap};

/// Process name of a fork server.
pub(crate) const FORK_SERVER: &CStr = c"lattice-forks";

/// Process name of the children that a fork server hands out.
pub(crate) const SESSION: &CStr = c"lattice-session";

/// All processes that the caller may signal, as the target of a signal.
const EVERYBODY: Pid = Pid::from_raw(-1);

/// In a session process: kills all processes of its user except itself. Returns false if the conditions are not met.
pub(crate) fn kill_all_of_this_user(table: &ProcessTable) -> bool {
    let user = geteuid();
    let is_allowed = !user.is_root()
        && owner(getppid()) == Some(0)
        && is_fork_server(getppid())
        && !has_session(table, user.as_raw(), |pid| pid == getpid());
    // EPERM: this process may signal no other process, so there is none to kill.
    is_allowed && matches!(kill(EVERYBODY, Signal::SIGKILL), Ok(()) | Err(Errno::ESRCH | Errno::EPERM))
}

/// Result of [`kill_all_of`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LastResort {
    /// The signal was sent.
    Sent,
    /// The user has another session on this node, or no process could be forked for the signal. A later attempt can succeed.
    Later,
    /// The user is root, or this process is not.
    Never,
}

/// In a fork server of root: kills all processes of a user without a session. `running` returns true for running children of this
/// server.
pub(crate) fn kill_all_of(user: u32, table: &ProcessTable, running: impl Fn(Pid) -> bool) -> LastResort {
    let me = getpid();
    let is_leftover = |pid| table.get(pid).is_some_and(|process| process.parent == me) && !running(pid);
    if !geteuid().is_root() || user == 0 {
        return LastResort::Never;
    }
    if has_session(table, user, is_leftover) {
        return LastResort::Later;
    }
    // SAFETY: a fork server has one thread and never had another.
    match unsafe { fork() } {
        Ok(ForkResult::Child) => {
            let is_user = become_powerless(Uid::from_raw(user)).is_ok();
            if is_user {
                // Processes that the signal does not reach belong to other users.
                let _ = kill(EVERYBODY, Signal::SIGKILL);
            }
            // SAFETY: exits without running the exit handlers of the daemon, of which this process is an indirect copy.
            unsafe { libc::_exit(i32::from(!is_user)) }
        }
        Ok(ForkResult::Parent { child }) if reap(Child::Number(child)).is_ok() => LastResort::Sent,
        Ok(ForkResult::Parent { .. }) | Err(_) => LastResort::Later,
    }
}

/// Becomes the user, and drops capabilities that could reach other users' processes.
fn become_powerless(user: Uid) -> nix::Result<()> {
    setresuid(user, user, user)?;
    drop_capabilities()?;
    if setresuid(Uid::from_raw(0), Uid::from_raw(0), Uid::from_raw(0)).is_ok() { Err(Errno::EPERM) } else { Ok(()) }
}

/// Returns true if the user has a session on this node other than `except`: a living child of any fork server, with the name of a session.
/// Leftovers of an ended session are also children of its fork server.
fn has_session(table: &ProcessTable, user: u32, except: impl Fn(Pid) -> bool) -> bool {
    let is_session =
        |pid, parent| !except(pid) && owner(pid) == Some(user) && is_fork_server(parent) && has_name(pid, SESSION);
    table.iter().any(|process| !process.zombie && is_session(process.pid, process.parent))
}

/// True for a process with the name of a fork server.
pub(crate) fn is_fork_server(pid: Pid) -> bool {
    has_name(pid, FORK_SERVER)
}

fn has_name(pid: Pid, name: &CStr) -> bool {
    fs::read(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim_ascii_end() == name.to_bytes())
}

/// Effective user of a process, zombies included.
pub(crate) fn owner(pid: Pid) -> Option<u32> {
    // The process name, in the first line, may be invalid UTF-8.
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_killed_for_a_process_that_no_fork_server_made() {
        let table = ProcessTable::read().unwrap();
        assert!(!kill_all_of_this_user(&table));
        assert_eq!(kill_all_of(0, &table, |_| false), LastResort::Never, "root's processes are the machine's");
        assert_eq!(owner(getpid()), Some(geteuid().as_raw()));
    }
}
