//! All fences of one launch on one node, as a pure state machine: calls of this node's sessions and frames of other nodes go
//! in, frames for other nodes and the ends of fences come out.
//!
//! ```text
//!            a frame comes first             begin                       end: done, failed, given up
//! unknown ─────────────────────> Early(frames) ──> Running(gather) ──────────────────────────────────> remembered for a while
//!    └───────────────────────────────────────────────^   begin
//! ```
//! A fence of which only frames are known waits, within limits, until this node's ranks get there. Frames of a fence that has
//! ended are dropped.

use std::collections::HashMap;

use bytes::Bytes;
use pmi_core::ids::{Epoch, NodeIndex};

use super::counted::Counted;
use super::gather::{self, Fault, Gather, Progress};
use super::members::Members;
use super::recent::Recent;
use super::{FanOut, FenceError, Limits};
use crate::limits::kept_cost;
use crate::proto::v1::{FenceFailed, FenceKey, LinkFrame, link_frame::What};

/// How many fences that have ended are remembered.
const REMEMBERED: usize = 256;
/// The longest reason that is taken from another node, in characters.
const REASON_MAX: usize = 500;

/// What a launch wants done, in this order.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Frames for other nodes of the launch.
    pub frames: Vec<(NodeIndex, LinkFrame)>,
    /// Fences that were begun here and have ended.
    pub ended: Vec<(FenceKey, Result<Vec<Bytes>, FenceError>)>,
    /// What happened since it was last looked at.
    pub counted: Counted,
}

/// The fences of a launch on one node.
#[derive(Debug)]
pub struct Launch {
    me: NodeIndex,
    nodes: u32,
    fan_out: FanOut,
    limits: Limits,
    fences: HashMap<FenceKey, Fence>,
    ended: Recent<FenceKey, Ended>,
    /// Nodes that will not take part in anything any more.
    lost: HashMap<NodeIndex, String>,
    held_frames: usize,
    held_bytes: usize,
}

#[derive(Debug)]
enum Fence {
    /// Begun elsewhere.
    Early(Vec<(NodeIndex, What)>),
    Running(Box<Running>),
}

#[derive(Debug)]
struct Running {
    gather: Gather,
    members: Members,
    /// How many ticks it has seen.
    age: u32,
}

/// What is remembered of a fence.
#[derive(Debug)]
enum Ended {
    /// These nodes had their result from this one.
    Complete(Box<[NodeIndex]>),
    Failed {
        node: NodeIndex,
        reason: String,
    },
}

impl Launch {
    /// The launch's fences on the node `me`, one of `nodes`.
    pub fn new(me: NodeIndex, nodes: u32, fan_out: FanOut, limits: Limits) -> Self {
        let (fences, ended, lost) = (HashMap::new(), Recent::new(REMEMBERED), HashMap::new());
        Self { me, nodes, fan_out, limits, fences, ended, lost, held_frames: 0, held_bytes: 0 }
    }

    /// Brings this node's segments to a fence of `members`, which are ascending, this node among them. Completes the key, and
    /// returns it; the fence's end comes out of an outbox, of this one or a later one.
    ///
    /// # Errors
    /// Refuses members that are none, and a fence that this node is in or was in.
    pub fn begin(
        &mut self,
        mut key: FenceKey,
        members: &[NodeIndex],
        segments: Vec<Bytes>,
        out: &mut Outbox,
    ) -> Result<FenceKey, FenceError> {
        let epoch = Epoch(key.epoch);
        let members = Members::of(members, self.nodes).ok_or(FenceError::Members { epoch })?;
        let position = members.position(self.me).ok_or(FenceError::Members { epoch })?;
        key.members = members.digest();
        let is_running = matches!(self.fences.get(&key), Some(Fence::Running(_)));
        if is_running || self.ended.get(&key).is_some() {
            return Err(FenceError::Repeated { epoch });
        }
        let early = match self.fences.remove(&key) {
            Some(Fence::Early(frames)) => frames,
            _ => Vec::new(),
        };
        let gone = self.lost.iter().find(|(node, _)| members.position(**node).is_some());
        let gone = gone.map(|(node, reason)| (*node, reason.clone()));
        let gather = Gather::new(position, members.count(), self.fan_out, self.limits);
        self.fences.insert(key.clone(), Fence::Running(Box::new(Running { gather, members, age: 0 })));
        if let Some((node, reason)) = gone {
            self.fail(&key, node, reason, None, out);
            return Ok(key);
        }
        self.step(&key, out, |gather, out| gather.bring(segments, out));
        for (from, what) in early {
            self.release(&what);
            self.on_fence_frame(&key, from, what, out);
        }
        Ok(key)
    }

    /// Takes a frame of another node of the launch; its launch id is not looked at any more.
    pub fn on_frame(&mut self, from: NodeIndex, mut what: What, out: &mut Outbox) {
        let key = match &mut what {
            What::Up(frame) => frame.key.take(),
            What::Down(frame) => frame.key.take(),
            What::Failed(frame) => frame.key.take(),
            What::Awaited(key) => Some(std::mem::take(key)),
            What::DataRequest(_) | What::DataReply(_) => None,
        };
        let Some(mut key) = key else {
            out.counted.foreign += 1;
            return;
        };
        key.scope.get_or_insert_default().node_gaps.clear();
        self.on_fence_frame(&key, from, what, out);
    }

    /// The local caller does not wait for this fence any longer.
    pub fn give_up(&mut self, key: &FenceKey, out: &mut Outbox) {
        self.fail(key, self.me, "it does not wait any longer".into(), None, out);
    }

    /// Fails every fence that `node` takes part in. With `is_for_good`, those that are still to come as well.
    pub fn lost(&mut self, node: NodeIndex, reason: &str, is_for_good: bool, out: &mut Outbox) {
        if is_for_good {
            self.lost.insert(node, reason.to_owned());
        }
        for key in self.running(|running| running.members.position(node).is_some()) {
            self.fail(&key, node, reason.to_owned(), Some(node), out);
        }
    }

    /// Fails whatever others may wait for: this node leaves.
    pub fn leave(mut self, out: &mut Outbox) {
        for key in self.running(|_| true) {
            self.fail(&key, self.me, "it has left the launch".into(), None, out);
        }
        for (key, fence) in std::mem::take(&mut self.fences) {
            let Fence::Early(frames) = fence else { continue };
            let mut waiting: Vec<_> =
                frames.iter().filter(|(_, what)| expects_answer(what)).map(|(from, _)| *from).collect();
            waiting.sort_unstable();
            waiting.dedup();
            for node in waiting {
                out.frames.push((node, failed(&key, Some(self.me), "it has left the launch")));
            }
        }
    }

    /// To be called about once a second: tells those for whom a fence has waited for a while that it does. That opens a link
    /// where there is none, so that nobody waits for a node unwatched.
    pub fn tick(&mut self, out: &mut Outbox) {
        for (key, fence) in &mut self.fences {
            let Fence::Running(running) = fence else { continue };
            running.age = running.age.saturating_add(1);
            if running.age < 2 || !running.age.is_power_of_two() {
                continue;
            }
            for position in running.gather.awaited() {
                let frame = LinkFrame { what: Some(What::Awaited(key.clone())) };
                out.frames.push((running.members.node(position), frame));
            }
        }
    }

    /// Whether this fence was begun here and has ended, not long ago.
    pub fn has_ended(&self, key: &FenceKey) -> bool {
        self.ended.get(key).is_some()
    }

    /// How many fences are known and have not ended: those that run here, and those of which only frames came.
    pub fn open_fences(&self) -> usize {
        self.fences.len()
    }

    fn on_fence_frame(&mut self, key: &FenceKey, from: NodeIndex, what: What, out: &mut Outbox) {
        match self.fences.get(key) {
            Some(Fence::Running(running)) => {
                let Some(position) = running.members.position(from) else {
                    out.counted.foreign += 1;
                    return;
                };
                match what {
                    What::Up(frame) => self.step(key, out, |gather, out| gather.on_up(position, frame, out)),
                    What::Down(frame) => self.step(key, out, |gather, out| gather.on_down(position, frame, out)),
                    What::Failed(frame) => self.on_failed(key, from, frame, out),
                    // It will hear.
                    What::Awaited(_) | What::DataRequest(_) | What::DataReply(_) => {}
                }
            }
            Some(Fence::Early(_)) => self.hold(key, from, what, out),
            None => match self.ended.get(key) {
                Some(ended) => self.answer_late(key, ended, from, &what, out),
                None => self.hold(key, from, what, out),
            },
        }
    }

    /// Lets the gather of a running fence take its next step.
    fn step(
        &mut self,
        key: &FenceKey,
        out: &mut Outbox,
        step: impl FnOnce(&mut Gather, &mut gather::Outbox) -> Progress,
    ) {
        let Some(Fence::Running(running)) = self.fences.get_mut(key) else { return };
        let mut steps = gather::Outbox::default();
        let progress = step(&mut running.gather, &mut steps);
        out.counted += steps.counted;
        let node = |position| running.members.node(position);
        let mut children = Vec::new();
        for (position, mut what) in steps.frames {
            match &mut what {
                What::Up(frame) => frame.key = Some(key.clone()),
                What::Down(frame) => {
                    frame.key = Some(key.clone());
                    if frame.last {
                        children.push(node(position));
                    }
                }
                _ => {}
            }
            out.frames.push((node(position), LinkFrame { what: Some(what) }));
        }
        match progress {
            Ok(None) => {}
            Ok(Some(runs)) => {
                out.counted.completed += 1;
                self.end(key, Ended::Complete(children.into()), Ok(runs), out);
            }
            Err(fault) => {
                let culprit = match &fault {
                    Fault::TooLarge { .. } => self.me,
                    Fault::Misbehaved { from, .. } => node(*from),
                };
                self.fail(key, culprit, fault.to_string(), None, out);
            }
        }
    }

    fn on_failed(&mut self, key: &FenceKey, from: NodeIndex, frame: FenceFailed, out: &mut Outbox) {
        let node = frame.node.filter(|node| *node < self.nodes).map_or(from, NodeIndex);
        let reason = frame.reason.chars().filter(|c| !c.is_control()).take(REASON_MAX).collect();
        self.fail(key, node, reason, Some(from), out);
    }

    /// Ends a running fence, and tells its neighbours, but not the one who knows.
    fn fail(&mut self, key: &FenceKey, node: NodeIndex, reason: String, knows: Option<NodeIndex>, out: &mut Outbox) {
        let Some(Fence::Running(running)) = self.fences.get(key) else { return };
        for neighbour in running.gather.neighbours().into_iter().map(|position| running.members.node(position)) {
            if Some(neighbour) != knows {
                out.frames.push((neighbour, failed(key, Some(node), &reason)));
            }
        }
        out.counted.failed += 1;
        let error = FenceError::Failed { node, epoch: Epoch(key.epoch), reason: reason.clone() };
        self.end(key, Ended::Failed { node, reason }, Err(error), out);
    }

    fn end(&mut self, key: &FenceKey, ended: Ended, result: Result<Vec<Bytes>, FenceError>, out: &mut Outbox) {
        self.fences.remove(key);
        self.ended.insert(key.clone(), ended);
        out.ended.push((key.clone(), result));
    }

    /// Keeps a frame until this node's ranks reach its fence.
    fn hold(&mut self, key: &FenceKey, from: NodeIndex, what: What, out: &mut Outbox) {
        let bytes = held_bytes(&what);
        if self.held_frames >= self.limits.held_frames || self.held_bytes + bytes > self.limits.fence_bytes {
            out.counted.dropped += 1;
            out.frames
                .push((from, failed(key, Some(self.me), "it cannot keep more for fences that it has not reached")));
            return;
        }
        let fence = self.fences.entry(key.clone()).or_insert_with(|| Fence::Early(Vec::new()));
        let Fence::Early(frames) = fence else { return };
        let is_known = |held: &(NodeIndex, What)| held.0 == from && matches!(held.1, What::Awaited(_));
        if matches!(what, What::Awaited(_)) && frames.iter().any(is_known) {
            return;
        }
        frames.push((from, what));
        out.counted.early += 1;
        self.held_frames += 1;
        self.held_bytes += bytes;
    }

    /// A held frame is not held any more.
    fn release(&mut self, what: &What) {
        self.held_frames -= 1;
        self.held_bytes -= held_bytes(what);
    }

    /// Drops a frame of a fence that has ended here; one who still waits hears why that is in vain.
    fn answer_late(&self, key: &FenceKey, ended: &Ended, from: NodeIndex, what: &What, out: &mut Outbox) {
        out.counted.late += 1;
        if !matches!(what, What::Awaited(_)) {
            return;
        }
        match ended {
            Ended::Failed { node, reason } => out.frames.push((from, failed(key, Some(*node), reason))),
            // Links keep the order, so what was sent to it before this was lost with an earlier link.
            Ended::Complete(served) if served.contains(&from) => {
                out.frames.push((from, failed(key, Some(self.me), "what it sent was lost on the way")));
            }
            Ended::Complete(_) => {}
        }
    }

    fn running(&self, is_meant: impl Fn(&Running) -> bool) -> Vec<FenceKey> {
        let meant = |(key, fence): (&FenceKey, &Fence)| match fence {
            Fence::Running(running) if is_meant(running) => Some(key.clone()),
            _ => None,
        };
        self.fences.iter().filter_map(meant).collect()
    }
}

/// Whether its sender waits for something to come back.
pub(super) fn expects_answer(what: &What) -> bool {
    matches!(what, What::Up(_) | What::Awaited(_) | What::DataRequest(_))
}

/// About what a frame takes while it is kept.
pub(super) fn held_bytes(what: &What) -> usize {
    const PIECE_COST: usize = 64;
    kept_cost(match what {
        What::Up(frame) => frame.brought.iter().map(|piece| PIECE_COST + piece.run.len()).sum(),
        What::Down(frame) => frame.run.len(),
        What::Failed(frame) => frame.reason.len(),
        What::DataRequest(request) => request.question.len(),
        What::DataReply(_) | What::Awaited(_) => 0,
    })
}

/// The frame that says that a fence failed; without a node, its sender is to blame.
pub(super) fn failed(key: &FenceKey, node: Option<NodeIndex>, reason: &str) -> LinkFrame {
    let frame = FenceFailed { key: Some(key.clone()), node: node.map(|node| node.0), reason: reason.to_owned() };
    LinkFrame { what: Some(What::Failed(frame)) }
}
