//! Keys that the user types while `lattice top` shows its table.

use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use lattice_console::job_control;
use lattice_console::terminal::{Mode, RawTerminal};
use nix::errno::Errno;
use nix::libc::SI_KERNEL;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::read;

use crate::args::TopOrder;

/// Description of the keys, below the table.
pub(super) const HELP: &str = "keys: r rank, c cpu, m memory, i io, q quit\n";

/// Signals that end or stop this command, after which the terminal must be restored; the signal that resumes it; and the signal for a
/// changed screen size.
const SIGNALS: [Signal; 7] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGTSTP,
    Signal::SIGCONT,
    Signal::SIGWINCH,
];

/// The terminal of this process. It delivers each key at once, until this value is dropped.
pub(super) struct Keys {
    terminal: RawTerminal,
    signals: SignalFd,
}

/// Request of the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// Change the order of the ranks.
    Sort(TopOrder),
    /// Redraw the table for a changed screen size.
    Draw,
    /// Quit.
    Quit,
    /// End by a signal.
    Signal(i32),
}

impl Keys {
    /// Switches the terminal of this process to single keys; `None` if standard input is no terminal.
    ///
    /// # Errors
    /// Fails if the terminal is gone.
    pub(super) fn of_input() -> io::Result<Option<Self>> {
        let Some(terminal) = RawTerminal::of_input(Mode::Keys)? else { return Ok(None) };
        let signals: SigSet = SIGNALS.into_iter().collect();
        signals.thread_block()?;
        let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(Some(Self { terminal, signals }))
    }

    /// Waits for a key or a signal; `None` if none arrives before `deadline`.
    ///
    /// # Errors
    /// Fails if the terminal is gone.
    pub(super) fn wait(&self, deadline: Instant) -> io::Result<Option<Wish>> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let limit = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            let mut ready = [
                PollFd::new(self.terminal.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            ];
            match poll(&mut ready, limit) {
                Ok(0) => return Ok(None),
                Err(Errno::EINTR) => continue,
                result => result?,
            };
            if let Some(signal) = self.signals.read_signal()? {
                match Signal::try_from(signal.ssi_signo as i32) {
                    // Without a shell as parent, no process could continue this one after Ctrl-Z.
                    Ok(Signal::SIGTSTP) if signal.ssi_code == SI_KERNEL && !job_control::has_shell() => {}
                    Ok(Signal::SIGTSTP) => self.stop()?,
                    // After a stop by another process, another program may have changed the terminal.
                    Ok(Signal::SIGCONT) => self.terminal.enter()?,
                    Ok(Signal::SIGWINCH) => return Ok(Some(Wish::Draw)),
                    _ => return Ok(Some(Wish::Signal(signal.ssi_signo as i32))),
                }
                continue;
            }
            if ready[0].any().unwrap_or(false) {
                let mut typed = [0; 64];
                match read(&self.terminal, &mut typed)? {
                    // The terminal has gone.
                    0 => return Ok(Some(Wish::Quit)),
                    length => {
                        if let Some(wish) = typed[..length].iter().find_map(|&key| wish(key)) {
                            return Ok(Some(wish));
                        }
                    }
                }
            }
        }
    }

    /// Stops this process on Ctrl-Z, and sets up the terminal again when the process continues.
    fn stop(&self) -> io::Result<()> {
        self.terminal.leave();
        raise(Signal::SIGSTOP)?;
        self.terminal.enter()
    }
}

fn wish(key: u8) -> Option<Wish> {
    Some(match key.to_ascii_lowercase() {
        b'r' => Wish::Sort(TopOrder::Rank),
        b'c' => Wish::Sort(TopOrder::Cpu),
        b'm' => Wish::Sort(TopOrder::Memory),
        b'i' => Wish::Sort(TopOrder::Io),
        b'q' => Wish::Quit,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_means_nothing_is_no_wish() {
        assert_eq!(wish(b'M'), Some(Wish::Sort(TopOrder::Memory)));
        assert_eq!([b'x', b'\n', 0x1b].map(wish), [None; 3]);
    }
}
