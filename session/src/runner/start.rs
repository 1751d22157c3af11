//! Processes of the ranks. They are started on the spawner's threads, and watched until they are reaped.

use pmi_transport::task;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use rank_spawner::{
    Keeper, Limit, LimitedResource, Priority, RankCommand, RankExit, RankProcess, Spawner, StartError, Step, Terminal,
    TerminalSize, raise_descriptor_limit, signal_groups, signal_handlers,
};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::reap;
use super::terminal::RankTerminal;
use crate::blocking;
use crate::cause::StartClass;
use crate::machine::StartFailure;
use crate::machine::ranks::SlotId;
use crate::machine::watch::{SilentSeen, WatchLook};
use crate::shell_limits::{Changes, Lowered, ShellLimits};
use crate::spawner::RankSpawner;

/// Result of a start, as delivered by the spawner's thread.
pub(super) type Start = Result<RankProcess, StartError>;

/// All processes of a session.
pub(super) struct Processes {
    /// Kills the started processes when it is dropped.
    spawner: Box<dyn RankSpawner>,
    /// Limits that ranks get instead of the limits of this process.
    pub(super) limits: Arc<[Limit]>,
    news: ProcessNews,
    started: HashMap<SlotId, StartedRank>,
    /// One task for each process, which reaps it.
    watchers: JoinSet<()>,
    /// The terminal of the rank that has one, once the rank runs.
    terminal: Option<Arc<RankTerminal>>,
    /// The last size of its terminal; `None` before the first change.
    terminal_size: Option<TerminalSize>,
    keeper: Option<Keeper>,
    /// Priority of ranks, if it is lower than the priority of this process.
    pub(super) priority: Priority,
}

/// A rank that was started.
enum StartedRank {
    /// Its end was not reported.
    Running(Arc<RankProcess>),
    /// Its end was reported, and it holds no descriptor any more.
    Ended { pid: Pid, exit: RankExit },
}

impl StartedRank {
    fn pid(&self) -> Pid {
        match self {
            Self::Running(process) => process.pid(),
            Self::Ended { pid, .. } => *pid,
        }
    }
}

/// Channels to the session for messages about processes. The number of ranks limits the number of waiting messages.
#[derive(Clone)]
pub(super) struct ProcessNews {
    pub(super) starts: mpsc::UnboundedSender<Start>,
    pub(super) exits: mpsc::UnboundedSender<(SlotId, RankExit)>,
    pub(super) silent: mpsc::UnboundedSender<(WatchLook, SilentSeen)>,
}

impl Processes {
    /// Creates the set of processes, with the limits of the user's shell. Also returns the limits that are too high here.
    ///
    /// # Errors
    /// Fails if the system has no thread or descriptor left.
    pub(super) fn new(
        spawner: Option<Box<dyn RankSpawner>>,
        keeper: Option<Keeper>,
        news: ProcessNews,
        shell: &ShellLimits,
    ) -> Result<(Self, Vec<Lowered>), String> {
        let files = raise_descriptor_limit().map_err(|errno| format!("cannot read the limits: {errno}"))?;
        let own =
            |resource: LimitedResource| if resource == files.resource { Some(files) } else { resource.limit().ok() };
        let Changes { limits, lowered } = shell.changes(own);
        let spawner = match spawner {
            Some(spawner) => spawner,
            None => Box::new(Spawner::new().map_err(|error| format!("cannot start ranks: {error}"))?),
        };
        let processes = Self {
            spawner,
            limits: [files].into_iter().chain(limits).collect(),
            priority: shell.priority.below(Priority::own()),
            news,
            started: HashMap::new(),
            watchers: JoinSet::new(),
            terminal: None,
            terminal_size: None,
            keeper,
        };
        Ok((processes, lowered))
    }

    /// Starts ranks by the spawner.
    pub(super) fn start(&self, commands: Vec<RankCommand>) {
        let results = self.news.starts.clone();
        // If the session is dropped meanwhile, there is no receiver, and the spawner kills the ranks.
        self.spawner.start_all(commands, Box::new(move |result| drop(results.send(result))));
    }

    /// Takes over a process. From now on it is signalled with the other processes, and reaped when it ends.
    pub(super) fn adopt(&mut self, slot: SlotId, process: RankProcess) {
        if let Some(keeper) = &self.keeper {
            // If this fails, the keeper finds the group by the launch's mark.
            let _ = keeper.guard_rank(&process);
        }
        let process = Arc::new(process);
        self.started.insert(slot, StartedRank::Running(Arc::clone(&process)));
        // Drop the watchers of ended ranks.
        while self.watchers.try_join_next().is_some() {}
        let exits = self.news.exits.clone();
        self.watchers.spawn(task::boxed(async move {
            let watched = &*process;
            let exit = reap::until_reaped(move || watched.ended(), || watched.try_wait()).await;
            // The session outlives its watchers.
            let _ = exits.send((slot, exit));
        }));
    }

    /// Takes over a rank's terminal. Its size may have changed before the rank ran.
    pub(super) fn add_terminal(&mut self, terminal: Arc<RankTerminal>) {
        if let Some(size) = self.terminal_size {
            terminal.resize(size);
        }
        self.terminal = Some(terminal);
    }

    /// Changes the size of the terminal, at once or as soon as there is one.
    pub(super) fn resize_terminal(&mut self, size: TerminalSize) {
        self.terminal_size = Some(size);
        if let Some(terminal) = &self.terminal {
            terminal.resize(size);
        }
    }

    /// Returns the exit of a process that has ended, whether it was delivered or not.
    pub(super) fn exit_of(&self, slot: SlotId) -> Option<RankExit> {
        match self.started.get(&slot)? {
            StartedRank::Running(process) => process.try_wait().ok().flatten(),
            StartedRank::Ended { exit, .. } => Some(*exit),
        }
    }

    /// Returns the exit of a process that has ended, or that a signal is ending.
    pub(super) fn certain_exit_of(&self, slot: SlotId) -> Option<RankExit> {
        match self.started.get(&slot)? {
            StartedRank::Running(process) => process.certain_exit(),
            StartedRank::Ended { exit, .. } => Some(*exit),
        }
    }

    /// Records that a rank was reaped. Only its process id and its exit are stored.
    pub(super) fn ended(&mut self, slot: SlotId, exit: RankExit) {
        if let Some(rank) = self.started.get_mut(&slot) {
            *rank = StartedRank::Ended { pid: rank.pid(), exit };
        }
    }

    /// Drops the ranks of a finished job.
    pub(super) fn forget(&mut self, slots: &[SlotId]) {
        slots.iter().for_each(|slot| drop(self.started.remove(slot)));
    }

    /// Returns the process of a rank that was started and not reported as ended.
    fn running(&self, slot: SlotId) -> Option<&Arc<RankProcess>> {
        match self.started.get(&slot)? {
            StartedRank::Running(process) => Some(process),
            StartedRank::Ended { .. } => None,
        }
    }

    /// Sends a signal to the process groups of some ranks.
    pub(super) fn signal(&self, signal: Signal, slots: &[SlotId]) {
        signal_groups(slots.iter().filter_map(|&slot| self.running(slot).map(|process| &**process)), signal);
    }

    /// Returns the processes of these ranks that were started and not reported as ended.
    pub(super) fn of_slots(&self, slots: &[SlotId]) -> Vec<(SlotId, Arc<RankProcess>)> {
        slots.iter().filter_map(|&slot| Some((slot, Arc::clone(self.running(slot)?)))).collect()
    }

    /// Sends a signal to the processes of these ranks that handle it.
    pub(super) fn signal_handlers(&self, signal: Signal, slots: &[SlotId]) {
        let ranks = slots.iter().filter_map(|&slot| self.running(slot).cloned());
        let ranks: Vec<Arc<RankProcess>> = ranks.collect();
        // Without a process table no rank receives the signal; ranks can still ask.
        drop(blocking::begin(move || drop(signal_handlers(ranks.iter().map(|rank| &**rank), signal))));
    }

    /// Returns the processes that were started, including ended processes of jobs that are not over.
    pub(super) fn pids(&self) -> Vec<Pid> {
        self.started.values().map(StartedRank::pid).collect()
    }

    /// Returns the processes that were started and not reaped: no other process has their ids.
    pub(super) fn unreaped_pids(&self) -> Vec<Pid> {
        let running = self.started.values().filter_map(|rank| match rank {
            StartedRank::Running(process) => Some(process),
            StartedRank::Ended { .. } => None,
        });
        running.filter(|process| !process.is_reaped()).map(|process| process.pid()).collect()
    }

    /// Registers files for removal by the keeper, if it outlives the session.
    pub(super) fn guard_files(&self, files: &[PathBuf]) {
        for (keeper, file) in self.keeper.iter().flat_map(|keeper| files.iter().map(move |file| (keeper, file))) {
            // A keeper that is gone removes nothing. Usually the session removes the file itself.
            let _ = keeper.guard_file(file);
        }
    }

    /// Returns the keeper, if there is one.
    pub(super) fn keeper(&self) -> Option<&Keeper> {
        self.keeper.as_ref()
    }

    /// Returns the keeper, which must be dismissed when nothing is left.
    pub(super) fn take_keeper(&mut self) -> Option<Keeper> {
        self.keeper.take()
    }
}

/// Converts a failed start to the form for the machine.
pub(super) fn failure(error: &StartError) -> StartFailure {
    match error {
        StartError::GivenUp { .. } => StartFailure::GivenUp,
        error => StartFailure::Failed { class: start_class(error), reason: error.to_string() },
    }
}

/// Returns the class of a failed start, by the rules of a shell. If a file exists and was not executed, the file is at fault, such as a file
/// that is still being written (ETXTBSY). The exception is a node that lacks a resource.
fn start_class(error: &StartError) -> StartClass {
    use Errno::{E2BIG, EACCES, EAGAIN, EIO, EMFILE, ENFILE, ENOENT, ENOMEM, ENOTDIR, ETXTBSY};
    match error {
        StartError::Step { step: Step::Exec, errno, .. } => match *errno {
            ENOENT | ENOTDIR => StartClass::NotFound,
            EAGAIN | EIO | EMFILE | ENFILE | ENOMEM => StartClass::System,
            EACCES => StartClass::NotPermitted,
            ETXTBSY => StartClass::Busy,
            E2BIG => StartClass::TooLong,
            _ => StartClass::CannotExecute,
        },
        StartError::Step { step: Step::Directory, .. } => StartClass::WorkingDirectory,
        _ => StartClass::System,
    }
}

/// Streams of a started process that the session serves.
pub(super) struct Streams {
    pub(super) pmi: Option<OwnedFd>,
    pub(super) stdin: Option<OwnedFd>,
    pub(super) stdout: Option<OwnedFd>,
    pub(super) stderr: Option<OwnedFd>,
    pub(super) terminal: Option<Terminal>,
}

impl Streams {
    pub(super) fn take(process: &mut RankProcess) -> Self {
        let RankProcess { pmi, stdin, stdout, stderr, terminal, .. } = process;
        Self {
            pmi: pmi.take(),
            stdin: stdin.take(),
            stdout: stdout.take(),
            stderr: stderr.take(),
            terminal: terminal.take(),
        }
    }
}
