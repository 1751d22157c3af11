//! Signals of this process while its launch starts. They are kept for the launch, because its ranks may run before this process is attached.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use lattice_console::job_control;
use lattice_console::signals::{ENDING, Received, Sender, Signals, TELLING};
use nix::sys::signal::Signal;
use pmi_transport::task;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::ON_TERMINAL;

/// Time limit for a step of the start after a signal that ends the launch. The ranks may have written output.
const STEP: Duration = Duration::from_secs(5);

/// Signals that this process receives, in order.
#[derive(Debug)]
pub(crate) struct EarlySignals {
    received: mpsc::UnboundedReceiver<Signal>,
    kept: VecDeque<Signal>,
}

impl EarlySignals {
    /// Takes over the signals of this process. Needs a tokio runtime.
    ///
    /// # Errors
    /// Fails if the system refuses a handler.
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self::fed_by(listen()?))
    }

    pub(super) fn fed_by(received: mpsc::UnboundedReceiver<Signal>) -> Self {
        Self { received, kept: VecDeque::new() }
    }

    /// Runs a step of the start. After a signal that ends the launch, the step has 5 s. A second signal ends it at once.
    ///
    /// # Errors
    /// Returns the first such signal, if the step has not ended in time.
    pub(crate) async fn during<T>(&mut self, step: impl Future<Output = T>) -> Result<T, Signal> {
        tokio::select! {
            biased;
            done = step => Ok(done),
            signal = self.give_up() => Err(signal),
        }
    }

    async fn give_up(&mut self) -> Signal {
        let first = self.ending(0).await;
        let _ = timeout(STEP, self.ending(1)).await;
        first
    }

    /// Waits for the ending signal with this index. Keeps all signals. Cancel-safe.
    async fn ending(&mut self, index: usize) -> Signal {
        loop {
            let mut ending = self.kept.iter().filter(|signal| ENDING.contains(signal));
            if let Some(&signal) = ending.nth(index) {
                return signal;
            }
            let signal = receive(&mut self.received).await;
            // Other signals count once, like pending signals of a process.
            if ENDING.contains(&signal) || !self.kept.contains(&signal) {
                self.kept.push_back(signal);
            }
        }
    }

    /// Removes the oldest signal, or waits for the next one. Cancel-safe.
    pub(super) async fn next(&mut self) -> Signal {
        match self.kept.pop_front() {
            Some(signal) => signal,
            None => receive(&mut self.received).await,
        }
    }
}

async fn receive(signals: &mut mpsc::UnboundedReceiver<Signal>) -> Signal {
    match signals.recv().await {
        Some(signal) => signal,
        None => std::future::pending().await,
    }
}

/// Signals for this process or for the ranks, as they arrive.
fn listen() -> io::Result<mpsc::UnboundedReceiver<Signal>> {
    let wanted = ENDING.into_iter().chain(TELLING).chain(ON_TERMINAL).chain([Signal::SIGTSTP]);
    let mut received = Signals::listen(wanted)?;
    let (sender, signals) = mpsc::unbounded_channel();
    task::spawn(async move {
        loop {
            let received = received.next().await;
            if is_for_us(received, job_control::has_shell) && sender.send(received.signal).is_err() {
                return;
            }
        }
    });
    Ok(signals)
}

/// False for Ctrl-Z if no shell can continue this process. A process that sends SIGTSTP can also send SIGCONT.
fn is_for_us(received: Received, has_shell: impl FnOnce() -> bool) -> bool {
    received != Received { signal: Signal::SIGTSTP, sender: Sender::Terminal } || has_shell()
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::time::{Instant, sleep};

    use super::*;

    #[test]
    fn ctrl_z_without_a_shell_that_continues_us_stops_nothing() {
        let heard = |signal, sender, shell| is_for_us(Received { signal, sender }, || shell);
        assert!(!heard(Signal::SIGTSTP, Sender::Terminal, false));
        assert!(heard(Signal::SIGTSTP, Sender::Terminal, true));
        assert!(heard(Signal::SIGTSTP, Sender::Process(None), false), "scontrol suspend");
        assert!(heard(Signal::SIGINT, Sender::Terminal, false));
    }

    /// Time after which a step that does not end is given up after `signals`, and the signals that remain for the launch.
    async fn given_up(signals: &[Signal]) -> (Option<Duration>, Vec<Signal>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut early = EarlySignals::fed_by(receiver);
        signals.iter().for_each(|&signal| sender.send(signal).unwrap());
        let began = Instant::now();
        let waited = timeout(10 * STEP, early.during(pending::<()>())).await;
        let after = waited.is_ok_and(|outcome| outcome.is_err()).then(|| began.elapsed());
        (after, early.kept.into())
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_has_a_bounded_time_after_the_first_signal_and_none_after_the_second() {
        use Signal::{SIGINT, SIGTERM, SIGUSR1};
        assert_eq!(given_up(&[SIGUSR1, SIGUSR1]).await, (None, vec![SIGUSR1]));
        assert_eq!(given_up(&[SIGTERM]).await.0, Some(STEP));
        assert_eq!(given_up(&[SIGUSR1, SIGINT, SIGTERM]).await, (Some(Duration::ZERO), vec![SIGUSR1, SIGINT, SIGTERM]));
    }

    #[tokio::test(start_paused = true)]
    async fn signals_that_came_during_a_step_are_kept_for_the_launch() {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut early = EarlySignals::fed_by(receiver);
        [Signal::SIGTERM, Signal::SIGUSR1].into_iter().for_each(|signal| sender.send(signal).unwrap());
        for _ in 0..3 {
            assert_eq!(early.during(sleep(STEP / 2)).await, Ok(()));
        }
        assert_eq!((early.next().await, early.next().await), (Signal::SIGTERM, Signal::SIGUSR1));
    }
}
