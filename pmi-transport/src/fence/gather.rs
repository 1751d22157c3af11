//! One fence on one node, as a pure state machine. Its input is this node's segments and its neighbours' frames. Its output is
//! frames for its neighbours, and the result.
//!
//! ```text
//!                 bring                 children complete              the root's last frame
//! (new) ──────────────────> Collecting ─────────────────────> Awaiting ───────────────────────> done
//!                               │  (root: children complete, sends all down) ──────────────────────^
//!                               └── any fault ──> failed: the caller notifies the neighbours and drops the gather
//! ```
//! Upwards each node sends one frame, or several of one chunk each if there is more data. Downwards every node forwards the root's
//! frames unchanged. A relay never decodes forwarded data. Nodes are identified by their position among the fence's members;
//! [`Series`](super::series) handles keys, epochs and names.
//!
//! If the contributions permit it ([`Exchange`]), data that exceeds one frame of its branch stays on the nodes that contributed it.
//! The branch's last frame then contains only the number of its bytes. If any data was withheld, or the data at the root exceeds
//! one frame, the root sends down a single frame. It has the sum of all bytes and, if it fits, the root's own data. So the fence
//! takes as long as a barrier.

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

/// Progress after one input: `None`, or the contributions of all nodes, in the order of their positions.
pub type Progress = Result<Option<Gathered>, Fault>;

/// Reason why a fence cannot be completed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The contributions exceed the limit of a fence.
    #[error("{bytes} bytes were brought to one fence; the limit is {limit}")]
    TooLarge {
        /// Bytes seen so far.
        bytes: usize,
        /// Maximum bytes of one fence.
        limit: usize,
    },
    /// A neighbour sent a frame that no node of this version sends.
    #[error("position {from} of the tree {what}")]
    Misbehaved {
        /// The neighbour's position.
        from: u32,
        /// The violation, as a verb phrase.
        what: &'static str,
    },
}

/// Storage charge per piece, in addition to its bytes, so that a flood of tiny pieces reaches the limit too.
const PIECE_COST: usize = 64;

/// One fence on one node.
#[derive(Debug)]
pub struct Gather {
    position: u32,
    limits: Limits,
    /// Neighbours on the way up, and on the way down for small data.
    barrier: Neighbours,
    /// Neighbours on the way down for large data.
    data: Neighbours,
    /// Bytes contributed through this node, as [`Limits::fence_bytes`] counts.
    bytes: usize,
    stage: Stage,
    /// Frames sent up, in case that they are lost with a link. They have at most as many bytes as the fence.
    sent_up: Vec<FenceUp>,
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
    /// Children that have not sent their last frame.
    missing: usize,
    /// Pieces that were not sent up yet; at the root, all pieces.
    pending: Vec<NodePiece>,
    pending_bytes: usize,
    is_here: bool,
    /// Permission of this node's contribution.
    exchange: Exchange,
    /// True once a node of this branch has permitted that data is withheld.
    may_withhold: bool,
    /// Bytes that stay on the nodes of this branch.
    withheld: u64,
}

#[derive(Debug)]
struct Child {
    /// The child and all nodes below it.
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

/// Position of a frame in its sender's sequence.
enum Sequence {
    Next,
    Repeated,
}

impl Gather {
    /// State of the node at `position` in a fence of `nodes` nodes. All nodes must use the same fan-outs.
    pub fn new(position: u32, nodes: u32, fan_out: FanOut, limits: Limits) -> Self {
        let [barrier, data] = [fan_out.barrier, fan_out.data].map(|fan_out| Neighbours::new(nodes, fan_out, position));
        let tree = Tree::new(nodes, fan_out.barrier);
        let child = |child: &u32| Child { branch: tree.branch(*child), next_part: 0, is_through: false };
        let children: Vec<_> = barrier.below.iter().map(child).collect();
        let missing = children.len();
        let stage = Stage::Collecting(Collecting { children, missing, ..Collecting::default() });
        Self { position, limits, barrier, data, bytes: 0, stage, sent_up: Vec::new() }
    }

    /// Adds this node's segments. Must be called once.
    ///
    /// # Errors
    /// The fence fails if its size limit is exceeded.
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

    /// Processes a frame of a node below.
    ///
    /// # Errors
    /// The fence fails if its size limit is exceeded, if a frame is missing, or if a frame has data of a node outside the sender's
    /// branch.
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

    /// Processes a frame of the node above, and forwards it.
    ///
    /// # Errors
    /// The fence fails if a frame is missing, or if the last frame ends within a segment.
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

    /// Repeats the frames that were sent up, because the node above waits for them. They are in transit, or were lost with an earlier
    /// link. Their receiver ignores a repeated frame.
    pub fn on_awaited(&mut self, from: u32, effects: &mut GatherEffects) -> Progress {
        if self.barrier.above == Some(from) && !matches!(self.stage, Stage::Done) {
            effects.frames.extend(self.sent_up.iter().map(|frame| (from, What::Up(frame.clone()))));
        }
        Ok(None)
    }

    /// Positions of the nodes that this node waits for: on the way up, incomplete children; on the way down, the parents in both
    /// trees.
    pub fn awaited(&self) -> Vec<u32> {
        match &self.stage {
            Stage::Collecting(collecting) => {
                collecting.children.iter().filter(|child| !child.is_through).map(|child| child.branch.start).collect()
            }
            Stage::Awaiting(_) => distinct(self.barrier.above.into_iter().chain(self.data.above)),
            Stage::Done => Vec::new(),
        }
    }

    /// Position of a node that has left and blocks this fence: an incomplete child; or a parent, if all parents have left.
    /// `has_left` returns true for nodes that left normally. A parent that took part and then left had the result. So if the parent
    /// in the other tree remains, it sends the result.
    pub fn misses(&self, has_left: impl Fn(u32) -> bool) -> Option<u32> {
        let awaited = self.awaited();
        match &self.stage {
            Stage::Collecting(_) => awaited.into_iter().find(|position| has_left(*position)),
            Stage::Awaiting(_) if awaited.iter().all(|position| has_left(*position)) => awaited.first().copied(),
            Stage::Awaiting(_) | Stage::Done => None,
        }
    }

    /// Positions of all nodes that this node may exchange frames with.
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

    /// Sends up full chunks, and the rest once this node and all nodes below have arrived. The root then sends all data down.
    fn advance(&mut self, effects: &mut GatherEffects) -> Progress {
        let above = self.barrier.above;
        let Stage::Collecting(collecting) = &mut self.stage else { return Ok(None) };
        let is_complete = collecting.is_complete();
        if is_complete {
            collecting.withhold(self.position, above, self.limits.chunk_bytes);
        }
        match above {
            Some(above) => {
                let sent = self.sent_up.len();
                collecting.push_up(self.limits.chunk_bytes, &mut self.sent_up);
                effects.frames.extend(self.sent_up[sent..].iter().map(|frame| (above, What::Up(frame.clone()))));
                if is_complete {
                    self.stage = Stage::Awaiting(Awaiting::default());
                    // Data on the way down is counted from zero, because it contains all data that was sent up.
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

    /// Sends the contributions of all nodes down from the root, in the order of their positions, without withheld data; returns
    /// them.
    fn distribute(&self, mut brought: Vec<NodePiece>, withheld: u64, effects: &mut GatherEffects) -> Gathered {
        // A stable sort preserves the order of one node's pieces.
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
    /// Returns true once this node and all nodes below it have arrived.
    fn is_complete(&self) -> bool {
        self.is_here && self.missing == 0
    }

    /// Leaves the data of this branch on its nodes, if that is permitted. It does so if the data exceeds a frame, or if a part of
    /// the branch has withheld data already. The root keeps its own data for all nodes, if it fits a frame.
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

    /// Adds frames of at most `chunk` bytes to the earlier ones: all data once all nodes have arrived, otherwise only full frames. Data
    /// that may be withheld is not sent early.
    fn push_up(&mut self, chunk: usize, frames: &mut Vec<FenceUp>) {
        let is_complete = self.is_complete();
        if !is_complete && (self.pending_bytes < chunk || self.may_withhold) {
            return;
        }
        let first = frames.len();
        let (mut frame, mut room) = (FenceUp::default(), chunk);
        for piece in std::mem::take(&mut self.pending) {
            if piece.run.len() > room && !frame.brought.is_empty() {
                frames.push(std::mem::take(&mut frame));
                room = chunk;
            }
            room = room.saturating_sub(piece.run.len());
            frame.brought.push(piece);
        }
        if is_complete {
            frames.push(FenceUp { last: true, withheld: self.withheld, ..frame });
            self.pending_bytes = 0;
        } else {
            self.pending_bytes = chunk - room;
            self.pending = frame.brought;
        }
        for (part, frame) in (0..).zip(frames).skip(first) {
            (frame.part, frame.may_withhold) = (part, self.may_withhold);
        }
    }
}

/// Distinguishes a repeated frame from the next one. Links preserve the order, so a gap means that a frame is lost.
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
