//! Sets of CPUs and of NUMA nodes: written as the kernel writes them (`0-3,8`), handed to the kernel as bits, to hwloc as hexadecimal words.

use std::collections::BTreeSet;
use std::ffi::c_ulong;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A set of CPUs, by the numbers that Linux gives them.
///
/// Numbers have 16 bits: no kernel counts further than 8,192, and no text can make a set larger than 65,536 numbers.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CpuSet(BTreeSet<u16>);

/// A set of NUMA nodes, which the kernel writes as it does CPUs.
pub type NodeSet = CpuSet;

/// Error for a text that is no list of CPUs.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{text:?} is not a CPU number or a range such as 4-7")]
pub struct CpuSetParseError {
    /// The part of the list that cannot be read.
    pub text: String,
}

impl CpuSet {
    /// The CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        self.0.iter().copied()
    }

    /// Number of CPUs.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True for the empty set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if `cpu` is in the set.
    pub fn contains(&self, cpu: u16) -> bool {
        self.0.contains(&cpu)
    }

    /// The lowest CPU.
    pub fn first(&self) -> Option<u16> {
        self.0.first().copied()
    }

    /// The CPUs that are in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self(self.0.intersection(&other.0).copied().collect())
    }

    /// The CPUs of this set that are not in the other.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        Self(self.0.difference(&other.0).copied().collect())
    }

    /// True if no CPU is in both sets.
    pub fn is_disjoint(&self, other: &Self) -> bool {
        self.0.is_disjoint(&other.0)
    }

    /// True if all CPUs of this set are in the other.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.0.is_subset(&other.0)
    }

    /// Adds all CPUs of another set.
    pub fn add(&mut self, other: &Self) {
        self.0.extend(&other.0);
    }

    /// The set as words of 32 bits, the lowest first.
    pub(crate) fn words(&self) -> Vec<u32> {
        let mut words = vec![0; self.0.last().map_or(0, |&last| usize::from(last) / 32 + 1)];
        for cpu in self.iter() {
            words[usize::from(cpu / 32)] |= 1 << (cpu % 32);
        }
        words
    }

    /// The CPUs of a kernel's bit mask.
    pub fn from_mask(mask: &[c_ulong]) -> Self {
        let bits = c_ulong::BITS as usize;
        let is_set = |&cpu: &usize| mask[cpu / bits] >> (cpu % bits) & 1 == 1;
        Self((0..mask.len() * bits).filter(is_set).map_while(|cpu| u16::try_from(cpu).ok()).collect())
    }

    /// The set as a kernel's bit mask.
    pub fn to_mask(&self) -> Vec<c_ulong> {
        let bits = c_ulong::BITS as usize;
        let words = self.0.last().map_or(0, |&last| usize::from(last) / bits + 1);
        let mut mask = vec![0; words];
        for cpu in self.iter().map(usize::from) {
            mask[cpu / bits] |= 1 << (cpu % bits);
        }
        mask
    }
}

impl FromIterator<u16> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u16>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl FromStr for CpuSet {
    type Err = CpuSetParseError;

    /// Reads the kernel's list format; an empty text is the empty set.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut set = Self::default();
        for part in text.split(',').filter(|_| !text.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            match (first.parse::<u16>(), last.parse::<u16>()) {
                (Ok(first), Ok(last)) if first <= last => set.0.extend(first..=last),
                _ => return Err(CpuSetParseError { text: part.to_owned() }),
            }
        }
        Ok(set)
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if(|&next| next - 1 == last) {
                last = next;
            }
            write!(f, "{separator}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            separator = ",";
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
    }

    #[test]
    fn the_unreadable_part_of_a_list_is_named() {
        for (text, part) in [("0,x", "x"), ("3-1", "3-1"), ("0,", ""), ("70000", "70000"), ("-1", "-1"), (" 1", " 1")] {
            assert_eq!(text.parse::<CpuSet>(), Err(CpuSetParseError { text: part.to_owned() }));
        }
    }
}
