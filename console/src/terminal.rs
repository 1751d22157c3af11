//! The launcher's terminal in a mode without line editing. If rank 0 has a terminal (`--pty`), that terminal edits lines, echoes, and converts
//! Ctrl-C to a signal. Otherwise each key is a command.
//!
//! The previous mode is restored whenever this process ends, also by a panic, or is stopped.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use lattice_session::settings::TerminalSize;
use nix::sys::termios::{LocalFlags, SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use nix::unistd::{getpgrp, isatty, tcgetpgrp};

/// True if `input` is the terminal of this process, and another process group is in its foreground.
pub fn is_background(input: &OwnedFd) -> bool {
    tcgetpgrp(input).is_ok_and(|foreground| foreground != getpgrp())
}

/// Size of the terminal of this process; `None` if no standard stream is a terminal.
pub fn size() -> Option<TerminalSize> {
    let of_output = || TerminalSize::of(io::stdout()).or_else(|| TerminalSize::of(io::stderr()));
    TerminalSize::of(io::stdin()).or_else(of_output)
}

/// Number of columns of standard output; `None` if it is no terminal.
pub fn columns() -> Option<usize> {
    TerminalSize::of(io::stdout()).map(|size| size.columns.into())
}

/// Mode of the launcher's terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Each typed byte is passed on, and each byte of output is shown unchanged.
    Raw,
    /// Each key is passed on immediately, without echo. Ctrl-C is a signal.
    Keys,
}

/// The launcher's terminal. It is in one of these modes until this value is dropped.
#[derive(Debug)]
pub struct RawTerminal {
    terminal: OwnedFd,
    before: Termios,
    mode: Mode,
}

impl RawTerminal {
    /// Switches the terminal at standard input to a mode; `None` if standard input is no terminal. In the background, this call stops the
    /// process until it is in the foreground.
    ///
    /// # Errors
    /// Fails if the terminal is gone, or the system has no descriptor left.
    pub fn of_input(mode: Mode) -> io::Result<Option<Self>> {
        let terminal = io::stdin().as_fd().try_clone_to_owned()?;
        if !isatty(&terminal).unwrap_or(false) {
            return Ok(None);
        }
        let before = tcgetattr(&terminal)?;
        let raw = Self { terminal, before, mode };
        raw.enter()?;
        Ok(Some(raw))
    }

    /// Switches to the mode again, after other programs may have changed it.
    ///
    /// # Errors
    /// Fails if the terminal is gone.
    pub fn enter(&self) -> io::Result<()> {
        let mut raw = self.before.clone();
        match self.mode {
            Mode::Raw => cfmakeraw(&mut raw),
            Mode::Keys => raw.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO),
        }
        Ok(tcsetattr(&self.terminal, SetArg::TCSANOW, &raw)?)
    }

    /// Restores the previous mode, unless another process group has the terminal: in the background, this process would be stopped.
    pub fn leave(&self) {
        if !is_background(&self.terminal) {
            // A terminal that is gone needs no restoration.
            let _ = tcsetattr(&self.terminal, SetArg::TCSANOW, &self.before);
        }
    }
}

impl AsFd for RawTerminal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.terminal.as_fd()
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use nix::pty::{OpenptyResult, openpty};

    use super::*;

    #[test]
    fn a_terminal_is_raw_until_the_guard_is_gone_also_by_a_panic() {
        let OpenptyResult { master: _master, slave } = openpty(None, None).unwrap();
        let echoes = || tcgetattr(&slave).unwrap().local_flags.contains(LocalFlags::ECHO);
        for mode in [Mode::Raw, Mode::Keys] {
            let panicked = std::panic::catch_unwind(|| {
                let (terminal, before) = (slave.try_clone().unwrap(), tcgetattr(&slave).unwrap());
                let raw = RawTerminal { terminal, before, mode };
                raw.enter().unwrap();
                assert!(!echoes());
                raw.leave();
                assert!(echoes(), "a shell has it while we are stopped");
                raw.enter().unwrap();
                assert!(!echoes());
                panic!("something goes wrong");
            });
            assert!(panicked.is_err() && echoes());
        }
    }
}
