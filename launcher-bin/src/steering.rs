//! What the user wants while a launch runs: signals become [`Control`]s of the session.
//!
//! ```text
//! SIGINT, SIGTERM, SIGHUP   the first ends the launch in order, the second at once
//! SIGTSTP (Ctrl-Z)          stops the ranks, then ourselves; SIGCONT lets all go on
//! QUIT, USR1, USR2, ...     to the ranks, as they are
//! output closed             ends the launch in order, as SIGPIPE ends a program
//! ```
//!
//! A signal that was ignored when we were started (`nohup`) stays ignored.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use lattice_session::session::Control;
use nix::sys::signal::{Signal, raise};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// The signals that end a launch.
const ENDING: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
/// The signals that the ranks get as they are. SIGCHLD, SIGPIPE and those of the terminal's job control are our own.
const FORWARDED: [Signal; 8] = [
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGURG,
    Signal::SIGXCPU,
    Signal::SIGWINCH,
    Signal::SIGCONT,
];

/// How long output may still be written after the user ended the launch at once.
const LAST_WRITES: Duration = Duration::from_millis(500);
/// How long the session may take to stop the ranks before we stop ourselves.
const STOPPING: Duration = Duration::from_millis(200);

/// How far it is to the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Distance {
    /// A command has reached them when it has been taken out of the queue.
    Here,
    /// It is on its way then.
    Elsewhere,
}

/// The reins of a launch.
#[derive(Debug)]
pub(crate) struct Steering {
    signals: mpsc::UnboundedReceiver<Signal>,
    control: mpsc::Sender<Control>,
    hung_up: Arc<Notify>,
    interrupts: mpsc::UnboundedSender<Signal>,
    abandon: watch::Sender<bool>,
    distance: Distance,
    phase: Phase,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Running,
    /// Asked to end in order.
    Ending,
    /// Ended at once; from then on nobody waits for a slow reader.
    Killed {
        patience_until: Instant,
    },
    /// Nobody waits for a slow reader any more.
    Abandoned,
}

/// The other ends of what [`Steering`] speaks to.
#[derive(Debug)]
pub(crate) struct Reins {
    /// What the session is told.
    pub(crate) control: mpsc::Receiver<Control>,
    /// The signals by which the user ended the launch.
    pub(crate) interrupts: mpsc::UnboundedReceiver<Signal>,
    /// To be told when nobody reads our output any more.
    pub(crate) hung_up: Arc<Notify>,
    /// True once nothing shall be waited for any more.
    pub(crate) abandoned: watch::Receiver<bool>,
}

impl Steering {
    /// Takes over this process's signals. Needs a tokio runtime.
    ///
    /// # Errors
    /// Fails if the system refuses a handler.
    pub(crate) fn new(distance: Distance) -> io::Result<(Self, Reins)> {
        Ok(Self::fed_by(listen()?, distance))
    }

    fn fed_by(signals: mpsc::UnboundedReceiver<Signal>, distance: Distance) -> (Self, Reins) {
        let (control, controls) = mpsc::channel(8);
        let (interrupts, interrupted) = mpsc::unbounded_channel();
        let (abandon, abandoned) = watch::channel(false);
        let hung_up = Arc::new(Notify::new());
        let reins = Reins { control: controls, interrupts: interrupted, hung_up: Arc::clone(&hung_up), abandoned };
        (Self { signals, control, hung_up, interrupts, abandon, distance, phase: Phase::Running }, reins)
    }

    /// Passes on what the user wants, for as long as it is polled.
    pub(crate) async fn run(mut self) -> Infallible {
        loop {
            tokio::select! {
                Some(signal) = self.signals.recv() => self.signal(signal).await,
                () = self.hung_up.notified() => self.end_in_order(Signal::SIGPIPE),
                () = patience_over(self.phase) => {
                    self.abandon.send_replace(true);
                    self.phase = Phase::Abandoned;
                }
            }
        }
    }

    async fn signal(&mut self, signal: Signal) {
        match (signal, self.phase) {
            (signal, Phase::Running) if ENDING.contains(&signal) => {
                self.end_in_order(signal);
                // Nobody listens once the last word is said.
                let _ = self.interrupts.send(signal);
            }
            (signal, _) if ENDING.contains(&signal) => {
                self.tell(Control::Kill(signal as i32));
                if let Phase::Ending = self.phase {
                    self.phase = Phase::Killed { patience_until: Instant::now() + LAST_WRITES };
                }
            }
            (Signal::SIGTSTP, _) => self.stop().await,
            (signal, _) => self.tell(Control::Signal(signal as i32)),
        }
    }

    fn end_in_order(&mut self, signal: Signal) {
        if let Phase::Running = self.phase {
            self.phase = Phase::Ending;
            self.tell(Control::End(signal as i32));
        }
    }

    /// Tells the session, or nobody: a session that is over, or that has eight commands to carry out, needs no ninth.
    fn tell(&self, control: Control) {
        let _ = self.control.try_send(control);
    }

    /// Stops the ranks, then ourselves; returns when somebody continues us, which SIGCONT then tells the ranks.
    async fn stop(&self) {
        self.tell(Control::Signal(Signal::SIGSTOP as i32));
        // The session has stopped the ranks when it has taken the command out of the queue.
        let taken = self.control.reserve_many(self.control.max_capacity());
        drop(timeout(STOPPING, taken).await);
        if self.distance == Distance::Elsewhere {
            sleep(STOPPING).await;
        }
        // Cannot fail: SIGSTOP is a signal, and we may signal ourselves.
        let _ = raise(Signal::SIGSTOP);
    }
}

async fn patience_over(phase: Phase) {
    match phase {
        Phase::Killed { patience_until } => sleep_until(patience_until).await,
        Phase::Running | Phase::Ending | Phase::Abandoned => std::future::pending().await,
    }
}

/// Every signal that is for us or for the ranks, in the order of their coming.
fn listen() -> io::Result<mpsc::UnboundedReceiver<Signal>> {
    let ignored = ignored_signals();
    let (sender, signals) = mpsc::unbounded_channel();
    for wanted in ENDING.into_iter().chain(FORWARDED).chain([Signal::SIGTSTP]) {
        if ignored >> (wanted as i32 - 1) & 1 == 1 {
            continue;
        }
        let mut stream = signal(SignalKind::from_raw(wanted as i32))?;
        let sender = sender.clone();
        tokio::spawn(async move { while stream.recv().await.is_some() && sender.send(wanted).is_ok() {} });
    }
    Ok(signals)
}

/// The mask of the signals that we were started to ignore. If it cannot be read, none is.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steers by `signals` until nothing more happens; returns what the session was told, and whether all was abandoned.
    fn steered(signals: &[Signal], hang_up: bool) -> (String, bool) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let (sender, receiver) = mpsc::unbounded_channel();
            signals.iter().for_each(|&signal| sender.send(signal).unwrap());
            let (steering, mut reins) = Steering::fed_by(receiver, Distance::Here);
            if hang_up {
                reins.hung_up.notify_one();
            }
            let enough = 2 * LAST_WRITES;
            assert!(timeout(enough, steering.run()).await.is_err());
            let mut told = Vec::new();
            while let Ok(control) = reins.control.try_recv() {
                told.push(control);
            }
            (shown(&told), *reins.abandoned.borrow())
        })
    }

    /// A reply channel can be in a control, so that two of them are compared by what they show.
    fn shown(told: &[Control]) -> String {
        format!("{told:?}")
    }

    #[test]
    fn one_ends_in_order_two_end_at_once() {
        let (int, term) = (Signal::SIGINT as i32, Signal::SIGTERM as i32);
        assert_eq!(steered(&[Signal::SIGINT], false), (shown(&[Control::End(int)]), false));
        let twice = shown(&[Control::End(int), Control::Kill(int)]);
        assert_eq!(steered(&[Signal::SIGINT, Signal::SIGINT], false), (twice, true));
        let other = shown(&[Control::End(int), Control::Kill(term)]);
        assert_eq!(steered(&[Signal::SIGINT, Signal::SIGTERM], false), (other, true));
    }

    #[test]
    fn other_signals_are_passed_on() {
        let (usr1, cont) = (Signal::SIGUSR1 as i32, Signal::SIGCONT as i32);
        let expected = shown(&[Control::Signal(usr1), Control::Signal(cont)]);
        assert_eq!(steered(&[Signal::SIGUSR1, Signal::SIGCONT], false), (expected, false));
    }

    #[test]
    fn closed_output_ends_in_order_like_sigpipe() {
        assert_eq!(steered(&[], true), (shown(&[Control::End(Signal::SIGPIPE as i32)]), false));
    }

    #[test]
    fn a_session_that_takes_no_commands_does_not_stop_us() {
        let (told, abandoned) = steered(&[Signal::SIGUSR1; 20], false);
        assert_eq!(told.matches("Signal").count(), 8);
        assert!(!abandoned);
    }
}
