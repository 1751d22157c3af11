//! Time limits. Each test checks one tick before the limit, when no action is due, and the limit itself.

use std::time::Duration;

use lattice_session::cause::CauseKind;
use lattice_session::timeouts;
use nix::libc::{SIGKILL, SIGTERM};
use pmi_core::ids::{NodeIndex, Rank};

use super::super::attachments::Role;
use super::super::event::{ClientRequest, NodeCommand};
use super::super::{Delivery, Machine, Stored};
use super::simulation::{GRACE, Simulation, TICK, facts};

/// Checks that `is_due` becomes true after `limit`, and not a tick before.
#[track_caller]
fn check(what: &str, mut simulation: Simulation, limit: Duration, is_due: impl Fn(&Simulation) -> bool) {
    simulation.pass(limit - TICK);
    assert!(!is_due(&simulation), "{what}: a tick before {limit:?}");
    simulation.pass(TICK);
    assert!(is_due(&simulation), "{what}: after {limit:?}");
}

fn accepted() -> Simulation {
    let mut simulation = Simulation::new(facts(2, 1), 1);
    simulation.input(|machine, now| machine.on_fan_out(Ok(()), now));
    simulation
}

/// Both nodes report, and the owner is attached.
fn followed() -> (Simulation, u64) {
    let mut simulation = Simulation::running(2, 1);
    let owner = simulation.attach(Role::Owner).unwrap().client;
    (simulation, owner)
}

fn is_told_to_end(simulation: &Simulation) -> bool {
    simulation.was_told(0, |command| matches!(command, NodeCommand::End(_)))
}

#[test]
fn nodes_that_do_not_report_are_given_up() {
    check("it never came", accepted(), timeouts::FIRST_REPORT, |all| all.lost.len() == 2 && all.unclean.len() == 2);
    let mut broken = followed().0;
    broken.input(|machine, now| machine.on_stream_closed(NodeIndex(1), 1, now));
    check("it did not come back", broken, timeouts::REPORT_AGAIN, |all| all.lost.contains(&1));
    let mut resumed = followed().0.resumed();
    resumed.open(0, 1);
    check("the server was started anew", resumed, timeouts::REPORT_AFTER_RESTART, |all| all.lost.contains(&1));
}

#[test]
fn a_node_whose_agent_is_away_is_waited_for_and_has_time_when_it_is_back() {
    let mut away = followed().0;
    away.input(|machine, now| machine.on_stream_closed(NodeIndex(1), 1, now));
    away.input(|machine, now| machine.on_node_away(NodeIndex(1), now));
    away.pass(10 * timeouts::REPORT_AGAIN);
    assert!(away.lost.is_empty());
    away.input(|machine, now| machine.on_node_back(NodeIndex(1), now));
    check("it is back and does not report", away, timeouts::REPORT_AGAIN, |all| all.lost.contains(&1));
}

#[test]
fn an_owner_that_is_missed_ends_its_launch() {
    let reported = || {
        let mut simulation = accepted();
        [0, 1].into_iter().for_each(|node| simulation.open(node, 1));
        simulation
    };
    check("it never came", reported(), timeouts::FIRST_OWNER, is_told_to_end);
    let (mut vanished, owner) = followed();
    vanished.pass(timeouts::FIRST_OWNER);
    vanished.input(|machine, now| machine.on_client_gone(owner, now));
    check("it vanished", vanished, timeouts::NEXT_OWNER, is_told_to_end);
    let (mut dismissed, owner) = followed();
    dismissed.request(owner, ClientRequest::Signal(99));
    check("it was sent away", dismissed, timeouts::NEXT_OWNER, is_told_to_end);
}

#[test]
fn an_owner_that_was_stopped_is_waited_for() {
    let (mut simulation, owner) = followed();
    simulation.input(|machine, _| machine.on_goodbye(owner, 7));
    simulation.input(|machine, now| machine.on_client_gone(owner, now));
    simulation.pass(10 * timeouts::FIRST_OWNER);
    assert!(!is_told_to_end(&simulation) && simulation.completion().is_none());
}

#[test]
fn nodes_that_do_not_end_are_killed_and_then_given_up() {
    let ended = || {
        let (mut simulation, owner) = followed();
        simulation.request(owner, ClientRequest::End(2));
        simulation
    };
    let killed = |all: &Simulation| all.aborted == [(0, SIGKILL), (1, SIGKILL)];
    check("they are killed", ended(), GRACE + timeouts::END, killed);
    check("they are given up", ended(), GRACE + timeouts::END + timeouts::LAST, |all| all.completion().is_some());
    let mut silent = followed().0;
    silent.input(|machine, now| machine.on_stream_closed(NodeIndex(1), 1, now));
    silent.cause(0, CauseKind::LeftWithoutFinalize { rank: Rank(0) });
    check("one without a stream is called", silent, timeouts::REPORT_AGAIN / 5, |all| all.aborted == [(1, SIGTERM)]);
}

#[test]
fn a_server_that_is_not_told_of_time_judges_nobody_by_it() {
    // The runner's clock leaves out standstills of the server. After a standstill, the machine receives two ticks with no time between them.
    let (mut simulation, owner) = followed();
    simulation.request(owner, ClientRequest::End(2));
    simulation.pass(GRACE);
    simulation.input(Machine::on_tick);
    assert_eq!(simulation.aborted, []);
}

#[test]
fn an_owner_that_reads_slowly_holds_up_its_own_end_and_nobody_elses() {
    let held_up = || {
        let (mut simulation, owner) = followed();
        // More than half of the window.
        (0..3).for_each(|_| simulation.output(1, 2000));
        (simulation, owner)
    };
    let (mut own, owner) = held_up();
    own.request(owner, ClientRequest::End(2));
    own.pass(10 * (GRACE + timeouts::END + timeouts::LAST));
    assert_eq!((own.lost.contains(&0), own.lost.contains(&1)), (true, false), "its output waits for its owner");
    let (mut overruled, _) = held_up();
    overruled.abort();
    check("it is not waited for", overruled, GRACE, |all| {
        all.was_told(1, |command| matches!(command, NodeCommand::OutputCredit(_)))
    });
}

#[test]
fn the_longest_grace_counts_only_for_an_owner() {
    let long = || {
        let mut simulation = Simulation::new(super::super::Facts { grace: 10 * GRACE, ..facts(2, 1) }, 1);
        simulation.input(|machine, now| machine.on_fan_out(Ok(()), now));
        [0, 1].into_iter().for_each(|node| simulation.open(node, 1));
        let owner = simulation.attach(Role::Owner).unwrap().client;
        (simulation, owner)
    };
    let is_killed = |all: &Simulation| !all.aborted.is_empty();
    let (mut own, owner) = long();
    own.request(owner, ClientRequest::End(2));
    check("its owner ends it", own, 10 * GRACE + timeouts::END, is_killed);
    let (mut overruled, _) = long();
    overruled.abort();
    check("somebody else ends it", overruled, timeouts::GRACE_OF_OTHERS + timeouts::END, is_killed);
}

#[test]
fn ranks_have_so_long_after_the_first_exit_on_any_node() {
    let wait = Duration::from_secs(5);
    let facts = super::super::Facts { after_first_exit: Some(wait), ..facts(2, 1) };
    let mut simulation = Simulation::running_with(facts, 1);
    let _owner = simulation.attach(Role::Owner).unwrap();
    simulation.pass(10 * wait);
    assert!(simulation.endings().is_empty(), "none has ended");
    simulation.exit(1, None);
    simulation.report(1);
    simulation.pass(TICK);
    let gives_up = |all: &Simulation| all.was_told(0, |command| matches!(command, NodeCommand::GiveUp));
    check("the others are ended", simulation, wait, gives_up);
}

#[test]
fn a_time_limit_that_no_session_keeps_is_kept_here() {
    let limit = Duration::from_secs(60);
    let facts = super::super::Facts { time_limit: Some(limit), ..facts(2, 1) };
    let mut simulation = Simulation::running_with(facts, 1);
    let _owner = simulation.attach(Role::Owner).unwrap();
    simulation.pass(TICK);
    let is_timed_out = |all: &Simulation| {
        let gives_up = |node| all.was_told(node, |command| matches!(command, NodeCommand::GiveUp));
        let causes = all.endings();
        causes.iter().any(|cause| cause.kind == CauseKind::TimedOut { limit }) && gives_up(0) && gives_up(1)
    };
    check("its sessions do not end it", simulation, limit + timeouts::OVERTIME, is_timed_out);
}

#[test]
fn a_launch_that_is_over_is_kept_for_those_who_come_late() {
    let (mut simulation, owner) = followed();
    [0, 1].into_iter().for_each(|node| simulation.report(node));
    simulation.pass(TICK);
    simulation.input(|machine, now| machine.on_client_gone(owner, now));
    assert!(simulation.machine.is_forgotten(Delivery::Complete, simulation.now), "all have all of it");
    let is_forgotten = |all: &Simulation| all.machine.is_forgotten(Delivery::Partial, all.now);
    check("somebody may come yet", simulation, timeouts::LINGER - TICK, is_forgotten);
}

#[test]
fn a_spawn_takes_a_minute_at_most() {
    let (mut simulation, _) = followed();
    let ticket = simulation.spawn(0, 2);
    simulation.stored(Stored::Durable);
    assert_eq!(simulation.spawned(1).len(), 1);
    check("its nodes do not answer", simulation, timeouts::SPAWN, |all| {
        all.spawn_answers.get(&ticket).is_some_and(Result::is_err)
    });
}

#[test]
fn a_report_is_held_for_as_long_as_the_disk_is_full() {
    let (mut simulation, _) = followed();
    simulation.report(1);
    for _ in 0..1200 {
        simulation.now += TICK;
        simulation.input(Machine::on_tick);
        simulation.stored(Stored::Failed);
        assert!(!simulation.closed.contains(&1), "its agent would take the report for delivered");
    }
    // A stream that is opened again is held as well.
    simulation.open(1, 2);
    assert!(!simulation.closed.contains(&1));
    simulation.pass(Duration::from_secs(31));
    assert!(simulation.closed.contains(&1) && !simulation.closed.contains(&0));
}
