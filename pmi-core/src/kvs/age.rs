//! Age of a pair, for comparison with pairs of the same key from other nodes.
//!
//! Fences of different groups, and of the world, may complete on a node in another order than their pairs were put. So a group's fence
//! carries the age of its pairs, and an older pair never replaces a newer one:
//!
//! ```text
//! age = (number of world fences that the pair's node had begun, clock of that node)
//! ```
//! The first number takes precedence: a world fence carries all pairs of one number, and no newer pair. The clock is a Lamport clock:
//! each group's fence advances it and distributes it. So a pair that is put after its node has received another pair has a later clock.
//! Pairs of one age are concurrent: a read returns the last one to arrive, until a world fence decides.

use std::collections::VecDeque;

use crate::segment::{Pair, Segment};

/// Age of all pairs of a segment; the greater age is newer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) struct Age {
    /// Number of world fences that its node had begun.
    pub(super) interval: u64,
    /// Clock of that node.
    pub(super) clock: u64,
}

impl Age {
    /// Age of pairs that exist before the first rank starts.
    pub(super) const OLDEST: Self = Self { interval: 0, clock: 0 };

    /// Newer than all pairs that any node puts before it begins the next world fence.
    pub(super) const LATEST: Self = Self { interval: u64::MAX, clock: u64::MAX };

    /// Age of the pairs from the world fence of this interval.
    pub(super) fn fenced(interval: u64) -> Self {
        Self { interval, clock: u64::MAX }
    }
}

/// Maximum number in a label: more fences than any job has, and far below the limit of the type.
const LABEL_MAX: u64 = 1 << 48;

/// Error of a contribution to a group's fence that cannot be decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the contribution of a node to a group's fence has no age")]
pub struct Unlabelled;

/// Label of a node's contribution: the first pair, which holds the ages of the pairs after it.
///
/// It counts pairs, because a fence may join segments and split them between two pairs.
#[derive(Default)]
pub(super) struct Label {
    pub(super) interval: u64,
    /// Clock of the node when the label was written.
    pub(super) clock: u64,
    /// Runs of pairs, each with its clock and the number of its pairs.
    runs: Vec<(u64, u64)>,
}

impl Label {
    const KEY: &'static [u8] = b"age";

    /// Creates a label without pairs.
    pub(super) fn new(interval: u64, clock: u64) -> Self {
        Self { interval, clock, runs: Vec::new() }
    }

    /// Adds the clock of the next pairs.
    pub(super) fn push(&mut self, clock: u64, pairs: usize) {
        let pairs = pairs as u64;
        match self.runs.last_mut() {
            Some(last) if last.0 == clock => last.1 += pairs,
            _ => self.runs.push((clock, pairs)),
        }
    }

    /// Encodes the label as a segment of one pair. Its position identifies it, whatever the keys of the other pairs are.
    pub(super) fn encode(&self) -> Segment {
        let runs = self.runs.iter().flat_map(|&(clock, pairs)| [clock, pairs]);
        let numbers = [self.interval, self.clock].into_iter().chain(runs);
        let value: Vec<u8> = numbers.flat_map(u64::to_be_bytes).collect();
        [(Self::KEY, value)].into_iter().collect()
    }

    fn decode(pair: Pair<'_>) -> Result<Self, Unlabelled> {
        let (numbers, rest) = pair.value.as_chunks();
        let numbers: Vec<u64> = numbers.iter().copied().map(u64::from_be_bytes).collect();
        let (Self::KEY, [interval, clock, runs @ ..], []) = (pair.key, &numbers[..], rest) else {
            return Err(Unlabelled);
        };
        let (runs, []) = runs.as_chunks() else { return Err(Unlabelled) };
        if [*interval, *clock].into_iter().chain(runs.iter().map(|&[clock, _]| clock)).any(|number| number > LABEL_MAX)
        {
            return Err(Unlabelled);
        }
        Ok(Self {
            interval: *interval,
            clock: *clock,
            runs: runs.iter().map(|&[clock, pairs]| (clock, pairs)).collect(),
        })
    }
}

/// Result of a group's fence.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Labelled {
    /// Latest clock of its nodes; `None` without contributions.
    pub(super) latest: Option<u64>,
    /// Pairs without their labels, in order. All pairs of a segment have one age.
    pub(super) segments: Vec<(Age, Segment)>,
}

impl Labelled {
    /// Reads the labels. Each label holds the number of pairs that follow it.
    pub(super) fn read(brought: &[Segment]) -> Result<Self, Unlabelled> {
        let mut reading =
            Reading { labelled: Self { latest: None, segments: Vec::new() }, interval: 0, runs: VecDeque::new() };
        for segment in brought {
            reading.take(segment)?;
        }
        if reading.runs.is_empty() { Ok(reading.labelled) } else { Err(Unlabelled) }
    }
}

/// Result so far, and the last label's ages of the next pairs.
struct Reading {
    labelled: Labelled,
    interval: u64,
    runs: VecDeque<(u64, u64)>,
}

impl Reading {
    fn take(&mut self, segment: &Segment) -> Result<(), Unlabelled> {
        let mut pairs = segment.located_pairs();
        let mut left = segment.pair_count() as u64;
        while left > 0 {
            let Some(&mut (clock, ref mut missing)) = self.runs.front_mut() else {
                self.begin(Label::decode(pairs.next().ok_or(Unlabelled)?)?);
                left -= 1;
                continue;
            };
            let count = left.min(*missing);
            let age = Age { interval: self.interval, clock };
            *missing -= count;
            left -= count;
            if *missing == 0 {
                self.runs.pop_front();
            }
            self.labelled.segments.push((age, segment.part(&mut pairs, count as usize)));
        }
        Ok(())
    }

    fn begin(&mut self, label: Label) {
        self.labelled.latest = self.labelled.latest.max(Some(label.clock));
        self.interval = label.interval;
        self.runs = label.runs.into();
        self.runs.retain(|&(_, pairs)| pairs > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(runs: &[(u64, usize)]) -> Segment {
        let mut label = Label::new(7, 9);
        runs.iter().for_each(|&(clock, pairs)| label.push(clock, pairs));
        label.encode()
    }

    fn segment(keys: &[&str]) -> Segment {
        keys.iter().map(|key| (key, "value")).collect()
    }

    /// The keys in the result, each with its clock.
    fn read(brought: &[Segment]) -> Result<Vec<(String, u64)>, Unlabelled> {
        let Labelled { latest, segments } = Labelled::read(brought)?;
        assert_eq!(latest, (!brought.is_empty()).then_some(9));
        assert!(segments.iter().all(|(age, _)| age.interval == 7));
        let key = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
        Ok(segments
            .iter()
            .flat_map(|(age, segment)| segment.pairs().map(move |(name, _)| (key(name), age.clock)))
            .collect())
    }

    #[test]
    fn labels_tell_the_age_of_what_follows_wherever_segments_are_joined_or_cut() {
        let brought = [
            label(&[(3, 2), (8, 1)]),
            segment(&["age", "b"]),
            segment(&["c"]),
            label(&[]),
            label(&[(4, 1)]),
            segment(&["d"]),
        ];
        let expected: Vec<_> =
            [("age", 3), ("b", 3), ("c", 8), ("d", 4)].map(|(key, clock)| (key.to_owned(), clock)).into();
        let pairs: Vec<_> = brought.iter().flat_map(Segment::pairs).collect();
        assert_eq!(read(&brought), Ok(expected.clone()));
        for size in 1..=pairs.len() {
            let other: Vec<Segment> = pairs.chunks(size).map(|pairs| pairs.iter().copied().collect()).collect();
            assert_eq!(read(&other), Ok(expected.clone()), "segments of {size} pairs");
        }
        assert_eq!(read(&[]), Ok(Vec::new()));
    }

    #[test]
    fn a_label_of_more_fences_than_there_can_be_is_refused() {
        let latest = |interval, clock, of_run| {
            let mut label = Label::new(interval, clock);
            label.push(of_run, 1);
            Labelled::read(&[label.encode(), segment(&["a"])]).map(|labelled| labelled.latest)
        };
        assert_eq!(latest(LABEL_MAX, LABEL_MAX, LABEL_MAX), Ok(Some(LABEL_MAX)));
        for numbers in [(LABEL_MAX + 1, 0, 0), (0, LABEL_MAX + 1, 0), (0, u64::MAX, 0), (0, 0, u64::MAX)] {
            assert_eq!(latest(numbers.0, numbers.1, numbers.2), Err(Unlabelled), "{numbers:?}");
        }
    }

    #[test]
    fn what_no_label_counts_is_refused() {
        let odd: Segment = [("age", [0; 24])].into_iter().collect();
        let short: Segment = [("age", [0; 8])].into_iter().collect();
        let bad =
            [vec![segment(&["a"])], vec![label(&[(3, 1)])], vec![label(&[]), segment(&["a"])], vec![odd], vec![short]];
        for bad in bad {
            assert_eq!(Labelled::read(&bad), Err(Unlabelled), "{bad:?}");
        }
    }
}
