//! Threads that start ranks.
//!
//! Starting a rank suspends the starting thread until the rank executes its program. The caller's thread may already serve running ranks,
//! so it never starts one. The kernel kills a rank when *the thread* that started it ends (`PR_SET_PDEATHSIG`); therefore these threads
//! live as long as the [`Spawner`].
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

/// Starts ranks on its own threads.
///
/// Dropping it kills all running ranks that it started: ranks do not outlive their launcher.
#[derive(Debug)]
pub struct Spawner {
    queue: Option<Sender<Request>>,
    shared: Arc<Shared>,
    threads_max: NonZeroUsize,
    /// One thread per command of the largest call of [`Spawner::start_all`], `threads_max` at most; at least one.
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// State that all threads share.
#[derive(Debug)]
struct Shared {
    requests: Mutex<Receiver<Request>>,
    closing: AtomicBool,
    null: Arc<OwnedFd>,
    changed_signals: ChangedSignals,
}

/// Command in the queue.
struct Request {
    command: RankCommand,
    batch: Arc<Batch>,
}

/// State of one call: its failure, and the callback for results.
struct Batch {
    failed: AtomicBool,
    deliver: Box<Deliver>,
}

type Deliver = dyn Fn(Result<RankProcess, StartError>) + Send + Sync;

impl Spawner {
    /// At 0.13 ms per start, eight threads with a CPU each start 256 ranks in about 4 ms. More threads bring no noticeable gain.
    const THREADS_MAX: NonZeroUsize = NonZeroUsize::new(8).expect("eight is not zero");

    /// Makes a spawner with up to one thread per CPU, eight at most. With fewer threads, CPUs are idle while a rank's memory is set up.
    /// More threads gain nothing on two almost idle CPUs (measured).
    ///
    /// # Errors
    /// Fails if the system has no thread, memory or descriptor left.
    pub fn new() -> io::Result<Self> {
        Self::with_threads(usable_cpus().min(Self::THREADS_MAX))
    }

    /// Makes a spawner with up to this many threads. It starts with one, and adds threads when there are ranks for them.
    ///
    /// If this process ignores SIGCHLD, possibly by inheritance, the call undoes that: the exit status of ranks would be lost.
    ///
    /// # Errors
    /// See [`Spawner::new`].
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

    /// Starts one rank, and returns when it executes its program.
    ///
    /// # Errors
    /// See the variants of [`StartError`].
    pub fn start(&self, command: RankCommand) -> Result<RankProcess, StartError> {
        let rank = command.rank;
        let (sender, receiver) = mpsc::channel();
        self.start_all([command], move |result| {
            // The receiver below waits for this message.
            let _ = sender.send(result);
        });
        receiver.recv().unwrap_or(Err(StartError::GivenUp { rank }))
    }

    /// Starts ranks in the order of `commands` and returns at once.
    ///
    /// Ranks have the default action for every signal. While a call is starting ranks, do not change the action of a signal for the first
    /// time.
    ///
    /// The spawner's threads call `deliver` exactly once per command, for each rank as soon as it runs. It must not block or panic. After
    /// the first failure of this call, the spawner starts no further ranks of it; the caller must kill the running ones.
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
        // No code panics while it holds the lock.
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        while threads.len() < commands.min(self.threads_max.get()) {
            match Shared::start_thread(&self.shared) {
                Ok(thread) => threads.push(thread),
                // The existing threads do the work more slowly.
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
            // The thread has already reported a panic in `deliver`.
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
    /// Starts a thread.
    fn start_thread(shared: &Arc<Self>) -> io::Result<JoinHandle<()>> {
        let mut stack = ChildStack::map()?;
        let shared = Arc::clone(shared);
        thread::Builder::new().name("lattice-spawner".into()).spawn(move || shared.run(&mut stack)).map_err(no_thread)
    }

    /// Main function of a thread; returns when the queue is closed.
    fn run(&self, stack: &mut ChildStack) {
        let blocked = SignalsBlocked::for_this_thread().expect("blocking signals fails for wrong arguments only");
        // A thread can panic with this lock only while it waits for a request.
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

/// Error of a thread start, with its meaning.
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
