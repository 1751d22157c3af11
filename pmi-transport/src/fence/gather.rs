//! One fence on one node, as a pure state machine: this node's segments and its neighbours' frames go in, frames for its
//! neighbours and the result come out.
//!
//! ```text
//!                 bring                 children are through            the root's last frame
//! (new) ──────────────────> Collecting ─────────────────────> Awaiting ───────────────────────> done
//!                               │  (root: children are through, sends all down) ───────────────────^
//!                               └── any fault ──> failed: the caller tells the neighbours and forgets the gather
//! ```
//! Upwards each node sends one frame, or several of a chunk each when there is more to send. Downwards every node forwards the
//! root's frames as they are. A relay never decodes what it forwards. Nodes are named by their position among the fence's
//! members; keys, epochs and names are [`Series`](super::series)'s.
//!
//! Where the contributions permit it ([`Exchange`]), data that does not fit one frame of its branch stays with the nodes that
//! brought it: the branch's last frame then carries the number of its bytes instead. If any data was withheld, or what reached the
//! root is too much for one frame, the root sends down one frame with the sum of all bytes and, if it fits, its own data, so that
//! the fence takes as long as a barrier.

use std::ops::Range;

use bytes::Bytes;
use pmi_core::fence::Exchange;

use super::counters::Counters;
use super::effects::{Brought, Gathered};
use super::pieces::{Assembly, Piece, cut, pack};
use super::tree::Tree;
use super::{FanOut, Limits};
use crate::proto::v1::{FenceDown, FenceUp, NodePiece, link_frame::What};

/// Effects of one input of a gather.
#[derive(Debug, Default)]
pub struct GatherEffects {
    /// Frames to send, in order, each with the position of its receiver; without their key.
    pub frames: Vec<(u32, What)>,
    /// Increments of the node's counters.
    pub counters: Counters,
}

/// Progress after one input: nothing yet, or what all nodes brought, in the order of their positions.
pub type Progress = Result<Option<Gathered>, Fault>;

/// Fault for which a fence cannot be completed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// More was brought than a fence may carry.
    #[error("{bytes} bytes were brought to one fence; the limit is {limit}")]
    TooLarge {
        /// Bytes seen so far.
        bytes: usize,
        /// Most bytes of one fence.
        limit: usize,
    },
    /// A neighbour sent what no node of this version sends.
    #[error("position {from} of the tree {what}")]
    Misbehaved {
        /// The neighbour's position.
        from: u32,
        /// Its fault, as a verb phrase.
        what: &'static str,
    },
}

/// Charge for keeping one piece, beside its bytes, so that a flood of tiny ones meets the limit too.
const PIECE_COST: usize = 64;

/// One fence on one node.
#[derive(Debug)]
pub struct Gather {
    position: u32,
    limits: Limits,
    /// Neighbours on the way up, and on the way down of small data.
    barrier: Neighbours,
    /// Neighbours on the way down of large data.
    data: Neighbours,
    /// Bytes brought through this node, as [`Limits::fence_bytes`] counts.
    bytes: usize,
    stage: Stage,
}

/// Neighbours of a node in one tree.
#[derive(Debug)]
struct Neighbours {
    fan_out: u32,
    above: Option<u32>,
    below: Vec<u32>,
}

impl Neighbours {
    fn new(nodes: u32, fan_out: u32, position: u32) -> Self {
        let tree = Tree::new(nodes, fan_out);
        Self { fan_out, above: tree.parent(position), below: tree.children(position) }
    }

    fn send_down(&self, frame: &FenceDown, effects: &mut GatherEffects) {
        effects.frames.extend(self.below.iter().map(|child| (*child, What::Down(frame.clone()))));
    }
}

#[derive(Debug)]
enum Stage {
    Collecting(Collecting),
    Awaiting(Awaiting),
    Done,
}

/// The way up.
#[derive(Debug, Default)]
struct Collecting {
    children: Vec<Child>,
    /// The children that have not sent their last frame.
    missing: usize,
    /// Pieces that are not sent up yet; at the root, all.
    pending: Vec<NodePiece>,
    pending_bytes: usize,
    /// Number of frames sent up.
    sent: u32,
    is_here: bool,
    /// Permission that this node's contribution gives.
    exchange: Exchange,
    /// True once a node of this branch has said that data may be withheld.
    may_withhold: bool,
    /// Bytes that stay with the nodes of this branch.
    withheld: u64,
}

#[derive(Debug)]
struct Child {
    /// The child and all below it.
    branch: Range<u32>,
    next_part: u32,
    is_through: bool,
}

/// The way down.
#[derive(Debug, Default)]
struct Awaiting {
    next_part: u32,
    /// Fan-out of the tree that the root sends down; set by the first frame.
    fan_out: u32,
    assembly: Assembly,
    withheld: u64,
}

/// Place of a frame in its sender's sequence.
enum Sequence {
    Next,
    Repeated,
}

impl Gather {
    /// State of the node at `position` in a fence of `nodes` nodes. All nodes must be given the same fan-outs.
    pub fn new(position: u32, nodes: u32, fan_out: FanOut, limits: Limits) -> Self {
        let [barrier, data] = [fan_out.barrier, fan_out.data].map(|fan_out| Neighbours::new(nodes, fan_out, position));
        let tree = Tree::new(nodes, fan_out.barrier);
        let child = |child: &u32| Child { branch: tree.branch(*child), next_part: 0, is_through: false };
        let children: Vec<_> = barrier.below.iter().map(child).collect();
        let missing = children.len();
        let stage = Stage::Collecting(Collecting { children, missing, ..Collecting::default() });
        Self { position, limits, barrier, data, bytes: 0, stage }
    }

    /// Brings this node's segments. To be called once.
    ///
    /// # Errors
    /// The fence fails when that is more than a fence may carry.
    pub fn bring(&mut self, brought: Brought, effects: &mut GatherEffects) -> Progress {
        let Brought { mut segments, exchange } = brought;
        let Stage::Collecting(collecting) = &mut self.stage else { return Ok(None) };
        collecting.is_here = true;
        collecting.exchange = exchange;
        collecting.may_withhold |= exchange != Exchange::Full;
        let bytes: usize = segments.iter().map(Bytes::len).sum();
        if exchange != Exchange::Full && bytes > self.limits.chunk_bytes {
            collecting.withheld = collecting.withheld.saturating_add(bytes as u64);
            segments.clear();
        }
        let position = self.position;
        let pieces = pack(cut(segments, self.limits.chunk_bytes), self.limits.chunk_bytes);
        let brought = pieces.into_iter().map(|Piece { run, goes_on }| NodePiece { position, run, goes_on }).collect();
        self.add(brought)?;
        self.advance(effects)
    }

    /// Takes a frame of a node below.
    ///
    /// # Errors
    /// The fence fails when more was brought than it may carry, or a frame was left out, or a node spoke for another one.
    pub fn on_up(&mut self, from: u32, frame: FenceUp, effects: &mut GatherEffects) -> Progress {
        let Ok(at) = self.barrier.below.binary_search(&from) else {
            effects.counters.misdirected += 1;
            return Ok(None);
        };
        let Stage::Collecting(collecting) = &mut self.stage else {
            effects.counters.duplicate += 1;
            return Ok(None);
        };
        let child = &mut collecting.children[at];
        if let Sequence::Repeated = check_part(&mut child.next_part, frame.part, from)? {
            effects.counters.duplicate += 1;
            return Ok(None);
        }
        if child.is_through {
            return Err(Fault::Misbehaved { from, what: "sent more after its last frame" });
        }
        if frame.last {
            child.is_through = true;
            collecting.missing -= 1;
        }
        collecting.may_withhold |= frame.may_withhold;
        collecting.withheld = collecting.withheld.saturating_add(frame.withheld);
        if !frame.brought.iter().all(|piece| child.branch.contains(&piece.position)) {
            return Err(Fault::Misbehaved { from, what: "brought what nodes outside its branch put" });
        }
        self.add(frame.brought)?;
        self.advance(effects)
    }

    /// Takes a frame of the node above, and forwards it.
    ///
    /// # Errors
    /// The fence fails when a frame was left out, or the frames make no whole.
    pub fn on_down(&mut self, from: u32, frame: FenceDown, effects: &mut GatherEffects) -> Progress {
        let mut trees = [&self.barrier, &self.data].into_iter();
        let Some(tree) = trees.find(|tree| tree.fan_out == frame.fan_out && tree.above == Some(from)) else {
            effects.counters.misdirected += 1;
            return Ok(None);
        };
        let awaiting = match &mut self.stage {
            Stage::Awaiting(awaiting) => awaiting,
            Stage::Collecting(_) => {
                return Err(Fault::Misbehaved { from, what: "took the fence for complete too early" });
            }
            Stage::Done => {
                effects.counters.duplicate += 1;
                return Ok(None);
            }
        };
        if let Sequence::Repeated = check_part(&mut awaiting.next_part, frame.part, from)? {
            effects.counters.duplicate += 1;
            return Ok(None);
        }
        if frame.part > 0 && frame.fan_out != awaiting.fan_out {
            return Err(Fault::Misbehaved { from, what: "changed the tree on the way" });
        }
        awaiting.fan_out = frame.fan_out;
        awaiting.withheld = frame.withheld;
        self.bytes += PIECE_COST + frame.run.len();
        check_bytes(self.bytes, &self.limits)?;
        tree.send_down(&frame, effects);
        awaiting.assembly.push(Piece { run: frame.run, goes_on: frame.goes_on });
        if !frame.last {
            return Ok(None);
        }
        let (runs, withheld) = (std::mem::take(&mut awaiting.assembly).finish(), awaiting.withheld);
        self.stage = Stage::Done;
        let runs = runs.ok_or(Fault::Misbehaved { from, what: "ended inside a segment" })?;
        Ok(Some(Gathered { runs, withheld }))
    }

    /// Positions of the nodes that this one waits for: on the way up those below that have not sent all, on the way down those
    /// above it in either tree.
    pub fn awaited(&self) -> Vec<u32> {
        match &self.stage {
            Stage::Collecting(collecting) => {
                collecting.children.iter().filter(|child| !child.is_through).map(|child| child.branch.start).collect()
            }
            Stage::Awaiting(_) => distinct(self.barrier.above.into_iter().chain(self.data.above)),
            Stage::Done => Vec::new(),
        }
    }

    /// Position of a node without which this one waits in vain, given which nodes have left in good order: one below that has not
    /// sent all; or one above, if no node above is left to send the result. A node above that came to the fence and left has had
    /// the result, so where another one is above in the other tree, that one sends it.
    pub fn misses(&self, has_left: impl Fn(u32) -> bool) -> Option<u32> {
        let awaited = self.awaited();
        match &self.stage {
            Stage::Collecting(_) => awaited.into_iter().find(|position| has_left(*position)),
            Stage::Awaiting(_) if awaited.iter().all(|position| has_left(*position)) => awaited.first().copied(),
            Stage::Awaiting(_) | Stage::Done => None,
        }
    }

    /// Positions of all nodes that this one may exchange frames with.
    pub fn neighbours(&self) -> Vec<u32> {
        let trees = [&self.barrier, &self.data].into_iter();
        distinct(trees.flat_map(|tree| tree.above.into_iter().chain(tree.below.iter().copied())))
    }

    fn add(&mut self, mut brought: Vec<NodePiece>) -> Result<(), Fault> {
        let bytes: usize = brought.iter().map(|piece| piece.run.len()).sum();
        self.bytes += bytes + brought.len() * PIECE_COST;
        check_bytes(self.bytes, &self.limits)?;
        if let Stage::Collecting(collecting) = &mut self.stage {
            collecting.pending.append(&mut brought);
            collecting.pending_bytes += bytes;
        }
        Ok(())
    }

    /// Sends up full chunks, and everything once this node and all below it have arrived; the root then sends all of it down.
    fn advance(&mut self, effects: &mut GatherEffects) -> Progress {
        let above = self.barrier.above;
        let Stage::Collecting(collecting) = &mut self.stage else { return Ok(None) };
        let is_complete = collecting.is_complete();
        if is_complete {
            collecting.withhold(self.position, above, self.limits.chunk_bytes);
        }
        match above {
            Some(above) => {
                collecting.send_up(above, self.limits.chunk_bytes, effects);
                if is_complete {
                    self.stage = Stage::Awaiting(Awaiting::default());
                    // What comes down is counted anew: it holds all that went up.
                    self.bytes = 0;
                }
                Ok(None)
            }
            None if is_complete => {
                let brought = std::mem::take(&mut collecting.pending);
                let withheld = collecting.withheld;
                self.stage = Stage::Done;
                Ok(Some(self.distribute(brought, withheld, effects)))
            }
            None => Ok(None),
        }
    }

    /// Sends down, at the root, what all nodes brought, in the order of their positions, as far as it was not withheld; returns it.
    fn distribute(&self, mut brought: Vec<NodePiece>, withheld: u64, effects: &mut GatherEffects) -> Gathered {
        // A stable sort: the pieces of one node stay in their order.
        brought.sort_by_key(|piece| piece.position);
        let pieces = brought.into_iter().map(|NodePiece { run, goes_on, .. }| Piece { run, goes_on });
        let mut pieces = pack(pieces, self.limits.chunk_bytes);
        let bytes = pieces.iter().map(|piece| piece.run.len()).sum();
        let down = FanOut { barrier: self.barrier.fan_out, data: self.data.fan_out }.down(pieces.len(), bytes);
        let tree = if withheld > 0 || down == self.barrier.fan_out { &self.barrier } else { &self.data };
        if pieces.is_empty() {
            pieces.push(Piece { run: Bytes::new(), goes_on: false });
        }
        let (fan_out, count) = (tree.fan_out, pieces.len());
        let mut assembly = Assembly::default();
        for (part, Piece { run, goes_on }) in (0..).zip(pieces) {
            let last = part as usize + 1 == count;
            let frame = FenceDown { key: None, run: run.clone(), goes_on, last, fan_out, part, withheld };
            tree.send_down(&frame, effects);
            assembly.push(Piece { run, goes_on });
        }
        Gathered { runs: assembly.finish().unwrap_or_default(), withheld }
    }
}

impl Collecting {
    /// Returns true once this node and all below it have arrived.
    fn is_complete(&self) -> bool {
        self.is_here && self.missing == 0
    }

    /// Leaves the data of this branch with its nodes, if that is permitted and it is more than fits a frame, or was withheld in a
    /// part of the branch already. The root keeps its own data for all, if that fits a frame.
    fn withhold(&mut self, position: u32, above: Option<u32>, chunk: usize) {
        let exceeds = match self.exchange {
            Exchange::Full => false,
            Exchange::Auto => self.pending_bytes > chunk,
            Exchange::Lazy => self.pending_bytes > 0,
        };
        if self.withheld == 0 && !exceeds {
            return;
        }
        self.withheld = self.withheld.saturating_add(self.pending_bytes as u64);
        let is_root = above.is_none();
        self.pending.retain(|piece| is_root && piece.position == position);
        self.pending_bytes = self.pending.iter().map(|piece| piece.run.len()).sum();
        if self.pending_bytes > chunk {
            self.pending.clear();
            self.pending_bytes = 0;
        }
    }

    /// Sends frames of at most `chunk` bytes: the rest as well if all have arrived, else only full ones, and none of data that may
    /// be withheld.
    fn send_up(&mut self, above: u32, chunk: usize, effects: &mut GatherEffects) {
        let is_complete = self.is_complete();
        if !is_complete && (self.pending_bytes < chunk || self.may_withhold) {
            return;
        }
        let mut frame = FenceUp::default();
        let mut room = chunk;
        for piece in std::mem::take(&mut self.pending) {
            if piece.run.len() > room && !frame.brought.is_empty() {
                self.push_up(above, std::mem::take(&mut frame), effects);
                room = chunk;
            }
            room = room.saturating_sub(piece.run.len());
            frame.brought.push(piece);
        }
        if is_complete {
            frame.last = true;
            frame.withheld = self.withheld;
            self.push_up(above, frame, effects);
            self.pending_bytes = 0;
        } else {
            self.pending_bytes = chunk - room;
            self.pending = frame.brought;
        }
    }

    fn push_up(&mut self, above: u32, mut frame: FenceUp, effects: &mut GatherEffects) {
        frame.part = self.sent;
        frame.may_withhold = self.may_withhold;
        self.sent += 1;
        effects.frames.push((above, What::Up(frame)));
    }
}

/// Tells a repeated frame from the next one. Links keep the order, so a gap means that a frame is missing for good.
fn check_part(next: &mut u32, part: u32, from: u32) -> Result<Sequence, Fault> {
    if part < *next {
        return Ok(Sequence::Repeated);
    }
    if part > *next {
        return Err(Fault::Misbehaved { from, what: "left out a frame" });
    }
    *next += 1;
    Ok(Sequence::Next)
}

fn check_bytes(bytes: usize, limits: &Limits) -> Result<(), Fault> {
    let limit = limits.fence_bytes;
    if bytes > limit { Err(Fault::TooLarge { bytes, limit }) } else { Ok(()) }
}

fn distinct(positions: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let mut distinct: Vec<u32> = positions.into_iter().collect();
    distinct.sort_unstable();
    distinct.dedup();
    distinct
}
