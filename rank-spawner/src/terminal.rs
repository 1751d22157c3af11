//! Pseudo-terminals: the controlling terminal of a rank that a person works with, and the size of terminals.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::termios::{InputFlags, OutputFlags, SetArg, SpecialCharacterIndices, tcgetattr, tcsetattr};
use nix::unistd::isatty;

use crate::syscalls;

/// Size of a terminal in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminalSize {
    /// Number of lines.
    pub rows: u16,
    /// Number of characters of a line.
    pub columns: u16,
}

impl TerminalSize {
    /// The size of the terminal that `fd` is; `None` if it is none, or does not know its size.
    pub fn of(fd: impl AsFd) -> Option<Self> {
        let (rows, columns) = syscalls::terminal_size(fd.as_fd()).ok()?;
        (rows > 0 && columns > 0).then_some(Self { rows, columns })
    }
}

impl Default for TerminalSize {
    /// The size that programs take for granted where nobody says another.
    fn default() -> Self {
        Self { rows: 24, columns: 80 }
    }
}

impl fmt::Display for TerminalSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rows of {} columns", self.rows, self.columns)
    }
}

/// A pseudo-terminal for output alone: its driving end, which does not block, and the terminal itself, which passes on each byte as it is. Both
/// are close-on-exec. It has no size, as nobody says one.
pub(crate) fn open_for_output() -> nix::Result<(OwnedFd, OwnedFd)> {
    let (ours, rank) = syscalls::open_terminal()?;
    let mut attributes = tcgetattr(&rank)?;
    attributes.output_flags.remove(OutputFlags::OPOST);
    tcsetattr(&rank, SetArg::TCSANOW, &attributes)?;
    Ok((ours, rank))
}

/// The driving end of a pseudo-terminal: what is written to it is typed there, what is written there is read from it. Non-blocking.
///
/// Reading fails with `EIO` when nobody has the terminal any more. Dropping it hangs the terminal up.
#[derive(Debug)]
pub struct Terminal(OwnedFd);

impl Terminal {
    /// A new pseudo-terminal of this size: its driving end, and the terminal itself. Both are close-on-exec.
    pub(crate) fn open(size: TerminalSize) -> nix::Result<(Self, OwnedFd)> {
        let (ours, rank) = syscalls::open_terminal()?;
        let mut attributes = tcgetattr(&rank)?;
        // Erasing a character takes all of its bytes away.
        attributes.input_flags.insert(InputFlags::IUTF8);
        tcsetattr(&rank, SetArg::TCSANOW, &attributes)?;
        let terminal = Self(ours);
        terminal.resize(size)?;
        Ok((terminal, rank))
    }

    /// The terminal that `end` drives; `end` itself if it is none, as that of a pipe.
    ///
    /// # Errors
    /// Returns what drives no terminal.
    pub fn of_end(end: OwnedFd) -> Result<Self, OwnedFd> {
        match isatty(&end) {
            Ok(true) => Ok(Self(end)),
            _ => Err(end),
        }
    }

    /// Changes the size, of which the processes in the foreground are told by SIGWINCH.
    ///
    /// # Errors
    /// Passes on the error of the system.
    pub fn resize(&self, size: TerminalSize) -> nix::Result<()> {
        syscalls::set_terminal_size(self.as_fd(), (size.rows, size.columns))
    }

    /// True while somebody who reads the terminal would find something typed there.
    ///
    /// # Errors
    /// Passes on the error of the system.
    pub fn has_unread_input(&self) -> nix::Result<bool> {
        let terminal = syscalls::terminal_of(self.as_fd())?;
        let mut wanted = [PollFd::new(terminal.as_fd(), PollFlags::POLLIN)];
        Ok(poll(&mut wanted, PollTimeout::ZERO)? > 0)
    }

    /// The character that ends the input when it is typed at the beginning of a line; `None` while there is none.
    pub fn end_of_input(&self) -> Option<u8> {
        let attributes = tcgetattr(self).ok()?;
        let character = attributes.control_chars[SpecialCharacterIndices::VEOF as usize];
        (character != 0).then_some(character)
    }
}

impl AsFd for Terminal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Terminal {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;
    use nix::unistd::{read, write};

    use super::*;

    fn open() -> (Terminal, OwnedFd) {
        Terminal::open(TerminalSize { rows: 40, columns: 100 }).unwrap()
    }

    #[test]
    fn both_ends_know_the_size() {
        let (terminal, rank) = open();
        assert!(isatty(&rank).unwrap());
        assert_eq!(TerminalSize::of(&rank), Some(TerminalSize { rows: 40, columns: 100 }));
        terminal.resize(TerminalSize { rows: 3, columns: 7 }).unwrap();
        assert_eq!(TerminalSize::of(&rank), Some(TerminalSize { rows: 3, columns: 7 }));
        assert_eq!(TerminalSize::of(std::fs::File::open("/dev/null").unwrap()), None);
    }

    #[test]
    fn output_is_passed_on_as_it_is_and_ends_with_the_terminal() {
        let (ours, rank) = open_for_output().unwrap();
        assert!(isatty(&rank).unwrap());
        assert_eq!(TerminalSize::of(&rank), None);
        write(&rank, b"a\tb\nc\r\0\x04").unwrap();
        drop(rank);
        let mut bytes = [0; 32];
        let len = read(&ours, &mut bytes).unwrap();
        assert_eq!(&bytes[..len], b"a\tb\nc\r\0\x04");
        assert_eq!(read(&ours, &mut bytes), Err(Errno::EIO));
        assert!(Terminal::of_end(ours).is_ok());
        assert!(Terminal::of_end(nix::unistd::pipe().unwrap().0).is_err());
    }

    #[test]
    fn what_is_typed_is_read_line_by_line_until_the_end_of_input() {
        let (terminal, rank) = open();
        let end = terminal.end_of_input().unwrap();
        write(&terminal, b"a line\n").unwrap();
        write(&terminal, &[end]).unwrap();
        let mut bytes = [0; 32];
        assert_eq!(terminal.has_unread_input(), Ok(true));
        let len = read(&rank, &mut bytes).unwrap();
        assert_eq!(&bytes[..len], b"a line\n");
        assert_eq!(terminal.has_unread_input(), Ok(true), "the end of the input was not read");
        assert_eq!(read(&rank, &mut bytes), Ok(0));
        assert_eq!(terminal.has_unread_input(), Ok(false));
    }

    #[test]
    fn our_end_does_not_block_and_fails_when_the_terminal_is_gone() {
        let (terminal, rank) = open();
        let mut bytes = [0; 32];
        assert_eq!(read(&terminal, &mut bytes), Err(Errno::EAGAIN));
        write(&rank, b"last\n").unwrap();
        drop(rank);
        let len = read(&terminal, &mut bytes).unwrap();
        assert_eq!(&bytes[..len], b"last\r\n");
        assert_eq!(read(&terminal, &mut bytes), Err(Errno::EIO));
    }
}
