//! Starts one rank on the calling thread.

use std::cell::Cell;
use std::ffi::{CString, c_ulong};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use lattice_inventory::CpuSet;
use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::getpid;
use pmi_core::ids::Rank;

use crate::arguments::Arguments;
use crate::changed_signals::SignalNumbers;
use crate::child::{Affinity, AtExec, ChildSetup, RankSession, SignalsBlocked, Step, clone};
use crate::environment::RankEnvironment;
use crate::limits::Limit;
use crate::memory_binding::MemoryPolicy;
use crate::priority::Priority;
use crate::process::RankProcess;
use crate::program::Program;
use crate::stack::ChildStack;
use crate::stdio::{Direction, Ends, StandardStreams, Stdio};
use crate::syscalls::{self, Child};
use crate::terminal::{Terminal, TerminalSize};

/// Description of a rank to start.
#[derive(Clone, Debug)]
pub struct RankCommand {
    /// Rank number; used in messages only.
    pub rank: Rank,
    /// Program to execute.
    pub program: Program,
    /// Arguments, the program's own name included.
    pub arguments: Arguments,
    /// Environment.
    pub environment: RankEnvironment,
    /// Working directory; `None` for the launcher's.
    pub directory: Option<PathBuf>,
    /// Standard input.
    pub stdin: Stdio,
    /// Standard output.
    pub stdout: Stdio,
    /// Standard error.
    pub stderr: Stdio,
    /// Size of a pseudo-terminal that replaces all three streams and is the rank's controlling terminal; `None` for no
    /// terminal.
    pub terminal: Option<TerminalSize>,
    /// True if the rank has a PMI socket, as descriptor [`crate::PMI_FD`].
    pub pmi: bool,
    /// Memory of the job, as descriptor [`crate::JOB_MEMORY_FD`].
    pub job_memory: Option<Arc<OwnedFd>>,
    /// Memory that ranks of the node share, as descriptor [`crate::NODE_MEMORY_FD`].
    pub node_memory: Option<Arc<OwnedFd>>,
    /// Part of the node that the rank is bound to.
    pub bound_to: BoundTo,
    /// File mode creation mask, of which only the permission bits are used; `None` for the launcher's.
    pub umask: Option<u32>,
    /// Priority values that are lower than the launcher's.
    pub priority: Priority,
    /// Limits that differ from the launcher's.
    pub limits: Arc<[Limit]>,
    /// Behaviour of the rank after it has executed its program.
    pub at_exec: AtExec,
}

/// Part of a node that a rank is bound to.
#[derive(Clone, Debug, Default)]
pub struct BoundTo {
    /// CPUs of the rank; `None` for the launcher's.
    pub cpus: Option<CpuSet>,
    /// NUMA nodes for the rank's memory; `None` for the launcher's policy.
    pub memory: Option<MemoryPolicy>,
}

impl RankCommand {
    /// A rank with a PMI socket and with `/dev/null` as standard streams. It inherits all other properties from the
    /// launcher.
    pub fn new(rank: Rank, program: Program, arguments: Arguments, environment: RankEnvironment) -> Self {
        Self {
            rank,
            program,
            arguments,
            environment,
            directory: None,
            stdin: Stdio::Null,
            stdout: Stdio::Null,
            stderr: Stdio::Null,
            terminal: None,
            pmi: true,
            job_memory: None,
            node_memory: None,
            bound_to: BoundTo::default(),
            umask: None,
            priority: Priority::default(),
            limits: Arc::new([]),
            at_exec: AtExec::Run,
        }
    }
}

/// Error of a start. The rank leaves no process.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A descriptor for the rank could not be made.
    #[error("rank {rank}: cannot make its {what}: {}", errno.desc())]
    Descriptors {
        /// The rank.
        rank: Rank,
        /// Descriptor that could not be made.
        what: &'static str,
        /// Error of the system.
        errno: Errno,
    },
    /// The process could not be made.
    #[error("rank {rank}: cannot make a process: {}", no_process(*errno))]
    Clone {
        /// The rank.
        rank: Rank,
        /// Error of the system.
        errno: Errno,
    },
    /// The process failed at a set-up step, or could not execute the program.
    #[error("rank {rank}: cannot {step}{}: {}", Path(path.as_ref()), errno.desc())]
    Step {
        /// The rank.
        rank: Rank,
        /// Failed step.
        step: Step,
        /// Error of the system.
        errno: Errno,
        /// Directory or program of the step, if any.
        path: Option<PathBuf>,
    },
    /// The rank was not tried: another rank failed, or the spawner was being dropped.
    #[error("rank {rank}: not started, because the start of the ranks was given up")]
    GivenUp {
        /// The rank.
        rank: Rank,
    },
}

impl StartError {
    /// Rank that was not started.
    pub fn rank(&self) -> Rank {
        match *self {
            Self::Descriptors { rank, .. }
            | Self::Clone { rank, .. }
            | Self::Step { rank, .. }
            | Self::GivenUp { rank } => rank,
        }
    }
}

/// Path after a blank, if there is one.
struct Path<'a>(Option<&'a PathBuf>);

impl std::fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(path) => write!(f, " {}", path.display()),
            None => Ok(()),
        }
    }
}

/// Meaning of an error of `clone(2)`, which makes processes and threads.
pub(crate) fn no_process(errno: Errno) -> &'static str {
    match errno {
        Errno::EAGAIN => {
            "the limit of processes and threads of the user (`ulimit -u`), of the control group (pids.max) or of the system is reached"
        }
        errno => errno.desc(),
    }
}

/// Starts a rank, and returns when it executes its program.
///
/// The kernel kills the rank when the calling thread ends. `changed_signals` are the signals with other than default actions
/// in this process.
pub(crate) fn start(
    command: &RankCommand,
    null: &Arc<OwnedFd>,
    changed_signals: SignalNumbers,
    stack: &mut ChildStack,
    blocked: &SignalsBlocked,
) -> Result<RankProcess, StartError> {
    let rank = command.rank;
    let missing = |what| move |errno| StartError::Descriptors { rank, what, errno };
    let streams = standard_streams(command, null)?;
    let pmi = command.pmi.then(Ends::of_pmi).transpose().map_err(missing("PMI socket"))?;
    let directory = command.directory.as_ref().map(|path| CString::new(path.as_os_str().as_bytes())).transpose();
    let directory = directory.map_err(|_| step_error(command, Step::Directory, Errno::EINVAL))?;
    let planned = command.bound_to.cpus.as_ref().map(CpuSet::to_mask);
    let mut given = planned.as_ref().map(|_| syscalls::no_cpus()).unwrap_or_default();
    let given = Cell::from_mut(given.as_mut_slice()).as_slice_of_cells();
    let memory = command.bound_to.memory.as_ref().map(MemoryPolicy::to_kernel);
    let argv = command.arguments.pointers();
    let envp = command.environment.pointers();
    let setup = ChildSetup {
        session: match command.terminal {
            Some(_) => RankSession::OnItsTerminal,
            None => RankSession::WithoutTerminal,
        },
        parent: getpid(),
        streams: streams.rank_fds(),
        pmi: pmi.as_ref().map(Ends::rank_fd),
        job_memory: command.job_memory.as_ref().map(AsRawFd::as_raw_fd),
        node_memory: command.node_memory.as_ref().map(AsRawFd::as_raw_fd),
        directory: directory.as_deref(),
        umask: command.umask.map(Mode::from_bits_truncate),
        affinity: planned.as_deref().map(|planned| Affinity { planned, given }),
        memory: memory.as_ref().map(|(mode, nodes)| (*mode, nodes.as_slice())),
        priority: command.priority,
        limits: &command.limits,
        changed_signals,
        at_exec: command.at_exec,
        program: command.program.as_c_str(),
        argv: &argv,
        envp: &envp,
        failure: Cell::new(None),
    };
    let (pid, pidfd) = clone(&setup, stack, blocked).map_err(|errno| StartError::Clone { rank, errno })?;
    if let Some(failure) = setup.failure.get() {
        // Other code that reaps all children of this process may have been faster.
        let _ = syscalls::reap(Child::Pidfd(pidfd.as_fd()));
        return Err(step_error(command, failure.step, failure.errno));
    }
    command.priority.give_score(pid, pidfd.as_fd());
    if command.at_exec == AtExec::Stop
        && let Err(errno) = syscalls::leave_stopped(pid)
    {
        // A failure means that the rank has ended.
        let _ = syscalls::pidfd_send_signal(pidfd.as_fd(), Signal::SIGKILL);
        let _ = syscalls::reap(Child::Pidfd(pidfd.as_fd()));
        return Err(step_error(command, Step::Stop, errno));
    }
    let mut process = RankProcess::new(rank, pid, pidfd);
    streams.hand_over(&mut process);
    process.pmi = pmi.and_then(|ends| ends.ours);
    let given: Vec<c_ulong> = given.iter().map(Cell::get).collect();
    process.given_cpus = Some(CpuSet::from_mask(&given)).filter(|cpus| !cpus.is_empty());
    Ok(process)
}

fn standard_streams(command: &RankCommand, null: &Arc<OwnedFd>) -> Result<StandardStreams, StartError> {
    let rank = command.rank;
    let missing = |what| move |errno| StartError::Descriptors { rank, what, errno };
    if let Some(size) = command.terminal {
        let (ours, rank) = Terminal::open(size).map_err(missing("pseudo-terminal"))?;
        return Ok(StandardStreams::Terminal { rank, ours });
    }
    Ok(StandardStreams::Apart {
        stdin: Ends::of_stream(&command.stdin, null, Direction::Input).map_err(missing("stdin"))?,
        stdout: Ends::of_stream(&command.stdout, null, Direction::Output).map_err(missing("stdout"))?,
        stderr: Ends::of_stream(&command.stderr, null, Direction::Output).map_err(missing("stderr"))?,
    })
}

fn step_error(command: &RankCommand, step: Step, errno: Errno) -> StartError {
    let path = match step {
        Step::Directory => command.directory.clone(),
        Step::Exec => Some(command.program.path().to_owned()),
        _ => None,
    };
    StartError::Step { rank: command.rank, step, errno, path }
}
