//! Fuzz targets of the fences: frames as bytes, and a whole node by lists of operations.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use pmi_core::fence::Exchange;
use pmi_core::ids::NodeIndex;
use prost::Message;
use tokio::sync::oneshot;

use super::effects::{AnswerId, AskResult, Brought, FenceResult, Question};
use super::frames::{kept_bytes, launch_of, refusal};
use super::launch::Loss;
use super::launches::{BegunFence, PendingQuestion};
use super::link_queue::Outgoing;
use super::links::{Accepted, StreamEnd, StreamId};
use super::membership::{Member, Membership, MembershipId, Questions};
use super::outbound::Effect;
use super::pieces::{Assembly, cut, pack};
use super::state::State;
use super::{FanOut, Limits};
use crate::proto::v1::{FenceKey, FenceScope, LinkFrame, link_frame::What};

/// Checks that a frame is decoded or refused, is unchanged after it is encoded again, and is charged at least its content. Only senders
/// that wait receive a refusal.
pub fn link_frame(data: &[u8]) {
    let Ok(frame) = LinkFrame::decode(data) else { return };
    travels(&frame);
    let Some(what) = frame.what else { return };
    assert!(kept_bytes(&what) >= launch_of(&what).len());
    if let Some(refused) = refusal(&what, "no") {
        assert!(matches!(what, What::Up(_) | What::Awaited(_) | What::DataRequest(_)), "{what:?}");
        travels(&refused);
        assert_eq!(refused.what.as_ref().map(launch_of), Some(launch_of(&what)));
    }
}

/// Checks that a decoded frame is unchanged after it is encoded again.
fn travels(frame: &LinkFrame) {
    assert_eq!(LinkFrame::decode(&*frame.encode_to_vec()).as_ref(), Ok(frame));
}

/// Checks that segments of any lengths are unchanged after they were cut, joined and assembled, in pieces within the bound.
///
/// The first byte is the bound. Each further byte is the length of a segment.
pub fn pieces(data: &[u8]) {
    let Some((&max, lengths)) = data.split_first() else { return };
    let max = usize::from(max) + 1;
    let segments = lengths.iter().zip((0..=u8::MAX).cycle()).map(|(&len, fill)| Bytes::from(vec![fill; len.into()]));
    let segments: Vec<_> = segments.collect();
    let mut assembly = Assembly::default();
    for piece in pack(cut(segments.clone(), max), max) {
        assert!(!piece.run.is_empty() && piece.run.len() <= max);
        assembly.push(piece);
    }
    let runs = assembly.finish().expect("the last piece ends a segment");
    assert_eq!(runs.concat(), segments.concat());
}

/// One event at a node. Numbers are taken modulo the number of choices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Another agent sends a message on its link.
    Frame(u8, Vec<u8>),
    /// The node joins a launch, in a tree of this fan-out.
    Join(u8, u8),
    /// The node leaves a launch.
    Leave(u8),
    /// A session begins a fence of a launch: its epoch, a bit for each member and two for the exchange of its data, and the length of its
    /// contribution.
    Begin(u8, u8, u8, u8),
    /// A caller of a fence ends its call.
    GiveUp(u8),
    /// A session sends a question to a node of a launch.
    Ask(u8, u8),
    /// A question of another node is answered; with 0, it is not.
    Answer(u8, u8),
    /// An agent opens a link.
    Accept(u8),
    /// A link ends.
    Close(u8),
    /// A node is reported lost.
    Lost(u8),
    /// A second passes.
    Tick,
}

/// Number of kinds of operations.
const KINDS: u8 = 11;

/// Encodes these operations as input of [`fence_node`] for a new node.
pub fn encode(operations: &[Operation]) -> Vec<u8> {
    let mut data = vec![0];
    for operation in operations {
        match operation {
            Operation::Frame(peer, bytes) => {
                let bytes = &bytes[..bytes.len().min(u16::MAX.into())];
                data.extend([0, *peer]);
                data.extend((bytes.len() as u16).to_le_bytes());
                data.extend(bytes);
            }
            Operation::Join(launch, fan_out) => data.extend([1, *launch, *fan_out]),
            Operation::Leave(launch) => data.extend([2, *launch]),
            Operation::Begin(launch, epoch, members, len) => data.extend([3, *launch, *epoch, *members, *len]),
            Operation::GiveUp(which) => data.extend([4, *which]),
            Operation::Ask(launch, node) => data.extend([5, *launch, *node]),
            Operation::Answer(which, good) => data.extend([6, *which, *good]),
            Operation::Accept(peer) => data.extend([7, *peer]),
            Operation::Close(which) => data.extend([8, *which]),
            Operation::Lost(peer) => data.extend([9, *peer]),
            Operation::Tick => data.push(10),
        }
    }
    data
}

/// Returns the next operation and the remaining bytes.
fn decode(data: &[u8]) -> Option<(Operation, &[u8])> {
    let (&kind, rest) = data.split_first()?;
    let kind = kind % KINDS;
    if kind == 10 {
        return Some((Operation::Tick, rest));
    }
    let (&which, rest) = rest.split_first()?;
    let operation = match kind {
        0 => {
            let (len, rest) = rest.split_first_chunk()?;
            let (bytes, rest) = rest.split_at(rest.len().min(u16::from_le_bytes(*len).into()));
            return Some((Operation::Frame(which, bytes.to_vec()), rest));
        }
        3 => {
            let ([epoch, members, len], rest) = rest.split_first_chunk()?;
            return Some((Operation::Begin(which, *epoch, *members, *len), rest));
        }
        1 | 5 | 6 => {
            let (&second, rest) = rest.split_first()?;
            let operation = match kind {
                1 => Operation::Join(which, second),
                5 => Operation::Ask(which, second),
                _ => Operation::Answer(which, second),
            };
            return Some((operation, rest));
        }
        2 => Operation::Leave(which),
        4 => Operation::GiveUp(which),
        7 => Operation::Accept(which),
        8 => Operation::Close(which),
        _ => Operation::Lost(which),
    };
    Some((operation, rest))
}

/// Limits of the node under test, so small that they are reached.
const LIMITS: Limits = Limits {
    chunk_bytes: 64,
    fence_bytes: 4096,
    all_held_bytes: 8192,
    held_frames: 8,
    unclaimed_bytes: 2048,
    all_unclaimed_bytes: 4096,
    unclaimed_ticks: 2,
    link_bytes: 1 << 16,
    all_link_bytes: 1 << 17,
    open_questions: 2,
};

/// Nodes of each launch. The node under test is in the middle of a chain.
const NODES: [&str; 3] = ["node0", "node1", "node2"];
const ME: NodeIndex = NodeIndex(1);
/// An agent outside all launches.
const STRANGER: &str = "node9";
const LAUNCHES: [&str; 2] = ["launch", "other"];

/// Checks that a node survives any sequence of events. It sends frames only to nodes of their launches, and bounds the open questions of
/// other nodes. After it has left its launches, no caller waits.
///
/// The first byte selects the initial state. The other bytes are operations as written by [`encode`].
pub fn fence_node(data: &[u8]) {
    let Some((&state, mut operations)) = data.split_first() else { return };
    let mut node = Node::new();
    for operation in prepared(state) {
        node.perform(operation);
        node.check();
    }
    while let Some((operation, rest)) = decode(operations) {
        operations = rest;
        node.perform(operation);
        node.check();
    }
    node.leave_all();
}

/// Operations that lead to a state: a new node, a node with links in two launches, or a node with open fences and questions. The latter
/// waits for the first, the last or both of the other nodes.
fn prepared(state: u8) -> Vec<Operation> {
    let linked = [Operation::Join(0, 1), Operation::Join(1, 2), Operation::Accept(0), Operation::Accept(1)];
    let busy = |members: u8| {
        let begun = |epoch| Operation::Begin(0, epoch, members, 40);
        [begun(0), begun(1), Operation::Begin(1, 0, members, 0), Operation::Ask(0, 0), Operation::Ask(0, 2)]
    };
    match state % 5 {
        0 => Vec::new(),
        1 => linked.into(),
        2 => linked.into_iter().chain(busy(0b011)).collect(),
        3 => linked.into_iter().chain(busy(0b110)).collect(),
        _ => linked.into_iter().chain(busy(0b111)).collect(),
    }
}

/// Node under test, with its open calls.
struct Node {
    state: State,
    joined: [Option<MembershipId>; LAUNCHES.len()],
    fences: Vec<(MembershipId, (FenceKey, oneshot::Receiver<FenceResult>))>,
    questions: Vec<PendingQuestion>,
    asked: Vec<(MembershipId, AnswerId)>,
    links: Vec<(String, StreamId, Outgoing)>,
}

/// Questions without answers: the target answers itself.
struct Never;

#[async_trait]
impl Questions for Never {
    async fn answer(&self, _: NodeIndex, _: Bytes) -> Result<Bytes, String> {
        std::future::pending().await
    }
}

impl Node {
    fn new() -> Self {
        let (fences, questions, asked, links) = Default::default();
        Self { state: State::new(LIMITS), joined: [None; 2], fences, questions, asked, links }
    }

    fn perform(&mut self, operation: Operation) {
        match operation {
            Operation::Frame(peer, bytes) => {
                if let Ok(LinkFrame { what: Some(what) }) = LinkFrame::decode(&*bytes) {
                    self.state.on_frame(peer_name(peer), what);
                }
            }
            Operation::Join(launch, fan_out) => self.join(at(launch), fan_out.into()),
            Operation::Leave(launch) => self.leave(at(launch)),
            Operation::Begin(launch, epoch, members, len) => self.begin(at(launch), epoch.into(), members, len.into()),
            Operation::GiveUp(which) => {
                if let Some((id, (key, _))) = take(&mut self.fences, which)
                    && let Some(mut fences) = self.state.fences(id)
                {
                    fences.give_up(&key);
                }
            }
            Operation::Ask(launch, node) => {
                let Some(mut fences) = self.joined[at(launch)].and_then(|id| self.state.fences(id)) else { return };
                let node = NodeIndex(u32::from(node));
                if node != ME {
                    self.questions.extend(fences.ask(node, Question::Server(Bytes::from_static(b"what"))));
                }
            }
            Operation::Answer(which, good) => {
                if let Some((id, asked)) = take(&mut self.asked, which)
                    && let Some(mut fences) = self.state.fences(id)
                {
                    let answer = if good == 0 { Err("unknown".to_owned()) } else { Ok(vec![good].into()) };
                    fences.answer(asked, answer);
                }
            }
            Operation::Accept(peer) => {
                let name = peer_name(peer);
                let Accepted { id, outgoing, replaces_link } = self.state.outbound.links.accept(name);
                if replaces_link {
                    self.state.lost(name, "its agent was started anew", Loss::Link);
                }
                self.links.push((name.to_owned(), id, outgoing));
            }
            Operation::Close(which) => {
                if let Some((name, id, _)) = take(&mut self.links, which)
                    && self.state.outbound.links.close(&name, id, StreamEnd::Broken)
                {
                    self.state.lost(&name, "it closed its link", Loss::Link);
                }
            }
            Operation::Lost(peer) => {
                let name = peer_name(peer);
                self.state.outbound.links.cut(name);
                self.state.lost(name, "it was lost", Loss::Node);
            }
            Operation::Tick => drop(self.state.tick()),
        }
        self.carry_out();
    }

    fn join(&mut self, at: usize, fan_out: u32) {
        let member = |name: &str| Member { name: name.to_owned(), address: String::new() };
        let membership = Membership {
            launch_id: LAUNCHES[at].to_owned(),
            me: ME,
            nodes: NODES.map(member).to_vec().into(),
            fan_out: FanOut { barrier: fan_out, data: fan_out },
        };
        self.joined[at] = Some(self.state.join(membership, Arc::new(Never)));
    }

    fn leave(&mut self, at: usize) {
        if let Some(id) = self.joined[at].take() {
            self.state.leave(id);
            self.asked.retain(|(membership, _)| *membership != id);
        }
    }

    fn begin(&mut self, at: usize, epoch: u64, members: u8, len: usize) {
        let Some(id) = self.joined[at] else { return };
        let Some(mut fences) = self.state.fences(id) else { return };
        let exchange = [Exchange::Full, Exchange::Auto, Exchange::Lazy, Exchange::Auto][usize::from(members >> 3) % 4];
        let members: Vec<_> = (0..3).filter(|node| members & (1 << node) != 0).map(NodeIndex).collect();
        let scope = Some(FenceScope::default());
        let key = FenceKey { launch_id: LAUNCHES[at].to_owned(), job_id: "job".to_owned(), scope, epoch, members: 0 };
        let segments = if len == 0 { Vec::new() } else { vec![vec![1; len].into()] };
        let (end, result) = oneshot::channel();
        let end = Box::new(move |result| drop(end.send(result)));
        if let Ok(BegunFence::Pending(key)) = fences.begin(key, &members, Brought { segments, exchange }, end) {
            self.fences.push((id, (key, result)));
        }
    }

    /// Executes the effects as the runtime does.
    fn carry_out(&mut self) {
        for (call, result) in std::mem::take(&mut self.state.outbound.ends) {
            call.end(result);
        }
        for effect in std::mem::take(&mut self.state.outbound.effects) {
            match effect {
                Effect::Flush(queue) => queue.flush(),
                Effect::Open { id, name, outgoing, .. } => self.links.push((name, id, outgoing)),
                Effect::Answer { membership, asked, .. } => self.asked.push((membership, asked.id)),
                Effect::Lose { name, stuck } => self.state.lost(&name, &stuck.to_string(), Loss::Link),
            }
        }
    }

    fn check(&mut self) {
        for (name, _, outgoing) in &mut self.links {
            while let Some(frame) = outgoing.try_next() {
                travels(&frame);
                let what = frame.what.expect("a frame has a kind");
                assert!(!launch_of(&what).is_empty(), "{what:?}");
                let is_refusal = matches!(what, What::Failed(_) | What::DataReply(_));
                assert!(NODES.contains(&name.as_str()) || is_refusal, "{name} was sent {what:?}");
            }
        }
        for id in self.joined.iter().flatten() {
            let asked = self.asked.iter().filter(|(membership, _)| membership == id).count();
            assert!(asked <= LIMITS.open_questions, "{asked} questions are open");
        }
    }

    /// Checks that no caller waits after every launch was left.
    fn leave_all(&mut self) {
        (0..LAUNCHES.len()).for_each(|at| self.leave(at));
        self.carry_out();
        let waits =
            |result: Result<(), oneshot::error::TryRecvError>| result == Err(oneshot::error::TryRecvError::Empty);
        for (_, (key, result)) in &mut self.fences {
            let result: Result<FenceResult, _> = result.try_recv();
            assert!(!waits(result.map(drop)), "{key:?}");
        }
        for (id, answer) in &mut self.questions {
            let answer: Result<AskResult, _> = answer.try_recv();
            assert!(!waits(answer.map(drop)), "{id:?}");
        }
    }
}

fn at(launch: u8) -> usize {
    usize::from(launch) % LAUNCHES.len()
}

/// Name of an agent; one of them is outside all launches.
fn peer_name(peer: u8) -> &'static str {
    [NODES[0], NODES[2], STRANGER, NODES[1]][usize::from(peer) % 4]
}

fn take<T>(items: &mut Vec<T>, which: u8) -> Option<T> {
    if items.is_empty() { None } else { Some(items.swap_remove(usize::from(which) % items.len())) }
}
