//! Single sequences of events that no property covers.

use lattice_session::cause::{Cause, CauseKind, RankExit};
use lattice_session::event::{Event, Notice};
use lattice_session::settings::{FailedRanks, LostNodes};
use lattice_session::timeouts;
use pmi_core::Phase as RankPhase;
use pmi_core::deaths::{Death, DeathKind};
use pmi_core::ids::{JobId, NodeIndex, Rank};
use std::time::Duration;

use super::super::Stored;
use super::super::checkpoint::Progressed;
use super::super::event::{LogEvent, NodeCommand, NodeEvent};
use super::simulation::{Simulation, facts, progress, reached};
use crate::launch::Part;

#[test]
fn a_fence_that_timed_out_is_the_cause_whatever_is_reported_while_others_are_asked() {
    let mut simulation = Simulation::running(2, 1);
    let limit = Duration::from_secs(1);
    simulation.cause(0, CauseKind::FenceTimeout { limit, waiting: 1, missing: Vec::new() });
    simulation.cause(1, CauseKind::LeftWithoutFinalize { rank: Rank(1) });
    assert!(simulation.endings().is_empty(), "it is not known yet who is missing");
    simulation.answer(0, vec![progress(0, true)]);
    simulation.answer(1, vec![progress(1, false)]);
    let missing = vec![(Rank(1), Some("put".to_owned()))];
    let endings = simulation.endings();
    assert_eq!(endings.len(), 1);
    assert_eq!(endings[0].kind, CauseKind::FenceTimeout { limit, waiting: 1, missing });
}

#[test]
fn ranks_of_a_spawned_job_that_wait_for_one_that_left_end_the_launch() {
    let mut simulation = Simulation::running(2, 1);
    simulation.spawn(0, 2);
    simulation.stored(Stored::Durable);
    let job = simulation.spawned(0)[0].clone();
    [0, 1].into_iter().for_each(|node| simulation.event(node, Event::Spawned { job: job.clone(), failure: None }));
    // Ranks 2 and 3, one on each node.
    simulation.event(0, Event::Waiting { ranks: vec![Rank(2)] });
    let exit = RankExit::Code(0);
    simulation
        .event(1, Event::Exited { rank: Rank(3), exit, reached: reached(RankPhase::Silent), ran: Duration::ZERO });
    let endings = simulation.endings();
    assert_eq!(endings[0].kind, CauseKind::LeftBeforeInit { rank: Rank(3), exit, others: vec![Rank(2)] });
}

/// A job of two ranks, one on each of two nodes, from its spawn to the ends of its ranks.
fn spawn_and_end(simulation: &mut Simulation) -> JobId {
    let first = simulation.machine.nodes.state.ranks.size();
    simulation.spawn(0, 2);
    simulation.stored(Stored::Durable);
    let job = simulation.spawned(0).pop().unwrap();
    [0, 1].into_iter().for_each(|node| simulation.event(node, Event::Spawned { job: job.clone(), failure: None }));
    simulation.stored(Stored::Durable);
    for node in 0..2 {
        let told = simulation.was_told(0, |command| matches!(command, NodeCommand::JobOver(over) if *over == job));
        assert!(!told, "a rank runs");
        let exit = RankExit::Code(0);
        simulation.event(node, Event::Exited { rank: Rank(first + node), exit, reached: None, ran: Duration::ZERO });
    }
    job
}

#[test]
fn nodes_drop_jobs_that_are_over_and_so_does_the_launch() {
    let mut simulation = Simulation::running(2, 1);
    let levels = [20, 200].map(|jobs| {
        while simulation.machine.spawns.count() < jobs {
            let job = spawn_and_end(&mut simulation);
            let is_it = |command: &NodeCommand| matches!(command, NodeCommand::JobOver(over) if *over == job);
            assert!(simulation.was_told(0, is_it) && simulation.was_told(1, is_it));
        }
        simulation.pass(Duration::from_secs(1));
        let Progressed { spawned, ends, .. } = &simulation.durable;
        (spawned.len(), ends.len(), simulation.machine.nodes.state.ranks.jobs().count())
    });
    assert_eq!(levels[0], levels[1]);
    assert_eq!(levels[1], (16, 32, 17));
    // The next server continues both numbers.
    let mut resumed = simulation.resumed();
    [0, 1].into_iter().for_each(|node| resumed.open(node, 2));
    let job = spawn_and_end(&mut resumed);
    assert_eq!((job.as_str(), resumed.machine.nodes.state.ranks.size()), ("kvs_l_0.s201", 404));
    [0, 1].into_iter().for_each(|rank| resumed.exit(rank, None));
    [0, 1].into_iter().for_each(|node| resumed.report(node));
    assert_eq!(resumed.completion().unwrap().ends.len(), 404);
}

/// Two nodes with one rank each, in a launch that tolerates failures.
fn bearing() -> Simulation {
    let facts = super::super::Facts { failed_ranks: FailedRanks::AreBorne, ..facts(2, 1) };
    let mut simulation = Simulation::new(facts, 1);
    simulation.input(|machine, now| machine.on_fan_out(Ok(()), now));
    [0, 1].into_iter().for_each(|node| simulation.open(node, 1));
    simulation
}

#[test]
fn failures_that_are_borne_are_the_cause_once_every_rank_has_ended() {
    let mut simulation = bearing();
    let exit = RankExit::Code(3);
    simulation.event(1, Event::Exited { rank: Rank(1), exit, reached: None, ran: Duration::ZERO });
    simulation.report(1);
    simulation.pass(Duration::from_secs(9));
    assert!(
        simulation.endings().is_empty() && !simulation.was_told(0, |command| matches!(command, NodeCommand::GiveUp))
    );
    simulation.exit(0, None);
    simulation.report(0);
    let cause = simulation.completion().unwrap().cause.clone().unwrap();
    assert_eq!((cause.host.as_str(), cause.kind), ("n1", CauseKind::FailedRanks { failed: vec![(Rank(1), exit)] }));
}

#[test]
fn a_rank_whose_failure_was_borne_is_the_cause_if_others_wait_for_it() {
    let mut simulation = bearing();
    let exit = RankExit::Code(3);
    simulation.event(1, Event::Exited { rank: Rank(1), exit, reached: reached(RankPhase::Open), ran: Duration::ZERO });
    simulation.event(0, Event::Waiting { ranks: vec![Rank(0)] });
    simulation.pass(Duration::from_millis(1500));
    simulation.answer(0, vec![progress(0, true)]);
    simulation.pass(Duration::from_secs(1));
    assert_eq!(simulation.endings()[0].kind, CauseKind::Failed { rank: Rank(1), exit });
}

#[test]
fn other_nodes_are_told_of_a_rank_that_died_and_nobody_waits_for_it() {
    let mut simulation = bearing();
    let dead = Death { rank: Rank(1), kind: DeathKind::Exited };
    let told = |all: &Simulation, node: usize| {
        let deaths = |command: &NodeCommand| match command {
            NodeCommand::Deaths(deaths) => deaths.to_vec(),
            _ => Vec::new(),
        };
        all.commands[node].iter().flat_map(deaths).collect::<Vec<_>>()
    };
    simulation.event(0, Event::Died(dead));
    simulation.pass(Duration::from_secs(1));
    assert_eq!(told(&simulation, 0), [], "it is not this node's to report");
    simulation.event(1, Event::Died(dead));
    simulation.event(1, Event::Died(dead));
    simulation.event(
        1,
        Event::Exited {
            rank: Rank(1),
            exit: RankExit::Code(3),
            reached: reached(RankPhase::Open),
            ran: Duration::ZERO,
        },
    );
    simulation.event(0, Event::Waiting { ranks: vec![Rank(0)] });
    simulation.pass(Duration::from_secs(3));
    assert_eq!(told(&simulation, 0), [dead]);
    assert!(
        simulation.endings().is_empty()
            && !simulation.was_told(0, |asked| matches!(asked, NodeCommand::AskProgress(_) | NodeCommand::AskUsage(_)))
    );
    simulation.stored(Stored::Durable);
    let mut next = simulation.resumed();
    next.open(0, 2);
    assert_eq!(told(&next, 0), [dead], "the server before may not have told it");
    next.event(0, Event::Waiting { ranks: vec![Rank(0)] });
    next.pass(Duration::from_secs(3));
    assert!(next.endings().is_empty());
}

#[test]
fn a_node_whose_ranks_failed_and_are_missed_is_blamed_for_their_failure() {
    let mut simulation = bearing();
    let exit = RankExit::Code(3);
    simulation.event(1, Event::Died(Death { rank: Rank(1), kind: DeathKind::Exited }));
    simulation.event(1, Event::Exited { rank: Rank(1), exit, reached: reached(RankPhase::Open), ran: Duration::ZERO });
    let missed = CauseKind::NodeLost { reason: "its ranks died".to_owned() };
    simulation.event(0, Event::Ending(Cause { host: "n1".to_owned(), kind: missed }));
    simulation.pass(Duration::from_secs(1));
    assert_eq!(simulation.endings()[0].kind, CauseKind::Failed { rank: Rank(1), exit });
}

#[test]
fn a_lost_node_that_is_borne_leaves_the_others_running_and_is_the_cause_at_the_end() {
    let facts = super::super::Facts { lost_nodes: LostNodes::AreBorne, ..facts(3, 2) };
    // The agent of the node reports the loss, or the server detects it.
    for by_agent in [true, false] {
        let mut simulation = Simulation::running_with(facts.clone(), 2);
        simulation.exit(2, Some(RankPhase::Finalized));
        if by_agent {
            simulation.cause(1, CauseKind::NodeLost { reason: "gone".to_owned() });
        } else {
            simulation.input(|machine, now| machine.on_node_lost(NodeIndex(1), "gone", now));
        }
        simulation.pass(Duration::from_secs(1));
        let dead = Death { rank: Rank(3), kind: DeathKind::NodeLost };
        for node in [0, 2] {
            assert!(simulation.was_told(node, |command| matches!(command, NodeCommand::CutOff(NodeIndex(1)))));
            let told = |command: &NodeCommand| matches!(command, NodeCommand::Deaths(deaths) if deaths[..] == [dead]);
            assert!(simulation.was_told(node, told), "rank 2 had ended");
        }
        assert!(simulation.endings().is_empty());
        [0, 1, 4, 5].into_iter().for_each(|rank| simulation.exit(rank, Some(RankPhase::Finalized)));
        simulation.report(0);
        simulation.report(2);
        let cause = simulation.completion().unwrap().cause.clone().unwrap();
        let nodes = vec![("n1".to_owned(), "gone".to_owned())];
        assert_eq!((cause.host.as_str(), cause.kind), ("n1", CauseKind::LostNodes { nodes, failed: Vec::new() }));
    }
}

#[test]
fn a_job_whose_node_is_lost_before_it_is_told_does_not_start() {
    let mut simulation = Simulation::running(2, 1);
    let ticket = simulation.spawn(0, 2);
    simulation.input(|machine, now| machine.on_node_lost(NodeIndex(1), "no heartbeat came", now));
    simulation.stored(Stored::Durable);
    let job = simulation.spawned(0)[0].clone();
    simulation.event(0, Event::Spawned { job, failure: None });
    assert!(simulation.spawn_answers[&ticket].is_err());
    assert!(simulation.was_told(0, |command| matches!(command, NodeCommand::Disown(_))));
}

#[test]
fn a_spawn_that_cannot_be_written_down_is_refused_and_no_node_is_told() {
    let mut simulation = Simulation::running(2, 1);
    let ticket = simulation.spawn(0, 2);
    simulation.stored(Stored::Failed);
    let reason = simulation.spawn_answers[&ticket].clone().unwrap_err().to_string();
    assert!(reason.contains("cannot write down"), "{reason}");
    assert!(simulation.spawned(0).is_empty());
    simulation.pass(Duration::from_secs(2));
    assert!(simulation.spawned(0).is_empty());
}

/// The next server has no record that the job runs, and would end it.
#[test]
fn a_job_that_runs_and_cannot_be_recorded_is_ended_and_refused() {
    let mut simulation = Simulation::running(2, 1);
    let ticket = simulation.spawn(0, 2);
    simulation.stored(Stored::Durable);
    let job = simulation.spawned(0)[0].clone();
    for node in 0..2 {
        simulation.event(node, Event::Spawned { job: job.clone(), failure: None });
    }
    assert!(!simulation.spawn_answers.contains_key(&ticket));
    simulation.stored(Stored::Failed);
    let reason = simulation.spawn_answers[&ticket].clone().unwrap_err().to_string();
    assert!(reason.contains("cannot write down"), "{reason}");
    for node in 0..2 {
        assert!(simulation.was_told(node, |command| matches!(command, NodeCommand::Disown(of) if *of == job)));
    }
}

#[test]
fn ranks_that_spawn_before_all_nodes_have_accepted_wait() {
    let mut simulation = Simulation::new(facts(2, 1), 1);
    simulation.open(0, 1);
    simulation.spawn(0, 1);
    assert!(!simulation.storing && simulation.spawned(0).is_empty());
    simulation.input(|machine, now| machine.on_fan_out(Ok(()), now));
    simulation.stored(Stored::Durable);
    assert_eq!(simulation.spawned(0).len(), 1);
}

#[test]
fn what_a_server_has_said_is_said_again_by_the_next_one_alone() {
    let mut simulation = Simulation::running(2, 1);
    simulation.cause(0, CauseKind::LeftWithoutFinalize { rank: Rank(0) });
    simulation.pass(Duration::from_secs(1));
    simulation.stored(Stored::Durable);
    simulation.input(|machine, now| machine.on_stream_closed(NodeIndex(1), 1, now));
    let given_up =
        |all: &Simulation| all.commands[1].iter().filter(|command| matches!(command, NodeCommand::GiveUp)).count();
    simulation.open(1, 2);
    assert_eq!(given_up(&simulation), 1, "the outbox sends again what the session has not taken");
    let mut next = simulation.resumed();
    next.open(1, 1);
    next.open(1, 2);
    assert_eq!(given_up(&next), 1);
}

#[test]
fn a_node_that_leaves_out_events_is_given_up() {
    let mut simulation = Simulation::running(2, 1);
    simulation.exit(2 - 1, None);
    simulation.input(|machine, now| machine.on_numbered(NodeIndex(1), 3, None, now));
    assert!(simulation.lost.contains(&1) && simulation.unclean.contains(&1));
    simulation.input(|machine, now| machine.on_resumed(NodeIndex(0), 1, now));
    assert!(simulation.lost.contains(&0), "it goes on behind what has come");
}

#[test]
fn a_node_is_told_what_of_its_events_was_taken() {
    let mut simulation = Simulation::running(1, 1);
    for _ in 0..2000 {
        simulation.event(0, Event::Waiting { ranks: Vec::new() });
    }
    assert!(simulation.acknowledged[0] > 1000 && simulation.acknowledged[0] <= 2000);
}

#[test]
fn a_cause_waits_for_a_node_whose_stream_broke_and_that_may_be_lost() {
    let mut simulation = Simulation::running(2, 1);
    simulation.input(|machine, now| machine.on_stream_closed(NodeIndex(1), 1, now));
    simulation.cause(0, CauseKind::Aborted { rank: Rank(0), code: 14, message: String::new() });
    assert_eq!(simulation.machine.deadline(), None);
    simulation.pass(Duration::from_secs(2));
    assert!(simulation.endings().is_empty());
    simulation.pass(timeouts::REPORT_AGAIN);
    let endings = simulation.endings();
    assert!(matches!(endings[0].kind, CauseKind::NodeLost { .. }), "{endings:?}");
}

/// The node is known not to be lost.
#[test]
fn a_cause_does_not_wait_for_a_node_whose_agent_is_away() {
    let mut simulation = Simulation::running(2, 1);
    simulation.input(|machine, now| machine.on_stream_closed(NodeIndex(1), 1, now));
    simulation.input(|machine, now| machine.on_node_away(NodeIndex(1), now));
    simulation.cause(0, CauseKind::Aborted { rank: Rank(0), code: 14, message: String::new() });
    simulation.pass(Duration::from_secs(1));
    let endings = simulation.endings();
    assert!(matches!(endings[0].kind, CauseKind::Aborted { .. }), "{endings:?}");
    assert!(simulation.lost.is_empty());
}

#[test]
fn a_node_on_which_something_is_left_is_unclean_though_its_part_is_over() {
    let mut simulation = Simulation::running(2, 1);
    simulation.event(1, Event::Notice(Notice::Leftover { pids: vec![7] }));
    assert!(simulation.lost.is_empty());
    assert_eq!(simulation.unclean.iter().copied().collect::<Vec<_>>(), [1]);
}

#[test]
fn notices_of_a_node_are_bounded() {
    let mut simulation = Simulation::running(2, 1);
    for pid in 0..1000 {
        simulation.event(0, Event::Notice(Notice::Leftover { pids: vec![pid] }));
    }
    assert_eq!(simulation.log.len(), 64);
}

#[test]
fn a_start_that_a_node_refuses_is_answered_when_its_record_is_written() {
    let mut simulation = Simulation::new(facts(2, 1), 1);
    let (node, message) = ("n1".to_owned(), "no user 7 here".to_owned());
    let reason = pmi_transport::proto::v1::RefusalReason::User;
    let refusal = crate::launch::fan_out::Refusal { node, message, reason };
    simulation.input(|machine, now| machine.on_fan_out(Err(refusal.into()), now));
    assert!(simulation.started.is_empty() && simulation.storing);
    simulation.stored(Stored::Durable);
    assert_eq!(simulation.started, [false]);
    let cause = simulation.completion().unwrap().cause.clone().unwrap();
    assert_eq!(cause.to_string(), "n1: no user 7 here");
    assert!(simulation.machine.is_forgotten(super::super::Delivery::Partial, simulation.now + Duration::from_secs(31)));
}

#[test]
fn a_part_that_was_over_is_not_expected_again_by_the_next_server() {
    let mut simulation = Simulation::running(2, 1);
    simulation.exit(1, Some(RankPhase::Finalized));
    simulation.report(1);
    simulation.pass(Duration::from_secs(1));
    let mut resumed = simulation.resumed();
    assert!(resumed.closed.contains(&1) && !resumed.closed.contains(&0));
    assert_eq!(resumed.parts, [Part::Expected, Part::Ended]);
    resumed.open(0, 1);
    resumed.exit(0, Some(RankPhase::Finalized));
    resumed.report(0);
    let completion = resumed.completion().unwrap();
    assert_eq!((completion.cause.clone(), completion.ends.len()), (None, 2));
}

#[test]
fn an_ending_that_means_nothing_here_loses_the_node() {
    let mut simulation = Simulation::running(2, 1);
    simulation.happened(1, NodeEvent::UnknownEnding);
    assert!(simulation.lost.contains(&1) && simulation.unclean.contains(&1));
    simulation.report(0);
    let left = simulation.log.iter().any(|(_, event)| matches!(event, LogEvent::Unclean(nodes) if nodes == &["n1"]));
    assert!(left, "those who follow are told what may be left");
}

#[test]
fn what_a_node_reports_of_a_launch_that_was_refused_is_not_told_after_its_end() {
    let mut simulation = Simulation::new(facts(2, 1), 1);
    simulation.open(0, 1);
    let (node, message) = ("n1".to_owned(), "no".to_owned());
    let reason = pmi_transport::proto::v1::RefusalReason::Busy;
    let refusal = crate::launch::fan_out::Refusal { node, message, reason };
    simulation.input(|machine, now| machine.on_fan_out(Err(refusal.into()), now));
    simulation.event(0, Event::Started { rank: Rank(0), pid: 100, at: Duration::ZERO });
    assert!(simulation.completion().is_some(), "nothing follows the end");
}
