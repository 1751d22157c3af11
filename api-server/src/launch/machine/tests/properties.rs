//! Properties that hold in any order of events.

use lattice_session::cause::{CauseKind, HOLD_GIVEN_UP, Origin, RankExit};
use lattice_session::event::Event;
use lattice_session::timeouts;
use pmi_core::Phase as RankPhase;
use pmi_core::ids::{NodeIndex, Rank};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::time::Duration;

use super::super::Stored;
use super::super::attachments::Role;
use super::super::event::{ClientRequest, NodeCommand};
use super::simulation::{Simulation, WINDOW, facts};
use crate::launch::fan_out::{NotStarted, Refusal};
use pmi_transport::proto::v1::RefusalReason;

const NODES: u32 = 3;
const RANKS: u32 = 2;

/// An event of a launch.
#[derive(Clone, Debug)]
enum Step {
    Accepted,
    Refused,
    Open(u32, u64),
    Closed(u32, u64),
    Started(u32),
    Output(u32, usize),
    Exited(u32, Option<RankPhase>),
    Cause(u32, usize),
    Waiting(u32),
    Report(u32),
    Lost(u32),
    OwnerComes,
    OwnerAcknowledges,
    OwnerEnds(i32),
    OwnerSaysGoodbye,
    OwnerGoes,
    ViewerComes,
    ViewerAsks(u64),
    ViewerGoes(u64),
    Status,
    Spawn(u32, u32),
    Spawned(u32, bool),
    Stored(bool),
    Abort,
    Pass(u64),
}

fn causes() -> Vec<CauseKind> {
    let rank = Rank(0);
    let exit = |exit| CauseKind::Failed { rank, exit };
    vec![
        exit(RankExit::Signal { signal: 9, core_dumped: false }),
        exit(RankExit::Signal { signal: 11, core_dumped: false }),
        exit(RankExit::Code(3)),
        CauseKind::Aborted { rank, code: 14, message: String::new() },
        CauseKind::Aborted { rank, code: 42, message: String::new() },
        CauseKind::Fence { reason: "a node left".to_owned() },
        CauseKind::LeftWithoutFinalize { rank },
        CauseKind::FenceTimeout { limit: Duration::from_secs(1), waiting: 1, missing: Vec::new() },
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let (node, stream, rank) = (0..NODES, 1..4_u64, 0..NODES * RANKS);
    let phase = prop_oneof![
        Just(None),
        Just(Some(RankPhase::Silent)),
        Just(Some(RankPhase::Open)),
        Just(Some(RankPhase::Finalized))
    ];
    prop_oneof![
        4 => Just(Step::Accepted),
        1 => Just(Step::Refused),
        6 => (node.clone(), stream.clone()).prop_map(|(node, stream)| Step::Open(node, stream)),
        2 => (node.clone(), stream).prop_map(|(node, stream)| Step::Closed(node, stream)),
        4 => rank.clone().prop_map(Step::Started),
        8 => (rank.clone(), 1..4000_usize).prop_map(|(rank, bytes)| Step::Output(rank, bytes)),
        4 => (rank, phase).prop_map(|(rank, phase)| Step::Exited(rank, phase)),
        1 => (node.clone(), 0..causes().len()).prop_map(|(node, kind)| Step::Cause(node, kind)),
        2 => node.clone().prop_map(Step::Waiting),
        1 => node.clone().prop_map(Step::Report),
        1 => node.clone().prop_map(Step::Lost),
        3 => Just(Step::OwnerComes),
        5 => Just(Step::OwnerAcknowledges),
        1 => prop_oneof![Just(2), Just(99)].prop_map(Step::OwnerEnds),
        1 => Just(Step::OwnerSaysGoodbye),
        1 => Just(Step::OwnerGoes),
        2 => Just(Step::ViewerComes),
        1 => (1..30_u64).prop_map(Step::ViewerAsks),
        1 => (1..30_u64).prop_map(Step::ViewerGoes),
        1 => Just(Step::Status),
        2 => (node.clone(), 1..4_u32).prop_map(|(node, ranks)| Step::Spawn(node, ranks)),
        2 => (node, any::<bool>()).prop_map(|(node, runs)| Step::Spawned(node, runs)),
        3 => any::<bool>().prop_map(Step::Stored),
        1 => Just(Step::Abort),
        4 => (1..3000_u64).prop_map(Step::Pass),
    ]
}

/// A launch and the state of the test that applies steps to it.
struct Walk {
    simulation: Simulation,
    owner: Option<u64>,
    viewers: Vec<u64>,
    questions: BTreeSet<u64>,
    spawns: BTreeSet<u64>,
}

impl Walk {
    fn new() -> Self {
        let simulation = Simulation::new(facts(NODES, RANKS), RANKS);
        Self { simulation, owner: None, viewers: Vec::new(), questions: BTreeSet::new(), spawns: BTreeSet::new() }
    }

    fn take(&mut self, step: &Step) {
        let simulation = &mut self.simulation;
        match *step {
            Step::Accepted => simulation.input(|machine, now| machine.on_fan_out(Ok(()), now)),
            Step::Refused => simulation.input(|machine, now| machine.on_fan_out(Err(refusal()), now)),
            Step::Open(node, stream) => simulation.open(node, stream),
            Step::Closed(node, stream) => {
                simulation.input(|machine, now| machine.on_stream_closed(NodeIndex(node), stream, now));
            }
            Step::Started(rank) => {
                simulation
                    .event(rank / RANKS, Event::Started { rank: Rank(rank), pid: 100 + rank, at: Duration::ZERO });
            }
            Step::Output(rank, bytes) => simulation.output(rank, bytes),
            Step::Exited(rank, phase) => simulation.exit(rank, phase),
            Step::Cause(node, kind) => simulation.cause(node, causes()[kind].clone()),
            Step::Waiting(node) => simulation.event(node, Event::Waiting { ranks: vec![Rank(node * RANKS)] }),
            Step::Report(node) => simulation.report(node),
            Step::Lost(node) => {
                simulation.input(|machine, now| machine.on_node_lost(NodeIndex(node), "no heartbeat came", now));
            }
            Step::OwnerComes => self.owner = simulation.attach(Role::Owner).ok().map(|joined| joined.client),
            Step::OwnerAcknowledges => self.of_owner(ClientRequest::Acknowledge),
            Step::OwnerEnds(signal) => self.of_owner(|_| ClientRequest::End(signal)),
            Step::OwnerSaysGoodbye => {
                if let Some(owner) = self.owner {
                    simulation.input(|machine, _| machine.on_goodbye(owner, 7));
                }
            }
            Step::OwnerGoes => {
                if let Some(owner) = self.owner.take() {
                    simulation.input(|machine, now| machine.on_client_gone(owner, now));
                }
            }
            Step::ViewerComes => self.viewers.extend(simulation.attach(Role::Viewer).map(|joined| joined.client)),
            Step::ViewerAsks(index) => {
                if let Some(&viewer) = self.viewers.get(index as usize) {
                    simulation.request(viewer, ClientRequest::Stdin("x".into()));
                }
            }
            Step::ViewerGoes(index) => {
                if let Some(&viewer) = self.viewers.get(index as usize) {
                    simulation.input(|machine, now| machine.on_client_gone(viewer, now));
                }
            }
            Step::Status => drop(self.questions.insert(simulation.status())),
            Step::Spawn(node, ranks) => drop(self.spawns.insert(simulation.spawn(node, ranks))),
            Step::Spawned(node, runs) => {
                if let Some(job) = simulation.spawned(node as usize).pop() {
                    let failure = (!runs).then(|| "there is no ./child".to_owned());
                    simulation.event(node, Event::Spawned { job, failure });
                }
            }
            Step::Stored(true) => simulation.stored(Stored::Durable),
            Step::Stored(false) => simulation.stored(Stored::Failed),
            Step::Abort => simulation.abort(),
            Step::Pass(milliseconds) => {
                simulation.now += Duration::from_millis(milliseconds);
                simulation.input(super::super::Machine::on_tick);
            }
        }
    }

    fn of_owner(&mut self, request: impl FnOnce(u64) -> ClientRequest) {
        if let Some(owner) = self.owner {
            let last = self.simulation.log.last().map_or(0, |(sequence, _)| *sequence);
            self.simulation.request(owner, request(last));
        }
    }

    /// All clients disconnect, and another user ends the launch.
    fn end(&mut self) {
        self.take(&Step::Accepted);
        let clients: Vec<u64> = self.owner.take().into_iter().chain(self.viewers.drain(..)).collect();
        for client in clients {
            self.simulation.input(|machine, now| machine.on_client_gone(client, now));
        }
        self.simulation.abort();
        let limit = timeouts::FIRST_REPORT + timeouts::GRACE_OF_OTHERS + timeouts::END + timeouts::LAST;
        self.simulation.pass(limit + Duration::from_secs(1));
    }
}

fn refusal() -> NotStarted {
    let (node, message) = ("n1".to_owned(), "no".to_owned());
    Refusal { node, message, reason: RefusalReason::Busy }.into()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_launch_ends_whatever_happened_and_everybody_is_answered(steps in prop::collection::vec(step(), 0..120)) {
        let mut walk = Walk::new();
        steps.iter().for_each(|step| walk.take(step));
        walk.end();
        let simulation = &walk.simulation;
        prop_assert!(simulation.completion().is_some(), "it has not ended");
        prop_assert_eq!(simulation.concluded, Some(simulation.completion().unwrap().cause.is_none()));
        prop_assert_eq!(simulation.started.len(), 1, "who ordered it is answered once");
        prop_assert_eq!(simulation.status_answers.keys().copied().collect::<BTreeSet<_>>(), walk.questions);
        prop_assert_eq!(simulation.spawn_answers.keys().copied().collect::<BTreeSet<_>>(), walk.spawns);
        prop_assert_eq!(simulation.closed.len(), NODES as usize, "all streams end");
        prop_assert!(simulation.is_forgotten());
    }

    #[test]
    fn there_is_at_most_one_cause_and_the_end_has_it(steps in prop::collection::vec(step(), 0..120)) {
        let mut walk = Walk::new();
        steps.iter().for_each(|step| walk.take(step));
        walk.end();
        let endings = walk.simulation.endings();
        prop_assert!(endings.len() <= 1, "{:?}", endings);
        let completion = walk.simulation.completion().unwrap();
        if completion.cause != endings.first().cloned() {
            // Only a launch that was not started ends without an earlier announcement.
            prop_assert_eq!(&walk.simulation.started, &[false]);
        }
    }

    #[test]
    fn a_viewer_changes_nothing_for_nodes_and_owner(steps in prop::collection::vec(step(), 0..120)) {
        let of_viewers = |step: &&Step| {
            !matches!(step, Step::ViewerComes | Step::ViewerAsks(_) | Step::ViewerGoes(_))
        };
        let seen = |steps: &mut dyn Iterator<Item = &Step>| {
            let mut walk = Walk::new();
            steps.for_each(|step| walk.take(step));
            let Simulation { commands, aborted, settled, credit, log, .. } = walk.simulation;
            (format!("{commands:?} {log:?}"), aborted, settled, credit)
        };
        prop_assert_eq!(seen(&mut steps.iter()), seen(&mut steps.iter().filter(of_viewers)));
    }

    #[test]
    fn a_node_that_was_given_up_or_asked_in_vain_is_unclean_and_one_that_died_is_lost_alone(
        steps in prop::collection::vec(step(), 0..120),
    ) {
        let mut walk = Walk::new();
        let mut died = BTreeSet::new();
        for step in &steps {
            let before = walk.simulation.lost.clone();
            walk.take(step);
            let lost: BTreeSet<u32> = walk.simulation.lost.difference(&before).copied().collect();
            if matches!(step, Step::Lost(_)) {
                died.extend(lost);
            }
        }
        walk.end();
        let Simulation { lost, unclean, .. } = &walk.simulation;
        let given_up: BTreeSet<u32> = lost.difference(&died).copied().collect();
        // Parts of a refused launch may be left on every node that did not refuse it.
        let is_refused = walk.simulation.started == [false];
        let others = if is_refused { BTreeSet::from([0, 2]) } else { BTreeSet::new() };
        prop_assert_eq!(unclean.clone(), &given_up | &others);
        let completion = walk.simulation.completion().unwrap();
        for node in given_up {
            let node = format!("n{node}");
            prop_assert!(completion.message.contains("did not report the end of "), "{} {}", node, completion.message);
        }
    }

    #[test]
    fn spawned_jobs_have_ids_of_their_own_over_restarts_too(
        steps in prop::collection::vec(step(), 0..80),
        later in prop::collection::vec(step(), 0..80),
    ) {
        let mut walk = Walk::new();
        walk.take(&Step::Accepted);
        steps.iter().for_each(|step| walk.take(step));
        let answered = walk.simulation.spawn_answers.values().filter_map(|answer| answer.clone().ok());
        let running: BTreeSet<_> = answered.collect();
        let before: BTreeSet<_> = walk.simulation.spawned(0).into_iter().collect();
        prop_assert_eq!(before.len(), walk.simulation.spawned(0).len(), "no job is ordered twice");
        let known: BTreeSet<_> = walk.simulation.durable.spawned.iter().map(|job| job.id.clone()).collect();
        prop_assert!(before.is_subset(&known), "nodes are told of jobs that are durable");
        prop_assert!(running.is_subset(&known));
        let resumed = walk.simulation.resumed();
        let mut walk = Walk { simulation: resumed, ..Walk::new() };
        later.iter().for_each(|step| walk.take(step));
        let after: BTreeSet<_> = walk.simulation.spawned(0).into_iter().collect();
        prop_assert!(known.is_disjoint(&after), "{:?} {:?}", known, after);
    }

    #[test]
    fn a_launch_that_is_resumed_knows_what_was_durable_and_ends(
        steps in prop::collection::vec(step(), 0..100),
        later in prop::collection::vec(step(), 0..60),
    ) {
        let mut walk = Walk::new();
        walk.take(&Step::Accepted);
        steps.iter().for_each(|step| walk.take(step));
        prop_assume!(walk.simulation.completion().is_none());
        let durable = walk.simulation.durable.clone();
        let mut walk = Walk { simulation: walk.simulation.resumed(), ..Walk::new() };
        later.iter().filter(|step| !matches!(step, Step::Refused)).for_each(|step| walk.take(step));
        walk.end();
        let completion = walk.simulation.completion().expect("it ends");
        for end in &durable.ends {
            prop_assert!(completion.ends.contains(end), "{:?} is forgotten", end);
        }
        if durable.cause.is_some() {
            prop_assert_eq!(&completion.cause, &durable.cause);
        }
    }

    /// The simulated nodes send only granted bytes. `Simulation` fails if the grants exceed their window.
    #[test]
    fn a_node_that_keeps_to_its_credit_is_never_lost_for_its_output(
        pieces in prop::collection::vec((0..NODES * RANKS, 1..4000_usize, any::<bool>()), 0..200),
    ) {
        let mut walk = Walk { simulation: Simulation::running(NODES, RANKS), ..Walk::new() };
        walk.take(&Step::OwnerComes);
        for (rank, bytes, acknowledges) in pieces {
            walk.take(&Step::Output(rank, bytes));
            if acknowledges {
                walk.take(&Step::OwnerAcknowledges);
            }
        }
        prop_assert!(walk.simulation.lost.is_empty());
        walk.take(&Step::OwnerAcknowledges);
        for credit in &walk.simulation.credit {
            prop_assert!(*credit > WINDOW - WINDOW / 4 && *credit <= WINDOW, "{}", credit);
        }
    }

    /// In any order of arrival, the cause that explains the other causes counts as the first. Among equals, the first arrival counts.
    #[test]
    fn the_first_cause_is_the_one_that_the_others_can_follow_from(
        order in prop::collection::vec((0..NODES, 0..7_usize), 1..6),
    ) {
        let mut simulation = Simulation::running(NODES, RANKS);
        let mut expected: Option<(u32, CauseKind)> = None;
        for (node, kind) in order {
            let kind = causes()[kind].clone();
            let is_likelier = expected.as_ref().is_none_or(|(_, known)| kind.origin() > known.origin());
            if is_likelier {
                expected = Some((node, kind.clone()));
            }
            simulation.cause(node, kind);
            simulation.now += Duration::from_millis(5);
        }
        simulation.pass(HOLD_GIVEN_UP);
        let (node, kind) = expected.unwrap();
        let endings = simulation.endings();
        prop_assert_eq!(endings.len(), 1);
        prop_assert_eq!((&endings[0].host, &endings[0].kind), (&format!("n{node}"), &kind));
        let told = |node| simulation.was_told(node, |command| matches!(command, NodeCommand::GiveUp));
        prop_assert_eq!((0..NODES).map(told).collect::<Vec<_>>(), (0..NODES).map(|other| other != node).collect::<Vec<_>>());
        prop_assert!(kind.origin() <= Origin::Itself);
    }
}
