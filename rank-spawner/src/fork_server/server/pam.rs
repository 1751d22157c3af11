//! PAM processes: the server forks one for each child that it hands out, if the settings name a PAM service.

#![expect(unsafe_code, reason = "the call of `fork`, and of what follows it in the child")]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::prctl;
use nix::unistd::{ForkResult, Pid, fork};

use super::super::pam_processes::PamProcess;
use super::super::{PAM_WORD, PamMain};
use super::Server;
use super::child::detached;
use crate::descriptor_socket::DescriptorSocket;
use crate::limits::Limit;
use crate::syscalls::{Child, end_child, pidfd_open, try_reap};

/// Process name of a PAM process.
const NAME: &CStr = c"lattice-pam";

impl Server {
    /// Returns true if no child and no PAM process runs.
    pub(super) fn none_runs(&self) -> bool {
        self.children.none_runs() && self.pam_processes.none_runs()
    }

    /// Time until the next deferred work or kill is due; `None` if there is none.
    pub(super) fn next_look(&self) -> Option<Duration> {
        self.idle_time().into_iter().chain(self.pam_processes.due(Instant::now())).min()
    }

    /// Forks the PAM process of a child that is handed out with `admitted`, and sends the other end of its socket to the child's door.
    pub(super) fn attend(&mut self, child: Pid, admitted: &[u8], door: &DescriptorSocket) -> io::Result<()> {
        let Some(role) = &self.pam else { return Ok(()) };
        let (ours, theirs) = UnixStream::pair()?;
        let open_files = self.open_files;
        // SAFETY: this process has one thread and never had another.
        match unsafe { fork() }.map_err(io::Error::from)? {
            ForkResult::Child => {
                let ran = catch_unwind(AssertUnwindSafe(|| run(theirs.into(), open_files, &role.main, admitted)));
                // SAFETY: exits without running the exit handlers of PAM modules, or of the daemon, of which this process is an indirect
                // copy.
                unsafe { libc::_exit(i32::from(!matches!(ran, Ok(Ok(()))))) }
            }
            ForkResult::Parent { child: pid } => {
                // Without a pidfd the server could not detect its end.
                let pidfd = pidfd_open(pid).inspect_err(|_| end_child(pid))?;
                let told = door.send(PAM_WORD, ours.as_fd());
                let process = PamProcess { pidfd, session: Some(ours.into()), child, killed_at: None };
                self.pam_processes.add(pid, process);
                told
            }
        }
    }

    /// Closes the PAM session, if there is one, of a child that has ended with all its leftovers.
    pub(super) fn close_pam_session(&mut self, child: Pid) {
        if let Some(role) = &self.pam {
            self.pam_processes.close(child, Instant::now() + role.closes_within);
        }
    }

    /// Reaps a PAM process that has ended, and cleans up processes that its modules have left.
    pub(super) fn reap_pam_process(&mut self, pid: Pid) -> io::Result<()> {
        if try_reap(Child::Number(pid))?.is_some() {
            self.pam_processes.remove(pid);
            self.needs_clean_up = true;
        }
        Ok(())
    }
}

/// Main function of a PAM process. Processes that its modules start are its descendants while it runs, so the server does not count them
/// as leftovers of a child.
fn run(session: OwnedFd, open_files: Option<Limit>, main: &PamMain, admitted: &[u8]) -> io::Result<()> {
    // SAFETY: this is a child of the server, and no code of the server runs in it again.
    let session = unsafe { detached(session, open_files) }?;
    prctl::set_name(NAME)?;
    main(session.into(), admitted);
    Ok(())
}
