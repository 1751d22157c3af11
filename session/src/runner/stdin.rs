//! Standard input on its way to the ranks that read it. Every reader reads at its own pace; all share one bounded backlog.
//!
//! ```text
//! launch ──piece──> backlog, up to 64 MiB ──> one writer per reader ──> its pipe
//! ```
//! A reader that lags behind holds back nobody until the backlog is full. Then it holds the input back, so that it loses
//! nothing, as long as it goes on reading; one that has not read a byte for 10 s since then has its input closed, and the user is
//! told. So a rank that never reads costs the others 10 s, once, and only where the input is longer than the backlog.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use pmi_core::ids::Rank;
use pmi_transport::limits::kept_cost;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

use crate::event::{Event, Notice};
use crate::session_io::StdinSource;

/// Largest backlog, in bytes with the overhead of each piece. It is exceeded by one piece at most.
const BACKLOG_MAX: usize = 64 << 20;

/// Time for which a reader may hold back the input without reading a byte.
const STALL_MAX: Duration = Duration::from_secs(10);

/// Readers of standard input, and the task that feeds them.
#[derive(Default)]
pub(super) struct StdinFeed {
    readers: Vec<(Rank, OwnedFd)>,
    task: JoinSet<()>,
}

impl StdinFeed {
    /// Adds a rank that reads, with the writing end of its pipe.
    pub(super) fn add_reader(&mut self, rank: Rank, pipe: OwnedFd) {
        self.readers.push((rank, pipe));
    }

    /// Begins to feed the readers that were added. Without a stream to feed them from, their pipes are closed.
    pub(super) fn begin(&mut self, source: StdinSource, events: mpsc::Sender<Event>) {
        let readers = std::mem::take(&mut self.readers);
        if let StdinSource::Stream(source) = source {
            self.task.spawn(feed(source, readers, events));
        }
    }
}

/// Passes on all pieces of `source`, until its end or until no reader is left.
async fn feed(mut source: mpsc::Receiver<Bytes>, readers: Vec<(Rank, OwnedFd)>, events: mpsc::Sender<Event>) {
    let shared = Arc::new(Shared { backlog: Mutex::new(Backlog::new(BACKLOG_MAX)), read: Notify::new() });
    let grown = watch::Sender::new(());
    let mut writers = JoinSet::new();
    let mut open: Vec<(Rank, AbortHandle)> = Vec::new();
    for (rank, fd) in readers {
        let Ok(pipe) = pipe::Sender::from_owned_fd(fd) else { continue };
        let reader = shared.backlog.lock().add_reader();
        open.push((rank, writers.spawn(write_all(pipe, Arc::clone(&shared), reader, grown.subscribe()))));
    }
    while shared.backlog.lock().has_readers() {
        let state = shared.backlog.lock().state();
        tokio::select! {
            piece = source.recv(), if state == BacklogState::Room => match piece {
                Some(piece) => {
                    shared.backlog.lock().push(piece, Instant::now());
                    grown.send_replace(());
                }
                None => {
                    shared.backlog.lock().close();
                    grown.send_replace(());
                    break;
                }
            },
            () = shared.read.notified() => {}
            () = sleep_until(state.deadline()), if state != BacklogState::Room => {
                let stalled = shared.backlog.lock().cut_stalled(Instant::now());
                for reader in stalled {
                    let (rank, writer) = &open[reader];
                    writer.abort();
                    // A launch that takes no more events has ended its ranks, or will.
                    let _ = events.send(Event::Notice(Notice::StdinClosed { rank: *rank })).await;
                }
            }
        }
    }
    while writers.join_next().await.is_some() {}
}

/// Writes everything to one reader. One that reads no more is left out.
async fn write_all(mut pipe: pipe::Sender, shared: Arc<Shared>, reader: usize, mut grown: watch::Receiver<()>) {
    loop {
        grown.mark_unchanged();
        let next = shared.backlog.lock().next(reader);
        let written = match next {
            Next::Piece(piece) => pipe.write(&piece).await,
            Next::Wait => {
                if grown.changed().await.is_err() && shared.backlog.lock().next(reader) == Next::Wait {
                    break;
                }
                continue;
            }
            Next::End => break,
        };
        let Ok(written) = written else { break };
        shared.backlog.lock().advance(reader, written, Instant::now());
        shared.read.notify_one();
    }
    shared.backlog.lock().leave(reader);
    shared.read.notify_one();
}

struct Shared {
    backlog: Mutex<Backlog>,
    /// Wakes the feeder when a reader has read something, or has left.
    read: Notify,
}

/// Input that not all readers have read. Pure: no I/O, no clock.
#[derive(Debug)]
struct Backlog {
    max: usize,
    /// Pieces, each with the position of its first byte in the whole input.
    pieces: VecDeque<(u64, Bytes)>,
    cost: usize,
    end: u64,
    input: InputState,
    /// Time since which the backlog has been full.
    full_since: Option<Instant>,
    /// By number; `None` once a reader has left or was cut.
    readers: Vec<Option<Reader>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InputState {
    Open,
    /// The end of the input was reached.
    Ended,
}

#[derive(Clone, Copy, Debug)]
struct Reader {
    /// Position of the next byte that it reads.
    at: u64,
    /// Time at which it last read something.
    read: Option<Instant>,
}

/// What a reader is to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Next {
    Piece(Bytes),
    /// It has read everything so far.
    Wait,
    /// It has read everything, or was cut.
    End,
}

/// State of a backlog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BacklogState {
    /// It takes more.
    Room,
    /// It is full; a reader that holds it up without reading is cut at the deadline.
    Full { deadline: Instant },
}

impl BacklogState {
    fn deadline(self) -> Instant {
        match self {
            Self::Room => Instant::now(),
            Self::Full { deadline } => deadline,
        }
    }
}

impl Backlog {
    fn new(max: usize) -> Self {
        let pieces = VecDeque::new();
        Self { max, pieces, cost: 0, end: 0, input: InputState::Open, full_since: None, readers: Vec::new() }
    }

    fn add_reader(&mut self) -> usize {
        self.readers.push(Some(Reader { at: self.end, read: None }));
        self.readers.len() - 1
    }

    fn has_readers(&self) -> bool {
        self.readers.iter().any(Option::is_some)
    }

    fn push(&mut self, piece: Bytes, now: Instant) {
        if piece.is_empty() || !self.has_readers() {
            return;
        }
        let start = self.end;
        self.end += piece.len() as u64;
        self.cost += kept_cost(piece.len());
        self.pieces.push_back((start, piece));
        if self.cost >= self.max {
            self.full_since.get_or_insert(now);
        }
    }

    fn close(&mut self) {
        self.input = InputState::Ended;
    }

    fn next(&self, reader: usize) -> Next {
        let Some(Reader { at, .. }) = self.readers[reader] else { return Next::End };
        // The last piece that begins at or before the position holds it, unless that is the end of the input.
        let after = self.pieces.partition_point(|&(start, _)| start <= at);
        match after.checked_sub(1).map(|index| &self.pieces[index]) {
            Some((start, piece)) if at < start + piece.len() as u64 => {
                Next::Piece(piece.slice((at - start) as usize..))
            }
            _ if self.input == InputState::Ended => Next::End,
            _ => Next::Wait,
        }
    }

    fn advance(&mut self, reader: usize, bytes: usize, now: Instant) {
        if let Some(reader) = &mut self.readers[reader] {
            reader.at += bytes as u64;
            reader.read = Some(now);
        }
        self.forget_read();
    }

    fn leave(&mut self, reader: usize) {
        self.readers[reader] = None;
        self.forget_read();
    }

    fn state(&self) -> BacklogState {
        let Some(full_since) = self.full_since else { return BacklogState::Room };
        let deadlines = self.readers.iter().flatten().filter(|reader| self.holds_up(reader));
        let deadline = deadlines.map(|reader| reader.stalls_at(full_since)).min();
        deadline.map_or(BacklogState::Room, |deadline| BacklogState::Full { deadline })
    }

    /// Cuts the readers whose time is up, and returns them.
    fn cut_stalled(&mut self, now: Instant) -> Vec<usize> {
        let Some(full_since) = self.full_since else { return Vec::new() };
        let is_stalled = |reader: &Reader| self.holds_up(reader) && reader.stalls_at(full_since) <= now;
        let readers = self.readers.iter().enumerate();
        let stalled: Vec<usize> =
            readers.filter(|(_, reader)| reader.as_ref().is_some_and(is_stalled)).map(|(number, _)| number).collect();
        for &reader in &stalled {
            self.readers[reader] = None;
        }
        self.forget_read();
        stalled
    }

    /// True if the first piece stays because of this reader.
    fn holds_up(&self, reader: &Reader) -> bool {
        self.pieces.front().is_some_and(|(start, piece)| reader.at < start + piece.len() as u64)
    }

    /// Drops pieces that every reader has read.
    fn forget_read(&mut self) {
        let slowest = self.readers.iter().flatten().map(|reader| reader.at).min().unwrap_or(self.end);
        while let Some((_, piece)) = self.pieces.pop_front_if(|(start, piece)| *start + piece.len() as u64 <= slowest) {
            self.cost -= kept_cost(piece.len());
        }
        if self.cost < self.max {
            self.full_since = None;
        }
    }
}

impl Reader {
    fn stalls_at(&self, full_since: Instant) -> Instant {
        self.read.map_or(full_since, |read| read.max(full_since)) + STALL_MAX
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn each_reader_gets_every_byte_whatever_the_others_do() {
        let now = Instant::now();
        let mut backlog = Backlog::new(1 << 20);
        let (fast, slow) = (backlog.add_reader(), backlog.add_reader());
        let input: Vec<Bytes> = ["one ", "", "two ", "three"].map(|piece| Bytes::from_static(piece.as_bytes())).into();
        input.iter().for_each(|piece| backlog.push(piece.clone(), now));
        backlog.close();
        for (reader, step) in [(fast, 100), (slow, 1)] {
            let mut read = Vec::new();
            while let Next::Piece(piece) = backlog.next(reader) {
                let bytes = piece.len().min(step);
                read.extend_from_slice(&piece[..bytes]);
                backlog.advance(reader, bytes, now);
            }
            assert_eq!(read, input.concat());
            assert_eq!(backlog.next(reader), Next::End);
        }
        assert!(backlog.pieces.is_empty() && backlog.cost == 0);
    }

    #[test]
    fn a_reader_that_reads_holds_the_input_back_and_one_that_does_not_is_cut() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut backlog = Backlog::new(1000);
        let (slow, stuck, done) = (backlog.add_reader(), backlog.add_reader(), backlog.add_reader());
        let piece = Bytes::from(vec![b'x'; 1000]);
        backlog.push(piece, at(100));
        backlog.advance(done, 1000, at(100));
        assert_eq!(backlog.state(), BacklogState::Full { deadline: at(110) });
        backlog.advance(slow, 1, at(109));
        assert_eq!(backlog.cut_stalled(at(110)), [stuck], "it had the same time as others, and read nothing");
        assert_eq!(backlog.state(), BacklogState::Full { deadline: at(119) }, "one that reads is waited for");
        assert_eq!((backlog.next(stuck), backlog.next(done)), (Next::End, Next::Wait));
        backlog.advance(slow, 999, at(118));
        assert_eq!(backlog.state(), BacklogState::Room);
        assert!(backlog.cut_stalled(at(500)).is_empty(), "nobody holds anything up");
    }

    #[test]
    fn memory_is_bounded_for_pieces_of_any_size() {
        let now = Instant::now();
        for size in [1, 7, 4096] {
            let mut backlog = Backlog::new(1 << 20);
            backlog.add_reader();
            let mut pieces = 0;
            while backlog.state() == BacklogState::Room {
                backlog.push(vec![0; size].into(), now);
                pieces += 1;
            }
            assert!(pieces * kept_cost(size) < (1 << 20) + kept_cost(size), "{pieces} of {size}");
        }
        let mut backlog = Backlog::new(10);
        backlog.push(Bytes::from_static(b"nobody reads this at all"), now);
        assert_eq!((backlog.state(), backlog.cost), (BacklogState::Room, 0));
    }

    fn reader() -> ((Rank, OwnedFd), std::io::PipeReader) {
        let (reader, writer) = std::io::pipe().unwrap();
        nix::fcntl::fcntl(&writer, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK)).unwrap();
        ((Rank(0), writer.into()), reader)
    }

    #[tokio::test]
    async fn a_rank_that_lives_and_does_not_read_stops_nobodys_input() {
        let ((_, first), stuck) = reader();
        let (second, mut reads) = reader();
        let (pieces, source) = mpsc::channel(1);
        let (events, _) = mpsc::channel(8);
        let feeding = tokio::spawn(feed(source, vec![(Rank(1), first), second], events));
        let read = tokio::task::spawn_blocking(move || {
            let mut bytes = Vec::new();
            reads.read_to_end(&mut bytes).unwrap();
            bytes.len()
        });
        // More than a pipe holds, and less than the backlog.
        for _ in 0..64 {
            pieces.send(Bytes::from(vec![b'x'; 16 * 1024])).await.unwrap();
        }
        drop(pieces);
        assert_eq!(read.await.unwrap(), 1 << 20);
        drop(stuck);
        feeding.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_rank_that_never_reads_loses_its_input_and_the_user_is_told() {
        let ((_, first), mut stuck) = reader();
        let (pieces, source) = mpsc::channel(1);
        let (events, mut told) = mpsc::channel(8);
        tokio::spawn(feed(source, vec![(Rank(7), first)], events));
        let input = tokio::spawn(async move {
            let piece = Bytes::from(vec![b'x'; 1 << 20]);
            while pieces.send(piece.clone()).await.is_ok() {}
        });
        let Some(Event::Notice(Notice::StdinClosed { rank })) = told.recv().await else { panic!("nobody was told") };
        assert_eq!(rank, Rank(7));
        input.await.unwrap();
        let mut rest = Vec::new();
        stuck.read_to_end(&mut rest).unwrap();
        assert!(!rest.is_empty(), "what its pipe held is still there");
    }
}
