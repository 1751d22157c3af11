//! Neighbours of a member, and the neighbour nearest to a destination: arithmetic on indexes.
//!
//! A member has neighbours at the distances ±2^k around the ring of all members. One of them reduces a distance to at most a third.
//! Clearing the highest bit of a distance costs one hop, so a route over the best neighbours has at most ceil(log2 n) hops.

/// Shape of the links that a member may open in its set. Routing is the same in all shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Topology {
    /// Powers of two, in both directions.
    #[default]
    Strides,
    /// The previous and the next member.
    Ring,
    /// A square of rows: left, right, above and below.
    Mesh,
    /// A mesh with joined edges.
    Torus,
    /// A tree with this many children per member, and a ring of all members.
    Tree(u32),
}

/// Distance of two members around the ring of `members`.
pub fn distance(from: u32, to: u32, members: u32) -> u32 {
    let ahead = if to >= from { to - from } else { members - (from - to) };
    ahead.min(members - ahead)
}

impl Topology {
    /// Maximum hops of a frame while all members live. For [`Topology::Strides`] it is ceil(log2 `members`). The other shapes contain a
    /// ring, and its diameter is an upper bound.
    pub fn hops_max(self, members: u32) -> u32 {
        match self {
            Self::Strides => members.max(1).next_power_of_two().trailing_zeros(),
            Self::Ring | Self::Mesh | Self::Torus | Self::Tree(_) => members / 2,
        }
    }

    /// Neighbours of a member, each once.
    pub fn neighbours(self, me: u32, members: u32) -> Vec<u32> {
        let mut neighbours = match self {
            Self::Strides => strides(me, members),
            Self::Ring => ring(me, members),
            Self::Mesh => mesh(me, members),
            Self::Torus => torus(me, members),
            Self::Tree(children) => tree(me, members, children.max(1)),
        };
        neighbours.retain(|&neighbour| neighbour != me && neighbour < members);
        neighbours.sort_unstable();
        neighbours.dedup();
        neighbours
    }

    /// Neighbours of `me`, the nearest to `to` first; for equal distances the lower index first.
    pub fn towards(self, me: u32, to: u32, members: u32) -> Vec<u32> {
        let neighbours = self.neighbours(me, members).into_iter();
        let mut by_distance: Vec<_> =
            neighbours.map(|neighbour| (distance(neighbour, to, members), neighbour)).collect();
        by_distance.sort_unstable();
        by_distance.into_iter().map(|(_, neighbour)| neighbour).collect()
    }
}

/// The member `by` places after `me`; `by` may be negative.
fn at(me: u32, by: i64, members: u32) -> u32 {
    (i64::from(me) + by).rem_euclid(i64::from(members.max(1))) as u32
}

fn strides(me: u32, members: u32) -> Vec<u32> {
    let powers = (0..32).map(|power| 1_i64 << power).take_while(|&stride| stride < i64::from(members));
    powers.flat_map(|stride| [at(me, stride, members), at(me, -stride, members)]).collect()
}

fn ring(me: u32, members: u32) -> Vec<u32> {
    vec![at(me, 1, members), at(me, -1, members)]
}

fn mesh(me: u32, members: u32) -> Vec<u32> {
    let row = members.isqrt().max(1);
    let mut neighbours = ring(me, members);
    neighbours.extend(me.checked_add(row));
    neighbours.extend(me.checked_sub(row));
    neighbours
}

fn torus(me: u32, members: u32) -> Vec<u32> {
    let row = i64::from(members.isqrt().max(1));
    let mut neighbours = ring(me, members);
    neighbours.extend([at(me, row, members), at(me, -row, members)]);
    neighbours
}

fn tree(me: u32, members: u32, children: u32) -> Vec<u32> {
    let mut neighbours = ring(me, members);
    neighbours.extend(me.checked_sub(1).map(|before| before / children));
    let first = u64::from(me) * u64::from(children) + 1;
    neighbours.extend((first..first + u64::from(children)).filter_map(|child| u32::try_from(child).ok()));
    neighbours
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Hops to every distance around a ring of `members`, over the best neighbour at each step.
    fn hops(members: u32) -> Vec<u32> {
        let neighbours = strides(0, members);
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
            assert!(most <= Topology::Strides.hops_max(members), "{members} members: {most} hops");
        }
    }

    #[test]
    fn a_hundred_thousand_are_nine_hops_apart_at_most() {
        assert_eq!(hops(100_000).iter().max(), Some(&9));
        let bounds = [1, 2, 1024, 1025, 100_000].map(|members| Topology::Strides.hops_max(members));
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
        fn neighbours_are_mutual(members in 1_u32..5000, me: u32, arms in 2_u32..9) {
            let me = me % members;
            let shapes = [Topology::Strides, Topology::Ring, Topology::Mesh, Topology::Torus, Topology::Tree(arms)];
            for shape in shapes {
                for neighbour in shape.neighbours(me, members) {
                    prop_assert!(neighbour != me && neighbour < members);
                    prop_assert!(shape.neighbours(neighbour, members).contains(&me), "{shape:?}: {neighbour} of {members}");
                }
            }
        }

        #[test]
        fn somebody_is_always_nearer(members in 2_u32..100_000, me: u32, to: u32) {
            let (me, to) = (me % members, to % members);
            prop_assume!(me != to);
            for shape in [Topology::Strides, Topology::Ring, Topology::Mesh, Topology::Torus, Topology::Tree(8)] {
                let first = shape.towards(me, to, members)[0];
                prop_assert!(distance(first, to, members) < distance(me, to, members), "{shape:?}");
            }
        }
    }
}
