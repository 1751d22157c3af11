//! A cluster in one thread, without a runtime: the fences of many nodes, and a network that delivers in seeded random order,
//! with repetitions. It keeps the order only between two nodes, like links.
#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::{BTreeMap, HashMap, VecDeque};

use bytes::Bytes;
use pmi_core::ids::NodeIndex;
use pmi_transport::fence::{Brought, Counters, Effects, FanOut, FenceError, Launch, Limits, Loss};
use pmi_transport::proto::v1::{FenceKey, FenceScope, LinkFrame, fence_scope::Kind};
use prost::Message;

/// Result of a fence on a node.
pub(crate) type Ended = Result<Vec<u8>, FenceError>;

pub(crate) struct Network {
    pub(crate) launches: Vec<Launch>,
    /// Frames in transit, by sender and receiver.
    edges: HashMap<(u32, u32), VecDeque<LinkFrame>>,
    /// Edges with frames in transit.
    busy: Vec<(u32, u32)>,
    random: Random,
    /// One frame of this many is delivered twice; 0 for none.
    pub(crate) repeats: u32,
    /// Results of fences, by node and key.
    pub(crate) ended: HashMap<(u32, FenceKey), Ended>,
    /// Bytes that fences withheld, by node.
    pub(crate) withheld: HashMap<u32, u64>,
    pub(crate) counters: Counters,
    pub(crate) sent: Vec<Sent>,
}

/// Totals of the frames that a node has sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sent {
    pub(crate) frames: usize,
    pub(crate) bytes: usize,
    /// Length of the longest frame.
    pub(crate) longest: usize,
}

impl Network {
    pub(crate) fn new(nodes: u32, fan_out: FanOut, limits: Limits, seed: u64) -> Self {
        Self {
            launches: (0..nodes).map(|node| Launch::new("launch", NodeIndex(node), nodes, fan_out, limits)).collect(),
            edges: HashMap::new(),
            busy: Vec::new(),
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            repeats: 0,
            ended: HashMap::new(),
            withheld: HashMap::new(),
            counters: Counters::default(),
            sent: vec![Sent::default(); nodes as usize],
        }
    }

    /// Lets a node begin a fence; returns its complete key.
    pub(crate) fn begin(
        &mut self,
        node: u32,
        key: &FenceKey,
        members: &[NodeIndex],
        brought: impl Into<Brought>,
    ) -> FenceKey {
        self.act(node, |launch, effects| launch.begin(key.clone(), members, brought.into(), effects))
            .expect("it makes sense")
    }

    /// Applies an input to a node, and processes its effects.
    pub(crate) fn act<T>(&mut self, node: u32, act: impl FnOnce(&mut Launch, &mut Effects) -> T) -> T {
        let mut effects = Effects::default();
        let result = act(&mut self.launches[node as usize], &mut effects);
        self.counters += effects.counters;
        for (to, frame) in effects.frames {
            let sent = &mut self.sent[node as usize];
            let len = frame.encoded_len();
            *sent = Sent { frames: sent.frames + 1, bytes: sent.bytes + len, longest: sent.longest.max(len) };
            self.push((node, to.0), frame);
        }
        for (mut key, result) in effects.ended {
            // Restores the requested key: scopes have unique names here.
            key.members = 0;
            let ended = result.map(|gathered| {
                *self.withheld.entry(node).or_default() += gathered.withheld;
                gathered.runs.concat()
            });
            assert!(self.ended.insert((node, key), ended).is_none(), "a fence ends once");
        }
        result
    }

    fn push(&mut self, edge: (u32, u32), frame: LinkFrame) {
        let queue = self.edges.entry(edge).or_default();
        if queue.is_empty() {
            self.busy.push(edge);
        }
        queue.push_back(frame);
    }

    /// Delivers one frame; false if none is in transit.
    pub(crate) fn deliver_one(&mut self) -> bool {
        if self.busy.is_empty() {
            return false;
        }
        let at = self.random.below(self.busy.len() as u64) as usize;
        let edge = self.busy[at];
        let queue = self.edges.get_mut(&edge).expect("a busy edge");
        let frame = queue.pop_front().expect("a frame on a busy edge");
        if self.repeats > 0 && self.random.below(u64::from(self.repeats)) == 0 {
            queue.push_back(frame.clone());
        }
        if queue.is_empty() {
            self.busy.swap_remove(at);
        }
        let (from, to) = edge;
        self.act(to, |launch, effects| {
            launch.on_frame(NodeIndex(from), frame.what.expect("a frame has a kind"), effects);
        });
        true
    }

    pub(crate) fn deliver_all(&mut self) {
        while self.deliver_one() {}
    }

    /// Loses a node: its frames in transit are lost, and all other nodes are notified.
    pub(crate) fn lose(&mut self, lost: u32) {
        self.edges.retain(|&(from, to), _| from != lost && to != lost);
        self.busy.retain(|&(from, to)| from != lost && to != lost);
        for node in (0..self.launches.len() as u32).filter(|node| *node != lost) {
            self.act(node, |launch, effects| launch.lost(NodeIndex(lost), "it was lost", Loss::Node, effects));
        }
        self.edges.retain(|&(_, to), _| to != lost);
        self.busy.retain(|&(_, to)| to != lost);
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    /// Fences that have not ended on their nodes.
    pub(crate) fn open_fences(&self) -> usize {
        self.launches.iter().map(Launch::open_fences).sum()
    }
}

pub(crate) fn all(nodes: u32) -> Vec<NodeIndex> {
    (0..nodes).map(NodeIndex).collect()
}

pub(crate) fn world(job: &str, epoch: u64) -> FenceKey {
    key(job, Kind::World, "", epoch)
}

pub(crate) fn key(job: &str, kind: Kind, name: &str, epoch: u64) -> FenceKey {
    let scope = FenceScope { kind: kind.into(), name: name.into(), node_gaps: Vec::new() };
    FenceKey { launch_id: "launch".into(), job_id: job.into(), scope: Some(scope), epoch, members: 0 }
}

/// Expected result: the contributions of all nodes, in the order of the nodes.
pub(crate) fn merged(brought: &BTreeMap<u32, Vec<Bytes>>) -> Vec<u8> {
    brought.values().flat_map(|segments| segments.concat()).collect()
}

/// xorshift64: the same on every run.
pub(crate) struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}
