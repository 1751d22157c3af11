//! Settings of a link's connection.

use std::io;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::TcpStream;

use crate::limits::{KEEP_ALIVE_INTERVAL, KEEP_ALIVE_TIMEOUT};

/// Time after which a connection breaks when the other end's machine does not acknowledge what it was sent.
const UNACKNOWLEDGED: Duration = KEEP_ALIVE_INTERVAL.saturating_add(KEEP_ALIVE_TIMEOUT);

/// Sends small frames at once, and lets the connection break when the other machine is gone or cut off: the kernel asks an idle
/// one as often as HTTP/2 does for calls.
pub(super) fn configure(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let seconds = KEEP_ALIVE_INTERVAL.as_secs() as u32;
    setsockopt(socket, sockopt::KeepAlive, &true)?;
    setsockopt(socket, sockopt::TcpKeepIdle, &seconds)?;
    setsockopt(socket, sockopt::TcpKeepInterval, &seconds)?;
    setsockopt(socket, sockopt::TcpKeepCount, &2)?;
    setsockopt(socket, sockopt::TcpUserTimeout, &(UNACKNOWLEDGED.as_millis() as u32))?;
    Ok(())
}
