//! Backlog of standard input, which its readers share. Pure: no I/O, no clock.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use pmi_transport::limits::kept_cost;
use tokio::time::Instant;

/// Time for which a reader may delay the input without reading a byte.
const STALL_MAX: Duration = Duration::from_secs(10);

/// Input that not all readers have read.
#[derive(Debug)]
pub(crate) struct Backlog {
    max: usize,
    /// Pieces, each with the position of its first byte in the whole input.
    pieces: VecDeque<(u64, Bytes)>,
    cost: usize,
    end: u64,
    input: InputState,
    /// Time since which the backlog has been full.
    full_since: Option<Instant>,
    /// Readers by number; `None` once a reader has left or was cut off.
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
    /// Time of its last read.
    read: Option<Instant>,
}

/// Next step of a reader's writer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Piece(Bytes),
    /// Wait for more input: all present input is read.
    Wait,
    /// End of the input: all input is read, or the reader was cut off.
    End,
}

/// State of a backlog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BacklogState {
    /// Not full: more input is accepted.
    Room,
    /// Full. A reader that delays the input without reading is cut off at the deadline.
    Full { deadline: Instant },
}

impl BacklogState {
    pub(crate) fn deadline(self) -> Instant {
        match self {
            Self::Room => Instant::now(),
            Self::Full { deadline } => deadline,
        }
    }
}

impl Backlog {
    pub(crate) fn new(max: usize) -> Self {
        let pieces = VecDeque::new();
        Self { max, pieces, cost: 0, end: 0, input: InputState::Open, full_since: None, readers: Vec::new() }
    }

    pub(crate) fn add_reader(&mut self) -> usize {
        self.readers.push(Some(Reader { at: self.end, read: None }));
        self.readers.len() - 1
    }

    pub(crate) fn has_readers(&self) -> bool {
        self.readers.iter().any(Option::is_some)
    }

    pub(crate) fn push(&mut self, piece: Bytes, now: Instant) {
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

    pub(crate) fn close(&mut self) {
        self.input = InputState::Ended;
    }

    pub(crate) fn next(&self, reader: usize) -> Next {
        let Some(Reader { at, .. }) = self.readers[reader] else { return Next::End };
        // The last piece that begins at or before the position contains it, unless the position is the end of
        // the input.
        let after = self.pieces.partition_point(|&(start, _)| start <= at);
        match after.checked_sub(1).map(|index| &self.pieces[index]) {
            Some((start, piece)) if at < start + piece.len() as u64 => {
                Next::Piece(piece.slice((at - start) as usize..))
            }
            _ if self.input == InputState::Ended => Next::End,
            _ => Next::Wait,
        }
    }

    pub(crate) fn advance(&mut self, reader: usize, bytes: usize, now: Instant) {
        if let Some(reader) = &mut self.readers[reader] {
            reader.at += bytes as u64;
            reader.read = Some(now);
        }
        self.forget_read();
    }

    pub(crate) fn leave(&mut self, reader: usize) {
        self.readers[reader] = None;
        self.forget_read();
    }

    pub(crate) fn state(&self) -> BacklogState {
        let Some(full_since) = self.full_since else { return BacklogState::Room };
        let deadlines = self.readers.iter().flatten().filter(|reader| self.holds_up(reader));
        let deadline = deadlines.map(|reader| reader.stalls_at(full_since)).min();
        deadline.map_or(BacklogState::Room, |deadline| BacklogState::Full { deadline })
    }

    /// Cuts off the readers that have exceeded their time, and returns them.
    pub(crate) fn cut_stalled(&mut self, now: Instant) -> Vec<usize> {
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

    /// Returns true if the first piece stays because of this reader.
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
    use proptest::prelude::*;

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

    /// Step of the feeder or of one of two readers.
    #[derive(Clone, Debug)]
    enum Step {
        Push(usize),
        Read { reader: usize, bytes: usize },
        Leave(usize),
        Cut,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (1..200_usize).prop_map(Step::Push),
            6 => (0..2_usize, 1..300_usize).prop_map(|(reader, bytes)| Step::Read { reader, bytes }),
            1 => (0..2_usize).prop_map(Step::Leave),
            1 => Just(Step::Cut),
        ]
    }

    proptest! {
        /// Each reader gets a prefix of the input, in order, and all of it if it stays.
        #[test]
        fn what_a_reader_reads_is_the_input(steps in proptest::collection::vec(step(), 0..60)) {
            let now = Instant::now();
            let mut backlog = Backlog::new(1 << 10);
            let readers = [backlog.add_reader(), backlog.add_reader()];
            let (mut input, mut read, mut left) = (Vec::new(), [Vec::new(), Vec::new()], [false, false]);
            let take = |backlog: &mut Backlog, reader: usize, most: usize| match backlog.next(readers[reader]) {
                Next::Piece(piece) => {
                    let bytes = piece.slice(..piece.len().min(most));
                    backlog.advance(readers[reader], bytes.len(), now);
                    Some(bytes)
                }
                Next::Wait | Next::End => None,
            };
            for step in steps {
                match step {
                    Step::Push(bytes) if backlog.has_readers() => {
                        let piece: Vec<u8> = (0..bytes).map(|at| ((input.len() + at) % 251) as u8).collect();
                        input.extend_from_slice(&piece);
                        backlog.push(piece.into(), now);
                    }
                    Step::Read { reader, bytes } => read[reader].extend(take(&mut backlog, reader, bytes).iter().flatten()),
                    Step::Leave(reader) => {
                        backlog.leave(readers[reader]);
                        left[reader] = true;
                    }
                    Step::Push(_) => {}
                    // No time has passed, so no reader is stalled.
                    Step::Cut => prop_assert!(backlog.cut_stalled(now).is_empty()),
                }
            }
            backlog.close();
            for reader in 0..2 {
                while let Some(bytes) = take(&mut backlog, reader, usize::MAX) {
                    read[reader].extend_from_slice(&bytes);
                }
                prop_assert!(input.starts_with(&read[reader]));
                prop_assert!(left[reader] || read[reader] == input);
            }
            prop_assert!(backlog.pieces.is_empty() && backlog.cost == 0, "all was read, or nobody is left to read it");
        }
    }
}
