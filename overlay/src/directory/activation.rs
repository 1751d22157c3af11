//! Activation of sets on demand: a launch that nobody has needed to be a set takes connections at a socket in the abstract namespace of Unix
//! sockets, whose name follows from the launch, and is founded when the first one comes. Nothing is said: the end of the connection tells
//! that the set is in its directory, or cannot be.

use std::fs;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr, getsockopt, sockopt};
use nix::unistd::geteuid;

/// Beginning of the names of the sockets.
const PREFIX: &str = "lattice-launch-";
/// Time that a launch is waited for, or all of them.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Flag of a socket in `/proc/net/unix` that takes connections (`__SO_ACCEPTCON`).
const LISTENS: &str = "00010000";

/// Name in the abstract namespace of Unix sockets at which a launch waits for somebody who needs its set.
pub fn socket_name(launch: &str) -> String {
    format!("{PREFIX}{launch}")
}

/// Has a launch on this machine founded as a set, and waits for that, 3 s at most. Returns false if no launch of this user waits there: it is
/// founded already, too young, or not there.
pub fn activate(launch: &str) -> bool {
    ask(&socket_name(launch), Instant::now() + TIMEOUT)
}

/// Has all launches of this user on this machine founded as sets, and waits for that, 3 s at most.
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
        // A time of nothing is none that a socket takes: then nobody is waited for any more.
        if socket.set_read_timeout(Some(left)).is_ok() {
            // It ends when the set is founded.
            let _ = socket.read(&mut [0]);
        }
        return true;
    }
    false
}

/// Connects to a socket that anybody may have made: one that takes no connection is not waited for.
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

    /// The queue of such a socket may be full for ever.
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
