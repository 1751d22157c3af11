//! One fence on one node, as a pure state machine: what this node brings and what its neighbours in the tree send goes in,
//! frames for its neighbours and the result come out.
//!
//! ```text
//!                 bring                 children are through            the root's last frame
//! (new) ──────────────────> Collecting ─────────────────────> Awaiting ───────────────────────> done
//!                               │  (root: children are through, sends all down) ───────────────────^
//!                               └── any fault ──> failed: the caller tells the neighbours and forgets the gather
//! ```
//! Upwards goes one frame per node, unless what it carries is more than a chunk: then chunk by chunk, as it comes. Downwards
//! go frames that every node forwards as they are. A relay does not look into what it forwards.

use bytes::Bytes;

use super::counted::Counted;
use super::pieces::{Assembly, Piece, cut, pack};
use super::tree::Tree;
use super::{FanOut, Limits};
use crate::proto::v1::{FenceDown, FenceUp, NodePiece, link_frame::What};

/// Where a gather leaves what is to be sent, and what it noticed.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Frames without their key, each with the position of the node that it is for, in the order in which they are to be sent.
    pub frames: Vec<(u32, What)>,
    /// What happened since it was last looked at.
    pub counted: Counted,
}

/// What came of an input: nothing yet, or the runs that all nodes brought, in the order of their positions.
pub type Progress = Result<Option<Vec<Bytes>>, Fault>;

/// Why a fence cannot be completed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// More was brought than a fence may carry.
    #[error("{bytes} bytes were brought to one fence; the limit is {limit}")]
    TooLarge {
        /// How much there is already.
        bytes: usize,
        /// How much there may be.
        limit: usize,
    },
    /// A neighbour sent what no node of this version sends.
    #[error("position {from} of the tree {what}")]
    Misbehaved {
        /// The neighbour's position.
        from: u32,
        /// What it did.
        what: &'static str,
    },
}

/// What keeping one piece takes beside its bytes, so that a flood of tiny ones meets the limit too.
const PIECE_COST: usize = 64;

/// One fence on one node.
#[derive(Debug)]
pub struct Gather {
    position: u32,
    nodes: u32,
    fan_out: FanOut,
    limits: Limits,
    /// How much was brought through this node, as [`Limits::fence_bytes`] counts.
    bytes: usize,
    stage: Stage,
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
    /// What is not sent up yet; at the root, all.
    pending: Vec<NodePiece>,
    pending_bytes: usize,
    /// How many frames were sent up.
    sent: u32,
    is_here: bool,
}

#[derive(Debug, Default)]
struct Child {
    next_part: u32,
    is_through: bool,
}

/// The way down.
#[derive(Debug, Default)]
struct Awaiting {
    next_part: u32,
    /// Known from the first frame on.
    fan_out: u32,
    assembly: Assembly,
}

/// Whether a frame is the one that follows the last.
enum Turn {
    Next,
    Repeated,
}

impl Gather {
    /// The part of the node at `position` in a fence of `nodes` nodes. All nodes must be given the same fan-outs.
    pub fn new(position: u32, nodes: u32, fan_out: FanOut, limits: Limits) -> Self {
        let missing = Tree::new(nodes, fan_out.barrier).children(position).len();
        let children = (0..missing).map(|_| Child::default()).collect();
        let stage = Stage::Collecting(Collecting { children, missing, ..Collecting::default() });
        Self { position, nodes, fan_out, limits, bytes: 0, stage }
    }

    /// Brings what this node's ranks put. To be called once.
    ///
    /// # Errors
    /// The fence fails when that is more than a fence may carry.
    pub fn bring(&mut self, segments: Vec<Bytes>, out: &mut Outbox) -> Progress {
        let position = self.position;
        let pieces = pack(cut(segments, self.limits.chunk), self.limits.chunk);
        let brought = pieces.into_iter().map(|Piece { run, goes_on }| NodePiece { position, run, goes_on }).collect();
        self.add(brought)?;
        if let Stage::Collecting(collecting) = &mut self.stage {
            collecting.is_here = true;
        }
        self.move_up(out)
    }

    /// Takes a frame of a node below.
    ///
    /// # Errors
    /// The fence fails when more was brought than it may carry, or a frame was left out, or a node spoke for another one.
    pub fn on_up(&mut self, from: u32, frame: FenceUp, out: &mut Outbox) -> Progress {
        let tree = self.up();
        let children = tree.children(self.position);
        let Stage::Collecting(collecting) = &mut self.stage else {
            let counter =
                if children.contains(&from) { &mut out.counted.duplicate } else { &mut out.counted.misdirected };
            *counter += 1;
            return Ok(None);
        };
        if !children.contains(&from) {
            out.counted.misdirected += 1;
            return Ok(None);
        }
        let child = &mut collecting.children[(from - children.start) as usize];
        if let Turn::Repeated = turn(&mut child.next_part, frame.part, from)? {
            out.counted.duplicate += 1;
            return Ok(None);
        }
        if child.is_through {
            return Err(Fault::Misbehaved { from, what: "sent more after its last frame" });
        }
        if frame.last {
            child.is_through = true;
            collecting.missing -= 1;
        }
        if frame.brought.iter().any(|piece| piece.position >= self.nodes || !tree.is_under(piece.position, from)) {
            return Err(Fault::Misbehaved { from, what: "brought what nodes outside its branch put" });
        }
        self.add(frame.brought)?;
        self.move_up(out)
    }

    /// Takes a frame of the node above, and forwards it.
    ///
    /// # Errors
    /// The fence fails when a frame was left out, or the frames make no whole.
    pub fn on_down(&mut self, from: u32, frame: FenceDown, out: &mut Outbox) -> Progress {
        let is_known = frame.fan_out == self.fan_out.barrier || frame.fan_out == self.fan_out.data;
        let tree = Tree::new(self.nodes, frame.fan_out);
        if !is_known || tree.parent(self.position) != Some(from) {
            out.counted.misdirected += 1;
            return Ok(None);
        }
        let awaiting = match &mut self.stage {
            Stage::Awaiting(awaiting) => awaiting,
            Stage::Collecting(_) => {
                return Err(Fault::Misbehaved { from, what: "took the fence for complete too early" });
            }
            Stage::Done => {
                out.counted.duplicate += 1;
                return Ok(None);
            }
        };
        if let Turn::Repeated = turn(&mut awaiting.next_part, frame.part, from)? {
            out.counted.duplicate += 1;
            return Ok(None);
        }
        if frame.part > 0 && frame.fan_out != awaiting.fan_out {
            return Err(Fault::Misbehaved { from, what: "changed the tree on the way" });
        }
        awaiting.fan_out = frame.fan_out;
        self.bytes += PIECE_COST + frame.run.len();
        check_bytes(self.bytes, &self.limits)?;
        let (run, goes_on, is_last) = (frame.run.clone(), frame.goes_on, frame.last);
        awaiting.assembly.push(Piece { run, goes_on });
        let whole = is_last.then(|| std::mem::take(&mut awaiting.assembly));
        send_down(tree, self.position, frame, out);
        match whole {
            None => Ok(None),
            Some(assembly) => {
                self.stage = Stage::Done;
                let runs = assembly.finish();
                runs.map(Some).ok_or(Fault::Misbehaved { from, what: "ended inside a segment" })
            }
        }
    }

    /// The positions of the nodes that this one waits for: those below that are not through, or those that may be above it
    /// on the way down.
    pub fn awaited(&self) -> Vec<u32> {
        match &self.stage {
            Stage::Collecting(collecting) => {
                let children = self.up().children(self.position).zip(&collecting.children);
                children.filter(|(_, child)| !child.is_through).map(|(position, _)| position).collect()
            }
            Stage::Awaiting(_) => {
                let above = [self.up(), self.down()].into_iter().filter_map(|tree| tree.parent(self.position));
                distinct(above)
            }
            Stage::Done => Vec::new(),
        }
    }

    /// The positions of all nodes that this one may exchange frames with.
    pub fn neighbours(&self) -> Vec<u32> {
        distinct(
            [self.up(), self.down()]
                .into_iter()
                .flat_map(|tree| tree.parent(self.position).into_iter().chain(tree.children(self.position))),
        )
    }

    fn up(&self) -> Tree {
        Tree::new(self.nodes, self.fan_out.barrier)
    }

    fn down(&self) -> Tree {
        Tree::new(self.nodes, self.fan_out.data)
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

    /// Sends up what should not wait any longer, and turns round when nothing more comes from below.
    fn move_up(&mut self, out: &mut Outbox) -> Progress {
        let above = self.up().parent(self.position);
        let Stage::Collecting(collecting) = &mut self.stage else { return Ok(None) };
        let is_through = collecting.is_here && collecting.missing == 0;
        match above {
            Some(above) => {
                collecting.send_up(above, is_through, self.limits.chunk, out);
                if is_through {
                    self.stage = Stage::Awaiting(Awaiting::default());
                    // What comes down is counted anew: it holds all that went up.
                    self.bytes = 0;
                }
                Ok(None)
            }
            None if is_through => {
                let brought = std::mem::take(&mut collecting.pending);
                self.stage = Stage::Done;
                Ok(Some(self.turn_round(brought, out)))
            }
            None => Ok(None),
        }
    }

    /// What the root does when all have arrived: sends all of it down, in order.
    fn turn_round(&self, mut brought: Vec<NodePiece>, out: &mut Outbox) -> Vec<Bytes> {
        // A stable sort: the pieces of one node stay in their order.
        brought.sort_by_key(|piece| piece.position);
        let pieces = brought.into_iter().map(|NodePiece { run, goes_on, .. }| Piece { run, goes_on });
        let mut pieces = pack(pieces, self.limits.chunk);
        let fan_out = if pieces.is_empty() { self.fan_out.barrier } else { self.fan_out.data };
        if pieces.is_empty() {
            pieces.push(Piece { run: Bytes::new(), goes_on: false });
        }
        let (tree, count) = (Tree::new(self.nodes, fan_out), pieces.len());
        let mut assembly = Assembly::default();
        for (part, Piece { run, goes_on }) in (0..).zip(pieces) {
            let last = part as usize + 1 == count;
            let frame = FenceDown { key: None, run: run.clone(), goes_on, last, fan_out, part };
            send_down(tree, self.position, frame, out);
            assembly.push(Piece { run, goes_on });
        }
        assembly.finish().unwrap_or_default()
    }
}

impl Collecting {
    /// Sends frames of at most a chunk: all there is if that is all, else no more than full ones.
    fn send_up(&mut self, above: u32, is_through: bool, chunk: usize, out: &mut Outbox) {
        if !is_through && self.pending_bytes < chunk {
            return;
        }
        let mut frame = FenceUp::default();
        let mut room = chunk;
        for piece in std::mem::take(&mut self.pending) {
            if piece.run.len() > room && !frame.brought.is_empty() {
                self.push_up(above, std::mem::take(&mut frame), out);
                room = chunk;
            }
            room = room.saturating_sub(piece.run.len());
            frame.brought.push(piece);
        }
        if is_through {
            frame.last = true;
            self.push_up(above, frame, out);
            self.pending_bytes = 0;
        } else {
            self.pending_bytes = chunk - room;
            self.pending = frame.brought;
        }
    }

    fn push_up(&mut self, above: u32, mut frame: FenceUp, out: &mut Outbox) {
        frame.part = self.sent;
        self.sent += 1;
        out.frames.push((above, What::Up(frame)));
    }
}

fn send_down(tree: Tree, position: u32, frame: FenceDown, out: &mut Outbox) {
    out.frames.extend(tree.children(position).map(|child| (child, What::Down(frame.clone()))));
}

/// Tells a frame that comes again from the next one. Links keep the order, so a gap means that a frame is missing for good.
fn turn(next: &mut u32, part: u32, from: u32) -> Result<Turn, Fault> {
    if part < *next {
        return Ok(Turn::Repeated);
    }
    if part > *next {
        return Err(Fault::Misbehaved { from, what: "left out a frame" });
    }
    *next += 1;
    Ok(Turn::Next)
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
