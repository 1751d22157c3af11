//! Selections of ranks of a launch, in ranges: `0-3,8`.

use std::ops::RangeInclusive;
use std::str::FromStr;

use pmi_core::ids::Rank;

/// Selection of ranks of a launch, by their displayed numbers: at least one rank, in at most [`RankRanges::MAX`] ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankRanges(Vec<RangeInclusive<u32>>);

/// Reason why a selection of ranks is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RankRangesError {
    /// No rank is named.
    #[error("no rank is named; 0-3,8 names five")]
    Empty,
    /// A part of the text cannot be read.
    #[error("{text:?} is no rank and no range of ranks; 7 and 4-7 are")]
    Part {
        /// The part.
        text: String,
    },
    /// A range ends before it begins.
    #[error("the range of ranks from {first} to {last} is empty; the smaller number comes first")]
    Backwards {
        /// First rank of the range.
        first: u32,
        /// Last rank of the range.
        last: u32,
    },
    /// There are more ranges than [`RankRanges::MAX`].
    #[error("there are {count} ranges of ranks; at most {} can be named at once", RankRanges::MAX)]
    Many {
        /// Number of ranges.
        count: usize,
    },
}

impl RankRanges {
    /// Maximum number of ranges.
    pub const MAX: usize = 1024;

    /// Selection of the ranges with these first and last ranks.
    ///
    /// # Errors
    /// Fails without ranges, with too many ranges, and if a range ends before it begins.
    pub fn new(ends: &[(u32, u32)]) -> Result<Self, RankRangesError> {
        if !(1..=Self::MAX).contains(&ends.len()) {
            let count = ends.len();
            return Err(if count == 0 { RankRangesError::Empty } else { RankRangesError::Many { count } });
        }
        match ends.iter().find(|(first, last)| first > last) {
            Some(&(first, last)) => Err(RankRangesError::Backwards { first, last }),
            None => Ok(Self(ends.iter().map(|&(first, last)| first..=last).collect())),
        }
    }

    /// Returns the first and last rank of each range, in no particular order.
    pub fn ends(&self) -> impl Iterator<Item = (u32, u32)> {
        self.0.iter().map(|range| (*range.start(), *range.end()))
    }

    /// Returns true if the selection contains this rank.
    pub fn contains(&self, rank: Rank) -> bool {
        self.0.iter().any(|range| range.contains(&rank.0))
    }

    /// Returns the greatest rank of the selection.
    pub fn greatest(&self) -> Rank {
        Rank(self.ends().map(|(_, last)| last).max().unwrap_or_default())
    }
}

impl FromStr for RankRanges {
    type Err = RankRangesError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let ends = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            match (first.parse(), last.parse()) {
                (Ok(first), Ok(last)) => Ok((first, last)),
                _ => Err(RankRangesError::Part { text: part.to_owned() }),
            }
        };
        let parts = text.split(',').filter(|_| !text.is_empty());
        Self::new(&parts.map(ends).collect::<Result<Vec<_>, _>>()?)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_of_ranks_are_read() {
        let check = |text: &str, inside: &[u32], outside: &[u32]| {
            let ranges: RankRanges = text.parse().unwrap();
            assert!(inside.iter().all(|&rank| ranges.contains(Rank(rank))), "{text}");
            assert!(!outside.iter().any(|&rank| ranges.contains(Rank(rank))), "{text}");
            assert_eq!(ranges.greatest(), Rank(*inside.iter().max().unwrap()));
        };
        check("7", &[7], &[0, 6, 8]);
        check("0-3,8", &[0, 3, 8], &[4, 7, 9]);
        check("5,0-4294967295", &[0, 5, u32::MAX], &[]);
    }

    #[test]
    fn what_names_no_ranks_is_refused() {
        let check = |text: &str, expected: &str| {
            let error = text.parse::<RankRanges>().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check("", "no rank is named");
        check("0,", "\"\" is no rank");
        check("1-", "\"1-\" is no rank");
        check("-1", "\"-1\" is no rank");
        check("all", "\"all\" is no rank");
        check("3-1", "from 3 to 1 is empty");
        check(&["0"; RankRanges::MAX + 1].join(","), "there are 1025 ranges");
    }

    fn any_ends() -> impl Strategy<Value = Vec<(u32, u32)>> {
        let ends = (0..40_u32, 0..40_u32).prop_map(|(one, other)| (one.min(other), one.max(other)));
        proptest::collection::vec(ends, 1..6)
    }

    proptest! {
        #[test]
        fn a_selection_has_the_ranks_of_its_ranges_and_no_others(ends in any_ends(), rank in 0..45_u32) {
            let ranges = RankRanges::new(&ends).unwrap();
            let expected = ends.iter().any(|&(first, last)| first <= rank && rank <= last);
            prop_assert_eq!(ranges.contains(Rank(rank)), expected);
            prop_assert!(ranges.contains(ranges.greatest()) && !ranges.contains(Rank(ranges.greatest().0 + 1)));
        }

        #[test]
        fn a_selection_that_is_written_down_is_read_back(ends in any_ends()) {
            let text: Vec<String> = ends.iter().map(|(first, last)| format!("{first}-{last}")).collect();
            prop_assert_eq!(text.join(",").parse(), RankRanges::new(&ends));
        }

        /// Texts come from users.
        #[test]
        fn any_text_is_read_or_refused(text in "[0-9,\\- x]{0,12}") {
            if let Ok(ranges) = text.parse::<RankRanges>() {
                prop_assert!(ranges.ends().all(|(first, last)| first <= last));
            }
        }
    }
}
