//! Orders of events that have a meaning of their own.

use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use pmi_core::fence::FenceError;
use pmi_core::ids::{Epoch, JobId, LocalRank, NodeIndex, Rank};
use pmi_core::job::{Job, Placement};
use pmi_core::server::EndReason;
use rank_spawner::RankExit;

use super::super::desertion::FenceSeen;
use super::super::jobs::JobNumber;
use super::super::ranks::SlotId;
use super::super::watch::SilentSeen;
use super::super::{Phase, StartFailure};
use super::world::{KILLED, World};
use super::{spec, spec_on};
use crate::cause::{CauseKind, StartClass};
use crate::event::{Event, MpiFamily, MpiLibrary, Notice};
use crate::session_io::Control;
use crate::settings::Timeouts;
use crate::spawn::SpawnOrder;
use crate::spec::SessionSpec;

const LAUNCHED: JobNumber = JobNumber::LAUNCHED;
const FAILED: RankExit = RankExit::Code(3);
const GOOD: RankExit = RankExit::Code(0);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn with_timeouts(ranks: u32, timeouts: Timeouts) -> Arc<SessionSpec> {
    let mut spec = spec(ranks);
    Arc::make_mut(&mut spec).settings.timeouts = timeouts;
    spec
}

fn failed(rank: u32) -> CauseKind {
    CauseKind::Failed { rank: Rank(rank), exit: FAILED }
}

fn abort(rank: u32) -> EndReason {
    EndReason::Abort { rank: Rank(rank), code: Some(42), whole_job: true, message: String::new() }
}

fn aborted(rank: u32) -> CauseKind {
    CauseKind::Aborted { rank: Rank(rank), code: 42, message: String::new() }
}

/// A job of `ranks` ranks on node 0 and one on node 1, as the launch orders it.
fn order(id: &str, ranks: u32, first_shown: u32) -> SpawnOrder {
    let id = JobId::new(id).unwrap();
    let spawner = Some(JobId::new("kvs_1_0").unwrap());
    let job = Job { placement: Placement::block(&[ranks, 1]), spawner, ..Job::on_one_node(id, ranks + 1) };
    SpawnOrder { job, apps: spec(1).apps.clone(), parent_rank: Rank(0), first_shown: Rank(first_shown) }
}

fn spawned(world: &World) -> Vec<(&str, Option<&str>)> {
    let mut told = Vec::new();
    for event in &world.events {
        if let Event::Spawned { job, failure } = event {
            told.push((job.as_str(), failure.as_deref()));
        }
    }
    told
}

fn exited(world: &World) -> Vec<u32> {
    let rank = |event: &Event| if let Event::Exited { rank, .. } = event { Some(rank.0) } else { None };
    world.events.iter().filter_map(rank).collect()
}

#[test]
fn a_launch_whose_ranks_end_well_has_no_cause() {
    let mut world = World::running(spec(2));
    assert_eq!((world.machine.phase(), world.stdin_fed), (&Phase::Running, 1));
    world.exit(SlotId(1), GOOD);
    assert!(!world.is_done());
    world.advance(seconds(2));
    world.exit(SlotId(0), GOOD);
    let report = world.machine.report();
    assert_eq!((report.cause, report.duration), (None, seconds(2)));
    assert_eq!(report.exits, [(Rank(0), GOOD), (Rank(1), GOOD)]);
    assert!(world.is_done() && world.signals.is_empty());
}

#[test]
fn signals_come_at_their_deadlines_and_not_before() {
    let check = |control: Control, expected: &[(u64, Signal)]| {
        let mut world = World::running(spec(1));
        let asked = format!("{control:?}");
        world.control(control);
        let mut seen = Vec::new();
        for step in 0..=200 {
            let sent = world.signals.get(&SlotId(0)).map_or(0, Vec::len);
            seen.extend(
                (seen.len()..sent).map(|index| (step * 50, world.signals[&SlotId(0)][index])).collect::<Vec<_>>(),
            );
            world.advance(Duration::from_millis(50));
        }
        assert_eq!(seen, expected, "{asked}");
        assert_eq!(world.alive(), [SlotId(0)], "it lives until it is reaped");
        world.finish();
    };
    check(Control::End(15), &[(0, Signal::SIGTERM), (5000, Signal::SIGKILL)]);
    check(Control::End(2), &[(0, Signal::SIGINT), (2500, Signal::SIGTERM), (5000, Signal::SIGKILL)]);
    check(Control::Kill(2), &[(0, Signal::SIGKILL)]);
    check(Control::GiveUp, &[(0, Signal::SIGTERM), (400, Signal::SIGKILL)]);
    check(Control::End(9999), &[(0, Signal::SIGTERM), (5000, Signal::SIGKILL)]);
    check(Control::Signal(10), &[(0, Signal::SIGUSR1)]);
    check(Control::Signal(9999), &[]);
}

#[test]
fn a_failure_ends_the_others_within_the_grace_of_failures() {
    let mut world = World::running(spec(3));
    world.exit(SlotId(1), FAILED);
    assert_eq!(world.cause(), Some(failed(1)));
    assert_eq!(world.signals.keys().collect::<Vec<_>>(), [&SlotId(0), &SlotId(2)], "the reaped one gets none");
    world.advance(Duration::from_millis(399));
    assert_eq!(world.signals[&SlotId(0)], [Signal::SIGTERM]);
    world.exit(SlotId(0), RankExit::Signal { signal: 15, core_dumped: false });
    world.advance(Duration::from_millis(1));
    assert_eq!(world.signals[&SlotId(0)], [Signal::SIGTERM]);
    assert_eq!(world.signals[&SlotId(2)], [Signal::SIGTERM, Signal::SIGKILL]);
    world.exit(SlotId(2), KILLED);
    assert!(world.is_done());
    assert_eq!(world.cause(), Some(failed(1)));
}

#[test]
fn a_second_interrupt_hastens_an_end() {
    let mut world = World::running(spec(1));
    world.control(Control::End(2));
    world.advance(seconds(1));
    world.control(Control::Kill(2));
    assert_eq!(world.signals[&SlotId(0)], [Signal::SIGINT, Signal::SIGKILL]);
    assert_eq!(world.cause(), Some(CauseKind::Interrupted { signal: 2 }));
    world.finish();
}

#[test]
fn the_time_limit_ends_a_launch_once() {
    let limit = seconds(60);
    let mut world = World::running(with_timeouts(2, Timeouts { time_limit: Some(limit), ..Timeouts::default() }));
    world.advance(limit - Duration::from_millis(1));
    assert_eq!(world.cause(), None);
    world.advance(Duration::from_millis(1));
    assert_eq!(world.cause(), Some(CauseKind::TimedOut { limit }));
    world.advance(seconds(5));
    assert_eq!(world.signals[&SlotId(1)], [Signal::SIGTERM, Signal::SIGKILL]);
    world.finish();
}

#[test]
fn a_time_limit_that_passes_during_an_end_changes_nothing() {
    let timeouts = Timeouts { time_limit: Some(seconds(2)), ..Timeouts::default() };
    let mut world = World::running(with_timeouts(1, timeouts));
    world.advance(seconds(1));
    world.control(Control::End(15));
    world.advance(seconds(5));
    assert_eq!(world.signals[&SlotId(0)], [Signal::SIGTERM, Signal::SIGKILL]);
    assert_eq!(world.cause(), Some(CauseKind::Interrupted { signal: 15 }));
    world.finish();
}

#[test]
fn the_loss_of_the_launch_ends_the_ranks_unless_they_end_already() {
    let mut world = World::running(spec(1));
    world.lose_control();
    assert_eq!(world.cause(), Some(CauseKind::Interrupted { signal: 1 }));
    assert_eq!(world.signals[&SlotId(0)], [Signal::SIGHUP]);
    world.finish();
    let mut world = World::running(spec(1));
    world.control(Control::GiveUp);
    world.lose_control();
    assert_eq!((world.cause(), &world.signals[&SlotId(0)][..]), (None, &[Signal::SIGTERM][..]));
    world.finish();
}

#[test]
fn a_program_that_is_not_there_starts_nobody() {
    let mut world = World::prepared(spec(3), false);
    let class = StartClass::NotFound;
    assert!(world.is_done() && world.starting.is_empty());
    assert_eq!(world.cause(), Some(CauseKind::NotStarted { reason: "no such program".to_owned(), class }));
    assert_eq!(world.machine.report().exits, []);
    world.finish();
}

#[test]
fn a_start_that_fails_ends_those_that_run_and_those_that_come_late() {
    let mut world = World::new(spec(3));
    world.start(SlotId(0));
    let (class, reason) = (StartClass::System, "no memory".to_owned());
    world.fail_start(SlotId(1), StartFailure::Failed { class, reason: reason.clone() });
    assert_eq!(world.signals[&SlotId(0)], [Signal::SIGTERM]);
    world.advance(Duration::from_millis(400));
    world.start(SlotId(2));
    assert_eq!(world.signals[&SlotId(2)], [Signal::SIGKILL], "it gets at once what the others got last");
    assert_eq!(world.cause(), Some(CauseKind::NotStarted { reason, class }));
    world.exit(SlotId(0), KILLED);
    world.exit(SlotId(2), KILLED);
    assert!(world.is_done());
}

#[test]
fn starts_that_were_given_up_are_no_cause() {
    let mut world = World::new(spec(2));
    world.fail_start(SlotId(0), StartFailure::GivenUp);
    assert_eq!(world.cause(), None);
    let failure = StartFailure::Failed { class: StartClass::NotFound, reason: "not there".to_owned() };
    world.fail_start(SlotId(1), failure);
    assert!(world.is_done() && matches!(world.cause(), Some(CauseKind::NotStarted { .. })));
}

/// A rank whose PMI socket could not be watched was neither signalled nor reaped, and its session never ended.
#[test]
fn a_rank_that_cannot_be_served_is_ended_and_reaped() {
    let mut world = World::new(spec(2));
    world.start(SlotId(0));
    world.start_unserved(SlotId(1));
    let reason = "no descriptor left".to_owned();
    assert_eq!(world.cause(), Some(CauseKind::NotStarted { reason, class: StartClass::System }));
    assert_eq!(world.signals[&SlotId(0)], [Signal::SIGTERM]);
    assert_eq!(world.signals[&SlotId(1)], [Signal::SIGTERM]);
    assert!(!world.is_done(), "its process runs");
    world.advance(Duration::from_millis(400));
    world.exit(SlotId(0), KILLED);
    world.exit(SlotId(1), KILLED);
    assert!(world.is_done());
    assert_eq!(world.machine.report().exits.len(), 2);
}

#[test]
fn an_exit_is_told_after_all_output_and_at_the_latest_at_the_end() {
    let mut world = World::running(spec(2));
    world.exit_with(SlotId(0), GOOD, Vec::new());
    assert_eq!(exited(&world), [0_u32; 0]);
    world.end_output(SlotId(0));
    assert_eq!(exited(&world), [0_u32; 0]);
    world.end_output(SlotId(0));
    assert_eq!(exited(&world), [0]);
    // Somebody else holds the pipes of rank 1.
    world.exit_with(SlotId(1), GOOD, Vec::new());
    assert!(world.is_done());
    assert_eq!(exited(&world), [0, 1]);
}

#[test]
fn the_last_message_of_a_rank_counts_before_its_exit() {
    let mut world = World::running(spec(2));
    world.exit_with(SlotId(0), RankExit::Code(42), vec![(LAUNCHED, abort(0))]);
    assert_eq!(world.cause(), Some(aborted(0)));
    world.finish();
}

#[test]
fn an_abort_over_a_peer_that_was_killed_is_the_peers_failure() {
    let mut world = World::running(spec(2));
    world.exit_with(SlotId(1), KILLED, vec![(LAUNCHED, abort(0))]);
    assert_eq!(world.cause(), Some(CauseKind::Failed { rank: Rank(1), exit: KILLED }));
    world.finish();
}

#[test]
fn whatever_comes_after_the_first_cause_changes_nothing() {
    type Happen = fn(&mut World);
    let all: [(Happen, CauseKind); 5] = [
        (|world| world.exit(world.alive()[0], FAILED), failed(0)),
        (|world| world.reason(LAUNCHED, abort(2)), aborted(2)),
        (|world| world.control(Control::End(2)), CauseKind::Interrupted { signal: 2 }),
        (|world| world.lose_control(), CauseKind::Interrupted { signal: 1 }),
        (
            |world| world.reason(LAUNCHED, EndReason::LeftWithoutFinalize { rank: Rank(1) }),
            CauseKind::LeftWithoutFinalize { rank: Rank(1) },
        ),
    ];
    for (first, (begin, cause)) in all.iter().enumerate() {
        let mut world = World::running(spec(4));
        begin(&mut world);
        assert_eq!(world.cause().as_ref(), Some(cause));
        for (_, (follow, _)) in all.iter().enumerate().filter(|(other, _)| *other != first) {
            follow(&mut world);
            assert_eq!(world.cause().as_ref(), Some(cause));
        }
        world.finish();
        assert_eq!(world.cause().as_ref(), Some(cause));
    }
}

#[test]
fn a_lost_node_is_named_as_the_place_of_the_cause() {
    let mut world = World::running(spec_on(&[1, 1]));
    let error = FenceError::NodeLost { node: NodeIndex(1), epoch: Epoch(0), reason: "reset".to_owned() };
    world.reason(LAUNCHED, EndReason::Fence(Arc::new(error)));
    assert_eq!(world.alarms[0].host, "n1");
    assert_eq!(world.cause(), Some(CauseKind::NodeLost { reason: "reset".to_owned() }));
    world.finish();
}

#[test]
fn a_node_without_ranks_waits_until_it_is_released() {
    let mut world = World::new(spec_on(&[0, 2]));
    world.advance(seconds(3600));
    assert_eq!(world.machine.phase(), &Phase::Running);
    world.control(Control::Release);
    assert!(world.is_done() && world.stdin_fed == 1);
}

#[test]
fn a_node_without_ranks_ends_with_the_launch() {
    for control in [Control::GiveUp, Control::End(2), Control::Kill(2)] {
        let mut world = World::new(spec_on(&[0, 2]));
        world.control(control);
        assert!(world.is_done());
    }
}

#[test]
fn a_spawn_is_answered_when_the_last_of_its_ranks_runs() {
    let mut world = World::running(spec(1));
    world.spawn(LAUNCHED, 2);
    world.start(SlotId(1));
    assert!(world.answers.is_empty());
    world.start(SlotId(2));
    assert_eq!(world.answers[&1].as_ref().unwrap().as_str(), "kvs_1_0.s1");
    let shown: Vec<u32> = world.machine.ranks().iter().map(|(_, slot)| slot.rank.0).collect();
    assert_eq!((shown, world.stdin_fed), (vec![0, 1, 2], 1));
    world.finish();
}

#[test]
fn parent_and_children_are_judged_together() {
    let mut world = World::running(spec(1));
    world.spawn(LAUNCHED, 1);
    world.start_all();
    world.exit(SlotId(1), FAILED);
    assert_eq!(world.cause(), Some(failed(1)));
    assert_eq!(world.signals[&SlotId(0)], [Signal::SIGTERM]);
    world.finish();
    let mut world = World::running(spec(2));
    world.spawn(LAUNCHED, 2);
    world.start_all();
    world.reason(JobNumber(1), abort(1));
    assert_eq!(world.cause(), Some(aborted(3)), "in the numbers that are shown");
    world.finish();
}

#[test]
fn a_spawn_that_fails_harms_nobody() {
    let mut world = World::running(spec(1));
    world.spawn(LAUNCHED, 2);
    world.start(SlotId(1));
    let failure = StartFailure::Failed { class: StartClass::NotFound, reason: "not there".to_owned() };
    world.fail_start(SlotId(2), failure);
    assert!(world.answers[&1].as_ref().unwrap_err().to_string().contains("not there"));
    assert_eq!(world.signals[&SlotId(1)], [Signal::SIGKILL], "the half that runs is ended");
    world.exit(SlotId(1), KILLED);
    world.reason(JobNumber(1), abort(0));
    assert_eq!((world.cause(), world.machine.phase()), (None, &Phase::Running));
    world.finish();
    assert_eq!(world.cause(), None);
}

#[test]
fn a_spawn_that_cannot_be_prepared_or_admitted_is_answered_at_once() {
    let check = |prepared: bool, job: JobNumber, ranks: u32, expected: &str| {
        let mut world = World::running(spec(1));
        world.preparations.push(prepared);
        world.spawn(job, ranks);
        let answer = world.answers[&1].as_ref().unwrap_err().to_string();
        assert!(answer.contains(expected), "{answer}");
        assert!(world.starting.is_empty());
        world.finish();
        assert_eq!(world.cause(), None);
    };
    check(false, LAUNCHED, 1, "no such program");
    check(true, LAUNCHED, 0, "no rank was asked for");
    check(true, LAUNCHED, 20_000, "a node has up to 16384");
    check(true, LAUNCHED, 2_000_000, "a launch has up to 1048576");
}

#[test]
fn nothing_is_spawned_by_a_launch_that_ends() {
    let mut world = World::running(spec(1));
    world.control(Control::End(15));
    world.spawn(LAUNCHED, 1);
    assert!(world.answers[&1].as_ref().unwrap_err().to_string().contains("the launch is ending"));
    world.control(Control::Spawn(order("kvs_1_0.s1", 1, 1)));
    assert_eq!(spawned(&world), [("kvs_1_0.s1", Some("the launch is ending"))]);
    world.finish();
    world.control(Control::Spawn(order("kvs_1_0.s2", 1, 1)));
    assert_eq!(spawned(&world)[1].1, Some("this node's part of the launch is over"));
}

#[test]
fn orders_to_spawn_are_answered_whether_or_not_there_are_ranks_here() {
    let mut world = World::running(spec_on(&[1, 1]));
    world.control(Control::Spawn(order("kvs_1_0.s1", 0, 2)));
    assert_eq!(spawned(&world), [("kvs_1_0.s1", None)]);
    world.control(Control::Spawn(order("kvs_1_0.s1", 0, 2)));
    assert_eq!(spawned(&world)[1], ("kvs_1_0.s1", Some("job kvs_1_0.s1 is here already")));
    let orphan = SpawnOrder {
        job: Job { spawner: Some(JobId::new("nobody").unwrap()), ..order("kvs_1_0.s2", 0, 2).job },
        ..order("kvs_1_0.s2", 0, 2)
    };
    world.control(Control::Spawn(orphan));
    assert_eq!(spawned(&world)[2].1, Some("the parent of job kvs_1_0.s2 is not known here"));
    world.control(Control::Spawn(order("kvs_1_0.s3", 2, 4)));
    assert_eq!(spawned(&world).len(), 3, "its ranks are not there yet");
    world.start_all();
    assert_eq!(spawned(&world)[3], ("kvs_1_0.s3", None));
    world.finish();
}

#[test]
fn a_disowned_job_is_killed_once_none_of_its_ranks_is_on_its_way() {
    let mut world = World::running(spec_on(&[1, 1]));
    world.control(Control::Spawn(order("kvs_1_0.s1", 2, 2)));
    world.start(SlotId(1));
    let id = || JobId::new("kvs_1_0.s1").unwrap();
    world.control(Control::Disown(id()));
    assert!(!world.signals.contains_key(&SlotId(1)));
    world.start(SlotId(2));
    assert_eq!(
        (&world.signals[&SlotId(1)], &world.signals[&SlotId(2)]),
        (&vec![Signal::SIGKILL], &vec![Signal::SIGKILL])
    );
    world.exit(SlotId(1), KILLED);
    world.exit(SlotId(2), FAILED);
    assert_eq!(world.cause(), None, "their ends say nothing about the launch");
    world.control(Control::Disown(JobId::new("kvs_1_0").unwrap()));
    world.control(Control::Disown(JobId::new("unknown").unwrap()));
    assert_eq!(world.alive(), [SlotId(0)], "the launched job is the launch itself");
    world.finish();
}

fn fence(job: usize, waiting: &[u32], missing: &[u32]) -> FenceSeen {
    let waiting = waiting.iter().copied().map(LocalRank).collect();
    let missing = missing.iter().map(|&rank| (Rank(rank), Some("get".to_owned()))).collect();
    let (name, epoch) = ("fence".into(), Epoch(0));
    FenceSeen { job: JobNumber(job), name, epoch, whole_job: true, waiting, missing }
}

/// Only the launched job was looked at: ranks of a spawned one waited for ever for a rank that had finalized on another node.
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

#[test]
fn ranks_that_miss_one_of_their_own_node_wait_for_nobody_else() {
    let mut world = World::running(spec_on(&[2, 1]));
    world.fences = vec![fence(0, &[0], &[1])];
    world.advance(seconds(3));
    assert!(!world.events.iter().any(|event| matches!(event, Event::Waiting { .. })));
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
    world.silent = SilentSeen { slots: vec![SlotId(0), SlotId(2)], mapped: Some(mpich()), needed: Vec::new() };
    world.advance(seconds(1));
    // It may be gone from memory when they are told of.
    world.silent.mapped = None;
    world.advance(seconds(20));
    assert_eq!(silences(&world), [(vec![0, 2], false, Some("MPICH"))]);
    world.finish();
    assert_eq!(silences(&world).len(), 1, "they are not told of again at the end");
}

#[test]
fn ranks_that_ended_in_silence_are_told_of_unless_something_else_explains_the_end() {
    let silent = SilentSeen { slots: vec![SlotId(0), SlotId(1)], mapped: None, needed: vec![(SlotId(1), mpich())] };
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
    world.silent = SilentSeen { slots: vec![SlotId(0)], mapped: Some(mpich()), needed: Vec::new() };
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
        Event::Progress { question, ranks } => {
            Some((*question, ranks.iter().map(|rank| (rank.pid, rank.waiting, rank.exit)).collect::<Vec<_>>()))
        }
        _ => None,
    });
    let told: Vec<_> = told.collect();
    assert_eq!(told[0], (7, vec![(Some(1000), true, None), (None, false, None)]));
    assert_eq!(told[1], (8, vec![(Some(1000), true, Some(GOOD)), (Some(1001), false, Some(GOOD))]));
}

#[test]
fn what_cannot_be_killed_is_told_of() {
    let mut world = World::running(spec(1));
    world.survivors = vec![4711];
    world.exit(SlotId(0), GOOD);
    assert!(world.is_done());
    assert_eq!(world.notices(), [&Notice::Leftover { pids: vec![4711] }]);
}

#[test]
fn signals_reach_the_ranks_that_are_meant_and_live() {
    let mut world = World::running(spec(4));
    world.exit(SlotId(2), GOOD);
    let ranks = "1-3".parse().unwrap();
    world.control(Control::SignalRanks(12, ranks));
    let signalled: Vec<_> = world.signals.iter().map(|(slot, sent)| (slot.0, sent[0])).collect();
    assert_eq!(signalled, [(1, Signal::SIGUSR2), (3, Signal::SIGUSR2)]);
    world.finish();
}
