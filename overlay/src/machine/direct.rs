//! Direct links: to members that are some hops away and are called repeatedly.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::strides::towards;

/// Period in which calls to one member are counted together.
const WINDOW: Duration = Duration::from_secs(60);
/// Number of calls within [`WINDOW`] that is sufficient for a link at any distance.
const CALLS_MAX: usize = 3;
/// Number of hops beyond which the rules do not change.
const HOPS_COUNTED: u32 = 3;
/// Maximum remembered members.
const MEMBERS_MAX: usize = 256;
/// Approximate number of members of a set that may have a direct link to the same member. In larger sets the other members use the strides, so
/// that a member that all others call does not have a link to each of them.
const CALLERS_MAX: u32 = 512;

/// Targets of requests from this member.
#[derive(Debug, Default)]
pub(super) struct Direct(HashMap<u32, Recent>);

/// Times of the last requests to a member, the latest first.
#[derive(Debug, Default)]
struct Recent([Option<Instant>; CALLS_MAX]);

impl Recent {
    fn add(&mut self, now: Instant) {
        self.0.rotate_right(1);
        self.0[0] = Some(now);
    }

    /// Number of requests within [`WINDOW`], at most [`CALLS_MAX`].
    fn count(&self, now: Instant) -> usize {
        self.0.iter().flatten().filter(|&&at| now < at + WINDOW).count()
    }
}

impl Direct {
    /// Counts a request to a member. Returns the number of its recent requests including this one, at most [`CALLS_MAX`].
    pub(super) fn count(&mut self, target: u32, now: Instant) -> usize {
        if self.0.len() >= MEMBERS_MAX {
            self.0.retain(|_, recent| recent.count(now) > 0);
        }
        if self.0.len() >= MEMBERS_MAX && !self.0.contains_key(&target) {
            return 1;
        }
        let recent = self.0.entry(target).or_default();
        recent.add(now);
        recent.count(now)
    }
}

/// Number of calls within [`WINDOW`] from which a direct link to a member at this distance pays off, including the call that opens it; `None`
/// if it never does. Opening a link costs as much as a few hops, once. Each later call saves all hops but one.
fn calls_that_pay(hops: u32) -> Option<usize> {
    match hops {
        0 | 1 => None,
        2 => Some(3),
        HOPS_COUNTED.. => Some(2),
    }
}

/// Returns the number of calls within [`WINDOW`] from which a link from `node` to `target` pays off, for a route that begins with `by`; `None`
/// if there must be no link.
pub(super) fn enough(node: u32, by: u32, target: u32, members: u32) -> Option<usize> {
    let nearer = |at: &u32| (*at != target).then(|| towards(*at, target, members).first().copied()).flatten();
    let hops = std::iter::successors(Some(by), nearer).take(HOPS_COUNTED as usize).count() as u32;
    calls_that_pay(hops).filter(|_| is_chosen(node, target, members))
}

/// Returns true if this pair may have a direct link. The choice is deterministic, and limits the links per target.
fn is_chosen(node: u32, target: u32, members: u32) -> bool {
    let mixed = (u64::from(node) << 32 | u64::from(target)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 32) % u64::from(members.max(1)) < u64::from(CALLERS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_count_together_if_they_come_soon_and_memory_is_bounded() {
        let (mut direct, now) = (Direct::default(), Instant::now());
        let counts = [0, 59, 61, 62, 63, 200].map(|second| direct.count(7, now + Duration::from_secs(second)));
        assert_eq!(counts, [1, 2, 2, 3, 3, 1]);
        let now = now + Duration::from_secs(200);
        for target in 0..10 * MEMBERS_MAX as u32 {
            direct.count(target, now);
        }
        assert_eq!(direct.0.len(), MEMBERS_MAX);
        assert_eq!([(); 2].map(|()| direct.count(9999, now)), [1, 1]);
        assert_eq!([(); 2].map(|()| direct.count(9999, now + WINDOW)), [1, 2]);
    }

    #[test]
    fn the_more_hops_a_link_spares_the_sooner_it_pays() {
        assert_eq!([0, 1, 2, 3, 9].map(calls_that_pay), [None, None, Some(3), Some(2), Some(2)]);
        let enough = |target| {
            let by = towards(0, target, 64)[0];
            enough(0, by, target, 64)
        };
        assert_eq!([32, 33, 21, 11].map(enough), [None, Some(3), Some(2), Some(2)]);
    }

    #[test]
    fn nobody_has_a_direct_link_to_everybody() {
        let members = 100_000;
        for target in [0, 17, 99_999] {
            let callers = (0..members).filter(|&node| is_chosen(node, target, members)).count();
            assert!((300..800).contains(&callers), "{callers} to {target}");
        }
    }
}
