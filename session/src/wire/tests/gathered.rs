//! Questions to several nodes, and their answers.

use bytes::Bytes;
use rank_spawner::RankExit;

use super::super::question::{self, Question};
use super::super::{failure, gathered};
use super::*;
use crate::call_stacks::RankStack;
use crate::cause::{Cause, CauseKind};
use crate::event::RankProgress;
use crate::gathered::{
    GatherDetail, GatherOrder, Gathered, GatheredStacks, NodeAnswer, NodeSelection, RankAnswer, Unheard,
};
use crate::input_piece::InputPiece;
use crate::wire::failure::LaunchFailure;

fn order() -> GatherOrder {
    let nodes = NodeSelection::of([1, 2, 5]).unwrap();
    GatherOrder { nodes, detail: GatherDetail::Stacks, time: Duration::from_millis(750) }
}

fn rank(rank: u32, program: &'static str) -> RankAnswer {
    let pid = (!program.is_empty()).then_some(7);
    RankAnswer { progress: RankProgress { pid, ..RankProgress::unknown(Rank(rank)) }, program: program.into() }
}

fn stack(ranks: impl IntoIterator<Item = u32>, text: &str) -> RankStack {
    RankStack { ranks: ranks.into_iter().map(Rank).collect(), text: text.to_owned() }
}

#[test]
fn questions_between_sessions_travel() {
    let bytes = Bytes::from_static(b"typed");
    let piece = InputPiece { offset: 7, bytes, is_last: true, nodes: order().nodes };
    for asked in [Question::Gather(order()), Question::Input(piece)] {
        assert_eq!(question::decode(question::encode(&asked), 6).unwrap(), Some(asked.clone()));
        assert!(question::decode(question::encode(&asked), 5).is_err(), "there is no node 5");
    }
}

/// A session of a version that gathers nothing decodes the question as a failure, and must refuse it.
#[test]
fn a_question_is_no_failure_and_a_failure_no_question() {
    assert_eq!(refusal(failure::decode(question::encode(&Question::Gather(order())))), "the message has no cause");
    let cause = Cause { host: "n".to_owned(), kind: CauseKind::TimedOut { limit: Duration::from_secs(1) } };
    let failed = failure::encode(&LaunchFailure { cause, below: 3, api_is_silent: true });
    assert_eq!(question::decode(failed, 6).unwrap(), None);
}

#[test]
fn answers_travel() {
    let ended = RankAnswer {
        progress: RankProgress { pid: Some(9), exit: Some(RankExit::Code(0)), ..RankProgress::unknown(Rank(4)) },
        program: Bytes::new(),
    };
    let node = |node, ranks, left_out| NodeAnswer { node: NodeIndex(node), ranks, left_out };
    let sent = Gathered {
        nodes: vec![
            node(0, vec![rank(0, "/bin/a"), rank(1, "/bin/a"), rank(2, "/bin/b"), rank(3, ""), ended], 0),
            node(5, Vec::new(), 9),
        ],
        stacks: Some(GatheredStacks { stacks: vec![stack([0, 1, 2, 7], "f"), stack([3], "g")], left_out: 2 }),
        unheard: vec![Unheard { node: NodeIndex(3), reason: "lost".to_owned() }],
    };
    assert_eq!(gathered::decode_answer(gathered::encode_answer(&sent)).unwrap(), sent);
    let mut unknown = sent;
    unknown.nodes[0].ranks[0].program = Bytes::new();
    assert_eq!(gathered::decode_answer(gathered::encode_answer(&unknown)).unwrap(), unknown, "it is not made up");
}

#[test]
fn a_program_that_all_ranks_run_is_sent_once() {
    let answer = |ranks: u32| {
        let ranks = (0..ranks).map(|number| rank(number, "/a/very/long/path/to/some/program")).collect();
        let nodes = vec![NodeAnswer { node: NodeIndex(0), ranks, left_out: 0 }];
        gathered::encode_answer(&Gathered { nodes, ..Gathered::default() }).len()
    };
    assert!(answer(101) - answer(1) < 100 * 16);
}

/// Alternate ranks are in different stacks. This results in more ranges than an answer has room for.
#[test]
fn ranks_that_have_no_room_in_the_stacks_are_counted() {
    let ranks = 200_000;
    let stacks = vec![stack((0..ranks).step_by(2), "even"), stack((1..ranks).step_by(2), "odd")];
    let sent = Gathered { stacks: Some(GatheredStacks { stacks, left_out: 1 }), ..Gathered::default() };
    let message = gathered::encode_answer(&sent);
    assert!(message.len() < 512 << 10, "{} bytes", message.len());
    let stacks = gathered::decode_answer(message).unwrap().stacks.unwrap();
    let told: usize = stacks.stacks.iter().map(|stack| stack.ranks.len()).sum();
    assert_eq!(told as u32 + stacks.left_out, ranks + 1);
}

#[test]
fn stacks_of_more_ranks_than_there_can_be_are_refused() {
    for (first, last) in [(0, u32::MAX), (3, 2), (0, 5 << 20)] {
        let ranks = vec![proto::RankRange { first, last }];
        let stacks = vec![proto::GatheredStack { ranks, text: "f".to_owned() }];
        let stacks = Some(proto::GatheredStacks { stacks, left_out: 0 });
        let refused = refusal(gathered::decode(proto::Gathered { stacks, ..Default::default() }));
        assert!(refused.contains(&format!("ranks {first} to {last}")), "{refused}");
    }
}
