//! Listening Unix sockets.

use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use nix::sys::socket::{MsgFlags, recv};
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::task::yield_now;

use super::error::ListenError;
use super::socket_file::SocketFile;
use crate::address::Address;

/// Number of closed connections after which other tasks run.
const ENDED_AT_ONCE: u32 = 128;

/// Unix socket that accepts connections of all users of this machine. The kernel identifies them.
pub struct LocalSocket {
    // The fields are dropped in this order, so that the file never exists without a listener.
    _file: SocketFile,
    listener: AsyncFd<std::os::unix::net::UnixListener>,
}

impl LocalSocket {
    /// Makes the socket's file, and replaces one without a listener. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// Fails if the socket cannot be made, if another process listens there, or if the path is not a socket.
    pub fn bind(path: &Path) -> Result<Self, ListenError> {
        let failed = |source| ListenError::Bind { address: Address::Unix(path.to_owned()), source };
        let (file, listener) = SocketFile::bind(path).map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => ListenError::Taken { path: path.to_owned() },
            io::ErrorKind::AlreadyExists => ListenError::NoSocket { path: path.to_owned() },
            _ => failed(source),
        })?;
        #[allow(
            deprecated,
            reason = "`register` is unsafe, for types with a descriptor of others; this one owns its descriptor"
        )]
        let listener = AsyncFd::new(listener).map_err(failed)?;
        Ok(Self { _file: file, listener })
    }

    /// Returns the next connection that its other end has not closed already.
    ///
    /// # Errors
    /// Fails if accept(2) fails, for example without free descriptors.
    pub async fn accept(&self) -> io::Result<UnixStream> {
        let mut count = 0_u32;
        loop {
            let mut ready = self.listener.readable().await?;
            // A process that connects and closes in a loop costs three system calls for each connection: only living ones get an event source.
            match ready.try_io(|listener| listener.get_ref().accept()) {
                Ok(Ok((stream, _))) if has_ended(&stream) => {}
                Ok(Ok((stream, _))) => {
                    stream.set_nonblocking(true)?;
                    return UnixStream::from_std(stream);
                }
                Ok(Err(error)) => return Err(error),
                Err(_nothing_left) => {}
            }
            count = count.wrapping_add(1);
            if count.is_multiple_of(ENDED_AT_ONCE) {
                yield_now().await;
            }
        }
    }
}

/// Returns true if the other end has closed the connection without a byte.
fn has_ended(stream: &impl AsRawFd) -> bool {
    recv(stream.as_raw_fd(), &mut [0], MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT) == Ok(0)
}
