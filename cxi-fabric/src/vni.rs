//! Virtual network identifiers: single numbers, ranges, and the pool that assigns them.
//!
//! ```text
//!            reserve                retire                 free
//!   free ──────────────> in use ──────────────> quarantined ───> free
//! ```
//!
//! The pool assigns its numbers in a cycle, so that a number is reused as late as possible. A number is quarantined while
//! its credentials are revoked, but a node may still hold a service for it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Virtual network identifier: packets with another one do not reach a rank. Never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Vni(u16);

impl Vni {
    /// VNIs of the service that the driver makes for all users, if a site allows it (cass_svc.c of HPE's driver).
    pub(crate) const OF_DEFAULT_SERVICE: [Self; 2] = [Self(1), Self(10)];

    /// Converts a number.
    ///
    /// # Errors
    /// Fails for 0, and for a number of more than 16 bits.
    pub fn new(number: u32) -> Result<Self, VniError> {
        u16::try_from(number).ok().filter(|number| *number != 0).map(Self).ok_or(VniError::Number(number.into()))
    }

    /// The number.
    pub fn get(self) -> u16 {
        self.0
    }
}

impl TryFrom<u32> for Vni {
    type Error = VniError;

    fn try_from(number: u32) -> Result<Self, VniError> {
        Self::new(number)
    }
}

impl From<Vni> for u32 {
    fn from(vni: Vni) -> Self {
        vni.0.into()
    }
}

impl fmt::Display for Vni {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Range of numbers, first and last included. As text `1024-65535`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VniRange {
    first: Vni,
    last: Vni,
}

impl VniRange {
    /// Number of VNIs in the range: at least one.
    pub fn len(&self) -> usize {
        usize::from(self.last.0 - self.first.0) + 1
    }

    /// Never true; a range has at least one number.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// True if `vni` is in the range.
    pub fn contains(&self, vni: Vni) -> bool {
        (self.first..=self.last).contains(&vni)
    }

    /// True if both ranges have a number in common. Ranges of two resource managers on one fabric must not.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

impl Default for VniRange {
    /// Default of Slurm and Flux: all numbers except those that drivers and sites reserve.
    fn default() -> Self {
        Self { first: Vni(1024), last: Vni(u16::MAX) }
    }
}

impl FromStr for VniRange {
    type Err = VniError;

    fn from_str(text: &str) -> Result<Self, VniError> {
        let bad = || VniError::Range(text.chars().take(40).collect());
        let (first, last) = text.split_once('-').ok_or_else(bad)?;
        let number = |digits: &str| digits.trim().parse().map_err(|_| bad()).and_then(Vni::new);
        let range = Self { first: number(first)?, last: number(last)? };
        if range.first > range.last { Err(bad()) } else { Ok(range) }
    }
}

impl TryFrom<String> for VniRange {
    type Error = VniError;

    fn try_from(text: String) -> Result<Self, VniError> {
        text.parse()
    }
}

impl From<VniRange> for String {
    fn from(range: VniRange) -> Self {
        range.to_string()
    }
}

impl fmt::Display for VniRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// Error for a number that is not a VNI, or for an empty pool.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum VniError {
    /// The number is not a VNI.
    #[error("{0} is no virtual network identifier; those are 1 to 65535")]
    Number(u64),
    /// The text is not a range.
    #[error("`{0}` is no range of virtual network identifiers; write it as 1024-65535")]
    Range(String),
    /// All numbers of the pool are taken.
    #[error(
        "VNI pool exhausted ({taken}/{size} in use, {quarantined} of them in quarantine until every node has given them back); \
         release allocations, run `lattice cxi clean`, or configure a larger range than {range}"
    )]
    Exhausted {
        /// Number of VNIs taken, quarantined ones included.
        taken: usize,
        /// Number of VNIs in the pool.
        size: usize,
        /// Number of taken VNIs that only wait for nodes.
        quarantined: usize,
        /// Range of the pool.
        range: VniRange,
    },
}

/// State of a taken number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Reserved,
    Quarantined,
}

/// Numbers that this cluster may assign.
#[derive(Clone, Debug)]
pub struct VniPool {
    range: VniRange,
    taken: BTreeMap<Vni, Use>,
    /// Number assigned last.
    last: Option<Vni>,
}

impl VniPool {
    /// Pool with no taken numbers. `last` is the position in the cycle of an earlier run.
    pub fn new(range: VniRange, last: Option<Vni>) -> Self {
        Self { range, taken: BTreeMap::new(), last }
    }

    /// Takes the next free number.
    ///
    /// # Errors
    /// Fails with [`VniError::Exhausted`].
    pub fn reserve(&mut self) -> Result<Vni, VniError> {
        let start = match self.last {
            Some(last) if self.range.contains(last) && last != self.range.last => Vni(last.0 + 1),
            _ => self.range.first,
        };
        let free = |vni: &Vni| !self.taken.contains_key(vni);
        let vni = (start.0..=self.range.last.0)
            .chain(self.range.first.0..start.0)
            .map(Vni)
            .find(free)
            .ok_or_else(|| self.exhausted())?;
        self.claim(vni);
        Ok(vni)
    }

    /// Marks a number from a journal as taken. A number outside the range is also stored, since the range may have changed.
    pub fn claim(&mut self, vni: Vni) {
        self.taken.insert(vni, Use::Reserved);
        self.last = Some(vni);
    }

    /// Continues at the position in the cycle of an earlier run.
    pub fn resume_after(&mut self, last: Option<Vni>) {
        self.last = last.or(self.last);
    }

    /// Number assigned last.
    pub fn last(&self) -> Option<Vni> {
        self.last
    }

    /// Quarantines a number with revoked credentials; it stays taken.
    pub fn retire(&mut self, vni: Vni) {
        if let Some(state) = self.taken.get_mut(&vni) {
            *state = Use::Quarantined;
        }
    }

    /// Frees a number that is no longer used anywhere.
    pub fn free(&mut self, vni: Vni) {
        self.taken.remove(&vni);
    }

    /// True if the number is in use or quarantined.
    pub fn is_taken(&self, vni: Vni) -> bool {
        self.taken.contains_key(&vni)
    }

    /// Numbers in use or quarantined.
    pub fn taken(&self) -> BTreeSet<Vni> {
        self.taken.keys().copied().collect()
    }

    fn exhausted(&self) -> VniError {
        VniError::Exhausted {
            taken: self.taken.len(),
            size: self.range.len(),
            quarantined: self.taken.values().filter(|state| **state == Use::Quarantined).count(),
            range: self.range,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vni(number: u32) -> Vni {
        Vni::new(number).expect("a number")
    }

    #[test]
    fn ranges_are_read_and_refused() {
        assert_eq!("1024-4095".parse::<VniRange>().map(|range| range.len()), Ok(3072));
        for text in ["", "5", "0-5", "9-3", "1-65536", "a-b", "-1-5"] {
            assert!(text.parse::<VniRange>().is_err(), "{text} was read");
        }
        let range = |text: &str| text.parse::<VniRange>().expect("a range");
        assert!(range("1-10").overlaps(&range("10-20")) && !range("1-9").overlaps(&range("10-20")));
    }

    #[test]
    fn a_number_comes_back_as_late_as_possible() {
        let mut pool = VniPool::new("10-12".parse().expect("a range"), None);
        assert_eq!(pool.reserve(), Ok(vni(10)));
        pool.free(vni(10));
        assert_eq!(pool.reserve(), Ok(vni(11)));
        assert_eq!(pool.reserve(), Ok(vni(12)));
        assert_eq!(pool.reserve(), Ok(vni(10)));
    }

    #[test]
    fn quarantine_is_not_free() {
        let mut pool = VniPool::new("10-11".parse().expect("a range"), Some(vni(10)));
        assert_eq!(pool.reserve(), Ok(vni(11)));
        assert_eq!(pool.reserve(), Ok(vni(10)));
        pool.retire(vni(10));
        let error = pool.reserve().expect_err("both are taken").to_string();
        assert!(error.contains("VNI pool exhausted (2/2 in use, 1 of them in quarantine"), "{error}");
        pool.free(vni(10));
        assert_eq!(pool.reserve(), Ok(vni(10)));
    }
}
