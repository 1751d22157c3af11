//! Output of a rank on its way from its pipe, or the terminal in its place, to the launch, cut at line ends.
//!
//! A pump reads no more while the launch does not take what it has: the pipe fills, and the rank waits.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::unistd;
use pmi_core::ids::Rank;
use rank_spawner::Terminal;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, watch};

use super::tap::Tap;
use crate::event::{Event, Output, Stream};

/// Bytes that a pipe holds which does not tell: the usual size (pipe(7)).
const PIPE_SIZE: usize = 64 << 10;

/// Bytes that are read of a terminal at once; the kernel hands out no more than a page.
const TERMINAL_PIECE: usize = 4096;

/// One output stream of a rank.
pub(super) struct Pump {
    pub(super) rank: Rank,
    pub(super) stream: Stream,
    /// Pass on the beginning of a line when the rank pauses in it for this long: it may be a prompt.
    pub(super) prompt_after: Option<Duration>,
    pub(super) events: mpsc::Sender<Event>,
    /// Where tools may want it, too.
    pub(super) tap: Option<Tap>,
}

impl Pump {
    /// Reads until the last holder of the other end is gone; once `stop` turns true, what is in between then.
    pub(super) async fn run(self, source: OwnedFd, mut stop: watch::Receiver<bool>) {
        let Ok(source) = Source::new(source) else { return };
        // Holds no memory while there is nothing in it: most ranks are silent most of the time.
        let mut held = BytesMut::new();
        loop {
            let prompt_after = self.prompt_after.filter(|_| !held.is_empty());
            tokio::select! {
                biased;
                // Others that have the pipe may write for ever.
                () = until_true(&mut stop) => {
                    self.drain(&source, &mut held).await;
                    break;
                }
                ready = source.readable() => if ready.is_err() {
                    break;
                },
                () = pause(prompt_after) => {
                    self.pass_on(held.split().freeze()).await;
                    continue;
                }
            }
            if held.capacity() - held.len() < 512 {
                held.reserve(if held.len() >= 4096 { Output::PIECE_MAX } else { 4096 });
            }
            match source.try_read_buf(&mut held) {
                Ok(1..) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                // The last holder is gone.
                Ok(0) | Err(_) => break,
            }
            self.pass_lines_on(&mut held).await;
            if held.is_empty() {
                held = BytesMut::new();
            }
        }
        if !held.is_empty() {
            self.pass_on(held.freeze()).await;
        }
        if let Some(tap) = &self.tap {
            tap.ended(self.stream);
        }
    }

    /// Reads what a pipe holds, which is no more than its size; a terminal holds less.
    async fn drain(&self, source: &Source, held: &mut BytesMut) {
        let mut left = fcntl(source, FcntlArg::F_GETPIPE_SZ).map_or(PIPE_SIZE, |size| size.unsigned_abs() as usize);
        let mut buffer = vec![0; Output::PIECE_MAX];
        while left > 0 {
            let room = left.min(buffer.len());
            match unistd::read(source, &mut buffer[..room]) {
                Ok(len @ 1..) => {
                    held.extend_from_slice(&buffer[..len]);
                    left -= len;
                }
                Err(Errno::EINTR) => {}
                Ok(0) | Err(_) => break,
            }
            self.pass_lines_on(held).await;
        }
    }

    /// Passes on what ends a line, and what is too long to wait for its end.
    async fn pass_lines_on(&self, held: &mut BytesMut) {
        if let Some(end) = memchr::memrchr(b'\n', held) {
            self.pass_on(held.split_to(end + 1).freeze()).await;
        } else if held.len() >= Output::PIECE_MAX {
            self.pass_on(held.split().freeze()).await;
        }
    }

    async fn pass_on(&self, bytes: Bytes) {
        if let Some(tap) = &self.tap {
            tap.wrote(self.stream, &bytes);
        }
        for piece in Output::pieces(self.rank, self.stream, bytes) {
            // A launch that takes no more output has ended its ranks, or will: keep reading, so that they can end.
            let _ = self.events.send(Event::Output(piece)).await;
        }
    }
}

/// Our end of a rank's stream.
enum Source {
    Pipe(pipe::Receiver),
    /// The driving end of a pseudo-terminal, which fails with `EIO` when nobody has the terminal any more.
    Terminal(AsyncFd<Terminal>),
}

impl Source {
    /// # Errors
    /// Fails when the runtime cannot watch another descriptor.
    fn new(end: OwnedFd) -> io::Result<Self> {
        match Terminal::of_end(end) {
            Ok(terminal) => terminal.watched().map(Self::Terminal),
            Err(end) => pipe::Receiver::from_owned_fd(end).map(Self::Pipe),
        }
    }

    /// Waits until there may be something to read.
    async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Pipe(pipe) => pipe.readable().await,
            Self::Terminal(terminal) => terminal.readable().await.map(|mut ready| ready.retain_ready()),
        }
    }

    /// Reads into the room of `held`; 0 bytes are the end.
    fn try_read_buf(&self, held: &mut BytesMut) -> io::Result<usize> {
        match self {
            Self::Pipe(pipe) => pipe.try_read_buf(held),
            Self::Terminal(terminal) => {
                let mut piece = [0; TERMINAL_PIECE];
                let len = terminal.try_io(Interest::READABLE, |terminal| Ok(unistd::read(terminal, &mut piece)?))?;
                held.extend_from_slice(&piece[..len]);
                Ok(len)
            }
        }
    }
}

impl AsFd for Source {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Pipe(pipe) => pipe.as_fd(),
            Self::Terminal(terminal) => terminal.as_fd(),
        }
    }
}

pub(super) async fn until_true(flag: &mut watch::Receiver<bool>) {
    // A session that is gone stops its pumps, too.
    let _ = flag.wait_for(|&flag| flag).await;
}

async fn pause(after: Option<Duration>) {
    match after {
        Some(after) => tokio::time::sleep(after).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// Writes each of `writes` to a pump and returns the pieces that come out.
    async fn pieces(writes: &[&[u8]], prompt_after: Option<Duration>) -> Vec<Vec<u8>> {
        let (reader, mut writer) = io::pipe().unwrap();
        let (events, mut received) = mpsc::channel(1024);
        let pump = Pump { rank: Rank(0), stream: Stream::Stdout, prompt_after, events, tap: None };
        let (_going, stop) = watch::channel(false);
        let reader = OwnedFd::from(reader);
        let running = tokio::spawn(pump.run(reader, stop));
        for bytes in writes {
            writer.write_all(bytes).unwrap();
            tokio::task::yield_now().await;
        }
        drop(writer);
        running.await.unwrap();
        let mut pieces = Vec::new();
        while let Some(Event::Output(output)) = received.recv().await {
            pieces.push(output.bytes.to_vec());
        }
        pieces
    }

    #[tokio::test]
    async fn pieces_end_at_line_ends_whatever_the_writes_were() {
        let pieces = pieces(&[b"one\ntw", b"o\nthree"], None).await;
        assert_eq!(pieces.concat(), b"one\ntwo\nthree");
        let (last, whole) = pieces.split_last().unwrap();
        assert_eq!(last, b"three");
        assert!(whole.iter().all(|piece| piece.ends_with(b"\n")), "{pieces:?}");
    }

    /// Somebody else may have the pipe of a rank that is gone, and write on.
    #[tokio::test]
    async fn a_pump_that_is_stopped_takes_what_is_there_and_ends() {
        let (reader, mut writer) = io::pipe().unwrap();
        let (events, mut received) = mpsc::channel(1024);
        let pump = Pump { rank: Rank(0), stream: Stream::Stdout, prompt_after: None, events, tap: None };
        let (_stop, stop) = watch::channel(true);
        writer.write_all(b"last words\n").unwrap();
        let writing = std::thread::spawn(move || while writer.write_all(&[b'x'; 1000]).is_ok() {});
        tokio::time::timeout(Duration::from_secs(60), pump.run(OwnedFd::from(reader), stop)).await.unwrap();
        writing.join().unwrap();
        match received.recv().await {
            Some(Event::Output(output)) => assert!(output.bytes.starts_with(b"last words\n")),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn an_endless_line_comes_in_pieces() {
        // Less than a pipe holds, so that this thread can write it all before anybody reads.
        let line = vec![b'x'; 60 * 1024];
        let pieces = pieces(&[&line], None).await;
        assert_eq!(pieces.concat(), line);
        assert!(pieces.iter().all(|piece| piece.len() <= Output::PIECE_MAX));
    }

    #[tokio::test(start_paused = true)]
    async fn a_prompt_is_passed_on_after_a_pause_and_a_line_is_not_cut_without_one() {
        for (prompt_after, expected) in [(Some(Duration::from_millis(100)), Some("name? ")), (None, None)] {
            let (reader, mut writer) = io::pipe().unwrap();
            let (events, mut received) = mpsc::channel(8);
            let pump = Pump { rank: Rank(0), stream: Stream::Stdout, prompt_after, events, tap: None };
            let (_going, stop) = watch::channel(false);
            let running = tokio::spawn(pump.run(OwnedFd::from(reader), stop));
            writer.write_all(b"name? ").unwrap();
            let seen = tokio::time::timeout(Duration::from_secs(5), received.recv()).await.ok().flatten();
            let seen = seen.map(|event| match event {
                Event::Output(output) => String::from_utf8(output.bytes.to_vec()).unwrap(),
                other => panic!("{other:?}"),
            });
            assert_eq!(seen.as_deref(), expected);
            running.abort();
        }
    }
}
