//! The answers of nodes to the request to start, and their consequences.

use lattice_session::cause::CauseKind;
use lattice_session::event::Event;
use lattice_session::map_hash::MapHash;
use lattice_session::timeouts;
use pmi_core::ids::{NodeIndex, Rank};
use pmi_core::job::Placement;
use std::time::Duration;

use super::super::attachments::Role;
use super::super::event::{Activity, NodeCommand, StartProgress};
use super::super::facts::Facts;
use super::super::{Delivery, NotStarted, Stored};
use super::simulation::{GRACE, Simulation, facts};
use crate::launch::fan_out::Refusal;
use pmi_transport::proto::v1::RefusalReason;

fn refused() -> Result<(), NotStarted> {
    let (node, message) = ("n1".to_owned(), "no user 7 here".to_owned());
    Err(Refusal { node, message, reason: RefusalReason::User }.into())
}

/// A launch in its start phase on two nodes. The first node already reports.
fn asking() -> Simulation {
    let mut simulation = Simulation::new(facts(2, 1), 1);
    simulation.open(0, 1);
    simulation
}

/// Runs `before` in the start phase. Then the nodes answer with `result`. Checks the answer to the caller, and the cause of the launch's end.
#[track_caller]
fn check(what: &str, before: fn(&mut Simulation), result: Result<(), NotStarted>, told: bool, cause: Option<&str>) {
    let mut simulation = asking();
    before(&mut simulation);
    assert!(simulation.started.is_empty(), "{what}: nobody is told before all have answered");
    let is_accepted = result.is_ok();
    simulation.input(|machine, now| machine.on_fan_out(result, now));
    simulation.stored(Stored::Durable);
    assert_eq!(simulation.started, [told], "{what}");
    if is_accepted {
        // The nodes report, and end their parts.
        simulation.open(1, 1);
        simulation.pass(Duration::from_secs(1));
        [0, 1].into_iter().for_each(|node| simulation.report(node));
    }
    let completion = simulation.completion().unwrap_or_else(|| panic!("{what}: it has not ended"));
    assert_eq!(completion.cause.as_ref().map(ToString::to_string).as_deref(), cause, "{what}");
}

#[test]
fn whoever_ordered_a_launch_is_told_whether_all_nodes_accepted_it_whatever_happens_meanwhile() {
    let nothing = |_: &mut Simulation| {};
    let fails = |all: &mut Simulation| all.cause(0, CauseKind::LeftWithoutFinalize { rank: Rank(0) });
    let abort = |all: &mut Simulation| all.abort();
    let lost =
        |all: &mut Simulation| all.input(|machine, now| machine.on_node_lost(NodeIndex(1), "no heartbeat came", now));
    let anew = |all: &mut Simulation| all.input(|machine, now| machine.on_agent_anew(NodeIndex(1), now));
    let failed = "rank 0 on n0 exited with status 0 without calling MPI_Finalize";
    let refusal = "n1: no user 7 here";
    check("all accept", nothing, Ok(()), true, None);
    check("a rank fails", fails, Ok(()), true, Some(failed));
    check("somebody aborts it", abort, Ok(()), true, Some("ended by user 7"));
    check("a node is lost", lost, Ok(()), true, Some("node n1 was lost: no heartbeat came"));
    check(
        "an agent that has accepted is gone",
        anew,
        Ok(()),
        true,
        Some("node n1 was lost: its agent was started anew, and found no session of the launch"),
    );
    check("an agent is replaced, and the next one refuses", anew, refused(), false, Some(refusal));
    check("a node refuses", nothing, refused(), false, Some(refusal));
    check("a node refuses and a rank fails", fails, refused(), false, Some(failed));
    check("a node refuses and somebody aborts", abort, refused(), false, Some("ended by user 7"));
}

#[test]
fn answers_to_the_request_count_once() {
    let mut simulation = asking();
    for result in [Ok(()), refused(), Ok(())] {
        simulation.input(|machine, now| machine.on_fan_out(result, now));
        simulation.stored(Stored::Durable);
    }
    assert_eq!(simulation.started, [true]);
    assert!(simulation.completion().is_none());
}

#[test]
fn a_launch_that_was_refused_is_kept_for_nobody() {
    let mut simulation = asking();
    simulation.input(|machine, now| machine.on_fan_out(refused(), now));
    assert!(!simulation.machine.is_forgotten(Delivery::Complete, simulation.now), "its record is not written");
    simulation.stored(Stored::Durable);
    simulation.pass(timeouts::FIRST_OWNER);
    assert!(simulation.machine.is_forgotten(Delivery::Partial, simulation.now));
}

#[test]
fn others_see_the_launch_go_from_starting_to_its_end() {
    let mut simulation = asking();
    let seen = |all: &Simulation| all.overviews.iter().map(|overview| overview.activity).collect::<Vec<_>>();
    assert!(seen(&simulation).is_empty());
    simulation.input(|machine, now| machine.on_fan_out(Ok(()), now));
    assert_eq!(seen(&simulation), [Activity::Active]);
    simulation.abort();
    assert_eq!(seen(&simulation), [Activity::Active, Activity::Ending]);
    assert_eq!(simulation.overviews[1].cause, "ended by user 7");
}

#[test]
fn clients_are_told_of_the_start_when_something_is_new_and_not_more_often_than_ten_times_a_second() {
    let mut simulation = Simulation::running(2, 2);
    let started = |all: &Simulation| all.start_reports.iter().map(|all| all.ranks_started).collect::<Vec<_>>();
    let start = |all: &mut Simulation, rank: u32| {
        all.event(rank / 2, Event::Started { rank: Rank(rank), pid: 7, at: Duration::ZERO });
    };
    start(&mut simulation, 0);
    simulation.pass(Duration::from_secs(1));
    assert!(started(&simulation).is_empty(), "nobody follows");
    simulation.attach(Role::Owner).unwrap();
    simulation.pass(Duration::from_secs(1));
    assert_eq!(started(&simulation), [1], "whoever comes is told once");
    (1..4).for_each(|rank| start(&mut simulation, rank));
    simulation.pass(Duration::from_secs(1));
    assert_eq!(started(&simulation), [1, 4], "together");
    let last = StartProgress { nodes: 2, nodes_started: 2, ranks: 4, ranks_started: 4, ranks_initialized: 0 };
    assert_eq!(simulation.start_reports.last(), Some(&last));
}

#[test]
fn a_node_that_has_read_the_map_otherwise_ends_the_launch() {
    let facts = facts(2, 1);
    let map = |counts: &[u32]| Event::Mapped(MapHash::of(&Placement::block(counts), &facts.nodes));
    let mut simulation = Simulation::running(2, 1);
    simulation.event(0, map(&[1, 1]));
    assert!(simulation.overviews.iter().all(|overview| overview.activity != Activity::Ending));
    simulation.event(1, map(&[2]));
    let cause = &simulation.overviews.last().unwrap().cause;
    assert!(cause.starts_with("n1: this node has read the launch's map otherwise"), "{cause}");
}

#[test]
fn an_abort_of_a_launch_that_is_starting_reaches_nodes_that_have_accepted_it() {
    let mut simulation = Simulation::new(Facts { grace: 10 * GRACE, ..facts(2, 1) }, 1);
    simulation.abort();
    for node in [0, 1] {
        assert!(simulation.was_told(node, |command| matches!(command, NodeCommand::End(_))), "{node}");
    }
    assert!(simulation.completion().is_none(), "a node may have accepted it");
}
