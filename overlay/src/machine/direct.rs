//! Direct links: to members that are some hops away and are called again and again.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::strides::Topology;

/// Hops from which on a link of its own is cheaper than the way: it costs as much as a few of them, once.
const HOPS_MIN: u32 = 3;
/// Time within which a second call has to come.
const AGAIN: Duration = Duration::from_secs(60);
/// Most members that are remembered.
const MEMBERS_MAX: usize = 256;
/// Members of a set that may have a direct link to the same one, about. In larger sets others go on by way of the strides, so that nobody
/// whom all call has a link to each of them.
const CALLERS_MAX: u32 = 512;

/// Members that requests have gone to from here, with the time of the last one.
#[derive(Debug, Default)]
pub(super) struct Direct(HashMap<u32, Instant>);

impl Direct {
    /// A request goes to a member; true if one has gone there not long ago.
    pub(super) fn is_again(&mut self, target: u32, now: Instant) -> bool {
        if self.0.len() >= MEMBERS_MAX {
            self.0.retain(|_, last| now < *last + AGAIN);
        }
        if self.0.len() >= MEMBERS_MAX && !self.0.contains_key(&target) {
            return false;
        }
        self.0.insert(target, now).is_some_and(|last| now < last + AGAIN)
    }
}

/// Returns true if a link from `node` to `target` would spare the way that begins with `by`.
pub(super) fn pays(topology: Topology, node: u32, by: u32, target: u32, members: u32) -> bool {
    let nearer = |at: u32| topology.towards(at, target, members).first().copied().unwrap_or(target);
    let reached = (2..HOPS_MIN).fold(by, |at, _| if at == target { at } else { nearer(at) });
    reached != target && is_chosen(node, target, members)
}

/// Returns true if this pair may have a direct link: as many as there may be for each target, the same ones each time.
fn is_chosen(node: u32, target: u32, members: u32) -> bool {
    let mixed = (u64::from(node) << 32 | u64::from(target)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 32) % u64::from(members.max(1)) < u64::from(CALLERS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_call_counts_if_it_comes_soon_and_memory_is_bounded() {
        let (mut direct, now) = (Direct::default(), Instant::now());
        assert!(!direct.is_again(7, now));
        assert!(direct.is_again(7, now + AGAIN / 2));
        assert!(!direct.is_again(7, now + 2 * AGAIN));
        for target in 0..10 * MEMBERS_MAX as u32 {
            direct.is_again(target, now);
        }
        assert_eq!(direct.0.len(), MEMBERS_MAX);
        assert!(!direct.is_again(9999, now + 4 * AGAIN));
        assert!(direct.is_again(9999, now + 4 * AGAIN));
    }

    #[test]
    fn members_three_hops_away_are_worth_a_link_and_nobody_has_one_to_everybody() {
        let pays = |target, members| {
            let by = Topology::Strides.towards(0, target, members)[0];
            pays(Topology::Strides, 0, by, target, members)
        };
        assert_eq!([32, 33, 21, 11].map(|target| pays(target, 64)), [false, false, true, true]);
        let members = 100_000;
        for target in [0, 17, 99_999] {
            let callers = (0..members).filter(|&node| is_chosen(node, target, members)).count();
            assert!((300..800).contains(&callers), "{callers} to {target}");
        }
    }
}
