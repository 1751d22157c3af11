//! Which ranks of a launch are meant, in ranges: `0-3,8`.

use std::ops::RangeInclusive;
use std::str::FromStr;

use pmi_core::ids::Rank;

/// Some ranks of a launch, by the numbers under which they are shown; at least one, in at most [`RankRanges::MAX`] ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankRanges(Vec<RangeInclusive<u32>>);

/// Why ranges name no ranks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RankRangesError {
    /// There is none.
    #[error("no rank is named; 0-3,8 names five")]
    Empty,
    /// A part of a text that cannot be read.
    #[error("{text:?} is no rank and no range of ranks; 7 and 4-7 are")]
    Part {
        /// The part.
        text: String,
    },
    /// A range that ends before it begins.
    #[error("the range of ranks from {first} to {last} is empty; the smaller number comes first")]
    Backwards {
        /// Where it begins.
        first: u32,
        /// Where it ends.
        last: u32,
    },
    /// There are too many.
    #[error("there are {count} ranges of ranks; at most {} can be named at once", RankRanges::MAX)]
    Many {
        /// How many there are.
        count: usize,
    },
}

impl RankRanges {
    /// The most ranges.
    pub const MAX: usize = 1024;

    /// Ranges by their first and last ranks.
    ///
    /// # Errors
    /// Fails for none and for too many, and for one that ends before it begins.
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

    /// First and last rank of each range, in no order.
    pub fn ends(&self) -> impl Iterator<Item = (u32, u32)> {
        self.0.iter().map(|range| (*range.start(), *range.end()))
    }

    /// Whether the rank is one of them.
    pub fn contains(&self, rank: Rank) -> bool {
        self.0.iter().any(|range| range.contains(&rank.0))
    }

    /// The greatest of them.
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
}
