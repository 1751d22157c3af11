use bytes::Bytes;
use lattice_session::call_stacks::RankStack;
use lattice_session::event::RankProgress;
use lattice_session::gathered::{GatheredStacks, NodeAnswer, RankAnswer};
use pmi_core::ids::{NodeIndex, Rank};

use super::*;

const ABOVE: u32 = 3;

fn begun(now: Instant) -> Gathering {
    let mut gathering = Gathering::new(ABOVE);
    gathering.want(Extent::Progress, 1);
    let number = gathering.take_next(Extent::Progress).unwrap();
    let (root, command) = gathering
        .begin(Extent::Progress, number, vec![NodeIndex(1), NodeIndex(2), NodeIndex(3), NodeIndex(5)], now)
        .unwrap();
    let NodeCommand::Gather { question: 1, order } = command else { panic!("{command:?}") };
    assert_eq!((root, order.nodes.ranges()), (NodeIndex(1), &[1..=3, 5..=5][..]));
    assert!(order.time < Extent::Progress.limit());
    gathering
}

#[test]
fn few_nodes_are_asked_one_by_one() {
    let now = Instant::now();
    assert_eq!([3, 4].map(|nodes| Gathering::new(ABOVE).takes(nodes, now)), [false, true]);
}

#[test]
fn one_question_is_under_way_at_a_time_and_the_last_that_waits_is_next() {
    let now = Instant::now();
    let mut gathering = begun(now);
    gathering.want(Extent::Progress, 2);
    gathering.want(Extent::Progress, 3);
    gathering.want(Extent::Stacks, 4);
    assert_eq!(gathering.take_next(Extent::Progress), None);
    assert_eq!(gathering.take_next(Extent::Stacks), Some(4), "stacks take their time by themselves");
    assert!(
        gathering.on_answer(NodeIndex(2), 1).is_none() && gathering.on_answer(NodeIndex(1), 7).is_none(),
        "that is not the question"
    );
    let (extent, open) = gathering.on_answer(NodeIndex(1), 1).unwrap();
    assert_eq!((extent, open.nodes), (Extent::Progress, [1, 2, 3, 5].map(NodeIndex).to_vec()));
    assert_eq!(gathering.take_next(Extent::Progress), Some(3));
    assert_eq!(gathering.take_next(Extent::Progress), None);
}

#[test]
fn a_root_that_does_not_answer_is_not_asked_again_for_a_while() {
    let now = Instant::now();
    let mut gathering = begun(now);
    assert!(gathering.take_failed(now).is_empty());
    let late = now + Extent::Progress.limit();
    assert_eq!(gathering.take_failed(late).len(), 1);
    assert!(gathering.take_failed(late).is_empty());
    assert_eq!([late, late + DIRECTLY].map(|now| gathering.takes(9, now)), [false, true]);
}

#[test]
fn a_root_that_is_gone_is_nobodys_fault() {
    let now = Instant::now();
    let mut gathering = begun(now);
    gathering.on_gone(NodeIndex(2));
    assert!(gathering.take_failed(now).is_empty(), "others are not waited for here");
    gathering.on_gone(NodeIndex(1));
    assert_eq!(gathering.take_failed(now).len(), 1);
    assert!(gathering.takes(9, now));
}

#[test]
fn what_was_gathered_is_told_of_each_node_that_was_asked_and_of_no_other() {
    let rank =
        |rank| RankAnswer { progress: RankProgress::unknown(Rank(rank)), program: Bytes::from_static(b"/bin/sh") };
    let node = |node, ranks: &[u32]| NodeAnswer {
        node: NodeIndex(node),
        ranks: ranks.iter().copied().map(rank).collect(),
        left_out: 1,
    };
    let stack = |ranks: &[u32], text: &str| RankStack {
        ranks: ranks.iter().copied().map(Rank).collect(),
        text: text.to_owned(),
    };
    let stacks = GatheredStacks { stacks: vec![stack(&[0, 1], "solve"), stack(&[2, 3, 4, 5], "wait")], left_out: 5 };
    let nodes = vec![node(0, &[0, 1]), node(1, &[2, 3]), node(1, &[2]), node(9, &[0])];
    let gathered = Gathered { nodes, stacks: Some(stacks), unheard: Vec::new() };
    let answers = by_node(gathered, &[NodeIndex(0), NodeIndex(1), NodeIndex(2)], 4, |rank| Some(NodeIndex(rank.0 / 2)));
    let told: Vec<_> = answers.iter().map(|(node, answer)| (*node, answer.ranks.len(), answer.left_out)).collect();
    assert_eq!(told, [(NodeIndex(0), 2, 6), (NodeIndex(1), 2, 1)]);
    assert_eq!(answers[1].1.programs, [2, 3].map(|rank| (Rank(rank), Bytes::from_static(b"/bin/sh"))));
    assert_eq!(answers[0].1.stacks, Some(vec![stack(&[0, 1], "solve")]));
    assert_eq!(answers[1].1.stacks, Some(vec![stack(&[2, 3], "wait")]), "the launch has four ranks");
}
