//! Counts the launches that are not over, and the bytes of their specs, for each user and in total. The limits keep users from filling
//! memory and disk with launches that are requested faster than they end. Launches of administrators are counted and never refused. Each
//! further launch gets a smaller window for output that its nodes send before it is acknowledged.

use std::collections::HashMap;

use lattice_session::request::Ownership;
use parking_lot::Mutex;
use pmi_transport::identity::{Caller, Role};
use pmi_transport::limits::Pool;

use crate::launch_id::LaunchId;
use crate::order::{OUTPUT_OF_NODE, Order};

/// Bytes that a launch takes in addition to its spec (measured: 50 KB of memory for a launch on one node).
const LAUNCH_COST: usize = 48 << 10;

/// Most bytes of output that all launches together may have in transit or unacknowledged, in addition to the minimum for each node.
const ALL_OUTPUT: usize = 64 << 20;

/// Bytes that a launch takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LaunchSize {
    pub spec: usize,
    /// Output that is held for its owner, in bytes.
    pub output: usize,
}

impl LaunchSize {
    /// The size of a launch with a spec of `spec` bytes.
    pub(crate) fn of(order: &Order, spec: usize) -> Self {
        // The output of a detached launch is written to disk at once.
        let is_kept = order.ownership == Ownership::Client;
        let output = order.terms.output_window as usize * order.terms.addresses.len();
        Self { spec, output: if is_kept { output } else { 0 } }
    }
}

/// Limits for one user, and for all users together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaunchShares {
    pub launches: usize,
    /// Bytes of their specs (programs, arguments, environments), plus the additional bytes of each launch.
    pub spec_bytes: usize,
    /// The same for all users together.
    pub all_spec_bytes: usize,
}

impl Default for LaunchShares {
    fn default() -> Self {
        Self { launches: 1000, spec_bytes: 48 << 20, all_spec_bytes: 96 << 20 }
    }
}

impl LaunchShares {
    /// The pool of all bytes. Users with launches of a hundredth of it are small.
    const fn pool(&self) -> Pool {
        Pool { all: self.all_spec_bytes, small: self.all_spec_bytes / 100 }
    }
}

/// A user, or all users together, have as many launches as permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum QuotaExceeded {
    #[error("user {uid} has {most} launches already, as many as one may have here; wait until some are over")]
    Launches { uid: u32, most: usize },
    #[error(
        "the launches of user {uid} would take {asked} bytes for programs, arguments and environments; {most} are possible here; \
         wait until some are over, or pass on fewer variables"
    )]
    SpecBytes { uid: u32, asked: usize, most: usize },
    #[error(
        "the launches of all users take {all} of {most} bytes for programs, arguments and environments, and those of user {uid} would take {asked}; \
         what is left is for users with less; wait until some are over, or pass on fewer variables"
    )]
    AllSpecBytes { uid: u32, asked: usize, all: usize, most: usize },
}

/// The counted launches.
#[derive(Debug, Default)]
pub(crate) struct LaunchQuota {
    shares: LaunchShares,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    /// User, bytes and output, by the id of the launch.
    launches: HashMap<LaunchId, (u32, usize, usize)>,
    /// Number of launches and their bytes, by user.
    users: HashMap<u32, (usize, usize)>,
    /// Bytes of all launches.
    all: usize,
    /// Output of all launches, in bytes.
    output: usize,
}

impl LaunchQuota {
    pub(crate) fn new(shares: LaunchShares) -> Self {
        Self { shares, taken: Mutex::default() }
    }

    /// Counts a launch of user `uid` that `caller` requests, until it is withdrawn.
    pub(crate) fn admit(
        &self,
        caller: &Caller,
        uid: u32,
        id: &LaunchId,
        size: LaunchSize,
    ) -> Result<(), QuotaExceeded> {
        let mut taken = self.taken.lock();
        let (launches, of_user) = taken.users.get(&uid).copied().unwrap_or_default();
        let bytes = size.spec.saturating_add(LAUNCH_COST);
        let (asked, all) = (of_user.saturating_add(bytes), taken.all.saturating_add(bytes));
        let LaunchShares { launches: most, spec_bytes, all_spec_bytes } = self.shares;
        if caller.role() != Role::Admin {
            if launches >= most {
                return Err(QuotaExceeded::Launches { uid, most });
            }
            if asked > spec_bytes {
                return Err(QuotaExceeded::SpecBytes { uid, asked, most: spec_bytes });
            }
            if !self.shares.pool().allows(asked, all) {
                return Err(QuotaExceeded::AllSpecBytes { uid, asked, all: taken.all, most: all_spec_bytes });
            }
        }
        taken.all = all;
        taken.users.insert(uid, (launches + 1, asked));
        taken.output += size.output;
        taken.launches.insert(id.clone(), (uid, bytes, size.output));
        Ok(())
    }

    /// Reduces the output that nodes of a launch may send ahead. They get half of the window that earlier launches have left.
    pub(crate) fn narrow_output(&self, order: &mut Order) {
        let left = ALL_OUTPUT.saturating_sub(self.taken.lock().output);
        let of_node = (left / 2 / order.terms.addresses.len().max(1)) as u32;
        let window = &mut order.terms.output_window;
        *window = (*window).min(of_node.max(*OUTPUT_OF_NODE.start()));
    }

    /// Counts a launch that an earlier server admitted.
    pub(crate) fn take_up(&self, uid: u32, id: &LaunchId, size: LaunchSize) {
        // Administrators are never refused.
        let _ = self.admit(&Caller::Admin(None), uid, id, size);
    }

    /// Stops counting a launch that is over, or does not begin.
    pub(crate) fn withdraw(&self, id: &LaunchId) {
        let mut taken = self.taken.lock();
        let Some((uid, bytes, output)) = taken.launches.remove(id) else { return };
        taken.all -= bytes;
        taken.output -= output;
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

    /// Size of a launch that takes this number of bytes in total.
    const fn spec(bytes: usize) -> LaunchSize {
        LaunchSize { spec: bytes - LAUNCH_COST, output: 1 << 20 }
    }

    const KB: usize = 1000;

    fn shares(launches: usize, spec_bytes: usize) -> LaunchShares {
        LaunchShares { launches, spec_bytes, all_spec_bytes: usize::MAX / 4 }
    }

    #[test]
    fn a_user_has_so_many_launches_and_bytes_and_others_have_theirs() {
        let quota = LaunchQuota::new(shares(2, 1000 * KB));
        let admit = |caller: &Caller, uid, id: &str, bytes| quota.admit(caller, uid, &id.into(), spec(bytes));
        admit(&USER, 7, "a", 600 * KB).unwrap();
        let refusal = admit(&USER, 7, "b", 401 * KB).unwrap_err();
        assert_eq!(refusal, QuotaExceeded::SpecBytes { uid: 7, asked: 1001 * KB, most: 1000 * KB });
        admit(&USER, 7, "b", 400 * KB).unwrap();
        let refusal = admit(&USER, 7, "c", LAUNCH_COST).unwrap_err().to_string();
        assert!(refusal.starts_with("user 7 has 2 launches already, as many as one may have here"), "{refusal}");
        admit(&Caller::User(8), 8, "d", 1000 * KB).unwrap();
        admit(&Caller::Admin(Some(0)), 7, "e", 9000 * KB).unwrap();
        ["a", "b", "e", "e", "unknown"].into_iter().for_each(|id| quota.withdraw(&id.into()));
        admit(&USER, 7, "f", 1000 * KB).unwrap();
        ["f", "d"].into_iter().for_each(|id| quota.withdraw(&id.into()));
        let taken = quota.taken.lock();
        assert!(taken.users.is_empty() && taken.launches.is_empty() && taken.all + taken.output == 0);
    }

    #[test]
    fn launches_that_are_taken_up_count_beyond_the_share() {
        let quota = LaunchQuota::new(shares(1, 100 * KB));
        ["a", "b"].into_iter().for_each(|id| quota.take_up(7, &id.into(), spec(500 * KB)));
        assert!(quota.admit(&USER, 7, &"c".into(), spec(LAUNCH_COST)).is_err());
        ["a", "b"].into_iter().for_each(|id| quota.withdraw(&id.into()));
        assert!(quota.admit(&USER, 7, &"c".into(), spec(LAUNCH_COST)).is_ok());
    }

    /// Users that request launches of 1 MB until they are refused, in turns and one after the other.
    #[test]
    fn users_who_take_what_they_get_leave_something_to_others() {
        const ALL: usize = 100 << 20;
        for in_turns in [true, false] {
            let quota = LaunchQuota::new(LaunchShares { launches: 1000, spec_bytes: ALL, all_spec_bytes: ALL });
            let ask = |uid, number| {
                quota.admit(&Caller::User(uid), uid, &format!("{uid}-{number}").into(), spec(1 << 20)).is_ok()
            };
            let users = 1..=8_u32;
            let got: Vec<usize> = if in_turns {
                let mut got = vec![0; 8];
                for (number, uid) in (0..100).flat_map(|number| users.clone().map(move |uid| (number, uid))) {
                    got[uid as usize - 1] += usize::from(ask(uid, number));
                }
                got
            } else {
                users.map(|uid| (0..100).take_while(|&number| ask(uid, number)).count()).collect()
            };
            assert!(got.iter().all(|&launches| launches >= 1), "{got:?}");
            assert!(if in_turns { got.iter().all(|&launches| launches >= 8) } else { got[0] >= 49 }, "{got:?}");
            let small = quota.admit(&Caller::User(9), 9, &"small".into(), spec(70 * KB));
            assert_eq!(small, Ok(()));
            let taken = quota.taken.lock();
            assert!(taken.all <= ALL && taken.all == taken.users.values().map(|(_, bytes)| bytes).sum::<usize>());
        }
    }

    #[test]
    fn who_is_refused_for_what_others_have_is_told_so() {
        let quota = LaunchQuota::new(LaunchShares { launches: 10, spec_bytes: 4 << 20, all_spec_bytes: 4 << 20 });
        quota.admit(&Caller::Admin(None), 8, &"a".into(), spec(4_000_000)).unwrap();
        let refusal = quota.admit(&USER, 7, &"b".into(), spec(200 * KB)).unwrap_err().to_string();
        let expected = "the launches of all users take 4000000 of 4194304 bytes for programs, arguments and environments, and those of user 7 would \
                        take 200000; what is left is for users with less; wait until some are over, or pass on fewer variables";
        assert_eq!(refusal, expected);
    }
}
