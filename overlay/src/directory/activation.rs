//! Activation of sets on demand. A launch without a set listens at a socket in the abstract namespace of Unix sockets, with a name derived
//! from the launch. The first connection activates the set. No data is sent: the connection ends once the set is in its directory, or cannot
//! be made.

use std::fs;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr, getsockopt, sockopt};
use nix::unistd::geteuid;

/// Prefix of the names of the sockets.
const PREFIX: &str = "lattice-launch-";
/// Time limit for one launch, or for all of them.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Flag of a listening socket in `/proc/net/unix` (`__SO_ACCEPTCON`).
const LISTENS: &str = "00010000";

/// Name in the abstract namespace of Unix sockets at which a launch waits for the first use of its set.
pub fn socket_name(launch: &str) -> String {
    format!("{PREFIX}{launch}")
}

/// Activates the set of a launch on this machine, and waits for it up to 3 s. Returns false if no launch of this user listens: the set is
/// active already, or the launch is too young or does not exist.
pub fn activate(launch: &str) -> bool {
    ask(&socket_name(launch), Instant::now() + TIMEOUT)
}

/// Activates the sets of all launches of this user on this machine, and waits for them up to 3 s.
pub fn activate_all() {
    let until = Instant::now() + TIMEOUT;
    let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    for name in waiting(&sockets) {
        ask(name, until);
    }
}

/// Names of sockets at which launches wait, in the text of `/proc/net/unix`.
fn waiting(sockets: &str) -> impl Iterator<Item = &str> {
    // Num, RefCount, Protocol, Flags, Type, St, Inode, Path.
    sockets.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let name = fields.get(7)?.strip_prefix('@')?;
        (fields[3] == LISTENS && name.starts_with(PREFIX)).then_some(name)
    })
}

fn ask(name: &str, until: Instant) -> bool {
    let Ok(mut socket) = connect(name) else { return false };
    if getsockopt(&socket, sockopt::PeerCredentials).is_ok_and(|peer| peer.uid() == geteuid().as_raw()) {
        let left = until.saturating_duration_since(Instant::now());
        // A socket refuses a time-out of zero. Then the time limit has passed.
        if socket.set_read_timeout(Some(left)).is_ok() {
            // The connection ends once the set is active.
            let _ = socket.read(&mut [0]);
        }
        return true;
    }
    false
}

/// Connects to a socket that any user may have made. Does not wait for a socket that accepts no connection.
fn connect(name: &str) -> io::Result<UnixStream> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    socket::connect(socket.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
    let connected = UnixStream::from(socket);
    connected.set_nonblocking(false)?;
    Ok(connected)
}

#[cfg(test)]
mod tests {
    use std::process;

    use nix::sys::socket::{Backlog, bind, listen};

    use super::*;

    /// The queue of such a socket may stay full indefinitely.
    #[test]
    fn whoever_takes_no_connection_is_not_waited_for() {
        let name = format!("lattice-test-{}", process::id());
        let hostile = socket::socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
        bind(hostile.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes()).unwrap()).unwrap();
        listen(&hostile, Backlog::new(0).unwrap()).unwrap();
        let queued: Vec<_> = std::iter::from_fn(|| connect(&name).ok()).collect();
        assert!(!queued.is_empty());
        assert!(!ask(&name, Instant::now() + TIMEOUT));
    }

    #[test]
    fn launches_that_wait_are_told_from_other_sockets() {
        let sockets = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 20583 @lattice-launch-km39k2798m\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 20584 @lattice-launch-connected0\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 20585 @lattice-set-aa365ddd1c41e878\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 20586 /tmp/lattice-launch-file\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 20587\n";
        assert_eq!(waiting(sockets).collect::<Vec<_>>(), ["lattice-launch-km39k2798m"]);
    }
}
