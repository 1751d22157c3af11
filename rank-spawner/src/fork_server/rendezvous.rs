//! Directory in which daemons find the fork servers that have outlived their daemons. It belongs to the daemon's user, and has a socket of
//! each fork server, `forks-PID.sock`.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, getsockopt, listen, socket,
};
use nix::unistd::{Pid, geteuid};

/// Mode of the directory: no other user can reach the sockets in it.
const MODE: u32 = 0o700;

/// Number of connections that may wait to be accepted.
const BACKLOG: i32 = 4;

/// Directory of the sockets.
#[derive(Debug)]
pub(super) struct Rendezvous {
    path: PathBuf,
    directory: File,
}

/// Error of a directory that is not usable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RendezvousError {
    /// Another user has access to the directory.
    #[error("{} belongs to user {owner} and has mode {mode:o}; it must belong to user {me} with mode 700", path.display())]
    Rights {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Its mode.
        mode: u32,
        /// User of this process.
        me: u32,
    },
    /// A system call failed.
    #[error("cannot use the directory {}: {error}", path.display())]
    System {
        /// The directory.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
}

impl Rendezvous {
    /// Opens the directory; makes it if it does not exist.
    ///
    /// # Errors
    /// Fails for a directory that another user can reach.
    pub(super) fn open(path: &Path) -> Result<Self, RendezvousError> {
        let system = |error| RendezvousError::System { path: path.to_owned(), error };
        DirBuilder::new().recursive(true).mode(MODE).create(path).map_err(system)?;
        let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let directory = fs::OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(system)?;
        let metadata = directory.metadata().map_err(system)?;
        let (owner, mode, me) = (metadata.uid(), metadata.mode() & 0o7777, geteuid().as_raw());
        if owner != me || mode != MODE {
            return Err(RendezvousError::Rights { path: path.to_owned(), owner, mode, me });
        }
        Ok(Self { path: fs::canonicalize(path).map_err(system)?, directory })
    }

    /// Path of the socket of the fork server with this number.
    pub(super) fn socket_of(&self, server: Pid) -> PathBuf {
        self.path.join(file_name(server))
    }

    /// Listens for daemons, for the fork server with this number. The socket gets its name only after it accepts connections: before that, a
    /// daemon would remove it as the socket of an ended fork server.
    pub(super) fn listen(&self, server: Pid) -> Result<UnixListener, RendezvousError> {
        let listening = || -> io::Result<UnixListener> {
            let name = file_name(server);
            let draft = format!(".{name}");
            // Left by an ended server with the same number.
            let _ = fs::remove_file(self.path.join(&draft));
            let listener = packet_socket()?;
            bind(listener.as_raw_fd(), &self.address(&draft)?)?;
            listen(&listener, Backlog::new(BACKLOG)?)?;
            fs::rename(self.path.join(&draft), self.path.join(&name))?;
            Ok(listener.into())
        };
        listening().map_err(|error| RendezvousError::System { path: self.path.clone(), error })
    }

    /// Connects to the fork servers that listen here, except number `own`. Removes sockets of ended servers.
    pub(super) fn others(&self, own: Option<Pid>) -> Result<Vec<OwnedFd>, RendezvousError> {
        let system = |error| RendezvousError::System { path: self.path.clone(), error };
        let own = own.map(file_name);
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(system)? {
            let name = entry.map_err(system)?.file_name();
            let Some(name) = name.to_str().filter(|name| is_socket_name(name) && own.as_deref() != Some(name)) else {
                continue;
            };
            match self.connect(name) {
                Ok(connection) => found.push(connection),
                // The server ended without removing its socket.
                Err(Errno::ECONNREFUSED) => drop(fs::remove_file(self.path.join(name))),
                // The server ended meanwhile, or another daemon has it.
                Err(_) => {}
            }
        }
        Ok(found)
    }

    fn connect(&self, name: &str) -> nix::Result<OwnedFd> {
        let connection = packet_socket()?;
        // A server that accepts no connection has a full queue, and a blocking connect would wait for it.
        fcntl(&connection, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        connect(connection.as_raw_fd(), &self.address(name)?)?;
        fcntl(&connection, FcntlArg::F_SETFL(OFlag::empty()))?;
        if is_own(connection.as_fd()) { Ok(connection) } else { Err(Errno::EPERM) }
    }

    /// Address of a socket through the open directory: the path may be longer than an address can be.
    fn address(&self, name: &str) -> nix::Result<UnixAddr> {
        UnixAddr::new(format!("/proc/self/fd/{}/{name}", self.directory.as_raw_fd()).as_str())
    }
}

/// Accepts the daemon that waits at `listener`; `None` if it belongs to another user, or has gone.
pub(super) fn accept(listener: &UnixListener) -> Option<OwnedFd> {
    // The stream is used only as the owner of a descriptor: `UnixStream` does not support packets.
    let connection = OwnedFd::from(listener.accept().ok()?.0);
    is_own(connection.as_fd()).then_some(connection)
}

/// Waits until the socket is readable; false after `timeout`.
pub(super) fn is_readable(socket: BorrowedFd<'_>, timeout: PollTimeout) -> bool {
    loop {
        match poll(&mut [PollFd::new(socket, PollFlags::POLLIN)], timeout) {
            Err(Errno::EINTR) => {}
            polled => return polled.is_ok_and(|ready| ready > 0),
        }
    }
}

/// Returns true if the process at the other end belongs to this user.
fn is_own(connection: BorrowedFd<'_>) -> bool {
    getsockopt(&connection, PeerCredentials).is_ok_and(|peer| peer.uid() == geteuid().as_raw())
}

fn packet_socket() -> nix::Result<OwnedFd> {
    socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)
}

fn file_name(server: Pid) -> String {
    format!("forks-{server}.sock")
}

fn is_socket_name(name: &str) -> bool {
    let number = name.strip_prefix("forks-").and_then(|rest| rest.strip_suffix(".sock"));
    number.is_some_and(|number| number.parse::<i32>().is_ok())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use nix::sys::socket::{Shutdown, shutdown};

    use super::*;

    const SERVER: Pid = Pid::from_raw(4711);

    fn found(rendezvous: &Rendezvous, own: Option<Pid>) -> usize {
        rendezvous.others(own).unwrap().len()
    }

    /// Ends a listener for all processes: another test's fork has a copy of its descriptor until it executes a program.
    fn close(listener: UnixListener) {
        shutdown(listener.as_raw_fd(), Shutdown::Both).unwrap();
    }

    #[test]
    fn sockets_of_running_servers_are_found_and_those_of_ended_servers_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        // Path that is longer than a socket address can be.
        let rendezvous = Rendezvous::open(&parent.path().join("x".repeat(200))).unwrap();
        assert_eq!(found(&rendezvous, None), 0);
        let listener = rendezvous.listen(SERVER).unwrap();
        let others = rendezvous.others(None).unwrap();
        assert_eq!((others.len(), found(&rendezvous, Some(SERVER))), (1, 0));
        assert!(accept(&listener).is_some());
        close(listener);
        assert!(rendezvous.socket_of(SERVER).exists());
        assert_eq!(found(&rendezvous, None), 0);
        assert!(!rendezvous.socket_of(SERVER).exists());
        // Replaces a leftover socket.
        close(rendezvous.listen(SERVER).unwrap());
        close(rendezvous.listen(SERVER).unwrap());
        assert_eq!(found(&rendezvous, None), 0);
        assert_eq!(fs::read_dir(&rendezvous.path).unwrap().count(), 0);
        fs::write(rendezvous.path.join("forks-.sock"), "").unwrap();
        assert_eq!(found(&rendezvous, None), 0);
    }

    #[test]
    fn a_directory_that_others_can_reach_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let error = Rendezvous::open(directory.path()).unwrap_err().to_string();
        assert!(error.contains("has mode 755; it must belong to user"), "{error}");
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("/tmp", &link).unwrap();
        assert!(Rendezvous::open(&link).is_err());
    }
}
