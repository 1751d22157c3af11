//! Traps about ranks that wait for other ranks, and about the ends of ranks.

use pmi_core::Phase;
use pmi_core::ids::{LocalRank, Rank};
use pmi_core::job::Job;
use pmi_core::server::{EndReason, Settings};
use pmi_core::services::{Answer, SpawnError};

use crate::world::World;
use crate::{INIT, id, initialized, placed, pmi2, spawn_block};

#[test]
fn trap_11_nothing_counts_after_an_abort() {
    let (mut world, job) = initialized(&[2]);
    world.send(job, Rank(1), b"cmd=abort exitcode=42 message=abort\ncmd=finalize\ncmd=put kvsname=j key=k value=v\n");
    assert_eq!(world.ask(job, 1, "cmd=get_maxes\n"), "");
    assert_eq!(world.ask(job, 0, "cmd=barrier_in\n"), "");
    world.exit(job, Rank(1));
    world.disconnect(job, Rank(0));
    let Some(EndReason::Abort { rank: Rank(1), code: Some(42), whole_job: true, .. }) = world.ended(job) else {
        panic!("{:?}", world.ended(job));
    };
}

#[test]
fn trap_12_a_rank_that_spoke_must_finalize_and_one_that_never_spoke_need_not() {
    let mut world = World::kind();
    let silent = world.start(placed("silent", &[2]), Settings::default());
    world.exit(silent, Rank(0));
    world.exit(silent, Rank(1));
    assert!(world.ended(silent).is_none(), "a program without MPI is no failure");

    let (mut world, job) = initialized(&[2]);
    world.ask(job, 0, "cmd=finalize\n");
    world.exit(job, Rank(0));
    assert!(world.ended(job).is_none());
    world.exit(job, Rank(1));
    assert!(matches!(world.ended(job), Some(EndReason::LeftWithoutFinalize { rank: Rank(1) })));

    let half = world.start(placed("half", &[2]), Settings::default());
    world.ask(half, 1, INIT);
    world.exit(half, Rank(0));
    let Some(EndReason::LeftBeforeInit { rank: Rank(0), others }) = world.ended(half) else { panic!("it hangs") };
    assert_eq!(others, &[Rank(1)]);
}

#[test]
fn trap_13_the_end_of_a_stream_decides_nothing() {
    let (mut world, job) = initialized(&[4]);
    // an end of the stream after `finalize`, no such end, and an end before the process exits
    for rank in 0..2 {
        world.ask(job, rank, "cmd=finalize\n");
    }
    world.disconnect(job, Rank(0));
    world.exit(job, Rank(0));
    world.exit(job, Rank(1));
    world.disconnect(job, Rank(2));
    assert!(world.ended(job).is_none());
    world.exit(job, Rank(2));
    assert!(matches!(world.ended(job), Some(EndReason::LeftWithoutFinalize { rank: Rank(2) })));
}

#[test]
fn trap_14_init_may_come_again_and_keeps_what_was_put() {
    let (mut world, job) = initialized(&[1]);
    world.ask(job, 0, "cmd=put kvsname=j key=k value=v\n");
    for _ in 0..2 {
        assert_eq!(world.ask(job, 0, INIT), "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n");
        assert!(world.ask(job, 0, "cmd=get_maxes\n").starts_with("cmd=maxes rc=0 "));
        assert_eq!(world.ask(job, 0, "cmd=get kvsname=j key=k\n"), "cmd=get_result rc=0 value=v\n");
    }
    assert_eq!(world.ask(job, 0, "cmd=finalize\n"), "cmd=finalize_ack rc=0\n");
    // a second program of the same process, started by a script
    world.ask(job, 0, INIT);
    assert_eq!(world.server_of(job, Rank(0)).progress(LocalRank(0)).unwrap().phase, Phase::Open);
}

#[test]
fn trap_15_a_barrier_counts_living_ranks_of_one_job() {
    let (mut world, job) = initialized(&[2]);
    let child = Job { spawner: Some(id("j")), ..placed("child", &[2]) };
    let child = world.start(child, Settings::default());
    world.ask(child, 0, INIT);
    assert_eq!(world.ask(job, 0, "cmd=barrier_in\n"), "");
    assert_eq!(world.ask(job, 0, "cmd=barrier_in\n"), "", "two messages of one rank are not two ranks");
    assert_eq!(world.ask(child, 0, "cmd=barrier_in\n"), "");
    assert_eq!(world.ask(job, 1, "cmd=barrier_in\n"), "cmd=barrier_out rc=0\n");
    assert_eq!(world.told(job, 0), "cmd=barrier_out rc=0\n", "the second one of rank 0 waits for rank 1 again");
    assert_eq!(world.told(child, 0), "");

    // rank 1 has left PMI: the waiting rank would wait indefinitely
    world.ask(job, 1, "cmd=finalize\n");
    assert_eq!(world.told(job, 0), "");
    let Some(EndReason::LeftFence { rank: Rank(1), waiting }) = world.ended(job) else { panic!("it hangs") };
    assert_eq!(waiting, &[Rank(0)]);
}

/// A client that does not wait for answers may leave while its last barrier is still in transit to the other nodes.
#[test]
fn a_rank_that_leaves_during_a_barrier_is_missed_in_the_next_one() {
    let (mut world, job) = initialized(&[2, 1]);
    for rank in [0, 0, 1] {
        world.send(job, Rank(rank), b"cmd=barrier_in\n");
    }
    world.send(job, Rank(1), b"cmd=finalize\n");
    assert!(world.ended(job).is_none(), "the first barrier waits for the other node");
    world.send(job, Rank(2), b"cmd=barrier_in\n");
    world.settle();
    let Some(EndReason::LeftFence { rank: Rank(1), waiting }) = world.ended(job) else { panic!("it hangs") };
    assert_eq!(waiting, &[Rank(0)]);
}

#[test]
fn trap_16_no_older_value_is_read_after_a_barrier() {
    let (mut world, job) = initialized(&[2, 2]);
    let barrier = |world: &mut World| {
        for rank in 0..4 {
            world.send(job, Rank(rank), b"cmd=barrier_in\n");
        }
        world.settle();
        for rank in 0..4 {
            assert_eq!(world.told(job, rank), "cmd=barrier_out rc=0\n");
        }
    };
    for (round, writer) in [0, 3, 1, 2].into_iter().enumerate() {
        assert_eq!(
            world.ask(job, writer, &format!("cmd=put kvsname=j key=k value={round}\n")),
            "cmd=put_result rc=0\n"
        );
        assert_eq!(world.ask(job, writer, "cmd=get kvsname=j key=k\n"), format!("cmd=get_result rc=0 value={round}\n"));
        barrier(&mut world);
        for rank in 0..4 {
            let answer = world.ask(job, rank, "cmd=get kvsname=j key=k\n");
            assert_eq!(answer, format!("cmd=get_result rc=0 value={round}\n"), "rank {rank} in round {round}");
        }
    }
}

#[test]
fn trap_17_what_waits_holds_nobody_up() {
    let (mut world, job) = initialized(&[4]);
    assert_eq!(world.ask(job, 0, &pmi2("cmd=info-getnodeattr;key=a;wait=TRUE;")), "");
    assert_eq!(world.ask(job, 1, "cmd=barrier_in\n"), "");
    assert_eq!(world.ask(job, 2, &spawn_block(1, 1, "")), "");
    // all other ranks, and other threads of the same ranks, continue
    for rank in [3, 0, 1, 2] {
        assert_eq!(world.ask(job, rank, "cmd=get_appnum\n"), "cmd=appnum rc=0 appnum=0\n");
    }
    let asked = world.spawns.pop_front().unwrap();
    world.ask(job, 3, &pmi2("cmd=info-putnodeattr;key=a;value=v;"));
    assert_eq!(world.told(job, 0), pmi2("cmd=info-getnodeattr-response;rc=0;found=TRUE;value=v;"));
    world.answer(&asked, Answer::Spawned(Err(SpawnError::Refused { reason: "not here".into() })));
    assert!(world.told(job, 2).starts_with("cmd=spawn_result rc=-1 msg="));
}

#[test]
fn trap_21_a_rank_whose_stream_never_ends_is_missed_all_the_same() {
    let (mut world, job) = initialized(&[2]);
    assert_eq!(world.ask(job, 1, "cmd=barrier_in\n"), "");
    // a child process of rank 0 holds its socket open: the stream does not end, the process does
    world.exit(job, Rank(0));
    assert!(matches!(world.ended(job), Some(EndReason::LeftWithoutFinalize { rank: Rank(0) })));
}
