//! Reports of ranks that wait or are silent, and answers about their progress.

use super::*;
use crate::event::SpokenProtocol;

pub(super) fn fence(job: usize, waiting: &[u32], missing: &[u32]) -> FenceSeen {
    let waiting = waiting.iter().copied().map(LocalRank).collect();
    let missing = missing.iter().map(|&rank| (Rank(rank), Some("get".to_owned()))).collect();
    let (name, epoch) = ("fence".into(), Epoch(0));
    let protocol = SpokenProtocol::Pmi;
    let (job, strangers) = (JobNumber(job), Vec::new());
    FenceSeen { job, protocol, name, epoch, whole_job: true, at_start: true, waiting, missing, strangers }
}

/// Before, only the launched job was inspected. Ranks of a spawned job waited indefinitely for a rank that had finalized on another node.
#[test]
fn ranks_of_every_job_that_wait_for_other_nodes_are_told_of_once() {
    let mut world = World::running(spec_on(&[2, 1]));
    world.control(Control::Spawn(order("kvs_1_0.s1", 2, 3)));
    world.start_all();
    world.fences = vec![fence(0, &[0, 1], &[]), fence(1, &[1], &[])];
    world.advance(seconds(3));
    let waiting = |event: &Event| if let Event::Waiting { ranks } = event { Some(ranks.clone()) } else { None };
    let told: Vec<Vec<Rank>> = world.events.iter().filter_map(waiting).collect();
    assert_eq!(told, [vec![Rank(0), Rank(1)], vec![Rank(4)]]);
    world.finish();
}

/// Ranks wait after their start-up; the missing ranks are here or on another node.
#[test]
fn ranks_of_several_nodes_that_wait_for_long_are_reported_to_the_launch() {
    for missing in [&[][..], &[1]] {
        let mut world = World::running(spec_on(&[2, 1]));
        world.fences = vec![FenceSeen { at_start: false, ..fence(0, &[0], missing) }];
        world.advance(seconds(70));
        let since = |event: &Event| if let Event::LongWait { since } = event { Some(since.as_secs()) } else { None };
        let reported: Vec<u64> = world.events.iter().filter_map(since).collect();
        assert_eq!(reported, [15, 30]);
        assert!(world.looks.is_empty(), "the launch names the ranks to look at");
        world.finish();
    }
}

#[test]
fn ranks_that_miss_one_of_their_own_node_wait_for_nobody_else() {
    let mut world = World::running(spec_on(&[2, 1]));
    world.fences = vec![fence(0, &[0], &[1])];
    world.advance(seconds(3));
    assert!(!world.events.iter().any(|event| matches!(event, Event::Waiting { .. })));
    world.finish();
}

/// Some ranks import their modules from a slow file system for minutes.
#[test]
fn ranks_may_come_late_to_a_fence() {
    let mut world = World::running(spec(2));
    world.fences = vec![fence(0, &[0], &[1])];
    world.advance(seconds(3600));
    assert_eq!(world.cause(), None);
    world.finish();
}

#[test]
fn a_fence_that_takes_too_long_ends_the_launch_with_those_it_waits_for() {
    let limit = seconds(2);
    let mut world = World::running(with_timeouts(2, Timeouts { fence: Some(limit), ..Timeouts::default() }));
    world.advance(seconds(10));
    world.fences = vec![fence(0, &[0], &[1])];
    world.advance(Duration::from_millis(1900));
    assert_eq!(world.cause(), None);
    world.advance(Duration::from_millis(500));
    let missing = vec![(Rank(1), Some("get".to_owned()))];
    assert_eq!(world.cause(), Some(CauseKind::FenceTimeout { limit, waiting: 1, missing }));
    world.finish();
}

#[test]
fn a_start_up_that_is_stuck_is_told_of_less_and_less_often() {
    let mut world = World::running(spec(2));
    world.fences = vec![fence(0, &[0], &[1])];
    world.advance(seconds(150));
    let stuck = |notice: &&Notice| if let Notice::Stuck { after, .. } = notice { Some(after.as_secs()) } else { None };
    let told: Vec<u64> = world.notices().iter().filter_map(stuck).collect();
    assert_eq!(told, [30, 60, 120]);
    world.finish();
}

/// Before, an MPICH program and an Open MPI program under the same launch waited indefinitely.
#[test]
fn ranks_that_wait_for_each_other_in_two_protocols_end_the_launch() {
    let mut world = World::running(spec(3));
    world.fences = vec![FenceSeen { strangers: vec![Rank(1), Rank(2)], ..fence(0, &[0], &[1, 2]) }];
    world.advance(seconds(31));
    let Some(CauseKind::Fence { reason }) = world.cause() else { panic!("{:?}", world.cause()) };
    assert_eq!(
        reason,
        "rank 0 speaks PMI (MPICH and its kin), and ranks 1-2 speak PMIx (Open MPI): each waits for a rank that never comes; build all \
         programs of a launch with one MPI"
    );
    assert_eq!(world.notices(), Vec::<&Notice>::new());
    world.finish();
}

/// A library other than MPI speaks the other protocol: its ranks wait in both protocols, by two threads.
#[test]
fn ranks_that_wait_in_both_protocols_are_only_slow() {
    let mut world = World::running(spec(2));
    let beside = FenceSeen { protocol: SpokenProtocol::Pmix, ..fence(0, &[0], &[1]) };
    world.fences = vec![fence(0, &[0], &[1]), beside];
    world.advance(seconds(31));
    assert_eq!(world.cause(), None);
    world.finish();
}

#[test]
fn ranks_that_meet_again_and_again_are_not_called_stuck() {
    let mut world = World::running(spec(2));
    for meeting in 0..200 {
        world.fences = vec![FenceSeen { epoch: Epoch(meeting), ..fence(0, &[0], &[1]) }];
        world.advance(seconds(1));
    }
    assert_eq!(world.notices(), Vec::<&Notice>::new());
    world.finish();
}

/// Before, ranks that waited in `MPI_Finalize` for a rank that wrote its results were reported as stuck in their start-up. A debugger stops
/// the writing rank at doubling times only.
#[test]
fn ranks_that_wait_after_their_start_up_are_not_called_stuck() {
    let mut world = World::running(spec(2));
    world.stack = Some("#0 write ()\n#1 write_results ()\n#2 main ()\n");
    world.fences = vec![FenceSeen { epoch: Epoch(1), at_start: false, ..fence(0, &[0], &[1]) }];
    world.advance(seconds(3600));
    assert_eq!(world.notices(), Vec::<&Notice>::new());
    assert_eq!(world.looks.len(), 7, "at 30 s to 1920 s");
    world.finish();
}

fn mpich() -> MpiLibrary {
    MpiLibrary { name: "MPICH".to_owned(), file: "libmpich.so.12".to_owned(), family: MpiFamily::Pmi }
}

fn silences(world: &World) -> Vec<(Vec<u32>, bool, Option<&str>)> {
    let silence = |notice: &Notice| match notice {
        Notice::Silent { ranks, ended, library, .. } => {
            let ranks = ranks.iter().map(|rank| rank.0).collect();
            Some((ranks, *ended, library.clone().map(|library| library.name)))
        }
        _ => None,
    };
    let told = world.notices().into_iter().filter_map(silence);
    told.map(|(ranks, ended, library)| (ranks, ended, library.map(|_| "MPICH"))).collect()
}

#[test]
fn silent_ranks_that_run_are_told_of_once_with_the_library_that_was_seen_in_them() {
    let mut world = World::running(spec(3));
    world.silent = SilentSeen { slots: vec![SlotId(0), SlotId(2)], mapped: Some(mpich()), ..SilentSeen::default() };
    world.advance(seconds(1));
    // The library may be gone from memory at the time of the report.
    world.silent.mapped = None;
    world.advance(seconds(20));
    assert_eq!(silences(&world), [(vec![0, 2], false, Some("MPICH"))]);
    world.finish();
    assert_eq!(silences(&world).len(), 1, "they are not told of again at the end");
}

#[test]
fn a_library_in_a_rank_that_speaks_later_says_nothing_about_others() {
    let mut world = World::running(spec(3));
    world.silent = SilentSeen { slots: vec![SlotId(0), SlotId(2)], mapped: Some(mpich()), ..SilentSeen::default() };
    world.advance(seconds(1));
    world.silent = SilentSeen { slots: vec![SlotId(2)], ..SilentSeen::default() };
    world.advance(seconds(20));
    assert_eq!(silences(&world), [(vec![2], false, None)]);
}

#[test]
fn ranks_that_ended_in_silence_are_told_of_unless_something_else_explains_the_end() {
    let silent =
        SilentSeen { slots: vec![SlotId(0), SlotId(1)], needed: vec![(SlotId(1), mpich())], ..SilentSeen::default() };
    let mut world = World::running(spec(2));
    world.silent = silent.clone();
    world.exit(SlotId(0), GOOD);
    world.exit(SlotId(1), GOOD);
    assert_eq!(silences(&world), [(vec![0, 1], true, Some("MPICH"))]);
    let mut world = World::running(spec(2));
    world.silent = silent;
    world.exit(SlotId(0), FAILED);
    world.finish();
    assert_eq!(silences(&world), []);
}

#[test]
fn one_rank_by_itself_may_be_silent() {
    let mut world = World::running(spec(1));
    world.silent = SilentSeen { slots: vec![SlotId(0)], mapped: Some(mpich()), ..SilentSeen::default() };
    world.advance(seconds(100));
    world.exit(SlotId(0), GOOD);
    assert_eq!(silences(&world), []);
}

#[test]
fn progress_is_told_at_any_time_even_after_the_last_rank() {
    let mut world = World::new(spec(2));
    world.start(SlotId(0));
    world.fences = vec![fence(0, &[0], &[1])];
    world.control(Control::AskProgress(7));
    world.start(SlotId(1));
    world.exit(SlotId(0), GOOD);
    world.exit(SlotId(1), GOOD);
    world.control(Control::AskProgress(8));
    let told = world.events.iter().filter_map(|event| match event {
        Event::Progress { question, ranks, .. } => {
            Some((*question, ranks.iter().map(|rank| (rank.pid, rank.waiting, rank.exit)).collect::<Vec<_>>()))
        }
        _ => None,
    });
    let told: Vec<_> = told.collect();
    assert_eq!(told[0], (7, vec![(Some(1000), true, None), (None, false, None)]));
    assert_eq!(told[1], (8, vec![(Some(1000), true, Some(GOOD)), (Some(1001), false, Some(GOOD))]));
}

#[test]
fn a_rank_that_waits_for_a_part_of_its_job_does_not_wait_for_all() {
    for whole_job in [false, true] {
        let mut world = World::running(spec(2));
        world.fences = vec![FenceSeen { whole_job, ..fence(0, &[0], &[]) }];
        world.control(Control::AskProgress(7));
        let told = world.events.iter().find_map(|event| match event {
            Event::Progress { ranks, .. } => Some((ranks[0].waiting, ranks[0].waits_for_all, ranks[1].waits_for_all)),
            _ => None,
        });
        assert_eq!(told, Some((true, whole_job, false)));
    }
}

/// A program may have the same problem with each of its resources. A release that kills its rank is always reported.
#[test]
fn overdue_releases_are_told_but_not_for_ever() {
    let mut world = World::running(spec(2));
    let tell = |world: &mut World, number: u32, killed| {
        world.machine.on_overdue(Rank(1), format!("shm:{number}"), seconds(10), killed);
        world.settle();
    };
    (0..100).for_each(|number| tell(&mut world, number, false));
    tell(&mut world, 100, true);
    let told: Vec<Notice> = world.notices().into_iter().cloned().collect();
    assert_eq!(told.len(), 17);
    let last = Notice::ReleaseOverdue { rank: Rank(1), resource: "shm:100".into(), within: seconds(10), killed: true };
    assert_eq!(told.last(), Some(&last));
    world.finish();

    let mut world = World::running(spec(1));
    world.control(Control::End(15));
    tell(&mut world, 1, false);
    world.finish();
    assert!(world.notices().is_empty(), "that is not why it ends");
}
