//! Routes in simulated sets: hops, dead members, other sets, shapes of links.

use std::time::Duration;

use bytes::Bytes;
use lattice_overlay::address::{Process, SetId, Uid};
use lattice_overlay::error::CallError;
use lattice_overlay::method::Method;
use lattice_overlay::strides::hops_max;

use super::world::{MIRROR, Random, World};

const SET: SetId = SetId::from_bits(0x0010_0001);

fn node(index: u32) -> Uid {
    Uid::new(SET, Process::Node(index))
}

/// Number of frames of one ping, in both directions.
fn frames_of_a_ping(world: &mut World, from: u32, to: u32) -> u64 {
    let before = world.sent;
    assert_eq!(world.ask(node(from), node(to), Method::PING, b"?"), Ok(Bytes::from_static(b"?")));
    world.sent - before
}

/// Far ends of a member's direct links.
fn direct_links(world: &mut World, member: u32) -> Vec<String> {
    let links = world.machine(node(member)).connectivity().links;
    links.into_iter().filter(|link| link.kind == "direct").map(|link| link.to).collect()
}

#[test]
fn every_member_calls_every_other_in_the_logarithm_of_their_number() {
    for members in [1, 2, 3, 7, 8, 33, 64] {
        let mut world = World::new().with_set(SET, members);
        for from in 0..members {
            for to in 0..members {
                let frames = frames_of_a_ping(&mut world, from, to);
                assert!(frames <= 2 * u64::from(hops_max(members)), "{from} to {to} of {members}: {frames} frames");
            }
        }
    }
}

#[test]
fn members_of_100_000_are_nine_hops_apart_at_most() {
    let members = 100_000;
    let mut world = World::new().with_set(SET, members);
    let mut random = Random(17);
    let mut most = 0;
    for _ in 0..2000 {
        let (from, to) = (random.below(members), random.below(members));
        most = most.max(frames_of_a_ping(&mut world, from, to));
    }
    assert!((14..=18).contains(&most), "{most} frames there and back");
}

/// The call that opens a link still takes the whole route.
#[test]
fn members_that_are_called_again_get_a_direct_link_the_sooner_the_more_hops_away_they_are() {
    let mut world = World::new().with_set(SET, 64);
    for (to, frames) in [(21, [6, 6, 2, 2, 2]), (33, [4, 4, 4, 2, 2]), (32, [2; 5])] {
        assert_eq!([(); 5].map(|()| frames_of_a_ping(&mut world, 0, to)), frames, "to {to}");
    }
    assert_eq!(direct_links(&mut world, 0), [21, 33].map(|index| node(index).to_string()));
    world.kill(node(21));
    assert!(matches!(world.ask(node(0), node(21), Method::PING, b""), Err(CallError::NoRoute { .. })));
    world.run_for(Duration::from_secs(70));
    assert_eq!(direct_links(&mut world, 0), [""; 0]);
}

#[test]
fn calls_that_come_more_than_a_minute_apart_open_no_direct_link() {
    let mut world = World::new().with_set(SET, 64);
    for _ in 0..4 {
        assert_eq!([(0, 21), (0, 33)].map(|(from, to)| frames_of_a_ping(&mut world, from, to)), [6, 4]);
        world.run_for(Duration::from_secs(61));
    }
    // Of three calls half a minute apart, two are within a minute. That is not enough for two hops.
    for _ in 0..4 {
        assert_eq!(frames_of_a_ping(&mut world, 0, 33), 4);
        world.run_for(Duration::from_secs(31));
    }
    assert_eq!(direct_links(&mut world, 0), [""; 0]);
}

#[test]
fn a_member_that_calls_everybody_again_and_again_has_256_links_at_most() {
    let members = 1000;
    let mut world = World::new().with_set(SET, members);
    for _ in 0..4 {
        for to in 0..members {
            frames_of_a_ping(&mut world, 0, to);
        }
    }
    let links = world.machine(node(0)).connectivity().links.len();
    assert!((200..=256).contains(&links), "{links}");
}

#[test]
fn a_member_whom_everybody_calls_again_and_again_has_few_direct_links() {
    let members = 1600;
    let mut world = World::new().with_set(SET, members);
    for from in 1..members {
        for _ in 0..4 {
            frames_of_a_ping(&mut world, from, 0);
        }
    }
    let links = direct_links(&mut world, 0).len();
    assert!((300..800).contains(&links), "{links} of {members}");
}

#[test]
fn every_call_arrives_when_a_tenth_of_the_members_is_dead() {
    for (members, seed) in [(100, 1), (1000, 2), (100_000, 3)] {
        let mut world = World::new().with_set(SET, members);
        let mut random = Random(seed);
        while world.dead.len() < members as usize / 10 {
            world.dead.insert(node(random.below(members)));
        }
        let mut asked = 0;
        while asked < 1000 {
            let (from, to) = (node(random.below(members)), node(random.below(members)));
            if world.dead.contains(&from) || world.dead.contains(&to) {
                continue;
            }
            asked += 1;
            assert_eq!(world.ask(from, to, Method::PING, b"?"), Ok(Bytes::from_static(b"?")), "{from} to {to}");
        }
    }
}

#[test]
fn members_of_three_sets_call_each_other_by_way_of_their_roots() {
    let sets = [1, 2, 3].map(|number| SetId::new(1000, number));
    let mut world = sets.iter().fold(World::new(), |world, &set| world.with_set(set, 20));
    for from in sets {
        for to in sets {
            let (from, to) = (Uid::new(from, Process::Node(13)), Uid::new(to, Process::Rank(7)));
            assert_eq!(world.ask(from, to, MIRROR, b"across"), Ok(Bytes::from_static(b"across")), "{from} to {to}");
        }
    }
    let roots = sets.map(|set| world.machine(set.root()).connectivity());
    for (set, links) in sets.iter().zip(roots) {
        let to_roots = links.links.iter().filter(|link| link.kind == "root").count();
        assert_eq!(to_roots, 2, "{set}: {links:?}");
    }
}

#[test]
fn a_set_that_is_gone_is_told_with_the_member_that_knows() {
    let mut world = World::new().with_set(SET, 20);
    let result = world.ask(node(13), SetId::new(1000, 9).root(), Method::PING, b"");
    assert_eq!(result, Err(CallError::NoRoute { at: SET.root() }));
}

#[test]
fn a_dead_callee_is_told_with_the_last_member_that_tried() {
    let mut world = World::new().with_set(SET, 64);
    world.dead.insert(node(21));
    let result = world.ask(node(0), node(21), Method::PING, b"");
    assert!(matches!(result, Err(CallError::NoRoute { at }) if at.set() == SET && at != node(21)), "{result:?}");
}
