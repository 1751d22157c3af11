//! Launches that are not over, and the bytes of their specs, by user: so that no user fills memory and disk with launches that are
//! asked for faster than they end. Administrators are counted and never refused.

use std::collections::HashMap;

use parking_lot::Mutex;
use pmi_transport::identity::{Caller, Role};

/// Share that each user has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaunchShares {
    pub launches: usize,
    /// Bytes of their specs: programs, arguments, environments.
    pub spec_bytes: usize,
}

impl Default for LaunchShares {
    fn default() -> Self {
        Self { launches: 1000, spec_bytes: 64 << 20 }
    }
}

/// A user has as many launches as one may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum QuotaExceeded {
    #[error("user {uid} has {most} launches already, as many as one may have here; wait until some are over")]
    Launches { uid: u32, most: usize },
    #[error(
        "the launches of user {uid} would take {asked} bytes for programs, arguments and environments; {most} are possible here; \
         wait until some are over, or pass on fewer variables"
    )]
    SpecBytes { uid: u32, asked: usize, most: usize },
}

/// Launches that are counted.
#[derive(Debug, Default)]
pub(crate) struct LaunchQuota {
    shares: LaunchShares,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    /// User and bytes, by the launch's id.
    launches: HashMap<String, (u32, usize)>,
    /// Number of launches and their bytes, by user.
    users: HashMap<u32, (usize, usize)>,
}

impl LaunchQuota {
    pub(crate) fn new(shares: LaunchShares) -> Self {
        Self { shares, taken: Mutex::default() }
    }

    /// Counts a launch of user `uid` that `caller` asks for, until it is withdrawn.
    pub(crate) fn admit(&self, caller: &Caller, uid: u32, id: &str, bytes: usize) -> Result<(), QuotaExceeded> {
        let mut taken = self.taken.lock();
        let (launches, of_user) = taken.users.get(&uid).copied().unwrap_or_default();
        let asked = of_user.saturating_add(bytes);
        let LaunchShares { launches: most, spec_bytes } = self.shares;
        if caller.role() != Role::Admin {
            if launches >= most {
                return Err(QuotaExceeded::Launches { uid, most });
            }
            if asked > spec_bytes {
                return Err(QuotaExceeded::SpecBytes { uid, asked, most: spec_bytes });
            }
        }
        taken.users.insert(uid, (launches + 1, asked));
        taken.launches.insert(id.to_owned(), (uid, bytes));
        Ok(())
    }

    /// Counts a launch that an earlier server admitted.
    pub(crate) fn take_up(&self, uid: u32, id: &str, bytes: usize) {
        // Administrators are never refused.
        let _ = self.admit(&Caller::Admin(None), uid, id, bytes);
    }

    /// The launch is over, or does not begin.
    pub(crate) fn withdraw(&self, id: &str) {
        let mut taken = self.taken.lock();
        let Some((uid, bytes)) = taken.launches.remove(id) else { return };
        if let Some((launches, of_user)) = taken.users.get_mut(&uid) {
            (*launches, *of_user) = (*launches - 1, *of_user - bytes);
            if *launches == 0 {
                taken.users.remove(&uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: Caller = Caller::User(7);

    #[test]
    fn a_user_has_so_many_launches_and_bytes_and_others_have_theirs() {
        let quota = LaunchQuota::new(LaunchShares { launches: 2, spec_bytes: 100 });
        let admit = |caller: &Caller, uid, id: &str, bytes| quota.admit(caller, uid, id, bytes);
        admit(&USER, 7, "a", 60).unwrap();
        let refusal = admit(&USER, 7, "b", 41).unwrap_err();
        assert_eq!(refusal, QuotaExceeded::SpecBytes { uid: 7, asked: 101, most: 100 });
        admit(&USER, 7, "b", 40).unwrap();
        let refusal = admit(&USER, 7, "c", 0).unwrap_err().to_string();
        assert!(refusal.starts_with("user 7 has 2 launches already, as many as one may have here"), "{refusal}");
        admit(&Caller::User(8), 8, "d", 100).unwrap();
        admit(&Caller::Admin(Some(0)), 7, "e", 1000).unwrap();
        ["a", "b", "e", "e", "unknown"].into_iter().for_each(|id| quota.withdraw(id));
        admit(&USER, 7, "f", 100).unwrap();
        ["f", "d"].into_iter().for_each(|id| quota.withdraw(id));
        let taken = quota.taken.lock();
        assert!(taken.users.is_empty() && taken.launches.is_empty());
    }

    #[test]
    fn launches_that_are_taken_up_count_beyond_the_share() {
        let quota = LaunchQuota::new(LaunchShares { launches: 1, spec_bytes: 10 });
        ["a", "b"].into_iter().for_each(|id| quota.take_up(7, id, 50));
        assert!(quota.admit(&USER, 7, "c", 1).is_err());
        ["a", "b"].into_iter().for_each(|id| quota.withdraw(id));
        assert!(quota.admit(&USER, 7, "c", 1).is_ok());
    }
}
