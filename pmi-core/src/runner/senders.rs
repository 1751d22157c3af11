//! Processes that send on a rank's own socket, which its child processes inherit.

use std::fs;

use super::protocol::Protocol;
use super::state::State;
use crate::connections::ConnectionId;

impl<P: Protocol> State<P> {
    /// Reports a sender to the protocol if its process differs from the previous one, and the previous one still runs.
    pub(super) fn note_sender(&mut self, id: ConnectionId, sender: u32) {
        let former = self.connection(id).and_then(|connection| connection.speaker.replace(sender));
        if former.is_some_and(|former| former != sender && is_running(former)) {
            self.protocol.handle_second_sender(id, sender);
        }
    }
}

/// Returns true if the process exists and is no zombie. Its state follows its name, which ends with the last parenthesis (proc(5)).
fn is_running(pid: u32) -> bool {
    let stat = fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.iter().rposition(|&byte| byte == b')').and_then(|end| stat.get(end + 2));
    state.is_some_and(|state| !b"ZX".contains(state))
}

#[cfg(test)]
mod tests {
    use std::process::{self, Command, Stdio};

    use nix::sys::wait::{Id, WaitPidFlag, waitid};
    use nix::unistd::Pid;

    use super::*;

    #[test]
    fn a_process_runs_until_it_has_ended() {
        assert!(is_running(process::id()));
        assert!(!is_running(0));
        let mut child = Command::new("/bin/cat").stdin(Stdio::piped()).spawn().unwrap();
        assert!(is_running(child.id()));
        drop(child.stdin.take());
        let ended = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        waitid(Id::Pid(Pid::from_raw(child.id().cast_signed())), ended).unwrap();
        assert!(!is_running(child.id()), "a zombie");
        child.wait().unwrap();
        assert!(!is_running(child.id()));
    }
}
