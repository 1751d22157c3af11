//! Output of a rank, from its pipe or its terminal to the launch, cut at line ends.
//!
//! A pump stops reading while the launch does not accept its output: the pipe fills, and the rank waits. It reads to the end of the stream,
//! which processes that the rank left running may hold open. [`Extent`] limits the time of these processes. `held_line` decides where output is
//! cut.

mod held_line;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::unistd;
use pmi_core::ids::Rank;
use rank_spawner::{OutputStream, Terminal};
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use self::held_line::HeldLine;
use super::misuse::LibraryErrors;
use super::tap::Tap;
use super::terminal::RankTerminal;
use crate::deadline::until;
use crate::event::{Event, Output, Stream};

/// Assumed bytes in a pipe of unknown size: the default size (pipe(7)), and the maximum of a terminal.
const PIPE_SIZE: usize = 64 << 10;

/// Time after which a launch that does not accept output counts as paused. A pause is not part of [`Extent::Within`].
const READER_PAUSE: Duration = Duration::from_millis(100);

/// Extent to which the pumps of a session read their streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// Ranks run: to the end of each stream.
    ToTheEnd,
    /// The last rank has ended: to the end of each stream, at most for this time, without the pauses of the launch's reader.
    Within { since: Instant, limit: Duration },
    /// No process of the launch is left: to the end of the present contents of each stream.
    Present,
}

/// A stream that has not ended within the time of [`Extent::Within`].
#[derive(Debug)]
pub(super) struct HeldStream {
    pub(super) rank: Rank,
    pub(super) stream: OutputStream,
}

/// One output stream of a rank.
pub(super) struct Pump {
    pub(super) rank: Rank,
    pub(super) stream: Stream,
    /// Time after its first byte at which an incomplete line is passed on: it may be a prompt. `None` passes on only whole lines.
    pub(super) prompt_after: Option<Duration>,
    pub(super) events: mpsc::Sender<Event>,
    /// Receiver of the output for tools.
    pub(super) tap: Option<Tap>,
    pub(super) errors: Option<LibraryErrors>,
    pub(super) extent: watch::Receiver<Extent>,
    /// Receiver of the stream, if its time ends before the stream.
    pub(super) held: mpsc::UnboundedSender<HeldStream>,
}

/// State of a stream after a read of its present contents.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StreamEnd {
    /// No process holds it any more.
    Ended,
    /// A process may write more.
    Open,
}

impl Pump {
    /// Reads until no process holds the other end, or to the extent that the session sets meanwhile.
    pub(super) async fn run(mut self, source: Source) {
        let mut line = HeldLine::new(self.prompt_after);
        let mut paused = Duration::ZERO;
        loop {
            let extent = *self.extent.borrow_and_update();
            let deadline = match extent {
                Extent::ToTheEnd => None,
                Extent::Within { since, limit } => Some(since + limit + paused),
                Extent::Present => {
                    self.read_present(&source, &mut line).await;
                    break;
                }
            };
            tokio::select! {
                biased;
                changed = self.extent.changed() => if changed.is_err() {
                    // The session is gone.
                    self.read_present(&source, &mut line).await;
                    break;
                } else {
                    continue;
                },
                () = until(deadline) => {
                    self.end_at_deadline(&source, &mut line).await;
                    break;
                }
                ready = source.readable() => if ready.is_err() {
                    break;
                },
                () = until(line.due()) => {
                    paused += self.pass_on(line.take()).await;
                    continue;
                }
            }
            match source.try_read_buf(line.room()) {
                Ok(1..) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Ok(0) | Err(_) => break,
            }
            while let Some(piece) = line.next_piece(Instant::now()) {
                paused += self.pass_on(piece).await;
            }
        }
        self.pass_on(line.take()).await;
        if let Some(tap) = &self.tap {
            tap.ended(self.stream);
        }
    }

    /// Reads the present contents. If the stream has not ended then, the session identifies its holders and kills the launch's own processes
    /// among them. Output that they write until then is read as well.
    async fn end_at_deadline(&mut self, source: &Source, line: &mut HeldLine) {
        if self.read_present(source, line).await == StreamEnd::Ended {
            return;
        }
        if let Ok(stream) = OutputStream::of_end(source) {
            // If the session is gone, its processes are killed anyway.
            let _ = self.held.send(HeldStream { rank: self.rank, stream });
        }
        let _ = self.extent.wait_for(|&extent| extent == Extent::Present).await;
        self.read_present(source, line).await;
    }

    /// Reads the contents of a pipe, which are at most its size; a terminal holds less.
    async fn read_present(&mut self, source: &Source, line: &mut HeldLine) -> StreamEnd {
        let mut left = fcntl(source, FcntlArg::F_GETPIPE_SZ).map_or(PIPE_SIZE, |size| size.unsigned_abs() as usize);
        let mut buffer = vec![0; Output::PIECE_MAX];
        while left > 0 {
            let room = left.min(buffer.len());
            match unistd::read(source, &mut buffer[..room]) {
                Ok(len @ 1..) => {
                    line.room().extend_from_slice(&buffer[..len]);
                    left -= len;
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return StreamEnd::Open,
                Ok(0) | Err(_) => return StreamEnd::Ended,
            }
            while let Some(piece) = line.next_piece(Instant::now()) {
                self.pass_on(piece).await;
            }
        }
        StreamEnd::Open
    }

    /// Passes output on. Returns the time by which this extends [`Extent::Within`].
    async fn pass_on(&mut self, bytes: Bytes) -> Duration {
        if let Some(tap) = &self.tap {
            tap.wrote(self.stream, &bytes);
        }
        if let Some(errors) = &self.errors {
            errors.look_at(&bytes);
        }
        let mut paused = Duration::ZERO;
        for piece in Output::pieces(self.rank, self.stream, bytes) {
            let began = Instant::now();
            // A launch that accepts no more output has ended its ranks, or will. Reading continues, so that the ranks can end.
            let _ = self.events.send(Event::Output(piece)).await;
            let extent = *self.extent.borrow();
            if let Extent::Within { since, .. } = extent {
                paused += began.max(since).elapsed().saturating_sub(READER_PAUSE);
            }
        }
        paused
    }
}

/// The session's end of a rank's stream.
pub(super) enum Source {
    Pipe(pipe::Receiver),
    /// The driving end of a pseudo-terminal. It fails with `EIO` when no process has the terminal open.
    Terminal(Arc<RankTerminal>),
}

impl Source {
    /// # Errors
    /// Fails when the runtime cannot watch another descriptor.
    pub(super) fn new(end: OwnedFd) -> io::Result<Self> {
        match Terminal::of_end(end) {
            Ok(terminal) => RankTerminal::new(terminal).map(Arc::new).map(Self::Terminal),
            Err(end) => pipe::Receiver::from_owned_fd(end).map(Self::Pipe),
        }
    }

    /// Waits until there may be something to read.
    async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Pipe(pipe) => pipe.readable().await,
            Self::Terminal(terminal) => terminal.readable().await,
        }
    }

    /// Reads into the room of `held`; 0 bytes are the end.
    fn try_read_buf(&self, held: &mut BytesMut) -> io::Result<usize> {
        match self {
            Self::Pipe(pipe) => pipe.try_read_buf(held),
            Self::Terminal(terminal) => terminal.try_read_buf(held),
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{PipeWriter, Write};

    /// A pump of a pipe, with all of its connections.
    struct Bench {
        writer: PipeWriter,
        received: mpsc::Receiver<Event>,
        extent: watch::Sender<Extent>,
        held: mpsc::UnboundedReceiver<HeldStream>,
        running: tokio::task::JoinHandle<()>,
    }

    impl Bench {
        fn new(prompt_after: Option<Duration>, room: usize) -> Self {
            let (reader, writer) = io::pipe().unwrap();
            let (events, received) = mpsc::channel(room);
            let (extent, reads) = watch::channel(Extent::ToTheEnd);
            let (report, held) = mpsc::unbounded_channel();
            let (rank, stream) = (Rank(0), Stream::Stdout);
            let pump =
                Pump { rank, stream, prompt_after, events, tap: None, errors: None, extent: reads, held: report };
            let running = tokio::spawn(pump.run(Source::new(OwnedFd::from(reader)).unwrap()));
            Self { writer, received, extent, held, running }
        }

        async fn next(&mut self) -> Option<String> {
            match self.received.recv().await {
                Some(Event::Output(output)) => Some(String::from_utf8(output.bytes.to_vec()).unwrap()),
                None => None,
                other => panic!("{other:?}"),
            }
        }

        fn end(&self, limit: Duration) {
            self.extent.send_replace(Extent::Within { since: Instant::now(), limit });
        }
    }

    /// Writes each of `writes` to a pump and returns the pieces that come out.
    async fn pieces(writes: &[&[u8]]) -> Vec<String> {
        let mut bench = Bench::new(None, 1024);
        for bytes in writes {
            bench.writer.write_all(bytes).unwrap();
            tokio::task::yield_now().await;
        }
        let Bench { writer, mut received, running, .. } = bench;
        drop(writer);
        running.await.unwrap();
        let mut pieces = Vec::new();
        while let Some(Event::Output(output)) = received.recv().await {
            pieces.push(String::from_utf8(output.bytes.to_vec()).unwrap());
        }
        pieces
    }

    #[tokio::test]
    async fn pieces_end_at_line_ends_whatever_the_writes_were() {
        let pieces = pieces(&[b"one\ntw", b"o\nthree"]).await;
        assert_eq!(pieces.concat(), "one\ntwo\nthree");
        let (last, whole) = pieces.split_last().unwrap();
        assert_eq!(last, "three");
        assert!(whole.iter().all(|piece| piece.ends_with('\n')), "{pieces:?}");
    }

    #[tokio::test]
    async fn an_endless_line_comes_in_pieces() {
        // Less than a pipe holds, so that this thread can write it all before the pump reads.
        let line = vec![b'x'; 60 * 1024];
        let pieces = pieces(&[&line]).await;
        assert_eq!(pieces.concat().as_bytes(), line);
        assert!(pieces.iter().all(|piece| piece.len() <= Output::PIECE_MAX));
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_process_that_holds_the_stream_of_an_ended_rank_has_a_bounded_time() {
        let mut bench = Bench::new(None, 8);
        bench.end(SECOND);
        let began = Instant::now();
        tokio::time::sleep(SECOND / 2).await;
        bench.writer.write_all(b"late\n").unwrap();
        assert_eq!(bench.next().await.as_deref(), Some("late\n"));
        assert_eq!(bench.held.recv().await.map(|held| held.rank), Some(Rank(0)));
        assert_eq!(began.elapsed(), SECOND);
        // The process is being killed meanwhile.
        bench.writer.write_all(b"last words").unwrap();
        bench.extent.send_replace(Extent::Present);
        assert_eq!(bench.next().await.as_deref(), Some("last words"));
        assert_eq!(bench.next().await, None, "the pump has ended, though the pipe is open");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_has_ended_is_not_reported_as_held_even_without_any_time() {
        let Bench { writer, mut received, extent, mut held, running } = Bench::new(None, 8);
        extent.send_replace(Extent::Within { since: Instant::now(), limit: Duration::ZERO });
        (&writer).write_all(b"all\n").unwrap();
        drop(writer);
        running.await.unwrap();
        assert!(matches!(received.recv().await, Some(Event::Output(_))));
        assert!(held.recv().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn the_pause_of_a_reader_is_not_the_time_of_a_writer() {
        let mut bench = Bench::new(None, 1);
        for line in [b"one\n", b"two\n"] {
            bench.writer.write_all(line).unwrap();
            tokio::time::sleep(SECOND).await;
        }
        bench.end(SECOND);
        tokio::time::sleep(60 * SECOND).await;
        assert!(bench.held.is_empty(), "the channel is full, and the pump waits for it");
        for line in ["one\n", "two\n"] {
            assert_eq!(bench.next().await.as_deref(), Some(line));
        }
        tokio::time::sleep(SECOND / 2).await;
        assert!(bench.held.is_empty());
        bench.held.recv().await.unwrap();
    }

    /// The pump never waits for the writer, and the launch accepts all output at once.
    #[tokio::test]
    async fn a_process_that_writes_for_ever_has_a_bounded_time() {
        let Bench { writer, mut received, extent, mut held, .. } = Bench::new(None, 8);
        let (tell, told) = std::sync::mpsc::channel();
        let writing = std::thread::spawn(move || {
            tell.send(()).unwrap();
            while (&writer).write_all(&[b'x'; 1000]).is_ok() {}
        });
        told.recv().unwrap();
        let reading = tokio::spawn(async move { while received.recv().await.is_some() {} });
        extent.send_replace(Extent::Within { since: Instant::now(), limit: SECOND / 10 });
        assert!(held.recv().await.is_some());
        extent.send_replace(Extent::Present);
        reading.await.unwrap();
        writing.join().unwrap();
    }
}
