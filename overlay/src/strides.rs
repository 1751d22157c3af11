//! Neighbours of a member, and the neighbour nearest to a destination: arithmetic on indexes.
//!
//! A member has neighbours at the distances ±2^k around the ring of all members. One of them reduces a distance to at most a third.
//! Clearing the highest bit of a distance costs one hop, so a route over the best neighbours has at most ceil(log2 n) hops.

/// Distance of two members around the ring of `members`.
pub fn distance(from: u32, to: u32, members: u32) -> u32 {
    let ahead = if to >= from { to - from } else { members - (from - to) };
    ahead.min(members - ahead)
}

/// Maximum hops of a frame while all members live: ceil(log2 `members`).
pub fn hops_max(members: u32) -> u32 {
    members.max(1).next_power_of_two().trailing_zeros()
}

/// Neighbours of a member, each once.
pub fn neighbours(me: u32, members: u32) -> Vec<u32> {
    let powers = (0..32).map(|power| 1_i64 << power).take_while(|&stride| stride < i64::from(members));
    let mut neighbours: Vec<u32> =
        powers.flat_map(|stride| [at(me, stride, members), at(me, -stride, members)]).collect();
    neighbours.retain(|&neighbour| neighbour != me);
    neighbours.sort_unstable();
    neighbours.dedup();
    neighbours
}

/// Neighbours of `me`, the nearest to `to` first; for equal distances the lower index first.
pub fn towards(me: u32, to: u32, members: u32) -> Vec<u32> {
    let mut neighbours = neighbours(me, members);
    neighbours.sort_by_key(|&neighbour| (distance(neighbour, to, members), neighbour));
    neighbours
}

/// The member `by` places after `me`; `by` may be negative.
fn at(me: u32, by: i64, members: u32) -> u32 {
    (i64::from(me) + by).rem_euclid(i64::from(members.max(1))) as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Hops to every distance around a ring of `members`, over the best neighbour at each step.
    fn hops(members: u32) -> Vec<u32> {
        let neighbours = neighbours(0, members);
        let mut hops = vec![0];
        for away in 1..=members / 2 {
            let left = neighbours.iter().map(|&neighbour| distance(neighbour, away, members)).min().unwrap();
            assert!(left < away, "{members} members: nobody is nearer to {away}");
            hops.push(1 + hops[left as usize]);
        }
        hops
    }

    #[test]
    fn every_member_of_up_to_4096_is_reached_in_the_logarithm_of_their_number() {
        for members in 1..=4096 {
            let most = *hops(members).iter().max().unwrap();
            assert!(most <= hops_max(members), "{members} members: {most} hops");
        }
    }

    #[test]
    fn a_hundred_thousand_are_nine_hops_apart_at_most() {
        assert_eq!(hops(100_000).iter().max(), Some(&9));
        let bounds = [1, 2, 1024, 1025, 100_000].map(hops_max);
        assert_eq!(bounds, [0, 1, 10, 11, 17]);
    }

    proptest! {
        #[test]
        fn distances_are_around_the_ring(members in 1_u32..=u32::MAX, a: u32, b: u32) {
            let (a, b) = (a % members, b % members);
            let away = distance(a, b, members);
            prop_assert_eq!(away, distance(b, a, members));
            prop_assert!(away <= members / 2);
            prop_assert!([at(a, i64::from(away), members), at(a, -i64::from(away), members)].contains(&b));
        }

        #[test]
        fn neighbours_are_mutual(members in 1_u32..5000, me: u32) {
            let me = me % members;
            for neighbour in neighbours(me, members) {
                prop_assert!(neighbour != me && neighbour < members);
                prop_assert!(neighbours(neighbour, members).contains(&me), "{neighbour} of {members}");
            }
        }

        #[test]
        fn a_neighbour_is_always_nearer(members in 2_u32..100_000, me: u32, to: u32) {
            let (me, to) = (me % members, to % members);
            prop_assume!(me != to);
            prop_assert!(distance(towards(me, to, members)[0], to, members) < distance(me, to, members));
        }
    }
}
