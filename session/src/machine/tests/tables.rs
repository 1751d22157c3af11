//! Sequences of events with a specific meaning.

mod failures;
mod late_ranks;
mod spawns;
mod watching;

use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use pmi_core::fence::FenceError;
use pmi_core::ids::{Epoch, JobId, LocalRank, NodeIndex, Rank};
use pmi_core::job::{Job, Placement};
use pmi_core::server::EndReason;
use pmix_core::server::Need;
use rank_spawner::{CpuBind, RankExit, TerminalSize};

use super::super::desertion::FenceSeen;
use super::super::jobs::JobNumber;
use super::super::ranks::SlotId;
use super::super::verdict::UnreportedEnd;
use super::super::watch::SilentSeen;
use super::super::{Phase, StartFailure};
use super::world::{KILLED, Preparation, World};
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
    SpawnOrder {
        job,
        apps: spec(1).apps.clone(),
        cpu_bind: CpuBind::None,
        parent_rank: Rank(0),
        first_shown: Rank(first_shown),
    }
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
    let abort = Control::Abort { who: "user 7".to_owned(), reason: String::new() };
    check(abort, &[(0, Signal::SIGTERM), (5000, Signal::SIGKILL)]);
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
    assert_eq!(world.gave_way_after, Some(2), "its signals go first");
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
fn a_session_gives_way_when_its_launch_fails_and_not_when_all_is_well() {
    let check = |exit, gave_way_after| {
        let mut world = World::running(spec(1));
        world.exit(SlotId(0), exit);
        assert!(world.is_done());
        assert_eq!(world.gave_way_after, gave_way_after, "{exit}");
    };
    check(RankExit::Code(0), None);
    check(FAILED, Some(0));
}

#[test]
fn nothing_but_an_order_to_kill_shortens_the_time_that_a_user_leaves() {
    let mut world = World::running(spec(2));
    world.control(Control::End(15));
    world.control(Control::GiveUp);
    world.exit(SlotId(1), FAILED);
    world.control(Control::Abort { who: "user 7".to_owned(), reason: String::new() });
    world.advance(Duration::from_millis(4999));
    assert_eq!(world.signals[&SlotId(0)], [Signal::SIGTERM]);
    world.advance(Duration::from_millis(1));
    assert_eq!(world.signals[&SlotId(0)], [Signal::SIGTERM, Signal::SIGKILL]);
    world.finish();
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
    let mut world = World::prepared(spec(3), Preparation::Failed);
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

/// Before, a rank without a watch on its PMI socket was neither signalled nor reaped, and its session
/// never ended.
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
    // Another process holds the pipes of rank 1.
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

/// The kernel has not finished the end of the killed rank when the other rank has exited.
#[test]
fn an_abort_among_the_last_messages_over_a_peer_that_was_killed_is_the_peers_failure() {
    let mut world = World::running(spec(2));
    let killed = UnreportedEnd { slot: SlotId(1), exit: KILLED, reached: None };
    world.exit_beside(SlotId(0), RankExit::Code(14), vec![(LAUNCHED, abort(0))], &[killed]);
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
fn the_size_of_the_users_terminal_reaches_the_ranks_until_the_end() {
    let mut world = World::running(spec(1));
    let size = |rows| TerminalSize { rows, columns: 80 };
    world.control(Control::ResizeTerminal(size(30)));
    assert_eq!(world.terminal_size, Some(size(30)));
    world.exit(SlotId(0), RankExit::Code(0));
    world.control(Control::ResizeTerminal(size(40)));
    assert_eq!(world.terminal_size, Some(size(30)), "nobody is there any more");
}

#[test]
fn a_launch_that_somebody_has_ended_says_who_and_why() {
    let mut world = World::running(spec(2));
    let (who, reason) = ("user ada".to_owned(), "wrong input".to_owned());
    world.control(Control::Abort { who: who.clone(), reason: reason.clone() });
    assert_eq!(world.cause(), Some(CauseKind::Ended { who, reason }));
    world.finish();
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
fn a_node_that_others_need_stays_without_ranks_unless_the_launch_has_failed() {
    let needed = |need| {
        let mut world = World::running(spec(1));
        world.need(need);
        world.exit(SlotId(0), RankExit::Code(0));
        world.advance(seconds(10));
        assert_eq!((world.machine.phase(), exited(&world)), (&Phase::Running, vec![0]), "its exit is told at once");
        world
    };
    let mut world = needed(Need::UntilTold);
    world.control(Control::Release);
    assert!(!world.is_done(), "the other nodes have not said that they ask nothing more");
    world.need(Need::Over);
    assert!(world.is_done() && world.cause().is_none());
    let mut world = needed(Need::WhileRanksRun);
    world.control(Control::Release);
    assert!(world.is_done() && world.cause().is_none());
    for need in [Need::UntilTold, Need::WhileRanksRun] {
        let mut world = needed(need);
        world.control(Control::GiveUp);
        assert!(world.is_done());
    }
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
