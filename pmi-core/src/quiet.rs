//! A Unix socket that wakes its task when there is data to read, and not each time the peer has read data.
//!
//! tokio's own sockets always watch for room to write, and the kernel reports room whenever the peer reads. So a server of small requests
//! wakes once more for each answer, without need. This socket watches for room only while there is none.

use std::io::{self, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use nix::cmsg_space;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, UnixCredentials, recvmsg, setsockopt, sockopt};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

/// The reading side.
#[derive(Debug)]
pub struct ReadHalf {
    socket: Arc<Socket>,
    sender: Option<u32>,
}

/// The socket of both halves.
#[derive(Debug)]
struct Socket {
    stream: AsyncFd<UnixStream>,
    /// True until a message has arrived with its sender.
    wants_sender: AtomicBool,
}

/// The writing side. When it is dropped, the peer reads the end of the stream.
#[derive(Debug)]
pub struct WriteHalf {
    socket: Arc<Socket>,
    /// A duplicate of the socket to watch for room; present while a write waits for room.
    room: Option<AsyncFd<OwnedFd>>,
}

/// Returns the two halves of `socket`, which becomes nonblocking. Must be called within a tokio runtime with I/O.
///
/// # Errors
/// Fails when the runtime cannot watch the socket.
pub fn split(socket: UnixStream) -> io::Result<(ReadHalf, WriteHalf)> {
    socket.set_nonblocking(true)?;
    let stream = watch(socket, Interest::READABLE)?;
    let socket = Arc::new(Socket { stream, wants_sender: AtomicBool::new(false) });
    Ok((ReadHalf { socket: Arc::clone(&socket), sender: None }, WriteHalf { socket, room: None }))
}

impl Socket {
    /// Reads bytes of one process, and returns their number and the process id. The id is unknown for bytes that were sent before the
    /// option was set, and for a process outside this process namespace.
    fn read_with_sender(&self, room: &mut [u8]) -> io::Result<(usize, Option<u32>)> {
        // Exactly one message of this kind: descriptors that arrive with it find no room, and the kernel closes them.
        let mut control = cmsg_space!(UnixCredentials);
        control.resize(control.capacity(), 0);
        let mut parts = [IoSliceMut::new(room)];
        let descriptor = self.stream.get_ref().as_raw_fd();
        let message = recvmsg::<()>(descriptor, &mut parts, Some(&mut control), MsgFlags::empty())?;
        let pids = message.cmsgs().into_iter().flatten().filter_map(|part| match part {
            ControlMessageOwned::ScmCredentials(sender) => u32::try_from(sender.pid()).ok(),
            _ => None,
        });
        let sender = pids.last().filter(|&pid| pid != 0);
        if sender.is_some() {
            setsockopt(self.stream.get_ref(), sockopt::PassCred, &false)?;
            self.wants_sender.store(false, Ordering::Relaxed);
        }
        Ok((message.bytes, sender))
    }
}

impl ReadHalf {
    /// Returns the process id of the sender of the last bytes read, once, if [`WriteHalf::ask_for_sender`] requested it.
    pub fn take_sender(&mut self) -> Option<u32> {
        self.sender.take()
    }
}

/// Watches a descriptor. The type of the owner keeps the descriptor open as long as the owner lives.
fn watch<T: AsRawFd + Into<OwnedFd>>(owner: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    #[expect(
        deprecated,
        reason = "the successor is unsafe, and asks for no more than that the owner keeps its descriptor"
    )]
    AsyncFd::with_interest(owner, interest)
}

impl AsyncRead for ReadHalf {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { socket, sender } = self.get_mut();
        loop {
            let mut guard = ready!(socket.stream.poll_read_ready(context))?;
            let room = buffer.initialize_unfilled();
            if socket.wants_sender.load(Ordering::Relaxed) {
                let Ok(result) = guard.try_io(|_| socket.read_with_sender(room)) else { continue };
                let (read, process) = result?;
                // The socket stays ready: bytes of another process need a further read.
                *sender = process;
                buffer.advance(read);
                return Poll::Ready(Ok(()));
            }
            let Ok(result) = guard.try_io(|stream| stream.get_ref().read(room)) else { continue };
            let read = result?;
            // A short read has emptied the socket, so no further call is needed to detect that. Later bytes are a new event.
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
        self.socket.stream.get_ref()
    }

    /// Makes the kernel attach the sender's process id to the next bytes (`SCM_CREDENTIALS`, unix(7)); [`ReadHalf::take_sender`] returns
    /// it.
    ///
    /// # Errors
    /// Fails if the kernel refuses the option.
    pub fn ask_for_sender(&self) -> io::Result<()> {
        setsockopt(self.get_ref(), sockopt::PassCred, &true)?;
        self.socket.wants_sender.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Writes as many bytes as the socket takes at once.
    ///
    /// # Errors
    /// `WouldBlock` if the socket is full, and any other error of the system.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.get_ref().write(bytes)
    }

    /// Waits until the socket has room, or the peer has closed.
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
                // The last event reported room, but the socket is full again.
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
        // The peer may already have closed.
        let _ = self.get_ref().shutdown(Shutdown::Write);
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::process::Command;
    use std::task::Wake;

    use nix::sys::socket::{ControlMessage, sendmsg};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[derive(Default)]
    struct WakeFlag(AtomicBool);

    impl Wake for WakeFlag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[tokio::test]
    async fn nobody_is_woken_because_the_other_end_reads() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (mut reader, writer) = split(ours).unwrap();
        let woken = Arc::new(WakeFlag::default());
        let waker = Arc::clone(&woken).into();
        let mut bytes = [0; 8];
        let polled = Pin::new(&mut reader).poll_read(&mut Context::from_waker(&waker), &mut ReadBuf::new(&mut bytes));
        assert!(polled.is_pending());
        assert_eq!(writer.try_write(b"answer").unwrap(), 6);
        assert_eq!(theirs.read(&mut [0; 8]).unwrap(), 6);
        // The runtime polls for events between two tasks.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(!woken.0.load(Ordering::Relaxed));
        theirs.write_all(b"request").unwrap();
        assert_eq!(reader.read(&mut bytes).await.unwrap(), 7);
    }

    /// Bytes of two processes need two reads, and no byte stays unread.
    #[tokio::test]
    async fn the_sender_is_known_for_the_bytes_after_the_question_alone() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (mut reader, writer) = split(ours).unwrap();
        let mut bytes = [0; 64];
        theirs.write_all(b"one").unwrap();
        assert_eq!((reader.read(&mut bytes).await.unwrap(), reader.take_sender()), (3, None));
        for _ in 0..2 {
            writer.ask_for_sender().unwrap();
            theirs.write_all(b"own").unwrap();
            let mut child = Command::new("/bin/echo")
                .arg("child")
                .stdout(OwnedFd::from(theirs.try_clone().unwrap()))
                .spawn()
                .unwrap();
            child.wait().unwrap();
            assert_eq!((reader.read(&mut bytes).await.unwrap(), reader.take_sender()), (3, Some(std::process::id())));
            writer.ask_for_sender().unwrap();
            assert_eq!((reader.read(&mut bytes).await.unwrap(), reader.take_sender()), (6, Some(child.id())));
            theirs.write_all(b"unasked").unwrap();
            assert_eq!((reader.read(&mut bytes).await.unwrap(), reader.take_sender()), (7, None));
        }
    }

    /// Data with attached descriptors is read without them, and its sender is unknown.
    #[tokio::test]
    async fn descriptors_that_are_sent_do_not_arrive() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (mut reader, writer) = split(ours).unwrap();
        writer.ask_for_sender().unwrap();
        let (kept, sent) = UnixStream::pair().unwrap();
        let descriptors = [sent.as_raw_fd()];
        let message = [ControlMessage::ScmRights(&descriptors)];
        sendmsg::<()>(theirs.as_raw_fd(), &[IoSlice::new(b"x")], &message, MsgFlags::empty(), None).unwrap();
        drop(sent);
        assert_eq!(reader.read(&mut [0; 8]).await.unwrap(), 1);
        assert_eq!((&kept).read(&mut [0]).unwrap(), 0, "the kernel has closed the descriptor");
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
