//! Pseudo-terminals: the controlling terminal of an interactive rank, and the size of terminals.

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
    /// Size of the terminal `fd`; `None` if it is not a terminal, or has no size.
    pub fn of(fd: impl AsFd) -> Option<Self> {
        let (rows, columns) = syscalls::terminal_size(fd.as_fd()).ok()?;
        (rows > 0 && columns > 0).then_some(Self { rows, columns })
    }
}

impl Default for TerminalSize {
    /// The size that programs assume if none is set.
    fn default() -> Self {
        Self { rows: 24, columns: 80 }
    }
}

impl fmt::Display for TerminalSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rows of {} columns", self.rows, self.columns)
    }
}

/// Makes a pseudo-terminal for output only: its driving end, which does not block, and the terminal itself, which passes each byte unchanged.
/// Both are close-on-exec. The terminal has no size, as none is set.
pub(crate) fn open_for_output() -> nix::Result<(OwnedFd, OwnedFd)> {
    let (ours, rank) = syscalls::open_terminal()?;
    let mut attributes = tcgetattr(&rank)?;
    attributes.output_flags.remove(OutputFlags::OPOST);
    tcsetattr(&rank, SetArg::TCSANOW, &attributes)?;
    Ok((ours, rank))
}

/// Driving end of a pseudo-terminal. Bytes that are written here arrive as typed input; output of the terminal is read here. Non-blocking.
///
/// Reading fails with `EIO` after all descriptors of the terminal are closed. Dropping it hangs the terminal up.
#[derive(Debug)]
pub struct Terminal(OwnedFd);

impl Terminal {
    /// Makes a pseudo-terminal of this size: its driving end, and the terminal itself. Both are close-on-exec.
    pub(crate) fn open(size: TerminalSize) -> nix::Result<(Self, OwnedFd)> {
        let (ours, rank) = syscalls::open_terminal()?;
        let mut attributes = tcgetattr(&rank)?;
        // Makes an erased character lose all of its bytes.
        attributes.input_flags.insert(InputFlags::IUTF8);
        tcsetattr(&rank, SetArg::TCSANOW, &attributes)?;
        let terminal = Self(ours);
        terminal.resize(size)?;
        Ok((terminal, rank))
    }

    /// Terminal with `end` as driving end.
    ///
    /// # Errors
    /// Returns `end` if it drives no terminal, such as the end of a pipe.
    pub fn of_end(end: OwnedFd) -> Result<Self, OwnedFd> {
        match isatty(&end) {
            Ok(true) => Ok(Self(end)),
            _ => Err(end),
        }
    }

    /// Changes the size. The kernel sends SIGWINCH to the foreground processes.
    ///
    /// # Errors
    /// Returns the error of the system call.
    pub fn resize(&self, size: TerminalSize) -> nix::Result<()> {
        syscalls::set_terminal_size(self.as_fd(), (size.rows, size.columns))
    }

    /// True while the terminal has typed input that no process has read.
    ///
    /// # Errors
    /// Returns the error of the system call.
    pub fn has_unread_input(&self) -> nix::Result<bool> {
        let terminal = syscalls::terminal_of(self.as_fd())?;
        let mut wanted = [PollFd::new(terminal.as_fd(), PollFlags::POLLIN)];
        Ok(poll(&mut wanted, PollTimeout::ZERO)? > 0)
    }

    /// The character that ends the input at the start of a line; `None` if there is none.
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

    /// Closes the rank's end, and waits until no child that another test forked has it.
    fn close(rank: OwnedFd, ours: &impl AsFd) {
        drop(rank);
        let mut polled = [PollFd::new(ours.as_fd(), PollFlags::empty())];
        poll(&mut polled, PollTimeout::NONE).unwrap();
        assert_eq!(polled[0].revents(), Some(PollFlags::POLLHUP));
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
        close(rank, &ours);
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
        close(rank, &terminal);
        let len = read(&terminal, &mut bytes).unwrap();
        assert_eq!(&bytes[..len], b"last\r\n");
        assert_eq!(read(&terminal, &mut bytes), Err(Errno::EIO));
    }
}
