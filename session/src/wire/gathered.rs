//! Questions to the sessions of several nodes, and their answers.

use std::collections::BTreeMap;

use bytes::Bytes;
use pmi_core::ids::{NodeIndex, Rank};
use pmi_transport::proto::v1 as proto;
use prost::Message;

use super::node_selection::{decode_selection, encode_ranges};
use super::progress;
use super::{WireError, milliseconds, time, wrong};
use crate::call_stacks::RankStack;
use crate::event::RankProgress;
use crate::gathered::{GatherDetail, GatherOrder, Gathered, GatheredStacks, NodeAnswer, RankAnswer, Unheard};

/// Limit of ranges of ranks in the stacks of an answer.
const RANGES_MAX: usize = 32 << 10;
/// Limit of ranks in the stacks of a received answer. No session sends more.
const STACK_RANKS_MAX: usize = 4 << 20;

/// Encodes a question.
pub fn encode_order(order: &GatherOrder) -> proto::GatherOrder {
    proto::GatherOrder {
        nodes: encode_ranges(Some(&order.nodes)),
        stacks: order.detail == GatherDetail::Stacks,
        time_ms: milliseconds(order.time),
    }
}

/// Decodes a question to nodes of a launch on `nodes` nodes.
///
/// # Errors
/// Fails like [`NodeSelection::new`](crate::gathered::NodeSelection::new), and for a time over the limit.
pub fn decode_order(order: Option<proto::GatherOrder>, nodes: usize) -> Result<GatherOrder, WireError> {
    let proto::GatherOrder { nodes: ranges, stacks, time_ms } = order.ok_or(WireError::Missing { what: "question" })?;
    Ok(GatherOrder {
        nodes: decode_selection("a question to nodes", ranges, nodes)?,
        detail: if stacks { GatherDetail::Stacks } else { GatherDetail::Usage },
        time: time("the time for an answer", time_ms)?,
    })
}

/// Encodes an answer to question `question` of the API server. Answers between sessions have number 0.
pub fn encode(question: u64, gathered: &Gathered) -> proto::Gathered {
    let unheard = |Unheard { node, reason }: &Unheard| proto::UnheardNode { node: node.0, reason: reason.clone() };
    proto::Gathered {
        question,
        nodes: gathered.nodes.iter().map(encode_node).collect(),
        stacks: gathered.stacks.as_ref().map(encode_stacks),
        unheard: gathered.unheard.iter().map(unheard).collect(),
    }
}

/// Decodes an answer.
///
/// # Errors
/// Fails for stacks of more ranks than any launch has.
pub fn decode(message: proto::Gathered) -> Result<Gathered, WireError> {
    let unheard = |node: proto::UnheardNode| Unheard { node: NodeIndex(node.node), reason: node.reason };
    Ok(Gathered {
        nodes: message.nodes.into_iter().map(decode_node).collect(),
        stacks: message.stacks.map(decode_stacks).transpose()?,
        unheard: message.unheard.into_iter().map(unheard).collect(),
    })
}

/// Encodes the answer from one session to another.
pub fn encode_answer(gathered: &Gathered) -> Bytes {
    encode(0, gathered).encode_to_vec().into()
}

/// Decodes the answer of another session.
///
/// # Errors
/// Fails for invalid bytes, and like [`decode`].
pub fn decode_answer(message: Bytes) -> Result<Gathered, WireError> {
    decode(proto::Gathered::decode(message)?)
}

/// Limit of the bytes of a rank in an answer.
pub fn cost(rank: &RankAnswer) -> usize {
    // 10 bytes for the tags and lengths of the rank and of its program.
    progress::encode(&rank.progress).encoded_len() + rank.program.len() + 10
}

fn encode_node(answer: &NodeAnswer) -> proto::GatheredNode {
    let program = common_program(&answer.ranks);
    let rank = |rank: &RankAnswer| proto::RankProgress {
        program: if rank.program == program { Bytes::new() } else { rank.program.clone() },
        ..progress::encode(&rank.progress)
    };
    let ranks = answer.ranks.iter().map(rank).collect();
    proto::GatheredNode { node: answer.node.0, ranks, left_out: answer.left_out, program }
}

/// Returns the most frequent program of the running ranks; empty if the program of a running rank is unknown.
fn common_program(ranks: &[RankAnswer]) -> Bytes {
    let mut counts = BTreeMap::<&Bytes, usize>::new();
    let running = ranks.iter().filter(|rank| runs(&rank.progress));
    running.for_each(|rank| *counts.entry(&rank.program).or_default() += 1);
    if counts.contains_key(&Bytes::new()) {
        return Bytes::new();
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(program, _)| program.clone()).unwrap_or_default()
}

fn runs(progress: &RankProgress) -> bool {
    progress.pid.is_some() && progress.exit.is_none()
}

fn decode_node(message: proto::GatheredNode) -> NodeAnswer {
    let rank = |mut rank: proto::RankProgress| {
        let named = std::mem::take(&mut rank.program);
        let told = progress::decode(rank);
        let program = if named.is_empty() && runs(&told) { message.program.clone() } else { named };
        RankAnswer { progress: told, program }
    };
    NodeAnswer {
        node: NodeIndex(message.node),
        ranks: message.ranks.into_iter().map(rank).collect(),
        left_out: message.left_out,
    }
}

fn encode_stacks(stacks: &GatheredStacks) -> proto::GatheredStacks {
    let (mut room, mut left_out) = (RANGES_MAX, stacks.left_out);
    let stack = |stack: &RankStack| {
        let mut ranks = ranges(&stack.ranks);
        let beyond = ranks.split_off(room.min(ranks.len()));
        room -= ranks.len();
        let ranks_beyond = beyond.iter().map(|range| range.last - range.first + 1);
        left_out = ranks_beyond.fold(left_out, u32::saturating_add);
        proto::GatheredStack { ranks, text: stack.text.clone() }
    };
    let stacks = stacks.stacks.iter().map(stack).filter(|stack| !stack.ranks.is_empty()).collect();
    proto::GatheredStacks { stacks, left_out }
}

/// Combines consecutive ranks into ranges. The ranks are in order.
fn ranges(ranks: &[Rank]) -> Vec<proto::RankRange> {
    let neighbours = ranks.chunk_by(|one, next| next.0 == one.0 + 1);
    let range = |run: &[Rank]| Some(proto::RankRange { first: run.first()?.0, last: run.last()?.0 });
    neighbours.filter_map(range).collect()
}

fn decode_stacks(message: proto::GatheredStacks) -> Result<GatheredStacks, WireError> {
    let mut room = STACK_RANKS_MAX;
    let mut stacks = Vec::with_capacity(message.stacks.len());
    for stack in message.stacks {
        for range in &stack.ranks {
            let count = range.last.checked_sub(range.first).map(|count| count as usize + 1);
            room = count.and_then(|count| room.checked_sub(count)).ok_or_else(|| {
                let seen = format!("ranks {} to {}", range.first, range.last);
                wrong("the ranks of call stacks", seen, format!("ascending ranges of at most {STACK_RANKS_MAX} ranks"))
            })?;
        }
        let ranks = stack.ranks.iter().flat_map(|range| range.first..=range.last).map(Rank).collect();
        stacks.push(RankStack { ranks, text: stack.text });
    }
    Ok(GatheredStacks { stacks, left_out: message.left_out })
}
