//! The threads that start ranks.
//!
//! Starting a rank suspends the thread that does it until the rank executes its program, so the caller's thread, which may
//! serve ranks that run already, never does it. The kernel kills a rank when *the thread* that started it ends
//! (`PR_SET_PDEATHSIG`); therefore these threads live as long as the [`Spawner`].
//!
//! ```text
//! start_all ──Request──> queue ──> thread ──clone──> rank
//!                                   └──Result<RankProcess, StartError>──> deliver, once per command
//! ```

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use nix::errno::Errno;

use crate::changed_signals::ChangedSignals;
use crate::child::SignalsBlocked;
use crate::cpus::usable_cpus;
use crate::process::RankProcess;
use crate::stack::ChildStack;
use crate::start::{RankCommand, StartError, no_process, start};
use crate::stdio::open_null;
use crate::syscalls::keep_ended_children;

/// Starts ranks on threads of its own.
///
/// Dropping it kills every rank that it started and that still runs: ranks do not outlive their launcher.
#[derive(Debug)]
pub struct Spawner {
    queue: Option<Sender<Request>>,
    shared: Arc<Shared>,
    threads_max: NonZeroUsize,
    /// One thread per command of the largest call of [`Spawner::start_all`], up to `threads_max`; at least one.
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// State that the threads share.
#[derive(Debug)]
struct Shared {
    requests: Mutex<Receiver<Request>>,
    closing: AtomicBool,
    null: Arc<OwnedFd>,
    changed_signals: ChangedSignals,
}

/// A command on its way to a thread.
struct Request {
    command: RankCommand,
    batch: Arc<Batch>,
}

/// The commands of one call, and who wants to know of them.
struct Batch {
    failed: AtomicBool,
    deliver: Box<Deliver>,
}

type Deliver = dyn Fn(Result<RankProcess, StartError>) + Send + Sync;

impl Spawner {
    /// With 0.13 ms per start, eight threads with a CPU each start 256 ranks in about 4 ms: more would not be noticed.
    const THREADS_MAX: NonZeroUsize = NonZeroUsize::new(8).expect("eight is not zero");

    /// A spawner with up to a thread per CPU, up to eight. Fewer leave CPUs idle while a rank's memory is set up; more gain
    /// nothing on two CPUs that have little else to do (measured).
    ///
    /// # Errors
    /// Fails when the system has no thread, no memory or no descriptor left.
    pub fn new() -> io::Result<Self> {
        Self::with_threads(usable_cpus().min(Self::THREADS_MAX))
    }

    /// A spawner with up to this many threads: one to begin with, more when there are ranks for them.
    ///
    /// If this process ignores SIGCHLD, as it may have inherited, that is undone: the ends of ranks would be lost.
    ///
    /// # Errors
    /// As [`Spawner::new`].
    pub fn with_threads(threads: NonZeroUsize) -> io::Result<Self> {
        keep_ended_children()?;
        let (queue, requests) = mpsc::channel();
        let requests = Mutex::new(requests);
        let null = Arc::new(open_null()?.into());
        let changed_signals = ChangedSignals::default();
        let shared = Arc::new(Shared { requests, closing: AtomicBool::new(false), null, changed_signals });
        let first = Shared::start_thread(&shared)?;
        Ok(Self { queue: Some(queue), shared, threads_max: threads, threads: Mutex::new(vec![first]) })
    }

    /// Starts one rank, and waits until it executes its program.
    ///
    /// # Errors
    /// See the variants of [`StartError`].
    pub fn start(&self, command: RankCommand) -> Result<RankProcess, StartError> {
        let rank = command.rank;
        let (sender, receiver) = mpsc::channel();
        self.start_all([command], move |result| {
            // The receiver below waits for exactly this.
            let _ = sender.send(result);
        });
        receiver.recv().unwrap_or(Err(StartError::GivenUp { rank }))
    }

    /// Starts ranks in the order of `commands` and returns at once.
    ///
    /// Ranks have the default action for every signal. No action may be changed for the first time while ranks of a call are being started.
    ///
    /// `deliver` is called on the spawner's threads, exactly once per command, each rank as soon as it runs; it must not
    /// block or panic. After the first failure of this call the ranks that were not yet begun are given up; those that
    /// run are the caller's to kill.
    pub fn start_all<F>(&self, commands: impl IntoIterator<Item = RankCommand>, deliver: F)
    where
        F: Fn(Result<RankProcess, StartError>) + Send + Sync + 'static,
    {
        let batch = Arc::new(Batch { failed: AtomicBool::new(false), deliver: Box::new(deliver) });
        let commands: Vec<RankCommand> = commands.into_iter().collect();
        self.have_threads_for(commands.len());
        self.shared.changed_signals.look();
        for command in commands {
            let request = Request { command, batch: Arc::clone(&batch) };
            match &self.queue {
                Some(queue) => {
                    if let Err(mpsc::SendError(request)) = queue.send(request) {
                        request.give_up();
                    }
                }
                None => request.give_up(),
            }
        }
    }
}

impl Spawner {
    fn have_threads_for(&self, commands: usize) {
        // Nothing panics while it is locked.
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        while threads.len() < commands.min(self.threads_max.get()) {
            match Shared::start_thread(&self.shared) {
                Ok(thread) => threads.push(thread),
                // Those that are there do it as well, only not as fast.
                Err(_) => return,
            }
        }
    }
}

impl Drop for Spawner {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::Relaxed);
        self.queue = None;
        let threads = self.threads.get_mut().unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            // A panic in `deliver` has been reported by its thread already.
            let _ = thread.join();
        }
    }
}

impl Request {
    fn execute(self, shared: &Shared, stack: &mut ChildStack, blocked: &SignalsBlocked) {
        if self.batch.failed.load(Ordering::Relaxed) {
            return self.give_up();
        }
        let result = start(&self.command, &shared.null, shared.changed_signals.seen(), stack, blocked);
        if result.is_err() {
            self.batch.failed.store(true, Ordering::Relaxed);
        }
        (self.batch.deliver)(result);
    }

    fn give_up(self) {
        (self.batch.deliver)(Err(StartError::GivenUp { rank: self.command.rank }));
    }
}

impl Shared {
    /// Puts a thread to work.
    fn start_thread(shared: &Arc<Self>) -> io::Result<JoinHandle<()>> {
        let mut stack = ChildStack::map()?;
        let shared = Arc::clone(shared);
        thread::Builder::new().name("lattice-spawner".into()).spawn(move || shared.run(&mut stack)).map_err(no_thread)
    }

    /// Main function of a thread; returns when the queue is closed.
    fn run(&self, stack: &mut ChildStack) {
        let blocked = SignalsBlocked::for_this_thread().expect("blocking signals fails for wrong arguments only");
        // A thread that panicked while it held the lock had only been waiting for a request.
        let next = || self.requests.lock().unwrap_or_else(PoisonError::into_inner).recv();
        while let Ok(request) = next() {
            if self.closing.load(Ordering::Relaxed) {
                request.give_up();
            } else {
                request.execute(self, stack, &blocked);
            }
        }
    }
}

/// The error of a thread that cannot be started, with what it means.
fn no_thread(error: io::Error) -> io::Error {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(errno) => io::Error::new(error.kind(), no_process(errno)),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_threads_as_ever_had_something_to_do_at_once() {
        let spawner = Spawner::with_threads(NonZeroUsize::new(3).unwrap()).unwrap();
        let threads = |commands| {
            spawner.have_threads_for(commands);
            spawner.threads.lock().unwrap().len()
        };
        assert_eq!([threads(0), threads(2), threads(1), threads(9)], [1, 2, 2, 3]);
    }
}
