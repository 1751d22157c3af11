//! What is left to do where there are no control groups: one signal to all processes of a user, which none of them can outrun, as the
//! kernel forks nothing meanwhile. It reaches the user's other processes on this machine, too, so it is used only against what
//! still multiplies, or what a session that was killed has left; and never while the user has another session here.
//!
//! ```text
//! in a session process     the session is no root's, its fork server is root's, and no other session is of this user
//! in a fork server         the same; by a child that becomes the user
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

/// All processes of the user, as the target of a signal.
const EVERYBODY: Pid = Pid::from_raw(-1);

/// In a session process: kills all processes of its user but itself. Returns false if that is not allowed here.
pub(crate) fn kill_all_of_this_user(table: &ProcessTable) -> bool {
    let user = geteuid();
    let is_allowed = !user.is_root()
        && owner(getppid()) == Some(0)
        && is_fork_server(getppid())
        && !has_session(table, user.as_raw(), |pid| pid == getpid());
    // Who lacks the right to any of them has none that is to be killed.
    is_allowed && matches!(kill(EVERYBODY, Signal::SIGKILL), Ok(()) | Err(Errno::ESRCH | Errno::EPERM))
}

/// In a fork server of root's: kills all processes of a user who has no session, `running` being the children of this server that are
/// any. Returns false if that is not allowed here.
pub(crate) fn kill_all_of(user: u32, table: &ProcessTable, running: impl Fn(Pid) -> bool) -> bool {
    let me = getpid();
    let is_leftover = |pid| table.get(pid).is_some_and(|process| process.parent == me) && !running(pid);
    if !geteuid().is_root() || user == 0 || has_session(table, user, is_leftover) {
        return false;
    }
    // SAFETY: a fork server has one thread and never had another.
    match unsafe { fork() } {
        Ok(ForkResult::Child) => {
            let is_user = become_powerless(Uid::from_raw(user)).is_ok();
            if is_user {
                // The rest is not the user's.
                let _ = kill(EVERYBODY, Signal::SIGKILL);
            }
            // SAFETY: leaves without running the exit handlers of the daemon that this is a copy of a copy of.
            unsafe { libc::_exit(i32::from(!is_user)) }
        }
        Ok(ForkResult::Parent { child }) => reap(Child::Number(child)).is_ok(),
        Err(_) => false,
    }
}

/// Becomes the user, and gives up what could reach beyond the user's processes.
fn become_powerless(user: Uid) -> nix::Result<()> {
    setresuid(user, user, user)?;
    drop_capabilities()?;
    if setresuid(Uid::from_raw(0), Uid::from_raw(0), Uid::from_raw(0)).is_ok() { Err(Errno::EPERM) } else { Ok(()) }
}

/// Returns true if the user has a session on this machine other than `except`: a living child of any fork server.
fn has_session(table: &ProcessTable, user: u32, except: impl Fn(Pid) -> bool) -> bool {
    let is_session = |pid, parent| !except(pid) && owner(pid) == Some(user) && is_fork_server(parent);
    table.iter().any(|process| !process.zombie && is_session(process.pid, process.parent))
}

/// True for a process of a fork server's name.
pub(crate) fn is_fork_server(pid: Pid) -> bool {
    fs::read(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_ascii_end() == FORK_SERVER.to_bytes())
}

/// Effective user of a process, also of one that has ended and is not reaped.
pub(crate) fn owner(pid: Pid) -> Option<u32> {
    // The name of the process, in the first line, need not be UTF-8.
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
        assert!(!kill_all_of(0, &table, |_| false), "root's processes are the machine's");
        assert_eq!(owner(getpid()), Some(geteuid().as_raw()));
    }
}
