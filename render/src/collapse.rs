//! Merges equal lines of many ranks into one line with the rank numbers: `[0-62,64] ready`.
//!
//! Pure. Input: lines with the time of their arrival. Output: lines with rank numbers.
//!
//! ```text
//! line of a rank ──> first equal line that waits after the last line of the rank: the rank is added to it
//!                └─> no such line: the line is added at the end of the queue
//! lines leave the queue in order: the first line leaves when it has all ranks, after WAIT_MAX, or if too much waits
//! ```
//!
//! Each line of a rank is written once, in the order of the rank. A line waits at most [`WAIT_MAX`], so that the output is timely. Equal lines
//! with a longer delay between them are separate lines.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use lattice_session::cause::RankNumbers;
use lattice_session::event::Stream;
use pmi_core::ids::Rank;

/// Time for which a line waits for equal lines.
pub(super) const WAIT_MAX: Duration = Duration::from_millis(200);
/// Limit of waiting data, in bytes of lines and of their rank numbers.
const COST_MAX: usize = 8 << 20;
/// Maximum number of waiting lines.
const LINES_MAX: usize = 16 << 10;
/// Cost of a rank number, in bytes.
const RANK_COST: usize = 8;

/// Lines that wait for equal lines of other ranks.
#[derive(Debug)]
pub(super) struct Collapse {
    /// Number of ranks in a complete line.
    ranks: usize,
    waiting: VecDeque<Group>,
    /// Number of the first waiting line. Lines are numbered in the order of the queue.
    first: u64,
    /// Numbers of waiting lines by stream and text, in order.
    by_line: HashMap<(Stream, Bytes), VecDeque<u64>>,
    /// Number of the last line of each rank, while that line waits.
    last: HashMap<Rank, u64>,
    cost: usize,
}

/// Equal lines of several ranks.
#[derive(Debug)]
struct Group {
    stream: Stream,
    /// Text without its line end.
    line: Bytes,
    ranks: Vec<Rank>,
    since: Instant,
}

/// Stream, and a line with its rank numbers and its line end.
pub(super) type Collapsed = (Stream, Bytes);

impl Collapse {
    /// Creates an empty queue for lines of `ranks` ranks.
    pub(super) fn new(ranks: usize) -> Self {
        Self { ranks, waiting: VecDeque::new(), first: 0, by_line: HashMap::new(), last: HashMap::new(), cost: 0 }
    }

    /// Adds output of a rank: whole lines, or an incomplete line, which counts as a line. Appends the lines that are due to `out`.
    pub(super) fn push(&mut self, rank: Rank, stream: Stream, bytes: &Bytes, now: Instant, out: &mut Vec<Collapsed>) {
        let mut start = 0;
        for end in memchr::memchr_iter(b'\n', bytes).chain((!bytes.ends_with(b"\n")).then_some(bytes.len())) {
            self.add(rank, stream, bytes.slice(start..end), now);
            start = end + 1;
            self.release(now, out);
        }
    }

    /// Time of the next [`Collapse::tick`]; `None` while no line waits.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.waiting.front().map(|group| group.since + WAIT_MAX)
    }

    /// Appends the lines that have waited long enough to `out`.
    pub(super) fn tick(&mut self, now: Instant, out: &mut Vec<Collapsed>) {
        self.release(now, out);
    }

    /// Appends all waiting lines to `out`.
    pub(super) fn finish(&mut self, out: &mut Vec<Collapsed>) {
        while let Some(group) = self.take_first() {
            out.push(group.written());
        }
    }

    fn add(&mut self, rank: Rank, stream: Stream, line: Bytes, now: Instant) {
        let behind = self.last.get(&rank).map_or(0, |last| last + 1);
        let equal = self.by_line.get(&(stream, line.clone()));
        let joined = equal.and_then(|numbers| numbers.get(numbers.partition_point(|&number| number < behind)).copied());
        let number = match joined {
            Some(number) => number,
            None => {
                let number = self.first + self.waiting.len() as u64;
                // A copy, because a slice would keep the whole piece in memory.
                let line = Bytes::copy_from_slice(&line);
                self.cost += line.len();
                self.by_line.entry((stream, line.clone())).or_default().push_back(number);
                self.waiting.push_back(Group { stream, line, ranks: Vec::new(), since: now });
                number
            }
        };
        self.cost += RANK_COST;
        self.last.insert(rank, number);
        self.waiting[(number - self.first) as usize].ranks.push(rank);
    }

    fn release(&mut self, now: Instant, out: &mut Vec<Collapsed>) {
        while let Some(group) = self.waiting.front() {
            let is_due = group.ranks.len() >= self.ranks || group.since + WAIT_MAX <= now;
            if !is_due && self.cost <= COST_MAX && self.waiting.len() <= LINES_MAX {
                return;
            }
            out.extend(self.take_first().map(Group::written));
        }
    }

    fn take_first(&mut self) -> Option<Group> {
        let group = self.waiting.pop_front()?;
        for rank in &group.ranks {
            if self.last.get(rank) == Some(&self.first) {
                self.last.remove(rank);
            }
        }
        self.first += 1;
        self.cost -= group.line.len() + RANK_COST * group.ranks.len();
        let key = (group.stream, group.line.clone());
        if let Some(numbers) = self.by_line.get_mut(&key) {
            numbers.pop_front();
            if numbers.is_empty() {
                self.by_line.remove(&key);
            }
        }
        Some(group)
    }
}

impl Group {
    fn written(mut self) -> Collapsed {
        self.ranks.sort_unstable();
        let label = RankNumbers(&self.ranks).to_string();
        let mut bytes = BytesMut::with_capacity(label.len() + self.line.len() + 4);
        bytes.put_slice(b"[");
        bytes.put_slice(label.as_bytes());
        bytes.put_slice(b"] ");
        bytes.put_slice(&self.line);
        bytes.put_slice(b"\n");
        (self.stream, bytes.freeze())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Written lines, without line ends.
    fn shown(out: &[Collapsed]) -> Vec<String> {
        out.iter().map(|(_, bytes)| String::from_utf8(bytes.to_vec()).unwrap().trim_end().to_owned()).collect()
    }

    struct Bench {
        collapse: Collapse,
        now: Instant,
        out: Vec<Collapsed>,
    }

    impl Bench {
        fn new(ranks: usize) -> Self {
            Self { collapse: Collapse::new(ranks), now: Instant::now(), out: Vec::new() }
        }

        fn write(&mut self, rank: u32, text: &str) {
            let bytes = Bytes::copy_from_slice(text.as_bytes());
            self.collapse.push(Rank(rank), Stream::Stdout, &bytes, self.now, &mut self.out);
        }

        fn wait(&mut self, time: Duration) {
            self.now += time;
            self.collapse.tick(self.now, &mut self.out);
        }

        fn taken(&mut self) -> Vec<String> {
            shown(&std::mem::take(&mut self.out))
        }

        fn finished(mut self) -> Vec<String> {
            self.collapse.finish(&mut self.out);
            shown(&self.out)
        }
    }

    #[test]
    fn a_line_of_all_ranks_comes_at_once_and_others_after_a_while() {
        let mut bench = Bench::new(4);
        for rank in [2, 0, 3] {
            bench.write(rank, "ready\n");
        }
        assert!(bench.taken().is_empty());
        bench.write(1, "ready\n");
        assert_eq!(bench.taken(), ["[0-3] ready"]);
        bench.write(0, "a\n");
        bench.write(3, "a\n");
        bench.write(1, "b\n");
        assert_eq!(bench.collapse.deadline(), Some(bench.now + WAIT_MAX));
        bench.wait(WAIT_MAX);
        assert_eq!(bench.taken(), ["[0,3] a", "[1] b"]);
        assert_eq!(bench.collapse.deadline(), None);
    }

    #[test]
    fn lines_of_a_rank_keep_their_order() {
        let mut bench = Bench::new(2);
        bench.write(1, "a\nb\na\n");
        bench.write(0, "b\na\nb\n");
        assert_eq!(bench.finished(), ["[1] a", "[0-1] b", "[0-1] a", "[0] b"]);
    }

    #[test]
    fn the_streams_of_a_rank_are_told_apart_and_a_piece_of_a_line_is_a_line() {
        let mut bench = Bench::new(2);
        bench.write(0, "half");
        let bytes = Bytes::from_static(b"half\n");
        bench.collapse.push(Rank(1), Stream::Stderr, &bytes, bench.now, &mut bench.out);
        bench.write(1, "half\n");
        bench.collapse.finish(&mut bench.out);
        let streams: Vec<Stream> = bench.out.iter().map(|(stream, _)| *stream).collect();
        assert_eq!(streams, [Stream::Stdout, Stream::Stderr, Stream::Stdout]);
        assert_eq!(bench.taken(), ["[0] half", "[1] half", "[1] half"]);
    }

    #[test]
    fn a_flood_of_different_lines_does_not_fill_memory() {
        let mut bench = Bench::new(2);
        for number in 0..3 * LINES_MAX {
            bench.write(0, &format!("line {number}\n"));
            assert!(bench.collapse.waiting.len() <= LINES_MAX);
        }
        let long = "x".repeat(1 << 20) + "\n";
        for _ in 0..20 {
            bench.write(0, &long);
            assert!(bench.collapse.cost <= COST_MAX && bench.collapse.by_line.len() <= LINES_MAX);
        }
        assert_eq!(bench.finished().len(), 3 * LINES_MAX + 20);
    }

    fn expanded(line: &str) -> (Vec<u32>, String) {
        let (ranks, text) = line.strip_prefix('[').unwrap().split_once("] ").unwrap();
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            first.parse::<u32>().unwrap()..=last.parse().unwrap()
        };
        (ranks.split(',').flat_map(range).collect(), text.to_owned())
    }

    proptest! {
        /// For any input, the output has each line of each rank once and in order.
        #[test]
        fn every_rank_has_its_lines_once_and_in_order(
            steps in proptest::collection::vec((0_u32..5, "[ab]{1}", 0_u64..150), 0..200),
        ) {
            let mut bench = Bench::new(5);
            let mut written = vec![Vec::new(); 5];
            for (rank, text, wait) in steps {
                bench.write(rank, &format!("{text}\n"));
                written[rank as usize].push(text);
                bench.wait(Duration::from_millis(wait));
            }
            let mut seen = vec![Vec::new(); 5];
            for line in bench.finished() {
                let (ranks, text) = expanded(&line);
                ranks.into_iter().for_each(|rank| seen[rank as usize].push(text.clone()));
            }
            prop_assert_eq!(seen, written);
        }
    }
}
