//! Age of a pair, compared with those of its key that were put on other nodes.
//!
//! Fences of different groups, and of the world, may reach a node in another order than that in which what they bring was put. So
//! what a group's fence carries is labelled with its age, and an older pair never replaces a newer one:
//!
//! ```text
//! age = (how many world fences the pair's node had begun, that node's clock)
//! ```
//! The first number decides alone where it differs: a world fence brings all pairs of one number, and none that is newer. The clock
//! is Lamport's: it goes on with every group's fence and is passed on by it, so who puts a pair after having seen another has a later
//! clock. Pairs of one age know nothing of each other; the one that comes last is read, until a world fence decides.

use crate::segment::Segment;

/// The age of all pairs of a segment; the greater is the newer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) struct Age {
    /// Number of world fences that its node had begun.
    pub(super) interval: u64,
    /// That node's clock.
    pub(super) clock: u64,
}

impl Age {
    /// Newer than all that is put on any node before it begins the next world fence.
    pub(super) const LATEST: Self = Self { interval: u64::MAX, clock: u64::MAX };

    /// The age of what the world fence of this interval brings.
    pub(super) fn fenced(interval: u64) -> Self {
        Self { interval, clock: u64::MAX }
    }
}

/// A contribution to a group's fence cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("what a node brought to a group's fence does not tell how old it is")]
pub struct Unlabelled;

/// The label of a node's contribution: it comes first and tells the ages of the segments behind it.
pub(super) struct Label {
    pub(super) interval: u64,
    /// The node's clock when it was written.
    pub(super) clock: u64,
    /// The clock of each segment.
    pub(super) clocks: Vec<u64>,
}

impl Label {
    const KEY: &'static [u8] = b"age";

    /// As a segment of one pair. Where it stands tells it from others, whatever their keys are.
    pub(super) fn encode(&self) -> Segment {
        let numbers = [self.interval, self.clock].into_iter().chain(self.clocks.iter().copied());
        let value: Vec<u8> = numbers.flat_map(u64::to_be_bytes).collect();
        [(Self::KEY, value)].into_iter().collect()
    }

    fn decode(segment: &Segment) -> Result<Self, Unlabelled> {
        let mut pairs = segment.pairs();
        let (Some((Self::KEY, value)), None) = (pairs.next(), pairs.next()) else { return Err(Unlabelled) };
        let (numbers, rest) = value.as_chunks();
        let mut numbers = numbers.iter().copied().map(u64::from_be_bytes);
        let (Some(interval), Some(clock), []) = (numbers.next(), numbers.next(), rest) else { return Err(Unlabelled) };
        Ok(Self { interval, clock, clocks: numbers.collect() })
    }
}

/// Result of a group's fence.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Labelled<'s> {
    /// The latest clock of its nodes; `None` when nobody brought anything.
    pub(super) latest: Option<u64>,
    /// The segments without their labels, in order.
    pub(super) segments: Vec<(Age, &'s Segment)>,
}

impl<'s> Labelled<'s> {
    /// Reads the labels, each of which tells how many segments follow it.
    pub(super) fn read(mut rest: &'s [Segment]) -> Result<Self, Unlabelled> {
        let (mut latest, mut segments) = (None, Vec::with_capacity(rest.len()));
        while let Some((first, behind)) = rest.split_first() {
            let Label { interval, clock, clocks } = Label::decode(first)?;
            let (labelled, others) = behind.split_at_checked(clocks.len()).ok_or(Unlabelled)?;
            latest = latest.max(Some(clock));
            segments.extend(clocks.into_iter().map(|clock| Age { interval, clock }).zip(labelled));
            rest = others;
        }
        Ok(Self { latest, segments })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_tell_the_age_of_what_follows_and_nothing_else_does() {
        let pair: Segment = [("age", "of a rank's own")].into_iter().collect();
        let label = |clocks: &[u64]| Label { interval: 7, clock: 9, clocks: clocks.to_vec() }.encode();
        let brought = [label(&[3, 8]), pair.clone(), pair.clone(), label(&[])];
        let Labelled { latest, segments } = Labelled::read(&brought).unwrap();
        let ages: Vec<_> = segments.into_iter().map(|(age, _)| (age.interval, age.clock)).collect();
        assert_eq!((latest, ages), (Some(9), vec![(7, 3), (7, 8)]));
        assert_eq!(Labelled::read(&[]), Ok(Labelled { latest: None, segments: Vec::new() }));
        for bad in [vec![pair.clone()], vec![label(&[3])], vec![label(&[]), pair], vec![Segment::default()]] {
            assert_eq!(Labelled::read(&bad), Err(Unlabelled));
        }
    }
}
