//! Collectives over some ranks: waits, order, repetitions, and the effect of a rank that leaves on the other ranks.

use pmi_core::server::EndReason;
use pmix_core::wire::Encoding::{Fixed, Flex};
use pmix_core::wire::reader::{Proc, Reader};
use pmix_core::wire::request::command;
use pmix_core::wire::status;
use pmix_core::wire::types::RANK_WILDCARD;
use proptest::prelude::*;

use super::world::{Client, World, procs, whole};

const SUCCESS: Option<(i32, Vec<u8>)> = Some((status::SUCCESS, Vec::new()));

fn ranks(ranks: &[u32]) -> Vec<Proc<'static>> {
    ranks.iter().map(|&rank| Proc { namespace: b"job0", rank }).collect()
}

/// Four ranks on two nodes, of both encodings.
fn four() -> (World, [Client; 4]) {
    let mut world = World::new(1, &[2, 2]);
    let clients = [(0, 0, Flex), (0, 1, Fixed), (1, 2, Flex), (1, 3, Fixed)];
    let clients = clients.map(|(node, rank, encoding)| world.join(node, "job0", rank, encoding).unwrap());
    (world, clients)
}

fn arrive(world: &mut World, client: Client, command: u8, members: &[u32]) {
    world.send(client, 101, command, procs(&ranks(members)));
}

#[test]
fn a_collective_ends_when_its_last_member_comes_and_not_before() {
    for command in [command::FENCE, command::CONNECT, command::DISCONNECT] {
        for members in [&[0][..], &[0, 1], &[0, 2], &[1, 2, 3], &[0, 1, 2, 3]] {
            let (mut world, clients) = four();
            let (last, others) = members.split_last().unwrap();
            for &rank in others {
                arrive(&mut world, clients[rank as usize], command, members);
            }
            for &rank in others {
                assert_eq!(world.status(clients[rank as usize]), None, "{members:?}: rank {rank} does not wait");
            }
            arrive(&mut world, clients[*last as usize], command, members);
            for &rank in members {
                assert_eq!(world.status(clients[rank as usize]), SUCCESS, "{members:?}: rank {rank}");
            }
        }
    }
}

#[test]
fn members_are_the_same_in_any_order_and_however_often_they_are_named() {
    let lists: [&[u32]; 4] = [&[0, 1, 2], &[2, 1, 0], &[1, 1, 0, 2, 2], &[2, 0, 1]];
    for list in lists {
        let (mut world, clients) = four();
        arrive(&mut world, clients[0], command::FENCE, &[0, 1, 2]);
        arrive(&mut world, clients[1], command::FENCE, list);
        arrive(&mut world, clients[2], command::FENCE, &[2, 0, 1]);
        for client in &clients[..3] {
            assert_eq!(world.status(*client), SUCCESS, "{list:?}");
        }
    }
}

#[test]
fn the_whole_job_and_a_rank_of_it_is_the_whole_job() {
    let (mut world, clients) = four();
    for (client, first) in clients.iter().zip([RANK_WILDCARD, 0, 3, RANK_WILDCARD]) {
        arrive(&mut world, *client, command::FENCE, &[first, RANK_WILDCARD]);
    }
    for client in clients {
        assert_eq!(world.status(client), SUCCESS);
    }
}

#[test]
fn kinds_and_groups_of_the_same_members_do_not_meet() {
    let group = |world: &mut World, client: Client, name: &str| {
        world.send(client, 102, command::GROUP_CONSTRUCT, |out| {
            out.one();
            out.text(Some(name.as_bytes()));
            procs(&ranks(&[0, 1]))(out);
        });
    };
    let (mut world, [a, b, ..]) = four();
    arrive(&mut world, a, command::FENCE, &[0, 1]);
    arrive(&mut world, b, command::CONNECT, &[0, 1]);
    group(&mut world, a, "one");
    group(&mut world, b, "two");
    assert_eq!((world.receive(a), world.receive(b)), (None, None));
    group(&mut world, b, "one");
    assert!(world.status(a).is_some_and(|(code, _)| code == status::SUCCESS), "the group is made");
}

#[test]
fn groups_that_are_made_one_after_the_other_have_contexts_of_their_own() {
    let (mut world, clients) = four();
    let mut contexts = Vec::new();
    for (name, members) in [("a", [0, 1]), ("b", [0, 1]), ("a", [0, 1]), ("far", [1, 2])] {
        for rank in members {
            world.send(clients[rank as usize], 102, command::GROUP_CONSTRUCT, |out| {
                out.one();
                out.text(Some(name.as_bytes()));
                procs(&ranks(&members))(out);
            });
        }
        let told = members.map(|rank| {
            let client = clients[rank as usize];
            let (_, rest) = world.status(client).expect("the group is not made");
            let mut reader = Reader::new(client.encoding, &rest);
            if client.encoding == Flex {
                assert_eq!(reader.counted_procs().unwrap(), ranks(&members), "{name}");
            }
            reader.one().unwrap();
            reader.size().unwrap()
        });
        assert_eq!(told[0], told[1], "{name}");
        contexts.push(told[0]);
    }
    contexts.sort_unstable();
    contexts.dedup();
    assert_eq!(contexts.len(), 4, "a context was given out twice");
}

#[test]
fn a_member_that_leaves_in_good_order_ends_the_launch_of_those_who_wait_for_it() {
    let (mut world, [a, b, ..]) = four();
    arrive(&mut world, a, command::FENCE, &[0, 1]);
    world.send(b, 102, command::FINALIZE, |_| {});
    match world.end {
        Some(EndReason::LeftFence { rank, waiting }) => assert_eq!((rank.0, waiting.len()), (1, 1)),
        other => panic!("{other:?}"),
    }
}

/// Fences without a wait (`PMIx_Fence_nb`): a rank leaves while a fence is in transit to the other nodes.
#[test]
fn a_rank_that_leaves_during_a_fence_is_missed_in_the_next_one() {
    let (mut world, [a, b, c, _]) = four();
    for client in [a, a, b] {
        arrive(&mut world, client, command::FENCE, &[0, 1, 2]);
    }
    world.send(b, 102, command::FINALIZE, |_| {});
    assert!(world.end.is_none(), "the first fence waits for {c:?}");
    arrive(&mut world, c, command::FENCE, &[0, 1, 2]);
    match world.end {
        Some(EndReason::LeftFence { rank, waiting }) => assert_eq!((rank.0, waiting.len()), (1, 1)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_rank_that_is_no_member_can_leave() {
    let (mut world, [a, b, c, d]) = four();
    arrive(&mut world, a, command::FENCE, &[0, 2]);
    for other in [b, d] {
        world.send(other, 102, command::FINALIZE, |_| {});
        world.hang_up(other);
    }
    assert!(world.end.is_none(), "{:?}", world.end);
    arrive(&mut world, c, command::FENCE, &[0, 2]);
    assert_eq!((world.status(a), world.status(c)), (SUCCESS, SUCCESS));
}

#[test]
fn a_connection_that_breaks_inside_of_a_collective_is_no_arrival_taken_back() {
    let (mut world, [a, b, ..]) = four();
    arrive(&mut world, a, command::FENCE, &[0, 1]);
    world.hang_up(a);
    assert!(world.end.is_none(), "the end of the process is the host's to judge");
    arrive(&mut world, b, command::FENCE, &[0, 1]);
    assert_eq!((world.status(b), world.receive(a)), (SUCCESS, None));
    world.exit(0, 0);
    assert!(matches!(world.end, Some(EndReason::LeftWithoutFinalize { rank }) if rank.0 == 0), "{:?}", world.end);
}

#[test]
fn a_rank_can_wait_in_several_collectives_at_once_and_be_ahead_in_each() {
    let (mut world, [a, b, c, _]) = four();
    for _ in 0..3 {
        arrive(&mut world, a, command::FENCE, &[0, 1]);
        world.send(a, 101, command::FENCE, procs(&whole("job0")));
        arrive(&mut world, a, command::FENCE, &[0, 2]);
    }
    assert_eq!(world.receive(a), None);
    for (other, members) in [(c, [0, 2]), (b, [0, 1])] {
        for round in 0..3 {
            arrive(&mut world, other, command::FENCE, &members);
            assert_eq!((world.status(other), world.status(a)), (SUCCESS, SUCCESS), "{members:?} round {round}");
        }
    }
    assert_eq!(world.receive(a), None, "the whole job has not come");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Each list of members is a separate collective: its n-th round is complete when every member has arrived n times.
    #[test]
    fn each_collective_counts_its_own_rounds(
        arrivals in prop::collection::vec((0..4_u32, 0..4_usize), 0..60),
    ) {
        const LISTS: [&[u32]; 4] = [&[0, 1], &[0, 2, 3], &[1, 3], &[0, 1, 2, 3]];
        let (mut world, clients) = four();
        let mut came = [[0_usize; 4]; LISTS.len()];
        let mut answers = [0; 4];
        for (rank, list) in arrivals {
            let (index, members) = (rank as usize, LISTS[list]);
            if !members.contains(&rank) {
                continue;
            }
            came[list][index] += 1;
            arrive(&mut world, clients[index], command::FENCE, members);
            for (answered, client) in answers.iter_mut().zip(clients) {
                while let Some((code, _)) = world.status(client) {
                    prop_assert_eq!(code, status::SUCCESS);
                    *answered += 1;
                }
            }
            let rounds = |list: usize| LISTS[list].iter().map(|&rank| came[list][rank as usize]).min().unwrap();
            for rank in 0..4 {
                let of_rank = (0..LISTS.len()).filter(|&list| LISTS[list].contains(&rank));
                prop_assert_eq!(answers[rank as usize], of_rank.map(rounds).sum::<usize>(), "rank {}", rank);
            }
        }
        prop_assert!(world.end.is_none());
    }
}

#[test]
fn a_group_is_answered_in_the_layout_of_the_clients_version() {
    // The version, its encoding, whether it reads the members, and whether it reads a flag for the context id.
    let layouts = [
        ("3.2.5", "v3", false, false),
        ("4.1.3", "v4", false, false),
        ("4.2.2rc2", "v41", false, false),
        ("4.2.3", "v41", false, false),
        ("4.2.4", "v41", true, false),
        ("4.2.9a1", "v41", true, false),
        ("5.0.0", "v41", true, false),
        ("5.0.11", "v41", true, false),
        ("6.0.0", "v41", true, true),
        ("6.1.0", "v61", true, true),
    ];
    for (version, module, has_members, has_flag) in layouts {
        let mut world = World::new(1, &[1]);
        let client = world.join_as(0, ("job0", 0), version, module).unwrap();
        world.send(client, 101, command::GROUP_CONSTRUCT, |out| {
            out.one();
            out.text(Some(b"g"));
            procs(&whole("job0"))(out);
        });
        let (_, rest) = world.status(client).unwrap();
        let mut reader = Reader::new(client.encoding, &rest);
        if has_members {
            assert_eq!(reader.counted_procs().unwrap(), ranks(&[0]), "{version}");
        }
        if has_flag {
            reader.one().unwrap();
            assert_eq!(reader.byte().unwrap(), 1, "{version}");
        }
        reader.one().unwrap();
        assert!(reader.size().unwrap() > 0, "{version}");
        assert!(reader.is_empty(), "{version}: more than it reads");
    }
}

/// Names of fences are stored and sent to other nodes; names for groups of half of a large job would be long.
#[test]
fn the_name_of_a_collective_of_many_ranks_is_short_and_its_own() {
    let mut world = World::new(1, &[150, 151]);
    let client = |rank: u32| (usize::from(rank >= 150), rank);
    let clients: Vec<Client> =
        (0..301).map(client).map(|(node, rank)| world.join(node, "job0", rank, Flex).unwrap()).collect();
    for members in [0..300, 0..301] {
        let members: Vec<u32> = members.collect();
        for &rank in &members {
            arrive(&mut world, clients[rank as usize], command::FENCE, &members);
        }
        for &rank in &members {
            assert_eq!(world.status(clients[rank as usize]), SUCCESS, "rank {rank}");
        }
    }
    let [one, other] = &world.fences[..] else { panic!("{:?}", world.fences) };
    assert!(one.len() < 1100 && other.len() < 1100 && one != other, "{one}\n{other}");
    assert!(one.starts_with("fence job0,0,1,2,3,"), "{one}");
}
