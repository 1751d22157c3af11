//! Ranks that fail in a launch that tolerates failures, the time after the first exit, and the signal before the
//! time limit.

use pmi_core::deaths::{Death, DeathKind};

use super::*;
use crate::settings::{FailedRanks, LimitSignal};

fn bearing(ranks: u32) -> Arc<SessionSpec> {
    let mut spec = spec(ranks);
    Arc::make_mut(&mut spec).settings.failed_ranks = FailedRanks::AreBorne;
    spec
}

#[test]
fn failures_that_are_borne_end_nothing_and_are_named_at_the_end() {
    let mut world = World::running(bearing(4));
    world.exit(SlotId(2), FAILED);
    world.advance(seconds(100));
    world.exit(SlotId(0), KILLED);
    world.exit(SlotId(1), GOOD);
    assert!(!world.is_done() && world.signals.is_empty() && world.alarms.is_empty());
    world.exit(SlotId(3), GOOD);
    assert!(world.is_done() && world.alarms.is_empty(), "nothing was ended");
    let failed = vec![(Rank(0), KILLED), (Rank(2), FAILED)];
    assert_eq!(world.cause(), Some(CauseKind::FailedRanks { failed }));
}

#[test]
fn a_launch_that_bears_failures_and_has_none_is_well() {
    let mut world = World::running(bearing(1));
    world.exit(SlotId(0), GOOD);
    assert_eq!((world.cause(), world.is_done()), (None, true));
}

#[test]
fn what_others_cannot_go_on_after_ends_a_launch_that_bears_failures() {
    let left = EndReason::LeftFence { rank: Rank(1), waiting: vec![Rank(0)] };
    let check = |reason: EndReason, expected: CauseKind| {
        let mut world = World::running(bearing(3));
        world.exit_with(SlotId(1), FAILED, vec![(LAUNCHED, reason)]);
        assert_eq!(world.cause(), Some(expected));
        assert_eq!(world.signals[&SlotId(0)], [Signal::SIGTERM]);
        world.finish();
    };
    check(left.clone(), failed(1));
    check(abort(1), aborted(1));
    check(EndReason::LeftWithoutFinalize { rank: Rank(1) }, CauseKind::LeftWithoutFinalize { rank: Rank(1) });
    // The other ranks reach the fence later.
    let mut world = World::running(bearing(2));
    world.exit(SlotId(1), FAILED);
    assert!(world.alarms.is_empty());
    world.reason(LAUNCHED, left);
    assert_eq!(world.cause(), Some(failed(1)));
    world.finish();
}

#[test]
fn the_ranks_and_servers_here_are_told_of_deaths_and_other_nodes_if_there_are_any() {
    let death = |rank| Death { rank: Rank(rank), kind: DeathKind::Killed };
    for hosts in [vec!["n0".to_owned()], vec!["n0".to_owned(), "n1".to_owned()]] {
        let several = hosts.len() > 1;
        let mut spec = bearing(3);
        Arc::make_mut(&mut spec).hosts = hosts;
        let mut world = World::running(spec);
        world.died(LAUNCHED, death(1));
        let reported = world.events.iter().filter(|event| matches!(event, Event::Died(dead) if *dead == death(1)));
        assert_eq!(
            (reported.count(), world.announced.clone()),
            (usize::from(several), vec![(LAUNCHED, vec![death(1)])])
        );
        world.finish();
    }
}

#[test]
fn deaths_elsewhere_are_those_of_the_job_that_has_the_numbers() {
    let death = |rank| Death { rank: Rank(rank), kind: DeathKind::NodeLost };
    let mut world = World::running(spec_on(&[2, 1]));
    world.control(Control::Spawn(order("kvs_1_0.s1", 2, 3)));
    world.start_all();
    // Ranks 0, 1, 3 and 4 are on this node.
    world.control(Control::Deaths([0, 2, 4, 5, 99].map(death).to_vec()));
    assert_eq!(world.announced, [(LAUNCHED, vec![death(2)]), (JobNumber(1), vec![death(2)])]);
    world.finish();
}

#[test]
fn a_rank_that_cannot_start_ends_a_launch_that_bears_failures() {
    let mut world = World::new(bearing(2));
    world.start(SlotId(0));
    world.fail_start(SlotId(1), StartFailure::Failed { class: StartClass::System, reason: "no memory".to_owned() });
    assert!(matches!(world.cause(), Some(CauseKind::NotStarted { .. })));
    world.finish();
}

#[test]
fn ranks_of_a_disowned_job_have_not_failed() {
    let mut world = World::running(bearing(1));
    world.control(Control::Spawn(order("kvs_1_0.s1", 1, 1)));
    world.start_all();
    world.control(Control::Disown(JobId::new("kvs_1_0.s1").unwrap()));
    world.exit(SlotId(1), KILLED);
    world.exit(SlotId(0), GOOD);
    assert_eq!((world.cause(), world.is_done()), (None, true));
}

#[test]
fn the_others_have_so_long_after_the_first_exit() {
    let wait = seconds(5);
    let mut world = World::running(with_timeouts(3, Timeouts { after_first_exit: Some(wait), ..Timeouts::default() }));
    world.advance(seconds(1000));
    world.exit(SlotId(1), GOOD);
    world.advance(seconds(3));
    world.exit(SlotId(2), GOOD);
    world.advance(seconds(2) - Duration::from_millis(1));
    assert!(world.signals.is_empty());
    world.advance(Duration::from_millis(1));
    assert_eq!(world.cause(), Some(CauseKind::FirstExit { rank: Rank(1), wait }));
    world.advance(seconds(1));
    assert_eq!(world.signals[&SlotId(0)], [Signal::SIGTERM, Signal::SIGKILL]);
    world.finish();
}

#[test]
fn ranks_of_a_spawned_job_may_end_before_the_launched_one() {
    let wait = Some(seconds(5));
    let mut world = World::running(with_timeouts(1, Timeouts { after_first_exit: wait, ..Timeouts::default() }));
    world.control(Control::Spawn(order("kvs_1_0.s1", 1, 1)));
    world.start_all();
    world.exit(SlotId(1), GOOD);
    world.advance(seconds(100));
    assert_eq!(world.cause(), None);
    world.finish();
}

#[test]
fn a_signal_comes_before_the_time_limit_unless_the_launch_is_ending() {
    let limit_signal = Some(LimitSignal { signal: 10, ahead: seconds(20) });
    let timeouts = Timeouts { time_limit: Some(seconds(60)), limit_signal, ..Timeouts::default() };
    let mut world = World::running(with_timeouts(2, timeouts));
    world.advance(seconds(40) - Duration::from_millis(1));
    assert!(world.signals.is_empty());
    world.advance(Duration::from_millis(1));
    assert_eq!(world.signals[&SlotId(1)], [Signal::SIGUSR1]);
    assert_eq!(world.cause(), None);
    world.advance(seconds(20));
    assert_eq!(world.cause(), Some(CauseKind::TimedOut { limit: seconds(60) }));
    world.finish();
    let mut ending = World::running(with_timeouts(1, Timeouts { grace_after_interrupt: seconds(99), ..timeouts }));
    ending.advance(seconds(39));
    ending.control(Control::End(15));
    ending.advance(seconds(10));
    assert_eq!(ending.signals[&SlotId(0)], [Signal::SIGTERM]);
    ending.finish();
}
