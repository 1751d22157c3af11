//! Keys by which ranks that connect through `PMI_PORT` prove their identity.
//!
//! `PMI_ID` is the only field for such a key. Clients of MPICH, Intel MPI and Slurm read it as a C `int`, send it back (`initack pmiid=`,
//! `fullinit` with `pmirank=` or `srcid=`), and take their rank from the server's answer. So a key is a number of 31 bits. It protects
//! against mistakes of the same user: processes of an earlier launch, and connections to a reused port. Other users are rejected by the
//! peer credentials of the kernel ([`Admission`](crate::driver::Admission)).

use std::collections::HashMap;
use std::fmt;

use crate::ids::LocalRank;

/// One key for each rank of a node.
#[derive(Clone, Default)]
pub struct ClaimKeys {
    keys: Vec<u32>,
    ranks: HashMap<u32, LocalRank>,
}

impl ClaimKeys {
    /// The least key. It is above every rank number, so a client that claims its rank by number gets an error.
    pub const MIN: u32 = 1 << 24;

    /// The greatest key: clients read a C `int`.
    pub const MAX: u32 = i32::MAX as u32;

    /// Draws keys for `ranks` ranks from `random`, a source that cannot be guessed. All keys differ.
    ///
    /// # Errors
    /// Fails when the source fails.
    pub fn draw<E>(ranks: usize, mut random: impl FnMut() -> Result<u32, E>) -> Result<Self, E> {
        let mut drawn = Self::default();
        while drawn.keys.len() < ranks {
            let key = random()? & Self::MAX;
            if key >= Self::MIN && !drawn.ranks.contains_key(&key) {
                drawn.ranks.insert(key, LocalRank(drawn.keys.len() as u32));
                drawn.keys.push(key);
            }
        }
        Ok(drawn)
    }

    /// Returns the key of a rank, for its `PMI_ID`; `None` if the node has no such rank.
    pub fn key_of(&self, local: LocalRank) -> Option<u32> {
        self.keys.get(local.index()).copied()
    }

    /// Returns the rank of a key.
    pub(crate) fn rank_of(&self, key: u32) -> Option<LocalRank> {
        self.ranks.get(&key).copied()
    }
}

impl fmt::Debug for ClaimKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClaimKeys").field("ranks", &self.keys.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn keys_are_c_ints_above_every_rank_and_no_two_are_alike(draws in prop::collection::vec(any::<u32>(), 1..20)) {
            // A source that repeats its values, and then counts.
            let mut draws = draws.clone().into_iter().chain(draws).chain(ClaimKeys::MIN..);
            let keys = ClaimKeys::draw(20, || Ok::<_, Infallible>(draws.next().unwrap())).unwrap();
            let mut all: Vec<u32> = (0..20).map(|local| keys.key_of(LocalRank(local)).unwrap()).collect();
            for (key, local) in all.iter().zip((0..).map(LocalRank)) {
                prop_assert!((ClaimKeys::MIN..=ClaimKeys::MAX).contains(key));
                prop_assert!(i32::try_from(*key).is_ok());
                prop_assert_eq!(keys.rank_of(*key), Some(local));
                let shown = format!("{keys:?}");
                prop_assert!(!shown.contains(&key.to_string()), "{shown} tells a key");
            }
            all.sort_unstable();
            all.dedup();
            prop_assert_eq!((all.len(), keys.key_of(LocalRank(20))), (20, None));
        }
    }

    #[test]
    fn without_random_numbers_there_are_no_keys() {
        assert_eq!(ClaimKeys::draw(1, || Err::<u32, _>("no numbers")).unwrap_err(), "no numbers");
    }
}
