//! Keeps lines whole where several ranks write to one place.
//!
//! Pure. Input: pieces with the time of their arrival. Output: [`Step`]s in the order of the writes.
//!
//! ```text
//!                 piece without a line end
//!       ┌────────┐ ────────────────────────> ┌──────────────┐ ── pieces of its source: written at once
//!       │ Clean  │                           │ Open(source) │ ── pieces of other sources: wait
//!       └────────┘ <──────────────────────── └──────────────┘
//!           ^      the source ends its line         │
//!           │      pieces wait, and the source      │ the source's rank ended
//!           │      paused for HOLD_MAX, or too      v
//!           │      much waits: line end added   ┌───────────┐
//!           └────────────────────────────────── │ Abandoned │
//!             next piece: line end added        └───────────┘
//! ```
//!
//! A carriage return at the end of a piece ends a line as well, so that progress bars of several ranks are drawn in turn. No piece waits
//! indefinitely. A waiting piece is written when the open line ends, when the rank of that line ends, after [`HOLD_MAX`], or when
//! [`WAITING_BYTES`] wait. So a rank that never ends its line neither stops other ranks nor fills memory. The next piece of a source that lost
//! its line this way has [`Start::Resumed`].

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;
use lattice_session::event::Stream;
use pmi_core::ids::Rank;

/// Time for which an unfinished line may hold back other sources.
pub(crate) const HOLD_MAX: Duration = Duration::from_secs(1);
/// Size up to which a piece of an open line is interactive output, such as a dot, and not part of a long line. It does not prolong the wait of
/// other sources.
const LIVE_PIECE: usize = 4096;
/// Limit of bytes that wait for a line to end.
pub(crate) const WAITING_BYTES: usize = 4 << 20;
/// Limit of pieces that wait for a line to end.
pub(crate) const WAITING_PIECES: usize = 4096;

/// Origin of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    /// A stream of a rank.
    Rank(Rank, Stream),
    /// Lattice itself. It writes whole lines only.
    Lattice,
}

/// Consecutive bytes of one source. The last line may be incomplete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) source: Source,
    pub(crate) bytes: Bytes,
}

/// Position in a line at which a piece starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// At the start of a line.
    Line,
    /// Directly after the last piece of the same source.
    Middle,
    /// On a new line, but in the middle of a line of the source.
    Resumed,
}

/// One write to the place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A piece.
    Piece(Piece, Start),
    /// An added line end, because an incomplete line is given up.
    LineEnd,
}

/// Order of the writes to one place.
#[derive(Debug, Default)]
pub(crate) struct LineHold {
    tail: Tail,
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    /// Sources that lost an open line to an added line end, until they write again.
    interrupted: HashSet<Source>,
}

/// State of the last line of the place.
#[derive(Debug, Default, PartialEq, Eq)]
enum Tail {
    #[default]
    Clean,
    Open {
        source: Source,
        since: Instant,
    },
    Abandoned,
}

#[derive(Debug)]
struct Waiting {
    piece: Piece,
    arrived: Instant,
    /// True if the source sends no further piece.
    last: bool,
}

impl LineHold {
    /// Accepts a piece that arrived at `now`, and appends the possible steps to `steps`.
    pub(crate) fn push(&mut self, piece: Piece, now: Instant, steps: &mut Vec<Step>) {
        if piece.bytes.is_empty() {
            return;
        }
        let waits = matches!(self.tail, Tail::Open { source, .. } if source != piece.source);
        let arrival = Waiting { piece, arrived: now, last: false };
        if waits {
            self.waiting_bytes += arrival.piece.bytes.len();
            self.waiting.push_back(arrival);
        } else {
            self.write(arrival, steps);
        }
        self.advance(now, steps);
        while self.waiting_bytes > WAITING_BYTES || self.waiting.len() > WAITING_PIECES {
            self.give_up(steps);
            self.advance(now, steps);
        }
    }

    /// Records that `rank` writes no further output.
    pub(crate) fn rank_ended(&mut self, rank: Rank, now: Instant, steps: &mut Vec<Step>) {
        for stream in [Stream::Stdout, Stream::Stderr] {
            let ended = Source::Rank(rank, stream);
            if matches!(self.tail, Tail::Open { source, .. } if source == ended) {
                self.tail = Tail::Abandoned;
            }
            if let Some(waiting) = self.waiting.iter_mut().rfind(|waiting| waiting.piece.source == ended) {
                waiting.last = true;
            }
        }
        self.advance(now, steps);
    }

    /// True if the place ends with a whole line, and no piece waits.
    pub(crate) fn is_clean(&self) -> bool {
        self.tail == Tail::Clean && self.waiting.is_empty()
    }

    /// Deadline for [`LineHold::tick`]; `None` while no piece waits.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.tail {
            Tail::Open { since, .. } if !self.waiting.is_empty() => Some(since + HOLD_MAX),
            _ => None,
        }
    }

    /// Gives up the open line if its source has paused for too long.
    pub(crate) fn tick(&mut self, now: Instant, steps: &mut Vec<Step>) {
        self.advance(now, steps);
    }

    /// Writes all waiting pieces, and gives up each open line that blocks them.
    pub(crate) fn finish(&mut self, now: Instant, steps: &mut Vec<Step>) {
        while !self.waiting.is_empty() {
            self.give_up(steps);
            self.advance(now, steps);
        }
    }

    /// Writes each waiting piece that may be written at `now`. Afterwards a piece waits only for an open line of another source, and no piece of
    /// that source waits.
    fn advance(&mut self, now: Instant, steps: &mut Vec<Step>) {
        while !self.waiting.is_empty() {
            let next = match self.tail {
                Tail::Clean | Tail::Abandoned => Some(0),
                Tail::Open { source, .. } => self.waiting.iter().position(|waiting| waiting.piece.source == source),
            };
            if let Some(waiting) = next.and_then(|index| self.waiting.remove(index)) {
                self.waiting_bytes -= waiting.piece.bytes.len();
                self.write(waiting, steps);
            } else if self.deadline().is_some_and(|deadline| deadline <= now) {
                self.give_up(steps);
            } else {
                return;
            }
        }
    }

    fn write(&mut self, Waiting { piece, arrived, last }: Waiting, steps: &mut Vec<Step>) {
        let source = piece.source;
        let whole = matches!(piece.bytes.last(), Some(b'\n' | b'\r'));
        let since = match self.tail {
            Tail::Open { source: writer, since } if writer == source && piece.bytes.len() <= LIVE_PIECE => since,
            _ => arrived,
        };
        let start = match self.tail {
            Tail::Open { .. } => Start::Middle,
            Tail::Abandoned => {
                steps.push(Step::LineEnd);
                self.line_start(source)
            }
            Tail::Clean => self.line_start(source),
        };
        steps.push(Step::Piece(piece, start));
        self.tail = match (whole, last) {
            (true, _) => Tail::Clean,
            (false, true) => Tail::Abandoned,
            (false, false) => Tail::Open { source, since },
        };
    }

    fn line_start(&mut self, source: Source) -> Start {
        if self.interrupted.remove(&source) { Start::Resumed } else { Start::Line }
    }

    fn give_up(&mut self, steps: &mut Vec<Step>) {
        if let Tail::Open { source, .. } = self.tail {
            self.interrupted.insert(source);
            self.tail = Tail::Clean;
            steps.push(Step::LineEnd);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hold, a clock that only the test advances, and the written text: `<` marks [`Start::Middle`], `+` marks [`Start::Resumed`], `|` marks
    /// [`Step::LineEnd`].
    struct Bench {
        hold: LineHold,
        now: Instant,
        steps: Vec<Step>,
    }

    impl Bench {
        fn new() -> Self {
            Self { hold: LineHold::default(), now: Instant::now(), steps: Vec::new() }
        }

        fn push(&mut self, rank: u32, text: &str) {
            let source = Source::Rank(Rank(rank), Stream::Stdout);
            let piece = Piece { source, bytes: Bytes::copy_from_slice(text.as_bytes()) };
            self.hold.push(piece, self.now, &mut self.steps);
        }

        fn say(&mut self, text: &str) {
            let piece = Piece { source: Source::Lattice, bytes: Bytes::copy_from_slice(text.as_bytes()) };
            self.hold.push(piece, self.now, &mut self.steps);
        }

        fn end(&mut self, rank: u32) {
            self.hold.rank_ended(Rank(rank), self.now, &mut self.steps);
        }

        fn wait(&mut self, milliseconds: u64) {
            self.now += Duration::from_millis(milliseconds);
            self.hold.tick(self.now, &mut self.steps);
        }

        fn written(&mut self) -> String {
            let mut text = String::new();
            for step in self.steps.drain(..) {
                match step {
                    Step::LineEnd => text.push('|'),
                    Step::Piece(piece, start) => {
                        text += match start {
                            Start::Line => "",
                            Start::Middle => "<",
                            Start::Resumed => "+",
                        };
                        text += std::str::from_utf8(&piece.bytes).unwrap();
                    }
                }
            }
            text.replace('\n', "$")
        }
    }

    #[test]
    fn whole_lines_pass_at_once() {
        let mut bench = Bench::new();
        bench.push(0, "a\nb\n");
        bench.push(1, "c\n");
        assert_eq!(bench.written(), "a$b$c$");
        assert_eq!(bench.hold.deadline(), None);
    }

    #[test]
    fn others_wait_for_an_open_line_and_keep_their_order() {
        let mut bench = Bench::new();
        bench.push(0, "long ");
        bench.push(1, "one\n");
        bench.push(2, "two\n");
        bench.push(0, "er ");
        assert_eq!(bench.written(), "long <er ");
        bench.push(0, "line\n");
        assert_eq!(bench.written(), "<line$one$two$");
    }

    #[test]
    fn an_open_line_among_those_that_wait_is_continued_before_others() {
        let mut bench = Bench::new();
        bench.push(0, "a");
        bench.push(1, "b");
        bench.push(2, "c\n");
        bench.push(1, "B\n");
        bench.push(0, "A\n");
        assert_eq!(bench.written(), "a<A$b<B$c$");
    }

    #[test]
    fn a_prompt_stays_as_it_is_while_nobody_else_writes() {
        let mut bench = Bench::new();
        bench.push(0, "name? ");
        bench.wait(10_000);
        bench.push(0, "thanks\n");
        assert_eq!(bench.written(), "name? <thanks$");
    }

    #[test]
    fn a_pause_gives_the_line_up_when_others_wait() {
        let mut bench = Bench::new();
        bench.push(0, "name? ");
        bench.wait(400);
        bench.push(1, "one\n");
        assert_eq!(bench.hold.deadline(), Some(bench.now + Duration::from_millis(600)));
        bench.wait(599);
        assert_eq!(bench.written(), "name? ");
        bench.wait(1);
        assert_eq!(bench.written(), "|one$");
        bench.push(0, "thanks\n");
        bench.push(0, "bye\n");
        assert_eq!(bench.written(), "+thanks$bye$");
    }

    #[test]
    fn a_pause_before_others_write_counts() {
        let mut bench = Bench::new();
        bench.push(0, "name? ");
        bench.wait(5_000);
        bench.push(1, "one\n");
        assert_eq!(bench.written(), "name? |one$");
    }

    #[test]
    fn dots_for_ever_hold_nobody_up_for_longer_than_a_pause() {
        let mut bench = Bench::new();
        for number in 0..12 {
            bench.push(0, ".");
            if number % 4 == 2 {
                bench.push(1, "one\n");
            }
            bench.wait(200);
        }
        assert_eq!(bench.written(), ".<.<.<.<.|one$+.<.<.<.<.|one$+.<.");
    }

    #[test]
    fn a_long_line_in_pieces_stays_whole_while_it_comes() {
        let mut bench = Bench::new();
        let part = "x".repeat(64 << 10);
        for _ in 0..10 {
            bench.push(0, &part);
            bench.push(1, "one\n");
            bench.wait(500);
        }
        bench.push(0, "\n");
        assert!(!bench.written().contains('|'));
    }

    #[test]
    fn progress_bars_of_two_ranks_are_drawn_in_turn() {
        let mut bench = Bench::new();
        for (rank, text) in [(0, "10%\r"), (1, "10%\r"), (0, "\r"), (0, "20%"), (1, "\r"), (1, "20%"), (0, "\r")] {
            bench.push(rank, text);
        }
        assert_eq!(bench.written().replace('\r', "^"), "10%^10%^^20%<^^20%");
    }

    #[test]
    fn the_end_of_a_rank_gives_its_line_up() {
        let mut bench = Bench::new();
        bench.push(0, "no end");
        bench.push(1, "one\n");
        bench.end(0);
        assert_eq!(bench.written(), "no end|one$");
        bench.push(1, "also none");
        bench.end(1);
        assert_eq!(bench.written(), "also none");
        bench.push(2, "two\n");
        assert_eq!(bench.written(), "|two$");
    }

    #[test]
    fn nobody_waits_for_a_rank_that_ended_while_it_waited() {
        let mut bench = Bench::new();
        bench.push(0, "a");
        bench.push(1, "b");
        bench.push(2, "c\n");
        bench.end(1);
        bench.push(0, "A\n");
        assert_eq!(bench.written(), "a<A$b|c$");
    }

    #[test]
    fn the_streams_of_one_rank_do_not_tear_each_other() {
        let mut bench = Bench::new();
        bench.push(0, "out");
        let error = Piece { source: Source::Rank(Rank(0), Stream::Stderr), bytes: Bytes::from_static(b"err\n") };
        bench.hold.push(error, bench.now, &mut bench.steps);
        bench.push(0, "put\n");
        assert_eq!(bench.written(), "out<put$err$");
    }

    #[test]
    fn an_endless_line_cannot_fill_memory() {
        let mut bench = Bench::new();
        let line = "x".repeat(64 << 10) + "\n";
        bench.push(0, "endless");
        for _ in 0..200 {
            bench.push(1, &line);
            assert!(bench.hold.waiting_bytes <= WAITING_BYTES);
        }
        bench.push(0, " tail\n");
        let written = bench.written();
        assert!(written.starts_with("endless|xxx") && written.ends_with("+ tail$"));
        assert_eq!(written.matches("x$").count(), 200);
    }

    #[test]
    fn many_endless_lines_cannot_fill_memory_either() {
        let mut bench = Bench::new();
        for round in 0..WAITING_PIECES as u32 + 100 {
            bench.push(round % 7, "y");
            assert!(bench.hold.waiting.len() <= WAITING_PIECES);
        }
        bench.hold.finish(bench.now, &mut bench.steps);
        assert_eq!(bench.written().matches('y').count(), WAITING_PIECES + 100);
    }

    #[test]
    fn what_waits_at_the_end_is_written() {
        let mut bench = Bench::new();
        bench.push(0, "a");
        bench.push(1, "b");
        bench.push(2, "c\n");
        bench.say("lattice: done\n");
        bench.hold.finish(bench.now, &mut bench.steps);
        assert_eq!(bench.written(), "a|b|c$lattice: done$");
    }
}

#[cfg(test)]
mod properties;
