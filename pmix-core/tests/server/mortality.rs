//! Ranks that die while the other ranks continue: events for the other ranks, and the ends of their collectives.

use pmi_core::deaths::{Death, DeathKind};
use pmi_core::fence::FenceError;
use pmi_core::ids::{NodeIndex, Rank};
use pmi_core::server::EndReason;
use pmix_core::JobIndex;
use pmix_core::wire::Encoding::Flex;
use pmix_core::wire::reader::{Proc, Reader};
use pmix_core::wire::request::command;
use pmix_core::wire::status;
use pmix_core::wire::value::{Info, Value};

use super::commit;
use super::ranges::register;
use super::world::{Client, World, procs, whole};

const SUCCESS: Option<(i32, Vec<u8>)> = Some((status::SUCCESS, vec![]));
const LOST: Option<(i32, Vec<u8>)> = Some((status::LOST_CONNECTION, vec![]));

/// A job with `counts` ranks on the nodes, all joined.
fn joined(counts: &[u32]) -> (World, Vec<Client>) {
    let mut world = World::new(1, counts);
    let nodes = counts.iter().enumerate().flat_map(|(node, &count)| std::iter::repeat_n(node, count as usize));
    let clients = (0..).zip(nodes).map(|(rank, node)| world.join(node, "job0", rank, Flex).unwrap()).collect();
    (world, clients)
}

/// Does the same, and completes the first collective.
fn running(counts: &[u32]) -> (World, Vec<Client>) {
    let (mut world, clients) = joined(counts);
    fence(&mut world, &clients);
    clients.iter().for_each(|&client| assert_eq!(world.status(client), SUCCESS));
    (world, clients)
}

fn fence(world: &mut World, clients: &[Client]) {
    for &client in clients {
        world.send(client, 110, command::FENCE, procs(&whole("job0")));
    }
}

/// The next event of a client: its code, and its subject.
fn event(world: &mut World, client: Client) -> Option<(i32, String)> {
    let message = world.receive(client)?;
    assert_eq!(message.tag, 0);
    let mut reader = Reader::new(client.encoding, &message.payload);
    reader.one().unwrap();
    assert_eq!(reader.byte().unwrap(), command::NOTIFY);
    reader.one().unwrap();
    let code = reader.i32().unwrap();
    reader.one().unwrap();
    reader.proc().unwrap();
    let infos = reader.counted_infos().unwrap();
    let about = match &infos[..] {
        [Info { value: Value::Proc(proc), .. }] => format!("rank {}", proc.rank),
        [Info { value: Value::Text(text), .. }] => String::from_utf8(text.to_vec()).unwrap(),
        other => panic!("{other:?}"),
    };
    Some((code, about))
}

#[test]
fn those_who_asked_for_it_hear_of_a_death_once_by_the_name_that_they_know() {
    let (mut world, clients) = running(&[5]);
    let asked: [&[i32]; 4] = [
        &[status::PROC_ABORTED, status::PROC_TERM_WO_SYNC, status::PROC_ABORTED_BY_SIG],
        &[status::PROC_ABORTED],
        &[status::EXIT_NONZERO_TERM],
        &[],
    ];
    for (&client, codes) in clients.iter().zip(asked) {
        register(&mut world, client, codes);
    }
    world.kill(0, 4, DeathKind::Killed);
    let about = || "rank 4".to_owned();
    assert_eq!(event(&mut world, clients[0]), Some((status::PROC_ABORTED_BY_SIG, about())));
    assert_eq!(event(&mut world, clients[1]), Some((status::PROC_ABORTED, about())));
    assert_eq!(event(&mut world, clients[2]), None, "it was no exit");
    assert_eq!(event(&mut world, clients[3]), None, "default handlers abort");
    world.kill(0, 3, DeathKind::Exited);
    let heard = [0, 1, 2].map(|rank| event(&mut world, clients[rank]).unwrap().0);
    assert_eq!(heard, [status::PROC_TERM_WO_SYNC, status::PROC_ABORTED, status::EXIT_NONZERO_TERM]);
    assert_eq!(clients.iter().find_map(|&client| event(&mut world, client)), None, "once");
}

/// Spawned ranks and their parents wait for each other.
#[test]
fn a_death_is_told_to_the_other_jobs_of_the_launch() {
    for (dies, hears) in [(0, 1), (1, 0)] {
        let mut world = World::new(2, &[2]);
        let clients = ["job0", "job1"].map(|job| [0, 1].map(|rank| world.join(0, job, rank, Flex).unwrap()));
        register(&mut world, clients[hears][0], &[status::PROC_ABORTED]);
        world.nodes[0].handle_borne_failure(super::world::seat(dies, 1), DeathKind::Killed);
        world.run();
        assert_eq!(
            event(&mut world, clients[hears][0]),
            Some((status::PROC_ABORTED, "rank 1".to_owned())),
            "job {dies}"
        );
        assert!(world.end.is_none());
    }
}

#[test]
fn deaths_on_other_nodes_are_told_with_their_node_if_that_is_lost() {
    let (mut world, clients) = running(&[1, 2]);
    register(&mut world, clients[0], &[status::PROC_TERM_WO_SYNC, status::NODE_DOWN]);
    let deaths = [1, 2].map(|rank| Death { rank: Rank(rank), kind: DeathKind::NodeLost });
    for _ in 0..2 {
        world.nodes[0].handle_deaths(JobIndex(0), &deaths);
        world.run();
    }
    let heard: Vec<_> = std::iter::from_fn(|| event(&mut world, clients[0])).collect();
    let lost = |rank: u32| (status::PROC_TERM_WO_SYNC, format!("rank {rank}"));
    assert_eq!(heard, [lost(1), lost(2), (status::NODE_DOWN, "n1".to_owned())]);
}

#[test]
fn collectives_end_without_the_dead_and_say_so() {
    for comes_first in [true, false] {
        let (mut world, clients) = running(&[3, 1]);
        if comes_first {
            fence(&mut world, &[clients[0], clients[2]]);
        }
        world.kill(0, 1, DeathKind::Killed);
        assert_eq!(std::mem::take(&mut world.deaths), [Rank(1)]);
        world.nodes[1].handle_deaths(JobIndex(0), &[Death { rank: Rank(1), kind: DeathKind::Killed }]);
        if !comes_first {
            fence(&mut world, &[clients[0], clients[2]]);
        }
        fence(&mut world, &clients[3..]);
        for rank in [0, 2, 3] {
            assert_eq!(world.status(clients[rank]), LOST, "rank {rank}, {comes_first}");
        }
        // Collectives of living ranks are unaffected.
        let living = [0, 2].map(|rank| Proc { namespace: b"job0", rank });
        for rank in [0, 2] {
            world.send(clients[rank], 111, command::FENCE, procs(&living));
        }
        assert_eq!([0, 2].map(|rank| world.status(clients[rank])), [SUCCESS, SUCCESS]);
        assert!(world.end.is_none());
    }
}

#[test]
fn a_rank_that_dies_before_the_first_collective_is_over_is_missed_if_something_was_committed() {
    let (mut world, clients) = joined(&[3]);
    commit(&mut world, clients[0], "card", b"x", b"x");
    fence(&mut world, &clients[..2]);
    world.kill(0, 2, DeathKind::Exited);
    assert!(matches!(world.end, Some(EndReason::LeftFence { rank: Rank(2), .. })), "{:?}", world.end);
}

#[test]
fn a_rank_that_dies_before_the_first_commit_is_missed_if_others_commit_before_the_last_one_comes() {
    for commits in [true, false] {
        let (mut world, clients) = joined(&[3]);
        world.kill(0, 2, DeathKind::Exited);
        assert_eq!(world.deaths, [Rank(2)]);
        fence(&mut world, &clients[..1]);
        assert!(world.end.is_none());
        if commits {
            commit(&mut world, clients[1], "card", b"x", b"x");
        }
        fence(&mut world, &clients[1..2]);
        let missed = matches!(world.end, Some(EndReason::LeftFence { rank: Rank(2), .. }));
        assert_eq!(missed, commits, "{:?}", world.end);
        if !commits {
            assert_eq!([0, 1].map(|rank| world.status(clients[rank])), [LOST, LOST]);
        }
    }
}

#[test]
fn a_node_whose_ranks_die_before_the_first_commit_is_missed_by_those_who_committed() {
    for comes_first in [true, false] {
        let (mut world, clients) = joined(&[1, 1]);
        commit(&mut world, clients[0], "card", b"x", b"x");
        if comes_first {
            fence(&mut world, &clients[..1]);
        }
        world.nodes[0].handle_deaths(JobIndex(0), &[Death { rank: Rank(1), kind: DeathKind::NodeLost }]);
        world.run();
        if !comes_first {
            fence(&mut world, &clients[..1]);
        }
        let Some(EndReason::Fence(error)) = &world.end else { panic!("{:?}", world.end) };
        assert!(matches!(**error, FenceError::NodeLost { node: NodeIndex(1), .. }), "{error}");
    }
}

#[test]
fn a_rank_that_dies_in_the_first_collective_was_part_of_it() {
    let (mut world, clients) = joined(&[2, 1]);
    commit(&mut world, clients[0], "card", b"x", b"x");
    fence(&mut world, &clients[..2]);
    world.kill(0, 1, DeathKind::Exited);
    assert_eq!((world.end.is_none(), world.deaths.len()), (true, 0));
    fence(&mut world, &clients[2..]);
    assert_eq!([0, 2].map(|rank| world.status(clients[rank])), [SUCCESS, SUCCESS]);
    assert_eq!(world.deaths, [Rank(1)]);
}
