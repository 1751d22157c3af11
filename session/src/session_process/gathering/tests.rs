use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::gathered::{GatherDetail, NodeAnswer};

fn told(node: u32) -> Gathered {
    let answer = NodeAnswer { node: NodeIndex(node), ranks: Vec::new(), left_out: 0 };
    Gathered { nodes: vec![answer], ..Gathered::default() }
}

fn order(nodes: &[u32]) -> GatherOrder {
    let nodes = NodeSelection::of(nodes.iter().copied()).unwrap();
    GatherOrder { nodes, detail: GatherDetail::Usage, time: Duration::from_millis(800) }
}

fn asks(gathering: &mut Gathering, now: Instant) -> Vec<(u32, Vec<u32>)> {
    let next = || gathering.poll_ask(now).map(|(node, order)| (node.0, order.nodes.nodes().collect()));
    std::iter::from_fn(next).collect()
}

/// Sessions that answer and send orders to sessions below them. `lost` sessions refuse, `silent` sessions never answer.
struct Sessions {
    fan_out: u32,
    lost: BTreeSet<u32>,
    silent: BTreeSet<u32>,
    /// Number of questions that each session has received.
    asked: BTreeMap<u32, usize>,
}

impl Sessions {
    /// Returns the answer of the first node of `order`, and the time of the answer; `None` for no answer.
    fn ask(&mut self, order: GatherOrder, now: Instant) -> Option<(Result<Gathered, String>, Instant)> {
        let me = order.nodes.nodes().next().unwrap();
        *self.asked.entry(me).or_default() += 1;
        if self.silent.contains(&me) {
            return None;
        }
        if self.lost.contains(&me) {
            return Some((Err("it is lost".to_owned()), now));
        }
        let (ends, mut clock) = (now + order.time, now);
        let mut gathering = Gathering::new(order, self.fan_out, now);
        gathering.on_own(Ok(told(me)));
        let mut answers: Vec<(Instant, NodeIndex, Result<Gathered, String>)> = Vec::new();
        loop {
            while let Some((node, below)) = gathering.poll_ask(clock) {
                assert!(clock + below.time < ends, "who is asked has less time than who asks");
                if let Some((answer, at)) = self.ask(below, clock) {
                    answers.push((at, node, answer));
                }
            }
            if let Some(answer) = gathering.poll_answer(clock) {
                assert!(clock <= ends);
                return Some((Ok(answer), clock));
            }
            answers.sort_by_key(|(at, node, _)| (*at, *node));
            match answers.first() {
                Some((at, ..)) if *at <= gathering.wake() => {
                    let (at, node, answer) = answers.remove(0);
                    clock = at;
                    gathering.on_answer(node, answer, clock);
                }
                _ => {
                    clock = gathering.wake();
                    gathering.on_time(clock);
                }
            }
        }
    }
}

fn sessions(fan_out: u32, lost: &[u32], silent: &[u32]) -> Sessions {
    let set = |nodes: &[u32]| nodes.iter().copied().collect();
    Sessions { fan_out, lost: set(lost), silent: set(silent), asked: BTreeMap::new() }
}

fn nodes_of(gathered: &Gathered) -> Vec<u32> {
    gathered.nodes.iter().map(|answer| answer.node.0).collect()
}

#[test]
fn nodes_are_asked_through_the_tree_of_fences() {
    let now = Instant::now();
    let mut gathering = Gathering::new(order(&[0, 1, 2, 3, 5, 6, 7]), 2, now);
    assert_eq!(asks(&mut gathering, now), [(1, vec![1, 2, 3]), (5, vec![5, 6, 7])]);
    gathering.on_own(Ok(told(0)));
    gathering.on_answer(
        NodeIndex(1),
        Ok(Gathered { nodes: (1..4).flat_map(|node| told(node).nodes).collect(), ..told(9) }),
        now,
    );
    assert_eq!(gathering.poll_answer(now), None);
    gathering.on_answer(NodeIndex(5), Ok(told(5)), now);
    assert_eq!(nodes_of(&gathering.poll_answer(now).unwrap()), [0, 1, 2, 3, 5]);
}

#[test]
fn those_behind_a_lost_node_are_asked_in_its_place() {
    let now = Instant::now();
    let mut all = sessions(2, &[1], &[]);
    let (answer, _) = all.ask(order(&[0, 1, 2, 3, 4, 5, 6]), now).unwrap();
    let answer = answer.unwrap();
    assert_eq!(nodes_of(&answer), [0, 2, 3, 4, 5, 6]);
    assert_eq!(answer.unheard, [Unheard { node: NodeIndex(1), reason: "it is lost".to_owned() }]);
}

#[test]
fn a_silent_node_costs_time_and_those_behind_it_are_asked_with_the_rest() {
    let now = Instant::now();
    let mut all = sessions(2, &[], &[1]);
    let (answer, at) = all.ask(order(&[0, 1, 2, 3, 4, 5, 6]), now).unwrap();
    assert_eq!(nodes_of(&answer.unwrap()), [0, 2, 3, 4, 5, 6]);
    assert_eq!(at, now + Duration::from_millis(600), "three quarters");
}

#[test]
fn where_no_time_is_left_nobody_is_asked_any_more() {
    let now = Instant::now();
    let short = GatherOrder { time: WAY_MIN, ..order(&[0, 1, 2]) };
    let mut gathering = Gathering::new(short, 8, now);
    assert_eq!(asks(&mut gathering, now), []);
    gathering.on_own(Err("its part has ended".to_owned()));
    let answer = gathering.poll_answer(now).unwrap();
    assert!(answer.nodes.is_empty());
    assert_eq!(answer.unheard.iter().map(|unheard| unheard.node.0).collect::<Vec<_>>(), [1, 2, 0]);
}

#[test]
fn call_stacks_leave_each_node_the_time_to_look() {
    let now = Instant::now();
    let time = GatherDetail::Stacks.look() + Duration::from_secs(1);
    let stacks = GatherOrder { detail: GatherDetail::Stacks, time, ..order(&[0, 1]) };
    let (_, below) = Gathering::new(stacks, 8, now).poll_ask(now).unwrap();
    assert_eq!(below.time, GatherDetail::Stacks.look() + Duration::from_millis(750));
}

#[test]
fn an_answer_that_comes_late_or_from_nobody_counts_for_nothing() {
    let now = Instant::now();
    let mut gathering = Gathering::new(order(&[0, 1, 2]), 8, now);
    assert_eq!(asks(&mut gathering, now).len(), 2);
    gathering.on_own(Ok(told(0)));
    gathering.on_answer(NodeIndex(7), Ok(told(2)), now);
    let late = gathering.wake();
    gathering.on_time(late);
    gathering.on_answer(NodeIndex(1), Ok(told(1)), late);
    assert_eq!(nodes_of(&gathering.poll_answer(late).unwrap()), [0]);
}

proptest! {
    /// A lost node causes no other node to be missing. Each living node is asked once.
    #[test]
    fn whoever_lives_is_in_the_answer(
        nodes in prop::collection::btree_set(0_u32..2000, 1..300),
        fan_out in 0_u32..50,
        lost in prop::collection::btree_set(0_u32..2000, 0..300),
    ) {
        let nodes: Vec<u32> = nodes.into_iter().collect();
        let lost: Vec<u32> = lost.into_iter().filter(|node| *node != nodes[0]).collect();
        let mut all = sessions(fan_out.max(2), &lost, &[]);
        let (answer, _) = all.ask(order(&nodes), Instant::now()).unwrap();
        let living: Vec<u32> = nodes.iter().copied().filter(|node| !lost.contains(node)).collect();
        prop_assert_eq!(nodes_of(&answer.unwrap()), living);
        prop_assert!(all.asked.values().all(|count| *count == 1));
    }

    /// With any silent nodes, the answer arrives in time, and contains at least the node that was asked.
    #[test]
    fn silent_nodes_never_hold_the_answer_up(
        count in 1_u32..200,
        fan_out in 1_u32..20,
        silent in prop::collection::btree_set(1_u32..200, 0..100),
    ) {
        let nodes: Vec<u32> = (0..count).collect();
        let (now, silent) = (Instant::now(), silent.into_iter().collect::<Vec<_>>());
        let mut all = sessions(fan_out, &[], &silent);
        let (answer, at) = all.ask(order(&nodes), now).unwrap();
        let answer = answer.unwrap();
        prop_assert!(at <= now + order(&nodes).time);
        prop_assert_eq!(answer.nodes.first().map(|node| node.node.0), Some(0));
        prop_assert!(nodes_of(&answer).iter().all(|node| !silent.contains(node)));
    }
}
