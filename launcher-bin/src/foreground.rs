//! A command that this program waits for, as a shell waits for the one in the foreground: which signals end whom.
//!
//! A signal of the terminal reaches the command by itself, which decides what it means; this program goes on. Any other signal
//! is passed on.

use std::io;
use std::process::ExitStatus;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::Child;

use crate::exit;
use crate::signals::{self, ENDING, Received, Sender, TELLING};

/// The signals that somebody may send this program for its command.
#[derive(Debug)]
pub(crate) struct Signals(signals::Signals);

/// A signal, by whom it reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// The terminal sent it to the command as well.
    Everybody(Signal),
    /// A process sent it, as a rule to this program alone.
    Us(Signal),
}

impl Signals {
    /// From here on these signals are heard, and end us by themselves no more.
    ///
    /// # Errors
    /// Fails if they cannot be heard.
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self(signals::Signals::listen(ENDING.into_iter().chain(TELLING))?))
    }

    /// Waits for the next one. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Arrival {
        match self.0.next().await {
            Received { signal, sender: Sender::Terminal } => Arrival::Everybody(signal),
            Received { signal, sender: Sender::Process(_) } => Arrival::Us(signal),
        }
    }

    /// The signal by which somebody has wanted this program to end by now, if anybody has.
    pub(crate) async fn arrived(&mut self) -> Option<Signal> {
        tokio::select! {
            biased;
            signal = self.end() => Some(signal),
            () = std::future::ready(()) => None,
        }
    }

    /// Waits until somebody wants this program to end; returns by which signal. Others have nobody to go to and are dropped.
    pub(crate) async fn end(&mut self) -> Signal {
        loop {
            let (Arrival::Everybody(signal) | Arrival::Us(signal)) = self.next().await;
            if signal == Signal::SIGQUIT || ENDING.contains(&signal) {
                return signal;
            }
        }
    }
}

/// Sends a signal to the command.
pub(crate) fn pass_on(child: &Child, signal: Signal) {
    if let Some(pid) = child.id() {
        // It may end this very moment.
        let _ = kill(Pid::from_raw(pid.cast_signed()), signal);
    }
}

/// Exit code of a command that this program waited for, as a shell has it.
pub(crate) fn code_of(status: ExitStatus) -> u8 {
    if status.code().is_some() {
        signals::leave_interrupt_to_command();
    }
    exit::of_status(status)
}

/// Waits for the end of the command, and passes on what it has not heard; returns its exit code, as a shell does.
///
/// # Errors
/// Fails if it cannot be waited for.
pub(crate) async fn wait(mut child: Child, signals: &mut Signals) -> io::Result<u8> {
    loop {
        tokio::select! {
            status = child.wait() => return Ok(code_of(status?)),
            arrival = signals.next() => match arrival {
                Arrival::Everybody(_) => {}
                Arrival::Us(signal) => pass_on(&child, signal),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::raise;

    use super::*;
    use crate::runtime;

    /// A signal that comes while an allocation is made must not be lost on the way to the command.
    #[test]
    fn a_signal_that_came_before_anybody_waited_is_heard() {
        let heard = runtime::block_on(async {
            let mut signals = Signals::listen().unwrap();
            let before = signals.arrived().await;
            // Not one that shells have programs in the background ignore.
            raise(Signal::SIGTERM).unwrap();
            tokio::task::yield_now().await;
            (before, signals.arrived().await)
        });
        assert_eq!(heard.unwrap(), (None, Some(Signal::SIGTERM)));
    }
}
