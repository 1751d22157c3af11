//! Connections to Unix sockets with a queue that other clients keep full.
//!
//! A non-blocking `connect` fails with `EAGAIN` while the queue is full, and each retry competes again. A blocking `connect` has a place
//! in the kernel's wait queue, so that it gets its turn regardless of other clients.

use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr, sockopt};
use nix::sys::time::TimeVal;
use tokio::net::UnixStream;
use tokio::task::spawn_blocking;

/// Connects to the socket at `path`; waits up to `within` for a place in its queue.
///
/// # Errors
/// `TimedOut` if the queue stays full; otherwise the errors of connect(2).
pub(super) async fn connect(path: &Path, within: Duration) -> io::Result<UnixStream> {
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
        connected => return connected,
    }
    let path: PathBuf = path.to_owned();
    let connected = spawn_blocking(move || connect_in_turn(&path, within)).await;
    let stream = std::os::unix::net::UnixStream::from(connected.map_err(io::Error::other)??);
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

fn connect_in_turn(path: &Path, within: Duration) -> io::Result<OwnedFd> {
    let socket = socket::socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let limit = TimeVal::new(within.as_secs().try_into().unwrap_or(i64::MAX), within.subsec_micros().into());
    socket::setsockopt(&socket, sockopt::SendTimeout, &limit)?;
    let address = UnixAddr::new(path)?;
    loop {
        match socket::connect(socket.as_raw_fd(), &address) {
            Ok(()) => return Ok(socket),
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => return Err(io::Error::new(ErrorKind::TimedOut, "its queue was full all the time")),
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use nix::sys::socket::Backlog;

    use super::*;

    /// Returns a listener with a backlog of zero, and the one connection that fills its queue.
    fn full(path: &Path) -> (UnixListener, std::os::unix::net::UnixStream) {
        let listener = UnixListener::bind(path).unwrap();
        socket::listen(&listener, Backlog::new(0).unwrap()).unwrap();
        let first = std::os::unix::net::UnixStream::connect(path).unwrap();
        (listener, first)
    }

    #[tokio::test]
    async fn a_connection_waits_for_a_place_in_a_full_queue() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("full.sock");
        let (listener, _first) = full(&path);
        let refused = connect(&path, Duration::from_millis(10)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::TimedOut);
        let accepting = thread::spawn(move || (listener.accept().map(drop), listener.accept().map(drop)));
        connect(&path, Duration::from_secs(60)).await.unwrap();
        drop(accepting.join().unwrap());
        let absent = connect(&directory.path().join("none.sock"), Duration::from_secs(60)).await.unwrap_err();
        assert_eq!(absent.kind(), ErrorKind::NotFound);
    }
}
