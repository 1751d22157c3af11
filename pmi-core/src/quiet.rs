//! A Unix socket whose task is woken when there is something to read, and not each time the other end has read something.
//!
//! tokio's own sockets are watched for room to write all the time, and the kernel tells of room whenever the other end reads: who
//! answers small requests is woken once more for each answer, for nothing. Here room is watched for only while there is none.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

/// The reading side.
#[derive(Debug)]
pub struct ReadHalf(Arc<AsyncFd<UnixStream>>);

/// The writing side. The other end sees the end of the stream when it is dropped.
#[derive(Debug)]
pub struct WriteHalf {
    socket: Arc<AsyncFd<UnixStream>>,
    /// A duplicate of the socket that is watched for room; there while a write waits for some.
    room: Option<AsyncFd<OwnedFd>>,
}

/// The two sides of `socket`, which is made nonblocking. Must be called within a tokio runtime with I/O.
///
/// # Errors
/// Fails when the runtime cannot watch the socket.
pub fn split(socket: UnixStream) -> io::Result<(ReadHalf, WriteHalf)> {
    socket.set_nonblocking(true)?;
    let socket = Arc::new(watch(socket, Interest::READABLE)?);
    Ok((ReadHalf(Arc::clone(&socket)), WriteHalf { socket, room: None }))
}

/// Watches a descriptor. Its owner is of a type that keeps it as long as it lives.
fn watch<T: AsRawFd + Into<OwnedFd>>(owner: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    #[expect(
        deprecated,
        reason = "the successor is unsafe, and asks for no more than that the owner keeps its descriptor"
    )]
    AsyncFd::with_interest(owner, interest)
}

impl AsyncRead for ReadHalf {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.0.poll_read_ready(context))?;
            let room = buffer.initialize_unfilled();
            let Ok(result) = guard.try_io(|socket| socket.get_ref().read(room)) else { continue };
            let read = result?;
            // Less than fits was all there is: no need to be told so by another call. What comes meanwhile is a new event.
            if 0 < read && read < room.len() {
                guard.clear_ready();
            }
            buffer.advance(read);
            return Poll::Ready(Ok(()));
        }
    }
}

impl WriteHalf {
    /// The socket.
    pub fn get_ref(&self) -> &UnixStream {
        self.socket.get_ref()
    }

    /// Writes what the socket takes at once.
    ///
    /// # Errors
    /// `WouldBlock` if it takes nothing, and what else the system says.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.get_ref().write(bytes)
    }

    /// Waits until the socket takes something, or the other end is gone.
    ///
    /// # Errors
    /// Fails when the runtime cannot watch the socket.
    pub async fn writable(&self) -> io::Result<()> {
        self.watch_room()?.writable().await.map(drop)
    }

    fn watch_room(&self) -> io::Result<AsyncFd<OwnedFd>> {
        watch(self.get_ref().as_fd().try_clone_to_owned()?, Interest::WRITABLE)
    }
}

impl AsyncWrite for WriteHalf {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            match self.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => {
                    self.room = None;
                    return Poll::Ready(result);
                }
            }
            match &self.room {
                // It said that there was room, and there is none any more.
                Some(room) => ready!(room.poll_write_ready(context))?.clear_ready(),
                None => self.room = Some(self.watch_room()?),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.get_ref().shutdown(Shutdown::Write))
    }
}

impl Drop for WriteHalf {
    fn drop(&mut self) {
        // The other end may have gone before.
        let _ = self.get_ref().shutdown(Shutdown::Write);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Wake;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[tokio::test]
    async fn nobody_is_woken_because_the_other_end_reads() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (mut reader, writer) = split(ours).unwrap();
        let woken = Arc::new(Woken::default());
        let waker = Arc::clone(&woken).into();
        let mut bytes = [0; 8];
        let polled = Pin::new(&mut reader).poll_read(&mut Context::from_waker(&waker), &mut ReadBuf::new(&mut bytes));
        assert!(polled.is_pending());
        assert_eq!(writer.try_write(b"answer").unwrap(), 6);
        assert_eq!(theirs.read(&mut [0; 8]).unwrap(), 6);
        // Between two tasks the runtime looks for events.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(!woken.0.load(Ordering::Relaxed));
        theirs.write_all(b"request").unwrap();
        assert_eq!(reader.read(&mut bytes).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn a_write_waits_for_room_and_ends_with_the_stream() {
        const MANY: usize = 4 << 20;
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (_reader, mut writer) = split(ours).unwrap();
        let reading = std::thread::spawn(move || {
            let mut all = Vec::new();
            theirs.read_to_end(&mut all).unwrap();
            all.len()
        });
        writer.write_all(&vec![7; MANY]).await.unwrap();
        drop(writer);
        assert_eq!(reading.join().unwrap(), MANY);
    }

    #[tokio::test]
    async fn a_full_socket_becomes_writable_when_it_is_read() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (_reader, writer) = split(ours).unwrap();
        let bytes = [7; 4096];
        while writer.try_write(&bytes).is_ok() {}
        theirs.set_nonblocking(true).unwrap();
        let read = async { while matches!(theirs.read(&mut [0; 65536]), Ok(1..)) {} };
        let (writable, ()) = tokio::join!(writer.writable(), read);
        writable.unwrap();
        assert!(writer.try_write(&bytes).is_ok());
    }
}
