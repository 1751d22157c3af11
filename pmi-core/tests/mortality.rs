//! Ranks that die while other ranks of their job continue: the notifications, and the fences that proceed without the dead.

mod transcript;
mod world;

use pmi_core::Offer;
use pmi_core::deaths::DeathKind;
use pmi_core::fence::FenceError;
use pmi_core::ids::{JobId, LocalRank, NodeIndex, Rank};
use pmi_core::job::{Job, Placement};
use pmi_core::server::{Action, EndReason, Server, Settings};
use world::{JobIndex, World};

const BARRIER: &str = "cmd=barrier_in\n";
const OUT: &str = "cmd=barrier_out rc=0 tag=0\n";
const PUT: &str = "cmd=put kvsname=j key=k value=v\n";
const DEAD: &str = "cmd=get kvsname=j key=PMI_dead_processes\n";

fn pmi2(body: &str) -> String {
    format!("{:>6}{body}", body.len())
}

/// A job with `counts` ranks on the nodes, after `init` of all ranks.
fn initialized(counts: &[u32]) -> (World, JobIndex) {
    let mut world = World::kind();
    let size = counts.iter().sum();
    let job = Job { placement: Placement::block(counts), ..Job::on_one_node(JobId::new("j").expect("a letter"), size) };
    let offer = Offer { group_barriers: true, ..Offer::default() };
    let job = world.start(job, Settings { offer, ..Settings::default() });
    for rank in 0..size {
        assert!(world.ask(job, rank, "cmd=init pmi_version=1 pmi_subversion=1\n").contains("rc=0"));
    }
    (world, job)
}

/// Does the same, and completes the first fence.
fn running(counts: &[u32]) -> (World, JobIndex) {
    let (mut world, job) = initialized(counts);
    let size = counts.iter().sum();
    (0..size).for_each(|rank| world.send(job, Rank(rank), BARRIER.as_bytes()));
    world.settle();
    (0..size).for_each(|rank| assert_eq!(world.told(job, rank), OUT));
    (world, job)
}

#[test]
fn the_others_read_who_is_dead_on_every_node() {
    let (mut world, job) = running(&[2, 3]);
    let nobody = world.ask(job, 0, DEAD);
    assert!(nobody.contains("key_not_found"), "{nobody}");
    for rank in [4, 1] {
        world.kill(job, Rank(rank));
        assert_eq!(world.spread_deaths(job), [Rank(rank)]);
    }
    for rank in [0, 2] {
        assert_eq!(world.ask(job, rank, DEAD), "cmd=get_result rc=0 value=4,1\n");
    }
    let asked = pmi2("cmd=kvs-get;jobid=j;srcid=-1;key=PMI_dead_processes;");
    assert_eq!(world.ask(job, 3, &asked), pmi2("cmd=kvs-get-response;rc=0;found=TRUE;value=4,1;"));
    assert!(world.ended(job).is_none());
}

/// The ranks of a node in MPICH exchange attributes in MPI_Init: the first rank may die before it has put any.
#[test]
fn a_get_of_an_attribute_ends_when_nobody_is_left_who_could_put_it() {
    let wait = pmi2("cmd=info-getnodeattr;key=a;wait=TRUE;");
    let nothing = pmi2("cmd=info-getnodeattr-response;rc=0;found=FALSE;");
    let (mut world, job) = running(&[3]);
    assert_eq!(world.ask(job, 1, &wait), "");
    world.kill(job, Rank(0));
    assert_eq!(world.told(job, 1), "", "rank 2 may put it");
    assert_eq!(world.ask(job, 2, &wait), nothing);
    assert_eq!(world.told(job, 1), nothing);
    assert_eq!(world.ask(job, 1, &wait), "");
    world.send(job, Rank(2), BARRIER.as_bytes());
    world.settle();
    assert_eq!(world.told(job, 1), nothing, "rank 2 waits for it");
    assert_eq!(world.ask(job, 1, BARRIER), OUT);
    assert_eq!(world.told(job, 2), OUT);
    assert!(world.ended(job).is_none());
}

/// The host may detect a rank's end after the server has ended the job.
#[test]
fn a_death_after_the_end_begins_nothing() {
    let mut server =
        Server::new(Job::on_one_node(JobId::new("j").expect("a letter"), 2), NodeIndex(0), Settings::default());
    let connections = [0, 1].map(|local| server.connect(LocalRank(local)).unwrap());
    for connection in connections {
        server.handle_bytes(connection, b"cmd=init pmi_version=1 pmi_subversion=1\n");
    }
    server.handle_bytes(connections[1], BARRIER.as_bytes());
    server.handle_bytes(connections[0], b"nonsense\n");
    let actions: Vec<Action> = std::iter::from_fn(|| server.poll_action()).collect();
    assert!(actions.iter().any(|action| matches!(action, Action::End(EndReason::Offence { .. }))), "{actions:?}");
    server.handle_borne_failure(LocalRank(0), DeathKind::Killed);
    assert!(server.poll_action().is_none());
}

#[test]
fn fences_do_without_the_dead() {
    // Before the other ranks arrive, after some have arrived, and while all of them wait only for the dead rank.
    for came_first in 0..3 {
        let (mut world, job) = running(&[3, 1]);
        for rank in [0, 2].into_iter().take(came_first) {
            world.send(job, Rank(rank), BARRIER.as_bytes());
        }
        world.kill(job, Rank(1));
        for rank in [0, 2].into_iter().skip(came_first) {
            world.send(job, Rank(rank), BARRIER.as_bytes());
        }
        world.send(job, Rank(3), BARRIER.as_bytes());
        world.settle();
        for rank in [0, 2, 3] {
            assert_eq!(world.told(job, rank), OUT, "rank {rank}, {came_first} came before");
        }
        assert!(world.ended(job).is_none());
    }
}

#[test]
fn fences_of_groups_do_without_the_dead() {
    let group = "cmd=barrier_in group=0,1,3:7\n";
    for comes_first in [true, false] {
        let (mut world, job) = running(&[3, 1]);
        world.send(job, Rank(3), group.as_bytes());
        if comes_first {
            world.send(job, Rank(0), group.as_bytes());
        }
        world.kill(job, Rank(1));
        if !comes_first {
            world.send(job, Rank(0), group.as_bytes());
        }
        world.settle();
        for rank in [0, 3] {
            assert_eq!(world.told(job, rank), "cmd=barrier_out rc=0 tag=7\n", "rank {rank}, {comes_first}");
        }
    }
}

#[test]
fn a_rank_that_dies_before_the_first_fence_is_missed_if_something_was_put() {
    let (mut world, job) = initialized(&[2]);
    world.kill(job, Rank(1));
    assert_eq!(
        world.ask(job, 0, BARRIER),
        OUT,
        "MPICH 5 has its first fence behind MPI_Init where all ranks share a node"
    );
    for comes_first in [true, false] {
        let (mut world, job) = initialized(&[3]);
        world.ask(job, 2, PUT);
        if comes_first {
            world.send(job, Rank(0), BARRIER.as_bytes());
        }
        world.kill(job, Rank(1));
        if !comes_first {
            world.send(job, Rank(0), BARRIER.as_bytes());
        }
        let Some(EndReason::LeftFence { rank: Rank(1), waiting }) = world.ended(job) else { panic!("{comes_first}") };
        assert_eq!(waiting, &[Rank(0)]);
    }
}

#[test]
fn a_rank_that_dies_before_the_first_put_is_missed_if_others_put_before_the_last_one_comes() {
    // At the put no rank waits, one rank waits, or the putting rank arrives first.
    for order in [[2, 0], [0, 2]] {
        for puts_last in [true, false] {
            let (mut world, job) = initialized(&[3, 1]);
            world.kill(job, Rank(1));
            assert_eq!(world.spread_deaths(job), [Rank(1)], "ranks that put nothing are told at once");
            let (first, last) = (order[0], order[1]);
            let putting = if puts_last { last } else { first };
            for rank in [first, last] {
                if rank == putting {
                    world.ask(job, rank, PUT);
                }
                world.send(job, Rank(rank), BARRIER.as_bytes());
            }
            world.settle();
            let Some(EndReason::LeftFence { rank: Rank(1), .. }) = world.ended(job) else {
                panic!("{order:?}, rank {putting} puts: {:?}", world.ended(job))
            };
        }
    }
}

#[test]
fn a_node_whose_ranks_die_before_the_first_put_is_missed_by_those_who_put() {
    for comes_first in [true, false] {
        for puts in [true, false] {
            let (mut world, job) = initialized(&[1, 2]);
            if puts {
                world.ask(job, 0, PUT);
            }
            if comes_first {
                world.send(job, Rank(0), BARRIER.as_bytes());
            }
            [1, 2].into_iter().for_each(|rank| world.kill(job, Rank(rank)));
            assert_eq!(world.spread_deaths(job), [Rank(1), Rank(2)]);
            if !comes_first {
                world.send(job, Rank(0), BARRIER.as_bytes());
            }
            let missed = match world.ended(job) {
                Some(EndReason::Fence(error)) => matches!(**error, FenceError::NodeLost { node: NodeIndex(1), .. }),
                _ => false,
            };
            assert_eq!(missed, puts, "comes first: {comes_first}: {:?}", world.ended(job));
        }
    }
}

#[test]
fn a_rank_that_dies_in_the_first_fence_is_part_of_it_and_of_no_other() {
    let (mut world, job) = initialized(&[2, 1]);
    world.ask(job, 0, PUT);
    world.send(job, Rank(0), BARRIER.as_bytes());
    world.send(job, Rank(1), BARRIER.as_bytes());
    world.kill(job, Rank(1));
    assert_eq!(world.spread_deaths(job), [], "it may have to be missed yet");
    world.send(job, Rank(2), BARRIER.as_bytes());
    world.settle();
    assert_eq!(world.spread_deaths(job), [Rank(1)]);
    for rank in [0, 2] {
        assert_eq!(world.told(job, rank), OUT);
        world.send(job, Rank(rank), BARRIER.as_bytes());
    }
    world.settle();
    for rank in [0, 2] {
        assert_eq!(world.told(job, rank), OUT);
    }
    assert!(world.ended(job).is_none());
}

#[test]
fn a_rank_that_was_through_with_its_server_has_not_died() {
    let (mut world, job) = running(&[2]);
    assert_eq!(world.ask(job, 1, "cmd=finalize\n"), "cmd=finalize_ack rc=0\n");
    world.kill(job, Rank(1));
    assert_eq!(world.spread_deaths(job), []);
    world.send(job, Rank(0), BARRIER.as_bytes());
    assert!(matches!(world.ended(job), Some(EndReason::LeftFence { rank: Rank(1), .. })), "it left in order");
}

#[test]
fn a_ring_closes_over_the_dead() {
    let (mut world, job) = running(&[3]);
    world.kill(job, Rank(1));
    for rank in [0, 2] {
        let ring = format!("cmd=ring;ring-count=1;ring-left=l{rank};ring-right=r{rank};");
        world.send(job, Rank(rank), pmi2(&ring).as_bytes());
    }
    world.settle();
    assert!(world.told(job, 0).contains("ring-count=0;ring-left=r2;ring-right=l2"));
    assert!(world.told(job, 2).contains("ring-count=1;ring-left=r0;ring-right=l0"));
}
