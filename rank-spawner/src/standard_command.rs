//! Ranks that are started by a command of the standard library, for callers without a [`crate::Spawner`].

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use lattice_inventory::CpuSet;
use nix::errno::Errno;
use nix::unistd::Pid;
use pmi_core::ids::Rank;

use crate::child::Step;
use crate::process::RankProcess;
use crate::start::StartError;
use crate::stdio::set_nonblocking;
use crate::syscalls;

impl RankProcess {
    /// Starts a rank by a command of the standard library. The rank leads its own process group, and has the pipes of the command. It does not
    /// end with the thread or process that started it.
    ///
    /// # Errors
    /// Fails if the program cannot be executed, or no descriptor is left; then the rank leaves no process.
    pub fn start(rank: Rank, command: &mut Command) -> Result<Self, StartError> {
        let mut child = command.process_group(0).spawn().map_err(|error| {
            let path = Some(command.get_program().into());
            StartError::Step { rank, step: Step::Exec, errno: errno_of(&error), path }
        })?;
        let mut process = Self::of_child(rank, &mut child).map_err(|errno| {
            // The rank may have ended by itself.
            let _ = child.kill().and_then(|()| child.wait());
            StartError::Descriptors { rank, what: "pidfd and pipes", errno }
        })?;
        // CPUs that differ from this process's come from the command or from its program; the two cannot be distinguished.
        let ours = syscalls::affinity().ok().filter(|ours| syscalls::affinity_of(process.pid()).as_ref() == Ok(ours));
        process.given_cpus = ours.map(|mask| CpuSet::from_mask(&mask));
        Ok(process)
    }

    fn of_child(rank: Rank, child: &mut Child) -> nix::Result<Self> {
        let pid = Pid::from_raw(child.id().cast_signed());
        let mut process = Self::new(rank, pid, syscalls::pidfd_open(pid)?);
        process.stdin = child.stdin.take().map(OwnedFd::from);
        process.stdout = child.stdout.take().map(OwnedFd::from);
        process.stderr = child.stderr.take().map(OwnedFd::from);
        let pipes = [&process.stdin, &process.stdout, &process.stderr];
        pipes.into_iter().flatten().try_for_each(set_nonblocking)?;
        Ok(process)
    }
}

/// Error number of a standard library error. The library itself detects an argument with a NUL byte, without an error number.
fn errno_of(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EINVAL, Errno::from_raw)
}
