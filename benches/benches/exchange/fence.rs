//! A fence and the gets after it, with real PMIx servers and real fences over a network in model time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use bytes::Bytes;
use lattice_benches::pmix_client::{NAMESPACE, commit, fence, get, join};
use pmi_core::fence::{Contribution, Exchange, FenceId, Merged, Scope};
use pmi_core::ids::{JobId, NodeIndex};
use pmi_core::job::{Job, Placement};
use pmi_core::segment::Segment;
use pmi_core::server::ConnectionId;
use pmi_transport::fence::{Brought, Effects, FanOut, Launch, Limits};
use pmi_transport::proto::v1::{FenceKey, FenceScope, LinkFrame, fence_scope::Kind};
use pmix_core::server::{Action, Server, Settings, Ticket};
use pmix_core::wire::types::SCOPE_GLOBAL;
use pmix_core::{JobIndex, Namespace, NodeFacts};
use prost::Message;

/// Times of the model, in nanoseconds.
pub(crate) const HOP: u64 = 30_000;
pub(crate) const WORK: u64 = 5_000;
pub(crate) const BYTES_PER_MICROSECOND: u64 = 1_200;
/// Approximate size of a question and its answer in addition to their content, in bytes.
const ENVELOPE: usize = 30;
/// Key of each rank's value.
const KEY: &str = "card";

/// A message between two nodes.
enum Letter {
    Frame(LinkFrame),
    Question { ticket: Ticket, question: Bytes },
    Answer { ticket: Ticket, answer: Bytes },
}

/// Node with its only rank.
struct Node {
    server: Server,
    fences: Launch,
    rank: ConnectionId,
    /// Fences for which the server waits.
    begun: HashMap<FenceKey, (JobIndex, FenceId)>,
    /// Unanswered questions of other nodes: the number of the node, and its ticket.
    asked: HashMap<Ticket, (u32, Ticket)>,
    /// Ranks from which this node's rank has yet to get a value.
    wanted: VecDeque<u32>,
    /// Time at which the node has finished its work.
    free: u64,
    /// Time at which the node had finished its work when its rank received the last answer.
    done: u64,
}

struct World {
    nodes: Vec<Node>,
    arriving: BinaryHeap<Reverse<(u64, u64)>>,
    letters: HashMap<u64, (u32, u32, Letter)>,
    count: u64,
    bytes: u64,
}

/// Cost of a run.
#[derive(Clone, Copy)]
pub(crate) struct Cost {
    pub(crate) milliseconds: f64,
    pub(crate) megabytes: f64,
}

/// Runs a fence, after which each rank gets the values of the next `peers` ranks.
pub(crate) fn run(nodes: u32, bytes: usize, exchange: Exchange, peers: u32) -> Cost {
    let mut world = World::new(nodes, bytes, exchange, peers);
    for node in (0..nodes).rev() {
        let rank = world.nodes[node as usize].rank;
        world.nodes[node as usize].server.handle_bytes(rank, &fence());
        world.settle(node);
    }
    while let Some(Reverse((time, number))) = world.arriving.pop() {
        let Some((from, to, letter)) = world.letters.remove(&number) else { continue };
        let free = &mut world.nodes[to as usize].free;
        *free = time.max(*free) + WORK;
        world.receive(from, to, letter);
    }
    assert!(world.nodes.iter().all(|node| node.wanted.is_empty()), "every rank has what it wanted");
    let last = world.nodes.iter().map(|node| node.done).max().unwrap_or_default();
    Cost { milliseconds: last as f64 / 1e6, megabytes: world.bytes as f64 / 1e6 }
}

impl World {
    fn new(nodes: u32, bytes: usize, exchange: Exchange, peers: u32) -> Self {
        let nodes = (0..nodes).map(|node| Node::new(node, nodes, bytes, exchange, peers)).collect();
        Self { nodes, arriving: BinaryHeap::new(), letters: HashMap::new(), count: 0, bytes: 0 }
    }

    fn send(&mut self, from: u32, to: u32, letter: Letter) {
        let bytes = match &letter {
            Letter::Frame(frame) => frame.encoded_len(),
            Letter::Question { question: content, .. } | Letter::Answer { answer: content, .. } => {
                ENVELOPE + content.len()
            }
        } as u64;
        let free = &mut self.nodes[from as usize].free;
        *free += WORK + bytes * 1000 / BYTES_PER_MICROSECOND;
        self.bytes += bytes;
        self.count += 1;
        self.arriving.push(Reverse((*free + HOP, self.count)));
        self.letters.insert(self.count, (from, to, letter));
    }

    fn receive(&mut self, from: u32, to: u32, letter: Letter) {
        let node = &mut self.nodes[to as usize];
        match letter {
            Letter::Frame(frame) => {
                let mut effects = Effects::default();
                node.fences.on_frame(NodeIndex(from), frame.what.expect("a frame has a kind"), &mut effects);
                self.take_effects(to, effects);
            }
            Letter::Question { ticket, question } => {
                let own = node.server.handle_question(&question);
                node.asked.insert(own, (from, ticket));
            }
            Letter::Answer { ticket, answer } => node.server.handle_peer_answer(ticket, Some(&answer)),
        }
        self.settle(to);
    }

    fn take_effects(&mut self, at: u32, effects: Effects) {
        for (to, frame) in effects.frames {
            self.send(at, to.0, Letter::Frame(frame));
        }
        let node = &mut self.nodes[at as usize];
        for (key, result) in effects.ended {
            let Some((job, id)) = node.begun.remove(&key) else { continue };
            let gathered = result.expect("no node is lost");
            let segments = gathered.runs.into_iter().map(|run| Segment::decode(run).expect("a segment")).collect();
            node.server.handle_fence(job, &id, Ok(Merged { segments, withheld: gathered.withheld }));
        }
    }

    /// Executes the actions of a node's server.
    fn settle(&mut self, at: u32) {
        while let Some(action) = self.nodes[at as usize].server.poll_action() {
            match action {
                Action::Send { .. } => self.nodes[at as usize].ask_next(),
                Action::Fence { job, id, contribution } => self.begin(at, job, id, contribution),
                Action::Ask { ticket, node, question } => self.send(at, node.0, Letter::Question { ticket, question }),
                Action::Reply { ticket, answer } => {
                    let (to, ticket) = self.nodes[at as usize].asked.remove(&ticket).expect("a question was asked");
                    self.send(at, to, Letter::Answer { ticket, answer });
                }
                _ => {}
            }
        }
    }

    fn begin(&mut self, at: u32, job: JobIndex, id: FenceId, contribution: Contribution) {
        let Scope::Foreign { name, nodes } = &id.scope else { panic!("{id:?} is no fence of PMIx") };
        let scope = FenceScope { kind: Kind::Foreign.into(), name: name.to_string(), node_gaps: Vec::new() };
        let key =
            FenceKey { launch_id: "l".into(), job_id: "j".into(), scope: Some(scope), epoch: id.epoch.0, members: 0 };
        let Contribution { segments, exchange } = contribution;
        let brought = Brought { segments: segments.into_iter().map(Segment::into_bytes).collect(), exchange };
        let mut effects = Effects::default();
        let node = &mut self.nodes[at as usize];
        let key = node.fences.begin(key, nodes, brought, &mut effects).expect("all nodes are members");
        node.begun.insert(key, (job, id));
        self.take_effects(at, effects);
    }
}

impl Node {
    fn new(node: u32, nodes: u32, bytes: usize, exchange: Exchange, peers: u32) -> Self {
        let placement = Placement::block(&vec![1; nodes as usize]);
        let job = Job { placement, ..Job::on_one_node(JobId::new(NAMESPACE).expect("letters and digits"), nodes) };
        let hosts = (0..nodes).map(|node| format!("node{node:05}")).collect();
        let mut server = Server::new(Settings { exchange, ..Settings::default() });
        let name = NAMESPACE.to_owned();
        server.add(Namespace {
            name,
            job,
            node: NodeIndex(node),
            hosts,
            allocation: None,
            directory: None,
            parent: None,
            here: NodeFacts::default(),
            command: Bytes::new(),
            sets: Vec::new(),
        });
        let rank = join(&mut server, node);
        server.handle_bytes(rank, &commit(SCOPE_GLOBAL, KEY, &vec![7; bytes]));
        while server.poll_action().is_some() {}
        let fences = Launch::new("l", NodeIndex(node), nodes, FanOut::default(), Limits::default());
        let wanted = (1..=peers).map(|ahead| (node + ahead) % nodes).collect();
        Self { server, fences, rank, begun: HashMap::new(), asked: HashMap::new(), wanted, free: 0, done: 0 }
    }

    /// Records an answer to the rank, and requests its next value.
    fn ask_next(&mut self) {
        self.done = self.free;
        if let Some(rank) = self.wanted.pop_front() {
            self.server.handle_bytes(self.rank, &get(rank, KEY));
        }
    }
}
