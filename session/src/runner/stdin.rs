//! Standard input for the ranks that read it. Every reader reads at its own pace; all share one bounded backlog.
//!
//! ```text
//! launch ──piece──> backlog, up to 64 MiB ──> one writer per reader ──> its pipe
//! ```
//! A slow reader delays no other reader until the backlog is full. Then it delays the input, so that it loses nothing
//! as long as it continues to read. If it has not read a byte for 10 s since then, its input is closed, and the user gets a
//! notice. So a rank that never reads delays the other ranks by 10 s, once, and only if the input is longer than the backlog.

mod backlog;

use pmi_transport::task;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use pmi_core::ids::Rank;
use pmi_core::services::InputError;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

pub(crate) use self::backlog::{Backlog, BacklogState, Next};
use super::services::Pushed;
use super::terminal::RankTerminal;
use crate::event::{Event, Notice};
use crate::session_io::StdinSource;

/// Maximum size of the backlog, in bytes with the overhead of each piece. It is exceeded by one piece at most.
const BACKLOG_MAX: usize = 64 << 20;

/// Maximum number of pieces from tools that wait for room in the backlog.
const PUSHED_MAX: usize = 16;

/// Readers of standard input, and the task that feeds them.
#[derive(Default)]
pub(super) struct StdinFeed {
    readers: Vec<(Rank, Writer)>,
    /// Ranks that are fed, in order.
    fed: Vec<Rank>,
    /// Channel to the task; `None` if no input is passed on.
    pushes: Option<mpsc::Sender<Pushed>>,
    task: JoinSet<()>,
}

impl StdinFeed {
    /// Sends a piece to the ranks that read the launch's input, if `ranks` are these ranks.
    pub(super) fn push(&self, ranks: Option<Vec<Rank>>, pushed: Pushed) {
        let is_meant = |ranks: &Vec<Rank>| {
            self.fed.iter().all(|rank| ranks.contains(rank)) && ranks.iter().all(|rank| self.fed.contains(rank))
        };
        let refused = match &self.pushes {
            Some(_) if !ranks.as_ref().is_none_or(is_meant) => Some((pushed, InputError::OtherReaders)),
            Some(pushes) => match pushes.try_send(pushed) {
                Ok(()) => None,
                Err(TrySendError::Full(pushed)) => Some((pushed, InputError::Full)),
                Err(TrySendError::Closed(pushed)) => Some((pushed, InputError::Ended)),
            },
            None => Some((pushed, InputError::NotPassedOn)),
        };
        if let Some((pushed, error)) = refused {
            // The caller may be gone.
            let _ = pushed.reply.send(Err(error));
        }
    }

    /// Adds a reading rank, with the writing end of its pipe.
    pub(super) fn add_reader(&mut self, rank: Rank, pipe: OwnedFd) {
        // A pipe that cannot be watched is closed, and its reader gets the end of its input.
        if let Ok(pipe) = pipe::Sender::from_owned_fd(pipe) {
            self.readers.push((rank, Writer::Pipe(pipe)));
        }
    }

    /// Adds a rank that reads from its terminal.
    pub(super) fn add_terminal(&mut self, rank: Rank, terminal: Arc<RankTerminal>) {
        self.readers.push((rank, Writer::Terminal(terminal)));
    }

    /// Starts to feed the readers that were added. Without a source stream, their pipes are closed.
    pub(super) fn begin(&mut self, source: StdinSource, events: mpsc::Sender<Event>) {
        let readers = std::mem::take(&mut self.readers);
        if let StdinSource::Stream(source) = source {
            self.fed = readers.iter().map(|(rank, _)| *rank).collect();
            let (pushes, pushed) = mpsc::channel(PUSHED_MAX);
            self.pushes = (!readers.is_empty()).then_some(pushes);
            self.task.spawn(task::boxed(feed(source, pushed, readers, events)));
        }
    }
}

/// Passes on all pieces of `source`, until its end or until no reader is left.
async fn feed(
    mut source: mpsc::Receiver<Bytes>,
    mut pushed: mpsc::Receiver<Pushed>,
    readers: Vec<(Rank, Writer)>,
    events: mpsc::Sender<Event>,
) {
    let shared = Arc::new(Shared { backlog: Mutex::new(Backlog::new(BACKLOG_MAX)), read: Notify::new() });
    let grown = watch::Sender::new(());
    let mut writers = JoinSet::new();
    let mut open: Vec<(Rank, AbortHandle)> = Vec::new();
    for (rank, writer) in readers {
        let reader = shared.backlog.lock().add_reader();
        open.push((
            rank,
            writers.spawn(task::boxed(write_all(writer, Arc::clone(&shared), reader, grown.subscribe()))),
        ));
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
            Some(Pushed { bytes, reply }) = pushed.recv(), if state == BacklogState::Room => {
                shared.backlog.lock().push(bytes, Instant::now());
                grown.send_replace(());
                // The caller may be gone.
                let _ = reply.send(Ok(()));
            }
            () = shared.read.notified() => {}
            () = sleep_until(state.deadline()), if state != BacklogState::Room => {
                let stalled = shared.backlog.lock().cut_stalled(Instant::now());
                for reader in stalled {
                    let (rank, writer) = &open[reader];
                    writer.abort();
                    // A launch that accepts no more events has ended its ranks, or will.
                    let _ = events.send(Event::Notice(Notice::StdinClosed { rank: *rank })).await;
                }
            }
        }
    }
    // From now on no caller gets a confirmation.
    drop(pushed);
    while writers.join_next().await.is_some() {}
}

/// Writes all input to one reader, until the reader stops reading.
async fn write_all(mut writer: Writer, shared: Arc<Shared>, reader: usize, mut grown: watch::Receiver<()>) {
    loop {
        grown.mark_unchanged();
        let next = shared.backlog.lock().next(reader);
        let written = match next {
            Next::Piece(piece) => writer.write(&piece).await,
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
    writer.end().await;
}

/// Connection to one reader.
enum Writer {
    /// A pipe. Its end is the end of the input.
    Pipe(pipe::Sender),
    /// A terminal, which another task reads.
    Terminal(Arc<RankTerminal>),
}

impl Writer {
    async fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        match self {
            Self::Pipe(pipe) => pipe.write(piece).await,
            Self::Terminal(terminal) => terminal.write(piece).await,
        }
    }

    /// Sends the end of the input to the reader. Returns when no process can read any more.
    async fn end(self) {
        match self {
            Self::Pipe(pipe) => drop(pipe),
            Self::Terminal(terminal) => {
                let _ = terminal.end_input().await;
            }
        }
    }
}

struct Shared {
    backlog: Mutex<Backlog>,
    /// Wakes the feeder when a reader has read data or has left.
    read: Notify,
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use tokio::sync::oneshot;

    fn pipe() -> (OwnedFd, io::PipeReader) {
        let (reader, writer) = io::pipe().unwrap();
        nix::fcntl::fcntl(&writer, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK)).unwrap();
        (writer.into(), reader)
    }

    fn reader() -> ((Rank, Writer), io::PipeReader) {
        let (pipe, reader) = pipe();
        ((Rank(0), Writer::Pipe(pipe::Sender::from_owned_fd(pipe).unwrap())), reader)
    }

    #[tokio::test]
    async fn a_rank_that_lives_and_does_not_read_stops_nobodys_input() {
        let ((_, first), stuck) = reader();
        let (second, mut reads) = reader();
        let (pieces, source) = mpsc::channel(1);
        let (events, _) = mpsc::channel(8);
        let feeding = tokio::spawn(feed(source, mpsc::channel(1).1, vec![(Rank(1), first), second], events));
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
        tokio::spawn(feed(source, mpsc::channel(1).1, vec![(Rank(7), first)], events));
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

    /// Pipes of a fed session: input goes in, events come out.
    struct Fed {
        pieces: mpsc::Sender<Bytes>,
        events: mpsc::Receiver<Event>,
        feeding: tokio::task::JoinHandle<()>,
    }

    fn feed_to(readers: Vec<(Rank, Writer)>) -> Fed {
        let (pieces, source) = mpsc::channel(1);
        let (notices, events) = mpsc::channel(8);
        Fed { pieces, events, feeding: tokio::spawn(feed(source, mpsc::channel(1).1, readers, notices)) }
    }

    #[tokio::test]
    async fn a_reader_that_ends_leaves_the_others_their_input_and_is_no_news() {
        let (first, ended) = reader();
        let (second, mut reads) = reader();
        let mut fed = feed_to(vec![first, second]);
        fed.pieces.send("one ".into()).await.unwrap();
        drop(ended);
        for _ in 0..3 {
            fed.pieces.send("more ".into()).await.unwrap();
        }
        drop(fed.pieces);
        fed.feeding.await.unwrap();
        let mut text = String::new();
        reads.read_to_string(&mut text).unwrap();
        assert_eq!(text, "one more more more ");
        assert!(fed.events.recv().await.is_none(), "it ended by itself");
    }

    #[tokio::test]
    async fn input_is_no_longer_taken_when_the_last_reader_has_ended() {
        let (only, ended) = reader();
        let fed = feed_to(vec![only]);
        drop(ended);
        // The write of the first piece detects it.
        while fed.pieces.send("x".into()).await.is_ok() {}
        fed.feeding.await.unwrap();
        let none = feed_to(Vec::new());
        none.feeding.await.unwrap();
        assert!(none.pieces.send("x".into()).await.is_err(), "there was never a reader");
    }

    #[tokio::test]
    async fn the_end_of_the_input_waits_for_slow_readers() {
        let (slow, mut reads) = reader();
        let fed = feed_to(vec![slow]);
        // More than a pipe holds.
        let piece = Bytes::from(vec![b'x'; 256 << 10]);
        fed.pieces.send(piece).await.unwrap();
        drop(fed.pieces);
        let read = tokio::task::spawn_blocking(move || {
            let (mut total, mut bytes) = (0, [0; 1000]);
            loop {
                match reads.read(&mut bytes).unwrap() {
                    0 => return total,
                    count => total += count,
                }
            }
        });
        assert_eq!(read.await.unwrap(), 256 << 10);
        fed.feeding.await.unwrap();
    }

    #[tokio::test]
    async fn input_of_others_goes_to_the_readers_for_as_long_as_the_launch_has_input() {
        async fn push(feed: &StdinFeed, ranks: Option<Vec<Rank>>) -> Option<Result<(), InputError>> {
            let (reply, told) = oneshot::channel();
            feed.push(ranks, Pushed { bytes: "x".into(), reply });
            told.await.ok()
        }
        let (pipe, mut reads) = pipe();
        let mut feed = StdinFeed::default();
        assert_eq!(push(&feed, None).await, Some(Err(InputError::NotPassedOn)));
        feed.add_reader(Rank(3), pipe);
        let (pieces, source) = mpsc::channel(1);
        feed.begin(StdinSource::Stream(source), mpsc::channel(1).0);
        assert_eq!(push(&feed, None).await, Some(Ok(())));
        assert_eq!(push(&feed, Some(vec![Rank(3)])).await, Some(Ok(())));
        assert_eq!(push(&feed, Some(vec![Rank(3), Rank(4)])).await, Some(Err(InputError::OtherReaders)));
        drop(pieces);
        while feed.task.join_next().await.is_some() {}
        assert_eq!(push(&feed, None).await, Some(Err(InputError::Ended)));
        let mut text = String::new();
        reads.read_to_string(&mut text).unwrap();
        assert_eq!(text, "xx");
    }

    #[tokio::test]
    async fn a_feed_without_a_stream_closes_the_pipes_of_its_readers() {
        let (pipe, mut reads) = pipe();
        let mut feed = StdinFeed::default();
        feed.add_reader(Rank(0), pipe);
        feed.begin(StdinSource::Empty, mpsc::channel(1).0);
        assert_eq!(reads.read(&mut [0; 1]).unwrap(), 0);
    }
}
