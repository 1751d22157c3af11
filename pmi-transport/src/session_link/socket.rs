//! Settings of a link's connection.

use std::io;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::TcpStream;

use crate::limits::{KEEP_ALIVE_INTERVAL, KEEP_ALIVE_TIMEOUT};

/// Time after which a connection breaks if the other machine does not acknowledge sent data.
const UNACKNOWLEDGED: Duration = KEEP_ALIVE_INTERVAL.saturating_add(KEEP_ALIVE_TIMEOUT);

/// Sends small frames at once. Breaks the connection when the other machine is lost: the kernel sends keep-alive probes on an
/// idle connection as often as HTTP/2 does for calls.
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
