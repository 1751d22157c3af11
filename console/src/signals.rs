//! Signals that this process receives, and the sender of each: the terminal or a process.
//!
//! ```text
//! Ctrl-C, a terminal that closes   sent by the kernel, to all processes in the foreground of the terminal
//! kill PID                         sent by a process, to this one alone
//! kill -- -PGID, timeout, scancel  sent by a process to many, to this one sometimes twice: directly, and with its group
//! ```
//! The receiver of a signal cannot determine its other receivers. So a program that forwards a signal may send it to a child that has already
//! received it, and a second ending signal means "at once". Repeats that no user can have intended are therefore dropped.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getppid};
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::iterator::exfiltrator::origin::Origin;
use signal_hook::low_level::emulate_default_handler;
use signal_hook::low_level::siginfo::Cause;
use signal_hook_tokio::SignalsInfo;
use tokio_stream::StreamExt;

use crate::exit;

/// Signals that end a launch.
pub const ENDING: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
/// Signals that notify a program. Most of them end a program without a handler.
pub const TELLING: [Signal; 6] =
    [Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGALRM, Signal::SIGURG, Signal::SIGXCPU];

/// Time within which equal signals from processes are one signal: sent to the process and to its group, or also by its parent.
const ONE_WITHIN: Duration = Duration::from_millis(200);

/// True after the terminal has interrupted this process, unless the interrupt was [for a command](leave_interrupt_to_command) of it.
static IS_INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// A signal that this process has received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The signal.
    pub signal: Signal,
    /// Its sender.
    pub sender: Sender,
}

/// Sender of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The terminal: all processes in its foreground receive the signal.
    Terminal,
    /// A process. If it is in another PID namespace, it has no number here.
    Process(Option<Pid>),
}

/// Signals that this process handles. They no longer have their default action.
#[derive(Debug)]
pub struct Signals {
    received: Stream,
    repeats: Repeats,
}

/// Wrapper with `Debug`.
struct Stream(SignalsInfo<WithOrigin>);

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SignalsInfo")
    }
}

/// Resets signals to the state after the start by a shell. Signals that end or stop this process are not blocked, even if its parent has blocked
/// them. A write beyond the limit of `ulimit -f` fails with EFBIG, and SIGXFSZ does not end the process. Programs that it starts have the
/// default action of SIGXFSZ. Must be called while this process has one thread.
///
/// # Errors
/// Fails if the system refuses it.
pub fn prepare() -> io::Result<()> {
    let ours: SigSet = ENDING.into_iter().chain(TELLING).chain([Signal::SIGTSTP, Signal::SIGCONT]).collect();
    ours.thread_unblock()?;
    // The flag is not used, because the failed write reports the error.
    signal_hook::flag::register(Signal::SIGXFSZ as i32, Arc::default()).map(drop)
}

/// Restores the default action of the signals that end a launch, after the end of [`Signals`]: signal-hook leaves its handlers, which then have
/// no effect. Ignored signals stay ignored.
///
/// # Errors
/// Fails if the system refuses a handler.
pub fn end_us() -> io::Result<()> {
    let ignored = ignored_signals();
    let ending = ENDING.into_iter().chain([Signal::SIGQUIT]).map(|signal| signal as i32);
    ending.filter(|number| ignored >> (number - 1) & 1 == 0).try_for_each(|number| {
        signal_hook::flag::register_conditional_default(number, Arc::new(AtomicBool::new(true))).map(drop)
    })
}

/// Ends this process by SIGINT if the terminal has interrupted it and `code` is the exit code for SIGINT. A shell that waits for this process
/// ends its loop or script only then. After an exit with code 130 it continues.
pub fn end_if_interrupted(code: u8) {
    let signal = Signal::SIGINT as i32;
    if IS_INTERRUPTED.load(Ordering::Relaxed) && code == exit::by_signal(signal) {
        // Returns only if the system refuses the default action. The caller then exits with the code.
        let _ = emulate_default_handler(signal);
    }
}

/// Leaves an interrupt of the terminal to a command that has ended with its own exit code. The command has handled the signal, and this process
/// continues to its own end.
pub fn leave_interrupt_to_command() {
    IS_INTERRUPTED.store(false, Ordering::Relaxed);
}

impl Signals {
    /// Handles these signals. Signals that this process was started to ignore (`nohup`) stay ignored. Needs a tokio runtime.
    ///
    /// # Errors
    /// Fails if the system refuses a handler.
    pub fn listen(wanted: impl IntoIterator<Item = Signal>) -> io::Result<Self> {
        let ignored = ignored_signals();
        let numbers = wanted.into_iter().map(|signal| signal as i32).filter(|number| ignored >> (number - 1) & 1 == 0);
        let received = Stream(SignalsInfo::with_exfiltrator(numbers, WithOrigin::default())?);
        Ok(Self { received, repeats: Repeats::default() })
    }

    /// Waits for the next signal. Cancel-safe.
    pub async fn next(&mut self) -> Received {
        loop {
            let Some(origin) = self.received.0.next().await else {
                // The stream is never closed.
                return std::future::pending().await;
            };
            let Ok(signal) = Signal::try_from(origin.signal) else { continue };
            let received = Received { signal, sender: Sender::of(&origin) };
            if received == (Received { signal: Signal::SIGINT, sender: Sender::Terminal }) {
                IS_INTERRUPTED.store(true, Ordering::Relaxed);
            }
            if !self.repeats.has(received, (Instant::now(), getppid())) {
                return received;
            }
        }
    }
}

impl Sender {
    fn of(origin: &Origin) -> Self {
        match origin.cause {
            Cause::Kernel => Self::Terminal,
            _ => Self::Process(origin.process.map(|process| Pid::from_raw(process.pid)).filter(|pid| pid.as_raw() > 0)),
        }
    }
}

/// The last signal of each kind that a process has sent.
#[derive(Debug, Default)]
struct Repeats(HashMap<Signal, (Instant, Sender)>);

impl Repeats {
    /// True for a repeat by a process within [`ONE_WITHIN`]: of a signal that ends this process, or of any signal with exactly one copy from the
    /// parent. Signals of the terminal are no repeats.
    fn has(&mut self, Received { signal, sender }: Received, (now, parent): (Instant, Pid)) -> bool {
        if sender == Sender::Terminal {
            return false;
        }
        let is_parent = |sender| sender == Sender::Process(Some(parent));
        match self.0.get(&signal) {
            Some(&(at, before)) if now.duration_since(at) < ONE_WITHIN => {
                let was_passed_on = is_parent(before) != is_parent(sender);
                if ENDING.contains(&signal) || was_passed_on {
                    return true;
                }
            }
            _ => {}
        }
        self.0.insert(signal, (now, sender));
        false
    }
}

/// Mask of the signals that this process was started to ignore; 0 if it cannot be read.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::raise;

    use super::*;
    use crate::runtime;

    const PARENT: Pid = Pid::from_raw(100);
    const OTHER: Sender = Sender::Process(Some(Pid::from_raw(200)));

    /// Times of the `signals` that are no repeats, in milliseconds after the first signal.
    fn heard(signals: &[(u64, Signal, Sender)]) -> Vec<u64> {
        let (mut repeats, begin) = (Repeats::default(), Instant::now());
        let new = signals.iter().filter(|&&(after, signal, sender)| {
            !repeats.has(Received { signal, sender }, (begin + Duration::from_millis(after), PARENT))
        });
        new.map(|&(after, ..)| after).collect()
    }

    /// `timeout` sends SIGTERM to its child and to its group. A launch of `--via` also receives it from its parent.
    #[test]
    fn a_signal_to_end_that_comes_twice_at_once_is_one() {
        let parent = Sender::Process(Some(PARENT));
        for (first, second) in [(parent, parent), (OTHER, parent), (parent, OTHER), (OTHER, OTHER)] {
            assert_eq!(heard(&[(0, Signal::SIGTERM, first), (3, Signal::SIGTERM, second)]), [0]);
        }
        assert_eq!(heard(&[(0, Signal::SIGTERM, OTHER), (250, Signal::SIGTERM, OTHER)]), [0, 250], "somebody insists");
        assert_eq!(heard(&[(0, Signal::SIGTERM, OTHER), (3, Signal::SIGINT, OTHER)]), [0, 3], "two signals are two");
    }

    #[test]
    fn two_interrupts_of_the_terminal_are_two() {
        assert_eq!(heard(&[(0, Signal::SIGINT, Sender::Terminal), (150, Signal::SIGINT, Sender::Terminal)]), [0, 150]);
    }

    /// A program can count its signals: only copies from the parent process are dropped.
    #[test]
    fn of_other_signals_only_those_that_were_passed_on_are_repeats() {
        let parent = Sender::Process(Some(PARENT));
        assert_eq!(heard(&[(0, Signal::SIGUSR1, OTHER), (3, Signal::SIGUSR1, OTHER)]), [0, 3]);
        assert_eq!(heard(&[(0, Signal::SIGUSR1, parent), (3, Signal::SIGUSR1, parent)]), [0, 3]);
        assert_eq!(heard(&[(0, Signal::SIGUSR1, OTHER), (3, Signal::SIGUSR1, parent)]), [0]);
        assert_eq!(heard(&[(0, Signal::SIGUSR1, parent), (3, Signal::SIGUSR1, OTHER)]), [0]);
    }

    #[test]
    fn what_the_parent_had_blocked_and_the_size_of_a_file_do_not_decide_our_end() {
        let mut blocked = SigSet::empty();
        [Signal::SIGTERM, Signal::SIGINT].into_iter().for_each(|signal| blocked.add(signal));
        blocked.thread_block().unwrap();
        prepare().unwrap();
        let now = SigSet::thread_get_mask().unwrap();
        assert!(!now.contains(Signal::SIGTERM) && !now.contains(Signal::SIGINT));
        raise(Signal::SIGXFSZ).unwrap();
    }

    #[test]
    fn the_sender_is_known() {
        let received = runtime::block_on(async {
            let mut signals = Signals::listen([Signal::SIGUSR2]).unwrap();
            raise(Signal::SIGUSR2).unwrap();
            signals.next().await
        });
        let us = Sender::Process(Some(nix::unistd::getpid()));
        assert_eq!(received.unwrap(), Received { signal: Signal::SIGUSR2, sender: us });
    }
}
