//! Queries to all nodes for the progress of their ranks: the queried nodes, the end of the wait, and the consequences of the answers.

use bytes::Bytes;
use lattice_session::call_stacks::RankStack;
use lattice_session::cause::{CauseKind, RankExit};
use lattice_session::event::{Event, Notice, RankProgress, SpokenProtocol};
use lattice_session::gathered::{Gathered, NodeAnswer, RankAnswer};
use lattice_session::wire::event::NodeHappening;
use pmi_core::Phase as RankPhase;
use pmi_core::ids::{NodeIndex, Rank};
use std::sync::Arc;
use std::time::Duration;

use super::super::Facts;
use super::super::event::{NodeCommand, NodeEvent, NodeStatus, SessionRole};
use super::super::progress_query::ANSWER;
use super::simulation::{Simulation, TICK, facts, progress, reached};

const SECOND: Duration = Duration::from_secs(1);

/// The status of each node in the answer to this query.
fn nodes(simulation: &Simulation, ticket: u64) -> Option<&[NodeStatus]> {
    simulation.status_answers.get(&ticket).map(|status| &status.nodes[..])
}

fn is_asked(command: &NodeCommand) -> bool {
    matches!(command, NodeCommand::AskProgress(_) | NodeCommand::AskUsage(_))
}

#[test]
fn a_status_is_answered_as_soon_as_nobody_is_waited_for() {
    type Happens = fn(&mut Simulation);
    let answers: Happens = |all| all.answer(1, vec![progress(1, false)]);
    let lost: Happens = |all| all.input(|machine, now| machine.on_node_lost(NodeIndex(1), "no heartbeat came", now));
    let reports: Happens = |all| all.report(1);
    for (what, happens, silent) in
        [("it answers", answers, false), ("it is lost", lost, false), ("it ends", reports, false)]
    {
        let mut simulation = Simulation::running(2, 1);
        let ticket = simulation.status();
        simulation.answer(0, vec![progress(0, true)]);
        assert!(nodes(&simulation, ticket).is_none(), "{what}: the other one is waited for");
        happens(&mut simulation);
        let nodes = nodes(&simulation, ticket).unwrap_or_else(|| panic!("{what}: no answer"));
        assert_eq!(nodes[0].ranks[0].0, progress(0, true), "{what}");
        assert_eq!((nodes[0].silent, nodes[1].silent), (false, silent), "{what}");
        let lamb = (what == "it answers").then_some(SessionRole::Lamb);
        assert_eq!((nodes[0].role, nodes[1].role), (Some(SessionRole::Shepherd), lamb), "{what}");
    }
}

/// Clients can send any number of queries, for a launch with any number of ranks.
#[test]
fn statuses_that_are_answered_together_are_one() {
    let mut simulation = Simulation::running(2, 1);
    let tickets: Vec<u64> = (0..3).map(|_| simulation.status()).collect();
    [0, 1].into_iter().for_each(|node| simulation.answer(node, vec![progress(node, false)]));
    let of = |ticket: &u64| Arc::clone(&simulation.status_answers[ticket]);
    let answers: Vec<_> = tickets.iter().map(of).collect();
    assert!(answers.iter().all(|answer| Arc::ptr_eq(answer, &answers[0])));
    let later = simulation.status();
    [0, 1].into_iter().for_each(|node| simulation.answer(node, vec![progress(node, true)]));
    assert!(simulation.status_answers[&later].nodes[0].ranks[0].0.waiting, "what was answered later is another one");
}

#[test]
fn a_node_that_does_not_answer_is_shown_as_it_was_known() {
    let mut simulation = Simulation::running(2, 1);
    simulation.event(1, Event::Started { rank: Rank(1), pid: 77, at: Duration::ZERO });
    let ticket = simulation.status();
    simulation.answer(0, vec![progress(0, false)]);
    simulation.pass(ANSWER - TICK);
    assert!(nodes(&simulation, ticket).is_none());
    simulation.pass(TICK);
    let nodes = nodes(&simulation, ticket).unwrap();
    assert!(nodes[1].silent && !nodes[0].silent);
    let (rank, _) = &nodes[1].ranks[0];
    assert_eq!((rank.pid, rank.last_command.as_deref()), (Some(77), None));
}

#[test]
fn only_nodes_that_report_are_asked() {
    let mut simulation = Simulation::running(3, 1);
    simulation.report(2);
    let mut awaited = Simulation::new(facts(2, 1), 1);
    awaited.input(|machine, now| machine.on_fan_out(Ok(()), now));
    awaited.open(0, 1);
    for (simulation, asked) in [(&mut simulation, vec![true, true, false]), (&mut awaited, vec![true, false])] {
        simulation.status();
        let nodes = 0..asked.len() as u32;
        assert_eq!(nodes.map(|node| simulation.was_told(node, is_asked)).collect::<Vec<_>>(), asked);
    }
}

#[test]
fn a_launch_that_is_over_still_says_how_its_ranks_ended() {
    let mut simulation = Simulation::running(1, 2);
    let exit = RankExit::Code(3);
    simulation.event(0, Event::Exited { rank: Rank(1), exit, reached: reached(RankPhase::Open), ran: Duration::ZERO });
    simulation.report(0);
    assert!(simulation.completion().is_some());
    let ticket = simulation.status();
    let nodes = nodes(&simulation, ticket).expect("nobody is waited for");
    let exits: Vec<_> = nodes[0].ranks.iter().map(|(rank, _)| rank.exit).collect();
    assert_eq!((exits, nodes[0].silent), (vec![None, Some(exit)], false));
}

#[test]
fn an_answer_that_tells_of_an_exit_is_kept_until_the_node_reports_it() {
    let mut simulation = Simulation::running(2, 1);
    let ended = RankProgress { exit: Some(RankExit::Code(0)), ..progress(1, false) };
    simulation.status();
    simulation.answer(1, vec![ended.clone()]);
    let before = simulation.log.len();
    simulation.exit(1, Some(RankPhase::Open));
    assert_eq!(simulation.log.len(), before + 1, "clients are told by the event");
    let ticket = simulation.status();
    simulation.pass(ANSWER);
    assert_eq!(nodes(&simulation, ticket).unwrap()[1].ranks[0].0.exit, ended.exit);
}

#[test]
fn a_stuck_start_is_told_once_with_the_ranks_that_all_nodes_miss() {
    let mut simulation = Simulation::running(2, 2);
    let missing = |rank| (Rank(rank), Some("put".to_owned()));
    let stuck = |waiting, missing| Event::Notice(Notice::Stuck { after: SECOND, waiting, missing });
    simulation.event(0, stuck(1, vec![missing(1)]));
    simulation.event(1, stuck(2, vec![missing(1)]));
    assert_eq!(simulation.notices(), [], "all nodes are asked first");
    simulation.answer(0, vec![progress(0, true), progress(1, false)]);
    simulation.answer(1, vec![progress(2, true), progress(3, false)]);
    let expected = Notice::Stuck { after: SECOND, waiting: 2, missing: vec![missing(1), missing(3)] };
    assert_eq!(simulation.notices(), [expected]);
}

/// Rank 0 is in MPI_Finalize. Rank 2 runs on the other node.
#[test]
fn a_rank_in_mpi_that_another_node_waits_for_after_the_start_is_looked_at_and_reported() {
    let mut simulation = Simulation::running(2, 2);
    simulation.event(0, Event::LongWait { since: SECOND });
    simulation.event(1, Event::LongWait { since: SECOND });
    simulation.answer(0, vec![progress(0, true), progress(1, true)]);
    simulation.answer(1, vec![progress(2, false), progress(3, true)]);
    let looks = |node: usize| {
        let is_look = |command: &&NodeCommand| matches!(command, NodeCommand::LookAtStacks(_));
        simulation.commands[node].iter().filter(is_look).count()
    };
    assert_eq!((looks(0), looks(1)), (0, 1), "one search for all reports");
    let stack = RankStack { ranks: vec![Rank(2)], text: "#0 poll ()\n#1 PMPI_Barrier ()\n".to_owned() };
    simulation.event(1, Event::Notice(Notice::Stacks { stacks: vec![stack] }));
    simulation.pass(3 * SECOND);
    match &simulation.notices()[..] {
        [Notice::PmiMisuse { rank: Rank(0), observed }] => {
            assert!(observed.contains("with ranks 1,3 for 1 s and more, while rank 2 is in MPI_Barrier"), "{observed}");
        }
        other => panic!("{other:?}"),
    }
}

/// Regression: programs of MPICH on one node and of Open MPI on the other node waited indefinitely. The notice listed no missing ranks.
#[test]
fn ranks_that_begin_in_two_protocols_on_two_nodes_end_the_launch() {
    let speaks = |rank, protocol| RankProgress { protocol: Some(protocol), ..progress(rank, true) };
    for others in [SpokenProtocol::Pmi, SpokenProtocol::Pmix] {
        let mut simulation = Simulation::running(2, 1);
        simulation.event(0, Event::Notice(Notice::Stuck { after: SECOND, waiting: 1, missing: vec![] }));
        simulation.answer(0, vec![speaks(0, SpokenProtocol::Pmi)]);
        simulation.answer(1, vec![speaks(1, others)]);
        let reasons: Vec<_> = simulation.endings().into_iter().map(|cause| cause.kind.clone()).collect();
        match (others, &reasons[..]) {
            (SpokenProtocol::Pmi, []) => assert_eq!(simulation.notices().len(), 1),
            (SpokenProtocol::Pmix, [CauseKind::Fence { reason }]) => {
                assert!(
                    reason.starts_with("rank 0 speaks PMI (MPICH and its kin), and rank 1 speaks PMIx"),
                    "{reason}"
                );
                assert_eq!(simulation.notices(), []);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_fence_that_timed_out_names_what_was_known_of_a_node_that_does_not_answer() {
    let mut simulation = Simulation::running(2, 2);
    let missing = vec![(Rank(3), None)];
    simulation.cause(0, CauseKind::FenceTimeout { limit: SECOND, waiting: 3, missing });
    simulation.answer(0, vec![progress(0, true), progress(1, true)]);
    assert_eq!(simulation.endings(), []);
    simulation.pass(ANSWER);
    let endings = simulation.endings();
    let kind = CauseKind::FenceTimeout { limit: SECOND, waiting: 3, missing: vec![(Rank(3), None)] };
    assert_eq!((endings.len(), &endings[0].kind), (1, &kind));
    let told = |node| simulation.was_told(node, |command| matches!(command, NodeCommand::GiveUp));
    assert_eq!([told(0), told(1)], [false, true], "the node that reported it ends its part by itself");
}

#[test]
fn a_rank_that_finalized_is_missed_only_if_others_still_wait_a_second_later() {
    for still_waits in [true, false] {
        let mut simulation = Simulation::running(2, 1);
        simulation.event(0, Event::Waiting { ranks: vec![Rank(0)] });
        simulation.exit(1, Some(RankPhase::Finalized));
        assert!(!simulation.was_told(0, is_asked), "the last fence may be about to be complete");
        simulation.pass(SECOND);
        simulation.answer(0, vec![progress(0, still_waits)]);
        simulation.answer(1, Vec::new());
        let left = CauseKind::LeftFence { rank: Rank(1), waiting: vec![Rank(0)] };
        let expected = Vec::from_iter(still_waits.then_some(left));
        assert_eq!(simulation.endings().into_iter().map(|cause| cause.kind).collect::<Vec<_>>(), expected);
    }
}

fn large() -> Simulation {
    let facts = Facts { gather_above: 2, ..facts(4, 1) };
    let mut simulation = Simulation::new(facts, 1);
    simulation.input(|machine, now| machine.on_fan_out(Ok(()), now));
    (0..4).for_each(|node| simulation.open(node, 1));
    simulation
}

/// Number of direct queries to a node, and of queries to it as a root.
fn questions(simulation: &Simulation, node: u32) -> (usize, usize) {
    let commands = &simulation.commands[node as usize];
    let count = |is: fn(&NodeCommand) -> bool| commands.iter().filter(|command| is(command)).count();
    (count(is_asked), count(|command| matches!(command, NodeCommand::Gather { .. })))
}

fn gathered(simulation: &mut Simulation, question: u64, nodes: &[u32]) {
    let answer = |&node: &u32| NodeAnswer {
        node: NodeIndex(node),
        ranks: vec![RankAnswer { progress: progress(node, true), program: Bytes::new() }],
        left_out: 0,
    };
    let gathered = Gathered { nodes: nodes.iter().map(answer).collect(), ..Gathered::default() };
    let happening = NodeHappening::Gathered { question, gathered };
    simulation.happened(0, NodeEvent::Happened(happening, Vec::new()));
}

#[test]
fn the_status_of_a_large_launch_takes_one_question() {
    let mut simulation = large();
    let ticket = simulation.status();
    gathered(&mut simulation, 1, &[0, 1, 2, 3]);
    let nodes = nodes(&simulation, ticket).expect("all have answered");
    assert!(nodes.iter().all(|node| !node.silent && node.ranks[0].0.waiting), "{nodes:?}");
    assert_eq!((0..4).map(|node| questions(&simulation, node)).collect::<Vec<_>>(), [(0, 1), (0, 0), (0, 0), (0, 0)]);
}

#[test]
fn a_node_that_others_could_not_ask_is_asked_and_named_if_it_is_silent() {
    let mut simulation = large();
    let ticket = simulation.status();
    gathered(&mut simulation, 1, &[0, 1, 3]);
    assert_eq!((0..4).map(|node| questions(&simulation, node).0).collect::<Vec<_>>(), [0, 0, 1, 0]);
    assert!(nodes(&simulation, ticket).is_none(), "it may still answer");
    simulation.pass(ANSWER);
    let nodes = nodes(&simulation, ticket).unwrap();
    assert_eq!(nodes.iter().map(|node| node.silent).collect::<Vec<_>>(), [false, false, true, false]);
}

#[test]
fn nodes_whose_root_does_not_know_the_question_are_asked_one_by_one() {
    let mut simulation = large();
    let ticket = simulation.status();
    simulation.pass(ANSWER);
    for node in 0..4 {
        simulation.answer(node, vec![progress(node, false)]);
    }
    assert!(nodes(&simulation, ticket).is_some_and(|nodes| nodes.iter().all(|node| !node.silent)));
    simulation.status();
    assert_eq!(questions(&simulation, 0), (2, 1), "the next one asks nobody else");
}

#[test]
fn what_a_session_says_of_others_decides_nothing() {
    let mut simulation = large();
    simulation.status();
    let exit = RankExit::Code(1);
    let ended = RankProgress { exit: Some(exit), ..progress(2, false) };
    let answer = NodeAnswer {
        node: NodeIndex(2),
        ranks: vec![RankAnswer { progress: ended, program: Bytes::new() }],
        left_out: 0,
    };
    let gathered = Gathered { nodes: vec![answer], ..Gathered::default() };
    simulation.happened(0, NodeEvent::Happened(NodeHappening::Gathered { question: 1, gathered }, Vec::new()));
    assert_eq!(simulation.machine.nodes.state.ranks.ends(), []);
}
