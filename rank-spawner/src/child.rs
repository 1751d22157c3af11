//! The code that a rank's process runs between `clone` and `execve`.
//!
//! The child shares the memory of the launcher and has a stack of its own, while the thread that made it is suspended
//! (`CLONE_VM | CLONE_VFORK`). Other threads of the launcher go on. So it makes system calls and nothing else: it takes no
//! lock, allocates nothing, cannot panic, and reads only what [`ChildSetup`] points to. The wrappers of nix that are used here
//! are the bare calls.

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

/// What a rank does when it has executed its program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AtExec {
    /// It runs.
    #[default]
    Run,
    /// It is stopped before the first instruction of its program, until it is sent SIGCONT.
    Stop,
}

/// A step on the way from the launcher to the rank's program; as text it follows the word "cannot".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Step {
    /// Becoming the leader of a session.
    Session,
    /// Asking to be killed when the launcher dies.
    ParentDeathSignal,
    /// Putting the standard streams in place.
    StandardStreams,
    /// Making its pseudo-terminal the controlling one.
    ControllingTerminal,
    /// Putting the PMI socket in place.
    PmiSocket,
    /// Putting the job's memory in place.
    JobMemory,
    /// Putting the memory of the node's ranks in place.
    NodeMemory,
    /// Closing every other descriptor.
    CloseOthers,
    /// Entering the working directory.
    Directory,
    /// Binding to CPUs.
    Affinity,
    /// Binding its memory to NUMA nodes.
    Memory,
    /// Setting its niceness.
    Priority,
    /// Setting a resource limit.
    Limit(LimitedResource),
    /// Letting signals through.
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

/// The step that failed, and why.
#[derive(Clone, Copy)]
pub(crate) struct Failure {
    pub(crate) step: Step,
    pub(crate) errno: Errno,
}

/// Prepared by the parent: everything that the child needs.
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
    /// Mode of `set_mempolicy(2)`, and a bit mask of NUMA nodes.
    pub(crate) memory: Option<(c_int, &'a [c_ulong])>,
    pub(crate) priority: Priority,
    pub(crate) limits: &'a [Limit],
    /// Signals to be given their default actions.
    pub(crate) changed_signals: SignalNumbers,
    pub(crate) at_exec: AtExec,
    pub(crate) program: &'a CStr,
    /// Ends with a null pointer.
    pub(crate) argv: &'a [*const c_char],
    /// Ends with a null pointer.
    pub(crate) envp: &'a [*const c_char],
    /// Written by the child, read by the parent when the child has gone.
    pub(crate) failure: Cell<Option<Failure>>,
}

/// CPUs of a rank, as bit masks.
#[derive(Clone, Copy)]
pub(crate) struct Affinity<'a> {
    pub(crate) planned: &'a [c_ulong],
    /// What the kernel made of it, as long as its longest mask. Written by the child before it executes its program, which may choose others
    /// at once; without a bit if the kernel does not tell.
    pub(crate) given: &'a [Cell<c_ulong>],
}

impl Affinity<'_> {
    /// Binds the calling thread.
    fn take(&self) -> nix::Result<()> {
        let len = size_of_val(self.planned);
        // SAFETY: pointer and length describe `planned`, which is only read.
        Errno::result(unsafe { libc::sched_setaffinity(0, len, self.planned.as_ptr().cast()) })?;
        let len = size_of_val(self.given);
        // SAFETY: pointer and length describe `given`, whose cells may be written to, and which nobody else uses meanwhile.
        unsafe { libc::sched_getaffinity(0, len, self.given.as_ptr().cast_mut().cast()) };
        Ok(())
    }
}

/// Session of a rank, which is the leader of it and of its only process group.
///
/// The kernel's groups of sessions (`sched_autogroup_enabled`) share the CPUs: ranks in the launcher's session would have the share of one
/// process together, where other sessions keep the CPUs busy. And whatever asks a terminal for something there (`bash -i`, a password) would be
/// stopped without a word, as a background job of the launcher's terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RankSession {
    /// It has no terminal.
    WithoutTerminal,
    /// Its terminal is the rank's standard input.
    OnItsTerminal,
}

/// Shows that the thread which holds it has blocked all its signals. It cannot be sent to another thread.
pub(crate) struct SignalsBlocked(PhantomData<*const ()>);

impl SignalsBlocked {
    /// Blocks all signals in the calling thread, for good.
    pub(crate) fn for_this_thread() -> nix::Result<Self> {
        pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None)?;
        Ok(Self(PhantomData))
    }
}

/// Makes a child that carries out `setup`; returns when it has executed its program or ended, as a zombie with
/// `setup.failure` set.
///
/// The kernel copies neither the memory nor its page tables, so the cost does not depend on the size of this process.
pub(crate) fn clone(setup: &ChildSetup<'_>, stack: &mut ChildStack, _: &SignalsBlocked) -> nix::Result<(Pid, OwnedFd)> {
    let mut pidfd: c_int = -1;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD;
    let argument = ptr::from_ref(setup).cast_mut().cast();
    // SAFETY: CLONE_VFORK suspends this thread until the child no longer uses our memory, so `setup`, all it points to and
    // the stack outlive that use, and nobody else touches them (`ChildSetup` is not `Sync`). `stack.top()` is the aligned end of
    // a mapping that one child at a time runs on. All signals are blocked, so no handler runs in the child. The kernel
    // writes the descriptor of CLONE_PIDFD to `pidfd`. `run` gets the argument it asks for.
    let result = unsafe { libc::clone(run, stack.top(), flags, argument, &raw mut pidfd) };
    let pid = Errno::result(result)?;
    // SAFETY: `clone` succeeded, so the kernel has put a new descriptor there, which nobody else owns.
    Ok((Pid::from_raw(pid), unsafe { OwnedFd::from_raw_fd(pidfd) }))
}

/// The child's main function. Only [`clone`] may call it, with a pointer to [`ChildSetup`].
extern "C" fn run(setup: *mut c_void) -> c_int {
    // SAFETY: `clone` passes setup that live until this process has gone or executed its program.
    let setup = unsafe { &*setup.cast::<ChildSetup<'_>>() };
    let Err(failure) = setup.run();
    setup.failure.set(Some(failure));
    // SAFETY: leaves without running the launcher's exit handlers.
    unsafe { libc::_exit(127) }
}

impl ChildSetup<'_> {
    fn run(&self) -> Result<Infallible, Failure> {
        setsid().map_err(at(Step::Session))?;
        self.tie_to_parent()?;
        self.place_descriptors()?;
        self.settle()?;
        // Last among the settings: a limit of descriptors or memory must not hinder those above.
        for limit in self.limits {
            let step = Step::Limit(limit.resource);
            setrlimit(limit.resource.to_nix(), limit.soft, limit.hard).map_err(at(step))?;
        }
        // In this order, as a handler would run in the launcher's memory.
        self.changed_signals.give_default_actions();
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None).map_err(at(Step::SignalMask))?;
        if self.at_exec == AtExec::Stop {
            ask_for_stop().map_err(at(Step::Stop))?;
        }
        // SAFETY: the program is a C string, both arrays end with a null pointer and point to C strings; all are alive.
        unsafe { libc::execve(self.program.as_ptr(), self.argv.as_ptr(), self.envp.as_ptr()) };
        Err(Failure { step: Step::Exec, errno: Errno::last() })
    }

    /// Makes the kernel kill this process when the thread that started it dies, and makes sure that it has not died yet.
    fn tie_to_parent(&self) -> Result<(), Failure> {
        prctl::set_pdeathsig(Signal::SIGKILL).map_err(at(Step::ParentDeathSignal))?;
        if getppid() == self.parent { Ok(()) } else { Err(at(Step::ParentDeathSignal)(Errno::ESRCH)) }
    }

    fn place_descriptors(&self) -> Result<(), Failure> {
        // First out of the way of the targets, so that no target overwrites another's source.
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
            // SAFETY: the call takes integers: standard input, and that nobody is to lose this terminal to us.
            let taken = unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) };
            Errno::result(taken).map_err(at(Step::ControllingTerminal))?;
        }
        // All between and behind the targets is closed.
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

    /// Sets what the program finds around itself: umask, directory, CPUs, memory. Without CLONE_FS the first two are the child's own.
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
            // The kernel reads one bit less than it is told.
            let bits = size_of_val(nodes) * 8 + 1;
            // SAFETY: pointer and number of bits describe `nodes`, which is only read; the policy is that of this thread, and stays when
            // it executes its program.
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

/// Makes `target` the same open file as `source`, another number, and keeps it open in the program.
fn place(source: RawFd, target: RawFd, step: Step) -> Result<(), Failure> {
    // SAFETY: the child's table of descriptors is its own copy; nothing of the launcher's is closed.
    Errno::result(unsafe { libc::dup2(source, target) }).map(drop).map_err(at(step))
}

/// A copy of `fd` whose number is above all target numbers; `fd` itself where it already is.
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
    // SAFETY: the child's table of descriptors is its own copy; nothing of the launcher's is closed.
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
