//! Our terminal while it does not edit lines: because rank 0 has one of its own (`--pty`), which then is the one that edits lines, echoes,
//! and turns Ctrl-C into a signal; or because each key means something.
//!
//! It is as it was before whenever this process ends, also by a panic, or is stopped.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use lattice_session::settings::TerminalSize;
use nix::sys::termios::{LocalFlags, SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use nix::unistd::{getpgrp, isatty, tcgetpgrp};

/// True if `input` is our terminal, and another process group has it.
pub(crate) fn is_background(input: &OwnedFd) -> bool {
    tcgetpgrp(input).is_ok_and(|foreground| foreground != getpgrp())
}

/// The size of the terminal of this process; `None` if it has none at its standard streams.
pub(crate) fn size() -> Option<TerminalSize> {
    let of_output = || TerminalSize::of(io::stdout()).or_else(|| TerminalSize::of(io::stderr()));
    TerminalSize::of(io::stdin()).or_else(of_output)
}

/// Use of our terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Each byte that is typed is passed on, each byte of output shown as it is.
    Raw,
    /// Each key is passed on as it is typed, and not echoed; Ctrl-C is a signal.
    Keys,
}

/// Our terminal, which is in a mode of ours until this is dropped.
#[derive(Debug)]
pub(crate) struct RawTerminal {
    terminal: OwnedFd,
    before: Termios,
    mode: Mode,
}

impl RawTerminal {
    /// Takes the terminal that is our standard input into a mode; `None` if that is no terminal. A process in the background is stopped by it
    /// until it is in the foreground.
    ///
    /// # Errors
    /// Fails if the terminal is gone, or the system has no descriptor left.
    pub(crate) fn of_input(mode: Mode) -> io::Result<Option<Self>> {
        let terminal = io::stdin().as_fd().try_clone_to_owned()?;
        if !isatty(&terminal).unwrap_or(false) {
            return Ok(None);
        }
        let before = tcgetattr(&terminal)?;
        let raw = Self { terminal, before, mode };
        raw.enter()?;
        Ok(Some(raw))
    }

    /// Takes it into the mode again, whatever others have made of it meanwhile.
    ///
    /// # Errors
    /// Fails if the terminal is gone.
    pub(crate) fn enter(&self) -> io::Result<()> {
        let mut raw = self.before.clone();
        match self.mode {
            Mode::Raw => cfmakeraw(&mut raw),
            Mode::Keys => raw.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO),
        }
        Ok(tcsetattr(&self.terminal, SetArg::TCSANOW, &raw)?)
    }

    /// Makes it as it was, unless it is another's to set: in the background this process would be stopped for it.
    pub(crate) fn leave(&self) {
        if !is_background(&self.terminal) {
            // A terminal that is gone needs nothing.
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
