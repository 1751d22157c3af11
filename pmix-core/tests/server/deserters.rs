//! Ranks that join, wait, finalize and end in any order: the launch ends at once when a rank waits for one that never arrives, and for no
//! other reason.

use pmi_core::Phase;
use pmi_core::server::EndReason;
use pmix_core::wire::Encoding::Flex;
use pmix_core::wire::request::command;
use proptest::prelude::*;

use super::world::{Client, World, procs, whole};

const RANKS: usize = 3;

#[derive(Clone, Copy, Debug)]
enum Operation {
    Join(usize),
    Fence(usize),
    Finalize(usize),
    /// The process ends with status 0.
    Exit(usize),
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        3 => (0..RANKS).prop_map(Operation::Join),
        4 => (0..RANKS).prop_map(Operation::Fence),
        2 => (0..RANKS).prop_map(Operation::Finalize),
        1 => (0..RANKS).prop_map(Operation::Exit),
    ]
}

/// Reason to end the job, with the rank that causes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    WithoutFinalize(usize),
    BeforeInit(usize),
    Fence(usize),
}

fn end_of(reason: &EndReason) -> End {
    match reason {
        EndReason::LeftWithoutFinalize { rank } => End::WithoutFinalize(rank.index()),
        EndReason::LeftBeforeInit { rank, .. } => End::BeforeInit(rank.index()),
        EndReason::LeftFence { rank, .. } => End::Fence(rank.index()),
        other => panic!("{other:?}"),
    }
}

#[derive(Clone, Copy, Debug)]
struct Rank {
    phase: Phase,
    /// Number of times that it has joined.
    lives: u32,
    exited: bool,
    waits: bool,
}

/// The rules in a second form: derived only from the states of all ranks.
fn expected_end(ranks: &[Rank; RANKS]) -> Option<End> {
    let first = |is: fn(&Rank) -> bool| ranks.iter().position(is);
    if let Some(rank) = first(|rank| rank.exited && rank.phase == Phase::Open) {
        return Some(End::WithoutFinalize(rank));
    }
    let silent = first(|rank| rank.exited && rank.phase == Phase::Silent);
    if let Some(rank) = silent.filter(|_| ranks.iter().any(|rank| rank.phase != Phase::Silent)) {
        return Some(End::BeforeInit(rank));
    }
    // A finalized rank may return, as a waiting one has.
    let lives = ranks.iter().filter(|rank| rank.waits).map(|rank| rank.lives).max()?;
    let is_gone = |rank: &Rank| rank.exited || (rank.phase == Phase::Finalized && rank.lives >= lives);
    ranks.iter().position(|rank| !rank.waits && is_gone(rank)).map(End::Fence)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn the_launch_ends_when_a_rank_is_waited_for_in_vain_and_only_then(operations in prop::collection::vec(operation(), 0..40)) {
        let mut world = World::new(1, &[RANKS as u32]);
        let mut clients: [Option<Client>; RANKS] = [None; RANKS];
        let mut ranks = [Rank { phase: Phase::Silent, lives: 0, exited: false, waits: false }; RANKS];
        for operation in operations {
            let (Operation::Join(index) | Operation::Fence(index) | Operation::Finalize(index) | Operation::Exit(index)) = operation;
            let rank = &mut ranks[index];
            match (operation, clients[index]) {
                (Operation::Join(_), None) if !rank.exited => {
                    clients[index] = world.join(0, "job0", index as u32, Flex);
                    rank.phase = Phase::Open;
                    rank.lives += 1;
                }
                (Operation::Fence(_), Some(client)) if rank.phase == Phase::Open && !rank.waits && !rank.exited => {
                    world.send(client, 101, command::FENCE, procs(&whole("job0")));
                    rank.waits = true;
                }
                (Operation::Finalize(_), Some(client)) if rank.phase == Phase::Open && !rank.waits && !rank.exited => {
                    world.send(client, 102, command::FINALIZE, |_| {});
                    world.hang_up(client);
                    clients[index] = None;
                    rank.phase = Phase::Finalized;
                }
                (Operation::Exit(_), _) if !rank.exited => {
                    world.exit(0, index as u32);
                    rank.exited = true;
                }
                _ => continue,
            }
            if ranks.iter().all(|rank| rank.waits) {
                ranks.iter_mut().for_each(|rank| rank.waits = false);
            }
            let expected = expected_end(&ranks);
            prop_assert_eq!(world.end.as_ref().map(end_of), expected, "after {:?}: {:?}", operation, ranks);
            if expected.is_some() {
                break;
            }
        }
    }
}
