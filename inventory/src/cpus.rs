//! Sets of CPUs and of NUMA nodes: as text in the kernel's format (`0-3,8`), as bit masks for the kernel, as hexadecimal words for hwloc.

use std::ffi::c_ulong;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Set of CPUs, by Linux CPU numbers.
///
/// Numbers have 16 bits: no kernel supports more than 8,192. The memory of a set is proportional to its text, independent of the number of
/// CPUs.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CpuSet(Vec<Run>);

/// Consecutive numbers: the first and the last. Between two runs of a set at least one number is missing.
type Run = (u16, u16);

/// Set of NUMA nodes, which the kernel writes in the same format.
pub type NodeSet = CpuSet;

/// Error for a text that is not a list of CPUs.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{text:?} is not a CPU number or a range such as 4-7")]
pub struct CpuSetParseError {
    /// Part of the list that is not valid.
    pub text: String,
}

impl CpuSet {
    /// Set of these runs, in any order.
    fn of(mut runs: Vec<Run>) -> Self {
        runs.sort_unstable();
        let mut merged: Vec<Run> = Vec::with_capacity(runs.len());
        for (first, last) in runs {
            match merged.last_mut() {
                Some(before) if u32::from(first) <= u32::from(before.1) + 1 => before.1 = before.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        Self(merged)
    }

    /// The CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        self.0.iter().flat_map(|&(first, last)| first..=last)
    }

    /// Number of CPUs.
    pub fn len(&self) -> usize {
        self.0.iter().map(|&(first, last)| usize::from(last - first) + 1).sum()
    }

    /// True for the empty set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if `cpu` is in the set.
    pub fn contains(&self, cpu: u16) -> bool {
        let next = self.0.partition_point(|&(first, _)| first <= cpu);
        next > 0 && self.0[next - 1].1 >= cpu
    }

    /// The lowest CPU.
    pub fn first(&self) -> Option<u16> {
        self.0.first().map(|&(first, _)| first)
    }

    /// The highest CPU.
    fn last(&self) -> Option<u16> {
        self.0.last().map(|&(_, last)| last)
    }

    /// Runs of numbers that are in both sets.
    fn common<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = Run> + 'a {
        let (mut here, mut there) = (self.0.iter().peekable(), other.0.iter().peekable());
        std::iter::from_fn(move || {
            loop {
                let (&&one, &&two) = (here.peek()?, there.peek()?);
                if one.1 < two.1 {
                    here.next()
                } else {
                    there.next()
                };
                if one.0.max(two.0) <= one.1.min(two.1) {
                    return Some((one.0.max(two.0), one.1.min(two.1)));
                }
            }
        })
    }

    /// The CPUs that are in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self(self.common(other).collect())
    }

    /// The CPUs of this set that are not in the other.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        let mut left = Vec::new();
        for &(first, last) in &self.0 {
            // One more than 16 bits allow.
            let mut next = u32::from(first);
            for (begin, end) in Self(vec![(first, last)]).common(other) {
                left.extend(run_between(next, u32::from(begin)));
                next = u32::from(end) + 1;
            }
            left.extend(run_between(next, u32::from(last) + 1));
        }
        Self(left)
    }

    /// True if no CPU is in both sets.
    pub fn is_disjoint(&self, other: &Self) -> bool {
        self.common(other).next().is_none()
    }

    /// True if all CPUs of this set are in the other.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.common(other).eq(self.0.iter().copied())
    }

    /// Adds all CPUs of another set.
    pub fn add(&mut self, other: &Self) {
        *self = Self::of([&self.0[..], &other.0].concat());
    }

    /// The set as words of 32 bits, the lowest first.
    pub(crate) fn words(&self) -> Vec<u32> {
        let mut words = vec![0; self.last().map_or(0, |last| usize::from(last) / 32 + 1)];
        for cpu in self.iter() {
            words[usize::from(cpu / 32)] |= 1 << (cpu % 32);
        }
        words
    }

    /// The CPUs of a kernel's bit mask.
    pub fn from_mask(mask: &[c_ulong]) -> Self {
        let bits = c_ulong::BITS as usize;
        let of_word = |(number, &word): (usize, &c_ulong)| {
            (0..bits).filter(move |bit| word >> bit & 1 == 1).map(move |bit| number * bits + bit)
        };
        let used = mask.iter().enumerate().filter(|(_, word)| **word != 0);
        used.flat_map(of_word).map_while(|cpu| u16::try_from(cpu).ok()).collect()
    }

    /// The set as a kernel's bit mask.
    pub fn to_mask(&self) -> Vec<c_ulong> {
        let bits = c_ulong::BITS as usize;
        let words = self.last().map_or(0, |last| usize::from(last) / bits + 1);
        let mut mask = vec![0; words];
        for cpu in self.iter().map(usize::from) {
            mask[cpu / bits] |= 1 << (cpu % bits);
        }
        mask
    }
}

impl FromIterator<u16> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u16>>(cpus: I) -> Self {
        Self::of(cpus.into_iter().map(|cpu| (cpu, cpu)).collect())
    }
}

/// Numbers from `first` on that are below `end`.
fn run_between(first: u32, end: u32) -> Option<Run> {
    let last = end.checked_sub(1).filter(|&last| first <= last)?;
    Some((u16::try_from(first).ok()?, u16::try_from(last).ok()?))
}

impl FromStr for CpuSet {
    type Err = CpuSetParseError;

    /// Parses the kernel's list format; an empty text is the empty set.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut runs = Vec::new();
        for part in text.split(',').filter(|_| !text.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            match (first.parse::<u16>(), last.parse::<u16>()) {
                (Ok(first), Ok(last)) if first <= last => runs.push((first, last)),
                _ => return Err(CpuSetParseError { text: part.to_owned() }),
            }
        }
        Ok(Self::of(runs))
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (first, last)) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "," };
            write!(f, "{separator}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
        }
        Ok(())
    }
}

impl TryFrom<String> for CpuSet {
    type Error = CpuSetParseError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<CpuSet> for String {
    fn from(set: CpuSet) -> Self {
        set.to_string()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn lists_are_read_and_written_as_the_kernel_does() {
        let check = |text: &str, written: &str, cpus: &[u16]| {
            let set: CpuSet = text.parse().unwrap();
            assert_eq!(set.iter().collect::<Vec<_>>(), cpus);
            assert_eq!(set.to_string(), written);
            assert_eq!(CpuSet::from_mask(&set.to_mask()), set);
        };
        check("", "", &[]);
        check("0", "0", &[0]);
        check("8,0-2,1-3", "0-3,8", &[0, 1, 2, 3, 8]);
        check("63,64,1024", "63-64,1024", &[63, 64, 1024]);
        check("65535", "65535", &[65_535]);
        check("3,1,2,0", "0-3", &[0, 1, 2, 3]);
    }

    #[test]
    fn sets_do_what_sets_of_numbers_do() {
        let lists = ["", "0", "0-3", "1,3", "2-5,9", "0-65535", "65534-65535", "4,6-8", "0,2,4,6,8"];
        let sets = lists.map(|list| list.parse::<CpuSet>().unwrap());
        let numbers = |set: &CpuSet| set.iter().collect::<BTreeSet<u16>>();
        for one in &sets {
            let of_one = numbers(one);
            assert_eq!(
                (one.len(), one.first(), one.last()),
                (of_one.len(), of_one.first().copied(), of_one.last().copied())
            );
            assert!((0..10).all(|cpu| one.contains(cpu) == of_one.contains(&cpu)), "{one}");
            for other in &sets {
                let of_other = numbers(other);
                let mut sum = one.clone();
                sum.add(other);
                let check = |made: &CpuSet, expected: BTreeSet<u16>| {
                    // The runs must also equal those of its text.
                    assert_eq!(*made, expected.into_iter().collect::<CpuSet>(), "{one} and {other}");
                };
                check(&sum, &of_one | &of_other);
                check(&one.intersection(other), &of_one & &of_other);
                check(&one.without(other), &of_one - &of_other);
                assert_eq!(one.is_subset(other), of_one.is_subset(&of_other), "{one} in {other}");
                assert_eq!(one.is_disjoint(other), of_one.is_disjoint(&of_other), "{one} beside {other}");
            }
        }
    }

    #[test]
    fn the_unreadable_part_of_a_list_is_named() {
        for (text, part) in [("0,x", "x"), ("3-1", "3-1"), ("0,", ""), ("70000", "70000"), ("-1", "-1"), (" 1", " 1")] {
            assert_eq!(text.parse::<CpuSet>(), Err(CpuSetParseError { text: part.to_owned() }));
        }
    }
}
