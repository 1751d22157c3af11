//! Code that a rank's process runs between `clone` and `execve`.
//!
//! The child shares the launcher's memory and has its own stack. The thread that made it is suspended (`CLONE_VM | CLONE_VFORK`); other threads
//! of the launcher continue. The child therefore makes system calls and nothing else: it takes no lock, allocates nothing, cannot panic, and
//! reads only through [`ChildSetup`]. The nix wrappers that it uses are bare system calls.

#![expect(unsafe_code, reason = "system calls in a child that shares our memory; see the module's rules")]

use std::cell::Cell;
use std::convert::Infallible;
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_void};
use std::fmt;
use std::marker::PhantomData;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::ptr;

use nix::errno::Errno;
use nix::libc;
use nix::sys::prctl;
use nix::sys::resource::setrlimit;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, pthread_sigmask, sigprocmask};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Pid, chdir, getppid, setsid};
use serde::{Deserialize, Serialize};

use crate::changed_signals::SignalNumbers;
use crate::limits::{Limit, LimitedResource};
use crate::priority::Priority;
use crate::stack::ChildStack;
use crate::stdio::{JOB_MEMORY_FD, NODE_MEMORY_FD, PMI_FD};
use crate::syscalls::ask_for_stop;

/// Behaviour of a rank after it has executed its program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AtExec {
    /// The program runs.
    #[default]
    Run,
    /// The rank is stopped before the first instruction of its program, until it receives SIGCONT.
    Stop,
}

/// Step between the start of a rank's process and its program; as text it follows the word "cannot".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Step {
    /// Becoming a session leader.
    Session,
    /// Setting the signal that kills the rank when the launcher dies.
    ParentDeathSignal,
    /// Installing the standard streams.
    StandardStreams,
    /// Making its pseudo-terminal the controlling terminal.
    ControllingTerminal,
    /// Installing the PMI socket.
    PmiSocket,
    /// Installing the job's memory.
    JobMemory,
    /// Installing the memory of the node's ranks.
    NodeMemory,
    /// Closing all other descriptors.
    CloseOthers,
    /// Changing to the working directory.
    Directory,
    /// Binding to CPUs.
    Affinity,
    /// Binding its memory to NUMA nodes.
    Memory,
    /// Setting its niceness.
    Priority,
    /// Setting a resource limit.
    Limit(LimitedResource),
    /// Unblocking signals.
    SignalMask,
    /// Stopping before the program's first instruction.
    Stop,
    /// Executing the program.
    Exec,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Session => "become the leader of a session",
            Self::ParentDeathSignal => "ask to be killed when the launcher dies",
            Self::StandardStreams => "put the standard streams in place",
            Self::ControllingTerminal => "make its pseudo-terminal the controlling one",
            Self::PmiSocket => "put the PMI socket in place",
            Self::JobMemory => "put the job's memory in place",
            Self::NodeMemory => "put the memory of the node's ranks in place",
            Self::CloseOthers => "close the launcher's descriptors",
            Self::Directory => "enter directory",
            Self::Affinity => "bind to CPUs",
            Self::Memory => "bind its memory to NUMA nodes",
            Self::Priority => "lower its priority",
            Self::Limit(resource) => return write!(f, "set the limit {resource}"),
            Self::SignalMask => "let signals through",
            Self::Stop => "be stopped before its first instruction",
            Self::Exec => "execute",
        })
    }
}

/// The failed step and its error.
#[derive(Clone, Copy)]
pub(crate) struct Failure {
    pub(crate) step: Step,
    pub(crate) errno: Errno,
}

/// Input of the child, prepared by the parent.
pub(crate) struct ChildSetup<'a> {
    pub(crate) session: RankSession,
    /// The launcher's process number.
    pub(crate) parent: Pid,
    /// Sources of descriptors 0, 1 and 2.
    pub(crate) streams: [RawFd; 3],
    /// Source of [`PMI_FD`].
    pub(crate) pmi: Option<RawFd>,
    /// Source of [`JOB_MEMORY_FD`].
    pub(crate) job_memory: Option<RawFd>,
    /// Source of [`NODE_MEMORY_FD`].
    pub(crate) node_memory: Option<RawFd>,
    pub(crate) directory: Option<&'a CStr>,
    pub(crate) umask: Option<Mode>,
    pub(crate) affinity: Option<Affinity<'a>>,
    /// Mode of `set_mempolicy(2)` and a bit mask of NUMA nodes.
    pub(crate) memory: Option<(c_int, &'a [c_ulong])>,
    pub(crate) priority: Priority,
    pub(crate) limits: &'a [Limit],
    /// Signals to reset to their default actions.
    pub(crate) changed_signals: SignalNumbers,
    pub(crate) at_exec: AtExec,
    pub(crate) program: &'a CStr,
    /// Ends with a null pointer.
    pub(crate) argv: &'a [*const c_char],
    /// Ends with a null pointer.
    pub(crate) envp: &'a [*const c_char],
    /// Written by the child; read by the parent after the child has exited.
    pub(crate) failure: Cell<Option<Failure>>,
}

/// CPUs of a rank, as bit masks.
#[derive(Clone, Copy)]
pub(crate) struct Affinity<'a> {
    pub(crate) planned: &'a [c_ulong],
    /// Mask that the kernel reports after the call, as long as its longest mask; all bits are 0 if it reports none. The child writes it before
    /// it executes its program, which may change its mask at once.
    pub(crate) given: &'a [Cell<c_ulong>],
}

impl Affinity<'_> {
    /// Binds the calling thread.
    fn take(&self) -> nix::Result<()> {
        let len = size_of_val(self.planned);
        // SAFETY: pointer and length describe `planned`, which is only read.
        Errno::result(unsafe { libc::sched_setaffinity(0, len, self.planned.as_ptr().cast()) })?;
        let len = size_of_val(self.given);
        // SAFETY: pointer and length describe `given`. Its cells are writable, and no other code uses them during the call.
        unsafe { libc::sched_getaffinity(0, len, self.given.as_ptr().cast_mut().cast()) };
        Ok(())
    }
}

/// Session of a rank. The rank leads the session and its only process group.
///
/// The kernel's autogroups (`sched_autogroup_enabled`) share the CPUs between sessions. On busy CPUs, all ranks in the launcher's session would
/// together get the share of one process. There a program that reads from the terminal (`bash -i`, a password prompt) would be a background job
/// of the launcher's terminal, and would be stopped silently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RankSession {
    /// The rank has no terminal.
    WithoutTerminal,
    /// The rank's terminal is its standard input.
    OnItsTerminal,
}

/// Proof that this thread has blocked all its signals. The value cannot be sent to another thread.
pub(crate) struct SignalsBlocked(PhantomData<*const ()>);

impl SignalsBlocked {
    /// Blocks all signals in the calling thread permanently.
    pub(crate) fn for_this_thread() -> nix::Result<Self> {
        pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None)?;
        Ok(Self(PhantomData))
    }
}

/// Makes a child that runs `setup`. Returns after the child has executed its program, or has exited with `setup.failure` set and is a zombie.
///
/// The kernel copies neither memory nor page tables, so the cost is independent of the size of this process.
pub(crate) fn clone(setup: &ChildSetup<'_>, stack: &mut ChildStack, _: &SignalsBlocked) -> nix::Result<(Pid, OwnedFd)> {
    let mut pidfd: c_int = -1;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD;
    let argument = ptr::from_ref(setup).cast_mut().cast();
    // SAFETY: CLONE_VFORK suspends this thread until the child no longer uses its memory, so `setup`, its referents and the stack outlive that
    // use. No other thread uses them (`ChildSetup` is not `Sync`). `stack.top()` is the aligned end of a mapping that one child at a time uses.
    // All signals are blocked, so no handler runs in the child. The kernel writes the descriptor of CLONE_PIDFD to `pidfd`. `run` gets the
    // argument type that it expects.
    let result = unsafe { libc::clone(run, stack.top(), flags, argument, &raw mut pidfd) };
    let pid = Errno::result(result)?;
    // SAFETY: `clone` succeeded, so `pidfd` is a new descriptor that has no other owner.
    Ok((Pid::from_raw(pid), unsafe { OwnedFd::from_raw_fd(pidfd) }))
}

/// The child's main function. Only [`clone`] may call it, with a pointer to [`ChildSetup`].
extern "C" fn run(setup: *mut c_void) -> c_int {
    // SAFETY: `clone` passes a setup that lives until this process has exited or executed its program.
    let setup = unsafe { &*setup.cast::<ChildSetup<'_>>() };
    let Err(failure) = setup.run();
    setup.failure.set(Some(failure));
    // SAFETY: exits without running the launcher's exit handlers.
    unsafe { libc::_exit(127) }
}

impl ChildSetup<'_> {
    fn run(&self) -> Result<Infallible, Failure> {
        setsid().map_err(at(Step::Session))?;
        self.tie_to_parent()?;
        self.place_descriptors()?;
        self.settle()?;
        // After all other settings: a limit on descriptors or memory must not make them fail.
        for limit in self.limits {
            let step = Step::Limit(limit.resource);
            setrlimit(limit.resource.to_nix(), limit.soft, limit.hard).map_err(at(step))?;
        }
        // Default actions precede unblocking: a handler would run in the launcher's memory.
        self.changed_signals.give_default_actions();
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None).map_err(at(Step::SignalMask))?;
        if self.at_exec == AtExec::Stop {
            ask_for_stop().map_err(at(Step::Stop))?;
        }
        // SAFETY: the program is a C string. Both arrays end with a null pointer and point to C strings. All are alive.
        unsafe { libc::execve(self.program.as_ptr(), self.argv.as_ptr(), self.envp.as_ptr()) };
        Err(Failure { step: Step::Exec, errno: Errno::last() })
    }

    /// Makes the kernel kill this process when the thread that started it dies, and checks that the launcher is still alive.
    fn tie_to_parent(&self) -> Result<(), Failure> {
        prctl::set_pdeathsig(Signal::SIGKILL).map_err(at(Step::ParentDeathSignal))?;
        if getppid() == self.parent { Ok(()) } else { Err(at(Step::ParentDeathSignal)(Errno::ESRCH)) }
    }

    fn place_descriptors(&self) -> Result<(), Failure> {
        // First moves the sources above the targets, so that no target overwrites another's source.
        let [input, output, errors] = self.streams;
        let stream = |fd| above_targets(fd, Step::StandardStreams);
        let streams = [stream(input)?, stream(output)?, stream(errors)?];
        let moved = |fd: Option<RawFd>, step| fd.map(|fd| above_targets(fd, step)).transpose();
        let pmi = moved(self.pmi, Step::PmiSocket)?;
        let job_memory = moved(self.job_memory, Step::JobMemory)?;
        let node_memory = moved(self.node_memory, Step::NodeMemory)?;
        for (source, target) in streams.into_iter().zip(0..) {
            place(source, target, Step::StandardStreams)?;
        }
        if self.session == RankSession::OnItsTerminal {
            // SAFETY: the arguments are integers: standard input, and 0 so that no other session loses this terminal.
            let taken = unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) };
            Errno::result(taken).map_err(at(Step::ControllingTerminal))?;
        }
        // All descriptors between and above the targets are closed.
        let mut first_other = 3;
        let others = [
            (pmi, PMI_FD, Step::PmiSocket),
            (job_memory, JOB_MEMORY_FD, Step::JobMemory),
            (node_memory, NODE_MEMORY_FD, Step::NodeMemory),
        ];
        for (source, target, step) in others {
            let Some(source) = source else { continue };
            place(source, target, step)?;
            if first_other < target {
                close(first_other as c_uint, target as c_uint - 1)?;
            }
            first_other = target + 1;
        }
        close(first_other as c_uint, c_uint::MAX)
    }

    /// Sets umask, directory, CPUs, memory policy and niceness. Without CLONE_FS the first two belong to the child alone.
    fn settle(&self) -> Result<(), Failure> {
        if let Some(mask) = self.umask {
            umask(mask);
        }
        if let Some(directory) = self.directory {
            chdir(directory).map_err(at(Step::Directory))?;
        }
        if let Some(affinity) = self.affinity {
            affinity.take().map_err(at(Step::Affinity))?;
        }
        if let Some((mode, nodes)) = self.memory {
            // The kernel reads one bit less than the argument.
            let bits = size_of_val(nodes) * 8 + 1;
            // SAFETY: pointer and number of bits describe `nodes`, which is only read. The policy belongs to this thread and survives exec.
            let result = unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, nodes.as_ptr(), bits) };
            Errno::result(result).map_err(at(Step::Memory))?;
        }
        self.priority.take_niceness().map_err(at(Step::Priority))
    }
}

/// Adds the step to an error.
fn at(step: Step) -> impl Fn(Errno) -> Failure {
    move |errno| Failure { step, errno }
}

/// Makes `target` a duplicate of `source` that stays open in the program.
fn place(source: RawFd, target: RawFd, step: Step) -> Result<(), Failure> {
    // SAFETY: the child's descriptor table is its own copy; the call closes no descriptor of the launcher.
    Errno::result(unsafe { libc::dup2(source, target) }).map(drop).map_err(at(step))
}

/// Copy of `fd` with a number above all targets; `fd` itself if its number is already above them.
fn above_targets(fd: RawFd, step: Step) -> Result<RawFd, Failure> {
    if fd > NODE_MEMORY_FD {
        return Ok(fd);
    }
    // SAFETY: makes a descriptor in the child's own table.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, NODE_MEMORY_FD + 1) };
    Errno::result(copy).map_err(at(step))
}

/// Closes the descriptors `first..=last` (Linux 5.9).
fn close(first: c_uint, last: c_uint) -> Result<(), Failure> {
    // SAFETY: the child's descriptor table is its own copy; the call closes no descriptor of the launcher.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    Errno::result(result).map(drop).map_err(at(Step::CloseOthers))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_that_cannot_be_moved_is_blamed_on_its_own_step() {
        for step in [Step::StandardStreams, Step::PmiSocket, Step::JobMemory, Step::NodeMemory] {
            let failure = above_targets(-1, step).map_err(|failure| (failure.step, failure.errno));
            assert_eq!(failure, Err((step, Errno::EBADF)));
        }
    }
}
