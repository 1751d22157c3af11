//! Initial descriptors of a rank: three standard streams, its end of the PMI socket, the memory of its job, and the memory of its node's
//! ranks.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::unistd::pipe2;

use crate::process::RankProcess;
use crate::terminal::{self, Terminal};

/// Number of the PMI socket in every rank, and value of `PMI_FD`.
///
/// The number has two digits: shell scripts between launcher and MPI program use one-digit numbers for their own redirections, and must not
/// close the socket thereby.
pub const PMI_FD: RawFd = 30;

/// Number of the job's memory in every rank that has it, and value of `LATTICE_JOB_MEMORY`.
pub const JOB_MEMORY_FD: RawFd = PMI_FD + 1;

/// Number of the memory that ranks of a node share, in every rank that has it, and value of `LATTICE_NODE_MEMORY`.
pub const NODE_MEMORY_FD: RawFd = JOB_MEMORY_FD + 1;

/// Destination or source of a rank's standard stream.
#[derive(Clone, Debug, Default)]
pub enum Stdio {
    /// `/dev/null`.
    #[default]
    Null,
    /// Pipe; the launcher gets the other end.
    Pipe,
    /// Separate pseudo-terminal that changes no byte and is no controlling terminal; the launcher gets its driving end. Most programs write
    /// each line to a terminal at once, but buffer some kilobytes for a pipe.
    Terminal,
    /// Open file, which ranks may share. A terminal is treated as any other file: it does not become the rank's controlling terminal.
    Fd(Arc<OwnedFd>),
}

/// Connected pair of stream sockets: the server's end, which does not block, and the rank's end, which does. Both are close-on-exec.
///
/// # Errors
/// Fails if no descriptors are left.
pub fn pmi_socket() -> nix::Result<(OwnedFd, OwnedFd)> {
    let (server, rank) = socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)?;
    set_nonblocking(&server)?;
    Ok((server, rank))
}

/// Direction of a standard stream, from the rank's view.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// The rank reads the stream.
    Input,
    /// The rank writes the stream.
    Output,
}

/// Rank's end of a descriptor until the rank has started, and the launcher's end if there is one.
pub(crate) struct Ends {
    rank: RankEnd,
    /// Launcher's end.
    pub(crate) ours: Option<OwnedFd>,
}

enum RankEnd {
    Shared(Arc<OwnedFd>),
    Own(OwnedFd),
}

impl Ends {
    /// Ends for a stream of kind `stdio`.
    pub(crate) fn of_stream(stdio: &Stdio, null: &Arc<OwnedFd>, direction: Direction) -> nix::Result<Self> {
        match stdio {
            Stdio::Null => Ok(Self { rank: RankEnd::Shared(Arc::clone(null)), ours: None }),
            Stdio::Fd(fd) => Ok(Self { rank: RankEnd::Shared(Arc::clone(fd)), ours: None }),
            Stdio::Pipe => {
                let (reader, writer) = pipe2(OFlag::O_CLOEXEC)?;
                let (rank, ours) = match direction {
                    Direction::Input => (reader, writer),
                    Direction::Output => (writer, reader),
                };
                set_nonblocking(&ours)?;
                Ok(Self { rank: RankEnd::Own(rank), ours: Some(ours) })
            }
            Stdio::Terminal => {
                let (ours, rank) = terminal::open_for_output()?;
                Ok(Self { rank: RankEnd::Own(rank), ours: Some(ours) })
            }
        }
    }

    /// Ends of a new PMI socket.
    pub(crate) fn of_pmi() -> nix::Result<Self> {
        pmi_socket().map(|(server, rank)| Self { rank: RankEnd::Own(rank), ours: Some(server) })
    }

    /// Number of the rank's end in this process.
    pub(crate) fn rank_fd(&self) -> RawFd {
        match &self.rank {
            RankEnd::Shared(fd) => fd.as_raw_fd(),
            RankEnd::Own(fd) => fd.as_raw_fd(),
        }
    }
}

/// Standard streams of a rank during its start.
pub(crate) enum StandardStreams {
    /// Three separate streams.
    Apart { stdin: Ends, stdout: Ends, stderr: Ends },
    /// One terminal for all three.
    Terminal { rank: OwnedFd, ours: Terminal },
}

impl StandardStreams {
    /// Numbers of the rank's ends in this process.
    pub(crate) fn rank_fds(&self) -> [RawFd; 3] {
        match self {
            Self::Apart { stdin, stdout, stderr } => [stdin.rank_fd(), stdout.rank_fd(), stderr.rank_fd()],
            Self::Terminal { rank, .. } => [rank.as_raw_fd(); 3],
        }
    }

    /// Passes the launcher's ends to the process, and closes the rank's ends.
    pub(crate) fn hand_over(self, process: &mut RankProcess) {
        match self {
            Self::Apart { stdin, stdout, stderr } => {
                process.stdin = stdin.ours;
                process.stdout = stdout.ours;
                process.stderr = stderr.ours;
            }
            Self::Terminal { ours, .. } => process.terminal = Some(ours),
        }
    }
}

/// Opens `/dev/null` for reading and writing, close-on-exec like all files that std opens. The error names the file.
pub(crate) fn open_null() -> io::Result<File> {
    let opened = OpenOptions::new().read(true).write(true).open("/dev/null");
    opened.map_err(|error| io::Error::new(error.kind(), format!("cannot open /dev/null, which ranks need: {error}")))
}

/// Affects only this process's end: the ends of a pipe or socket pair are separate open files.
pub(crate) fn set_nonblocking(fd: &impl AsFd) -> nix::Result<()> {
    fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK | status_flags(fd)?)).map(drop)
}

fn status_flags(fd: &impl AsFd) -> nix::Result<OFlag> {
    fcntl(fd, FcntlArg::F_GETFL).map(OFlag::from_bits_retain)
}

#[cfg(test)]
mod tests {
    use nix::fcntl::FdFlag;

    use super::*;

    fn flags(fd: &OwnedFd) -> (bool, bool) {
        let nonblocking = status_flags(fd).unwrap().contains(OFlag::O_NONBLOCK);
        let descriptor = FdFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFD).unwrap());
        (nonblocking, descriptor.contains(FdFlag::FD_CLOEXEC))
    }

    #[test]
    fn only_the_servers_end_of_a_pmi_socket_is_nonblocking() {
        let (server, rank) = pmi_socket().unwrap();
        assert_eq!(flags(&server), (true, true));
        assert_eq!(flags(&rank), (false, true));
    }

    #[test]
    fn only_our_end_of_a_pipe_is_nonblocking() {
        let null = Arc::new(open_null().unwrap().into());
        for direction in [Direction::Input, Direction::Output] {
            let Ends { rank: RankEnd::Own(rank), ours: Some(ours) } =
                Ends::of_stream(&Stdio::Pipe, &null, direction).unwrap()
            else {
                panic!("a pipe has two ends");
            };
            assert_eq!((flags(&ours), flags(&rank)), ((true, true), (false, true)));
        }
    }
}
