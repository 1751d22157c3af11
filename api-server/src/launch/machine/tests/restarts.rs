//! A launch over restarts of the API server. The next server needs only the durable state and the repeated reports of agents.

use lattice_session::cause::{Cause, CauseKind, HOLD, RankExit};
use lattice_session::event::Event;
use lattice_session::timeouts;
use lattice_session::wire::event::NodeHappening;
use pmi_core::Phase as RankPhase;
use pmi_core::ids::{NodeIndex, Rank};
use proptest::prelude::*;
use std::time::Duration;
use tokio::time::Instant;

use super::super::event::{NodeCommand, NodeEvent, Programs};
use super::super::facts::Facts;
use super::super::{Machine, Stored};
use super::simulation::{Simulation, TICK, facts, progress, reached};
use crate::launch::summary::Course;

/// Longer than half of the time for which a desertion is suspected before it is confirmed.
const GRACE_OF_DESERTION: Duration = Duration::from_millis(600);
const NODES: u32 = 2;
const RANKS: u32 = 2;

/// A session. It sends its events in order. To a server that has not received them, it sends its cause and its report again, as
/// `session/src/session_process/kept_events.rs` does.
#[derive(Clone, Debug)]
struct Agent {
    node: u32,
    /// Ends of its ranks. If the cause of the launch's end is of this node, it precedes one of them.
    events: Vec<Event>,
    sent: usize,
    streams: u64,
    is_connected: bool,
}

impl Agent {
    fn new(node: u32, exits: &[RankExit], cause: Option<(CauseKind, usize)>) -> Self {
        let reached = reached(RankPhase::Finalized);
        let exited =
            |(rank, &exit): (u32, &RankExit)| Event::Exited { rank: Rank(rank), exit, reached, ran: Duration::ZERO };
        let mut events: Vec<Event> = (node * RANKS..).zip(exits).map(exited).collect();
        if let Some((kind, at)) = cause {
            events.insert(at, Event::Ending(Cause { host: format!("n{node}"), kind }));
        }
        Self { node, events, sent: 0, streams: 0, is_connected: false }
    }

    fn connect(&mut self, server: &mut Simulation) {
        if self.is_connected || server.closed.contains(&self.node) {
            return;
        }
        (self.is_connected, self.streams) = (true, self.streams + 1);
        server.open(self.node, self.streams);
        let repeated = self.events[..self.sent.min(self.events.len())].iter();
        for cause in repeated.filter(|event| matches!(event, Event::Ending(_))) {
            server.event(self.node, cause.clone());
        }
        if self.sent > self.events.len() {
            self.report(server);
        }
    }

    /// Sends the next event; after the last event, the report.
    fn advance(&mut self, server: &mut Simulation) {
        self.connect(server);
        match self.events.get(self.sent) {
            Some(event) => server.event(self.node, event.clone()),
            None if self.sent == self.events.len() => self.report(server),
            None => return,
        }
        self.sent += 1;
    }

    fn report(&self, server: &mut Simulation) {
        let exit = |event: &Event| match event {
            Event::Exited { rank, exit, .. } => Some((*rank, *exit)),
            _ => None,
        };
        let exits = self.events.iter().filter_map(exit).collect();
        let report = NodeHappening::Report { exits, duration: Duration::ZERO, usage: None };
        server.happened(self.node, NodeEvent::Happened(report, Programs::new()));
    }
}

/// An event of a launch and its server.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The session of a node sends its next event.
    Advance(u32),
    /// Time passes, and an attempt to store ends with this result.
    Pass(Stored),
    /// The server ends, and another server resumes the launch.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (0..NODES).prop_map(Step::Advance),
        3 => Just(Step::Pass(Stored::Durable)),
        1 => Just(Step::Pass(Stored::Failed)),
        2 => Just(Step::Restart),
    ]
}

/// Applies these steps to a launch, and completes it. Returns the first cause, and the end of every rank.
fn outcome(mut agents: Vec<Agent>, steps: &[Step]) -> (Option<Cause>, Vec<(Rank, RankExit)>) {
    let mut server = Simulation::running(NODES, RANKS);
    agents.iter_mut().for_each(|agent| (agent.is_connected, agent.streams) = (true, 1));
    for step in steps {
        match *step {
            Step::Advance(node) => agents[node as usize].advance(&mut server),
            Step::Pass(stored) => {
                server.now += 3 * TICK;
                server.input(Machine::on_tick);
                server.stored(stored);
            }
            Step::Restart if server.completion().is_none() => {
                server = server.resumed();
                for agent in &mut agents {
                    agent.is_connected = false;
                    agent.connect(&mut server);
                }
            }
            // A launch with a reported end is not resumed.
            Step::Restart => {}
        }
    }
    for agent in &mut agents {
        (0..=agent.events.len()).for_each(|_| agent.advance(&mut server));
    }
    server.pass(HOLD + Duration::from_secs(2));
    let completion = server.completion().expect("it ends");
    (completion.cause.clone(), completion.ends.iter().map(|end| (end.rank, end.exit)).collect())
}

#[test]
fn a_launch_that_was_being_ended_for_a_cause_that_is_lost_has_failed() {
    let limit = Duration::from_secs(3600);
    let mut server = Simulation::running_with(Facts { time_limit: Some(limit), ..facts(NODES, RANKS) }, RANKS);
    server.input(Machine::on_tick);
    server.now += limit + timeouts::OVERTIME;
    server.input(Machine::on_tick);
    assert!(matches!(server.endings()[..], [Cause { kind: CauseKind::TimedOut { .. }, .. }]));
    server.stored(Stored::Durable);
    assert!(server.durable.cause.is_some(), "it is written down at once");

    // Without the durable cause, ranks end as ordered, and no node has the cause.
    let mut server = Simulation::running(NODES, RANKS).resumed();
    let killed = RankExit::Signal { signal: 15, core_dumped: false };
    for node in 0..NODES {
        let mut agent = Agent::new(node, &[killed; RANKS as usize], None);
        (0..=agent.events.len()).for_each(|_| agent.advance(&mut server));
    }
    server.pass(HOLD + Duration::from_secs(2));
    let cause = server.completion().and_then(|completion| completion.cause.clone()).expect("it has not succeeded");
    assert_eq!(cause.kind, CauseKind::Failed { rank: Rank(0), exit: killed });
}

#[test]
fn answers_to_a_new_server_that_are_of_different_moments_accuse_nobody() {
    let mut server = Simulation::running(2, 1).resumed();
    (0..2).for_each(|node| server.open(node, 2));
    // Rank 0 had left the fence when its node was queried. Rank 1 left it just after its node was queried.
    server.exit(0, Some(RankPhase::Finalized));
    server.pass(TICK);
    server.answer(0, vec![progress(0, false)]);
    server.answer(1, vec![progress(1, true)]);
    server.pass(TICK);
    assert_eq!(server.endings(), []);
    server.exit(1, Some(RankPhase::Finalized));
    (0..2).for_each(|node| server.report(node));
    server.pass(Duration::from_secs(2));
    assert_eq!(server.completion().expect("it ends").cause, None);
}

#[test]
fn a_new_server_finds_who_has_left_others_waiting_before_it() {
    let mut server = Simulation::running(2, 1).resumed();
    (0..2).for_each(|node| server.open(node, 2));
    server.exit(0, Some(RankPhase::Finalized));
    server.pass(TICK);
    for _ in 0..2 {
        server.answer(0, vec![progress(0, false)]);
        server.answer(1, vec![progress(1, true)]);
        server.pass(2 * GRACE_OF_DESERTION);
    }
    let [Cause { kind: CauseKind::LeftFence { rank: Rank(0), waiting }, .. }] = &server.endings()[..] else {
        panic!("{:?}", server.endings())
    };
    assert_eq!(waiting[..], [Rank(1)]);
}

#[test]
fn many_nodes_that_come_back_are_asked_once_each() {
    let mut server = Simulation::running(100, 1).resumed();
    for node in 0..100 {
        server.open(node, 2);
        if node % 10 == 9 {
            server.pass(TICK);
        }
    }
    let questions = |commands: &Vec<NodeCommand>| {
        commands.iter().filter(|command| matches!(command, NodeCommand::AskProgress(_))).count()
    };
    assert!(server.commands.iter().all(|commands| questions(commands) == 1));
}

/// A loss of node 1 of a launch.
type Loss = fn(&mut Machine, Instant);

#[test]
fn a_node_that_is_well_is_not_lost_for_the_next_server_either() {
    let lost: Loss = |machine, now| machine.on_node_lost(NodeIndex(1), "no heartbeat came", now);
    let not_there: Loss = |machine, now| machine.on_not_there(NodeIndex(1), now);
    for (loss, expected) in [(lost, Course::LostNode), (not_there, Course::Ran)] {
        let mut server = Simulation::running(2, 1);
        server.input(loss);
        server.stored(Stored::Durable);
        for mut server in [server.resumed(), server] {
            server.open(0, 2);
            server.exit(0, Some(RankPhase::Finalized));
            server.report(0);
            server.pass(HOLD + Duration::from_secs(2));
            let cause = server.completion().and_then(|completion| completion.cause.clone()).expect("it has failed");
            assert!(matches!(cause.kind, CauseKind::NodeLost { .. }), "{cause}");
            assert_eq!(server.course, Some(expected));
        }
    }
}

fn exit() -> impl Strategy<Value = RankExit> {
    prop_oneof![(0..4_i32).prop_map(RankExit::Code), Just(RankExit::Signal { signal: 9, core_dumped: false })]
}

fn cause() -> impl Strategy<Value = CauseKind> {
    let rank = Rank(0);
    prop::sample::select(vec![
        CauseKind::Failed { rank, exit: RankExit::Signal { signal: 9, core_dumped: false } },
        CauseKind::Failed { rank, exit: RankExit::Code(3) },
        CauseKind::Aborted { rank, code: 42, message: "why".to_owned() },
        CauseKind::LeftWithoutFinalize { rank },
    ])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_launch_ends_with_the_same_cause_and_exits_however_often_its_server_is_started_anew(
        exits in prop::collection::vec(exit(), (NODES * RANKS) as usize),
        cause in prop::option::of((cause(), 0..NODES, 0..RANKS as usize)),
        steps in prop::collection::vec(step(), 0..40),
    ) {
        let agent = |(node, exits): (u32, &[RankExit])| {
            let cause = cause.clone().filter(|&(_, of, _)| of == node).map(|(kind, _, at)| (kind, at));
            Agent::new(node, exits, cause)
        };
        let agents: Vec<Agent> = (0..).zip(exits.chunks(RANKS as usize)).map(agent).collect();
        let undisturbed: Vec<Step> = steps.iter().copied().filter(|step| !matches!(step, Step::Restart)).collect();
        let expected = outcome(agents.clone(), &undisturbed);
        prop_assert_eq!(expected.1.len(), (NODES * RANKS) as usize);
        // Without a cause, the first failed rank is the cause.
        let failed = expected.1.iter().find(|(_, exit)| !exit.is_success());
        let failed = failed.map(|&(rank, exit)| CauseKind::Failed { rank, exit });
        prop_assert_eq!(expected.0.clone().map(|cause| cause.kind), cause.map(|(kind, ..)| kind).or(failed));
        prop_assert_eq!(outcome(agents, &steps), expected);
    }
}
