//! Waits for a command as a shell waits for a command in the foreground, and handles signals meanwhile.
//!
//! A signal of the terminal reaches the command directly. The command handles it, and this program continues. This program forwards all other
//! signals.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::Child;

use crate::exit;
use crate::signals::{self, ENDING, Received, Sender, TELLING};

/// Signals to this program that are for its command.
#[derive(Debug)]
pub struct Signals(signals::Signals);

/// A signal, by its receivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The terminal sent the signal to the command as well.
    Everybody(Signal),
    /// A process sent the signal, usually to this program alone.
    Us(Signal),
}

impl Signals {
    /// Handles these signals from now on. They no longer end this program.
    ///
    /// # Errors
    /// Fails if the system refuses a handler.
    pub fn listen() -> io::Result<Self> {
        Ok(Self(signals::Signals::listen(ENDING.into_iter().chain(TELLING))?))
    }

    /// Waits for the next signal. Cancel-safe.
    pub async fn next(&mut self) -> Arrival {
        match self.0.next().await {
            Received { signal, sender: Sender::Terminal } => Arrival::Everybody(signal),
            Received { signal, sender: Sender::Process(_) } => Arrival::Us(signal),
        }
    }

    /// Signal received so far that ends this program; `None` if there is none.
    pub async fn arrived(&mut self) -> Option<Signal> {
        tokio::select! {
            biased;
            signal = self.end() => Some(signal),
            () = std::future::ready(()) => None,
        }
    }

    /// Waits for a signal that ends this program, and returns it. Other signals have no receiver, and are dropped.
    pub async fn end(&mut self) -> Signal {
        loop {
            let (Arrival::Everybody(signal) | Arrival::Us(signal)) = self.next().await;
            if signal == Signal::SIGQUIT || ENDING.contains(&signal) {
                return signal;
            }
        }
    }
}

/// Sends a signal to the command.
pub fn pass_on(child: &Child, signal: Signal) {
    if let Some(pid) = child.id() {
        // The command may have just ended.
        let _ = kill(Pid::from_raw(pid.cast_signed()), signal);
    }
}

/// Exit code of a command that this program waited for, in the convention of a shell.
///
/// If SIGINT killed the command, the terminal has sent it to this program as well, which may not have read it yet: it is read now, since
/// this program must end by it too.
pub async fn code_of(status: ExitStatus, signals: &mut Signals) -> u8 {
    if status.code().is_some() {
        signals::leave_interrupt_to_command();
    } else if status.signal() == Some(Signal::SIGINT as i32) {
        tokio::task::yield_now().await;
        signals.arrived().await;
    }
    exit::of_status(status)
}

/// Waits for the end of the command, and forwards signals that it has not received. Returns its exit code, in the convention of a shell.
///
/// # Errors
/// Fails if the command cannot be waited for.
pub async fn wait(mut child: Child, signals: &mut Signals) -> io::Result<u8> {
    loop {
        tokio::select! {
            status = child.wait() => return Ok(code_of(status?, signals).await),
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

    /// A signal during the creation of an allocation must not be lost on the way to the command.
    #[test]
    fn a_signal_that_came_before_anybody_waited_is_heard() {
        let heard = runtime::block_on(async {
            let mut signals = Signals::listen().unwrap();
            let before = signals.arrived().await;
            // Shells start background programs with some signals ignored; SIGTERM is none of these.
            raise(Signal::SIGTERM).unwrap();
            tokio::task::yield_now().await;
            (before, signals.arrived().await)
        });
        assert_eq!(heard.unwrap(), (None, Some(Signal::SIGTERM)));
    }
}
