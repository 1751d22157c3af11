//! All fences of one launch on one node, as a pure state machine: calls of this node's sessions and frames of other nodes go
//! in, frames for other nodes and the ends of fences come out.
//!
//! A fence of which only frames are known waits, within limits, until this node's ranks get there. Frames of a fence that has
//! ended are dropped. [`Series`] shows the life of one fence.

use std::collections::HashMap;
use std::mem;

use bytes::Bytes;
use pmi_core::ids::{Epoch, NodeIndex};

use super::budget::{Budget, Holding};
use super::counted::Counted;
use super::gather::Gather;
use super::members::Members;
use super::series::Series;
use super::{FanOut, FenceError, Limits};
use crate::limits::kept_cost;
use crate::proto::v1::{FenceFailed, FenceKey, LinkFrame, link_frame::What};

/// From how many series on those are looked for that may be forgotten.
const SERIES: usize = 256;

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
    all: AllSeries,
    /// Nodes that will not take part in anything any more.
    lost: HashMap<NodeIndex, String>,
    held: Held,
}

/// The series of a launch that are known.
#[derive(Debug)]
struct AllSeries {
    me: NodeIndex,
    /// By their key, which has no epoch.
    by_key: HashMap<FenceKey, Series>,
    /// How many there may be before some are forgotten.
    room: usize,
}

/// How much is kept for fences that this node has not reached.
#[derive(Debug)]
struct Held {
    frames: usize,
    bytes: Holding,
}

impl Launch {
    /// The launch's fences on the node `me`, one of `nodes`.
    pub fn new(me: NodeIndex, nodes: u32, fan_out: FanOut, limits: Limits) -> Self {
        Self::within(&Budget::new(limits.all_held_bytes), me, nodes, fan_out, limits)
    }

    /// The same, with what all launches together may keep.
    pub(super) fn within(budget: &Budget, me: NodeIndex, nodes: u32, fan_out: FanOut, limits: Limits) -> Self {
        let all = AllSeries { me, by_key: HashMap::new(), room: SERIES };
        let held = Held { frames: 0, bytes: budget.holding() };
        Self { me, nodes, fan_out, limits, all, lost: HashMap::new(), held }
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
        let epoch = mem::take(&mut key.epoch);
        let refused = || FenceError::Members { epoch: Epoch(epoch) };
        let members = Members::of(members, self.nodes).ok_or_else(refused)?;
        let position = members.position(self.me).ok_or_else(refused)?;
        key.members = members.digest();
        let gone = self.lost.iter().find(|(node, _)| members.position(**node).is_some());
        let series = self.all.of(key);
        if series.has_begun(epoch) {
            return Err(FenceError::Repeated { epoch: Epoch(epoch) });
        }
        let name = series.name(epoch);
        let gather = Gather::new(position, members.count(), self.fan_out, self.limits);
        let early = series.begin(epoch, gather, members);
        early.iter().for_each(|(_, what)| self.held.release(what));
        if let Some((node, reason)) = gone {
            series.fail(epoch, *node, reason.clone(), None, out);
            return Ok(name);
        }
        series.step(epoch, out, |gather, out| gather.bring(segments, out));
        for (from, what) in early {
            // It was begun, so nothing comes back.
            let _ = series.on_frame(epoch, from, what, out);
        }
        Ok(name)
    }

    /// Takes a frame of another node of the launch; its launch id is not looked at any more.
    pub fn on_frame(&mut self, from: NodeIndex, mut what: What, out: &mut Outbox) {
        let key = match &mut what {
            What::Up(frame) => frame.key.take(),
            What::Down(frame) => frame.key.take(),
            What::Failed(frame) => {
                frame.node = frame.node.filter(|node| *node < self.nodes);
                frame.key.take()
            }
            What::Awaited(key) => Some(mem::take(key)),
            What::DataRequest(_) | What::DataReply(_) => None,
        };
        let Some(mut key) = key else {
            out.counted.foreign += 1;
            return;
        };
        key.scope.get_or_insert_default().node_gaps.clear();
        let epoch = mem::take(&mut key.epoch);
        let series = self.all.of(key);
        let Some(what) = series.on_frame(epoch, from, what, out) else { return };
        // Its fence was not begun here.
        if series.is_held(epoch, from, &what) {
            return;
        }
        if self.held.keep(&what, &self.limits) {
            out.counted.early += 1;
            series.hold(epoch, from, what);
        } else {
            out.counted.dropped += 1;
            let reason = "it cannot keep more for fences that it has not reached";
            out.frames.push((from, failed(&series.name(epoch), Some(self.me), reason)));
        }
    }

    /// The local caller does not wait for this fence any longer.
    pub fn give_up(&mut self, key: &FenceKey, out: &mut Outbox) {
        let me = self.me;
        if let Some(series) = self.all.by_key.get_mut(&without_epoch(key)) {
            series.fail(key.epoch, me, "it does not wait any longer".into(), None, out);
        }
    }

    /// Fails every fence that `node` takes part in. With `is_for_good`, those that are still to come as well.
    pub fn lost(&mut self, node: NodeIndex, reason: &str, is_for_good: bool, out: &mut Outbox) {
        if is_for_good {
            self.lost.insert(node, reason.to_owned());
        }
        self.all.by_key.values_mut().for_each(|series| series.lose(node, reason, out));
    }

    /// Fails whatever others may wait for: this node leaves.
    pub fn leave(self, out: &mut Outbox) {
        self.all.by_key.into_values().for_each(|series| series.leave(out));
    }

    /// To be called about once a second: tells those for whom a fence has waited for a while that it does. That opens a link
    /// where there is none, so that nobody waits for a node unwatched.
    pub fn tick(&mut self, out: &mut Outbox) {
        self.all.by_key.values_mut().for_each(|series| series.tick(out));
    }

    /// Whether this fence was begun here and has ended, not long ago.
    pub fn has_ended(&self, key: &FenceKey) -> bool {
        self.all.by_key.get(&without_epoch(key)).is_some_and(|series| series.has_ended(key.epoch))
    }

    /// How many fences are known and have not ended: those that run here, and those of which only frames came.
    pub fn open_fences(&self) -> usize {
        self.all.by_key.values().map(Series::open_fences).sum()
    }
}

impl AllSeries {
    /// The series of a key without epoch; a new one if it is not known.
    fn of(&mut self, key: FenceKey) -> &mut Series {
        let me = self.me;
        if self.by_key.len() >= self.room && !self.by_key.contains_key(&key) {
            self.by_key.retain(|_, series| !series.is_idle());
            let open = self.by_key.values().filter(|series| series.open_fences() > 0).count();
            // As many again as there are open ones, so that a flood of them is not looked through for each.
            self.room = self.by_key.len() + SERIES.max(open);
        }
        self.by_key.entry(key).or_insert_with_key(|key| Series::new(key.clone(), me))
    }
}

impl Held {
    /// Counts a frame in; false if there is no room for it.
    fn keep(&mut self, what: &What, limits: &Limits) -> bool {
        let fits = self.frames < limits.held_frames && self.bytes.take(held_bytes(what), limits.fence_bytes);
        self.frames += usize::from(fits);
        fits
    }

    /// A held frame is not held any more.
    fn release(&mut self, what: &What) {
        self.frames -= 1;
        self.bytes.give(held_bytes(what));
    }
}

fn without_epoch(key: &FenceKey) -> FenceKey {
    FenceKey { epoch: 0, ..key.clone() }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::v1::{FenceScope, FenceUp};

    const ALL: [NodeIndex; 2] = [NodeIndex(0), NodeIndex(1)];

    fn key(name: &str, epoch: u64) -> FenceKey {
        let scope = FenceScope { name: name.into(), ..FenceScope::default() };
        FenceKey { scope: Some(scope), epoch, ..FenceKey::default() }
    }

    fn up(key: FenceKey) -> What {
        What::Up(FenceUp { key: Some(key), last: true, ..FenceUp::default() })
    }

    #[test]
    fn series_that_have_ended_make_room_and_open_ones_stay() {
        let mut launch = Launch::new(NodeIndex(0), 2, FanOut::STAR, Limits::default());
        let mut out = Outbox::default();
        launch.on_frame(NodeIndex(1), up(key("early", 3)), &mut out);
        launch.begin(key("running", 0), &ALL, Vec::new(), &mut out).unwrap();
        for number in 0..100 * SERIES {
            let name = number.to_string();
            let begun = launch.begin(key(&name, 0), &ALL[..1], Vec::new(), &mut out).unwrap();
            assert!(launch.has_ended(&begun), "what has just ended is remembered");
            assert!(launch.all.by_key.len() <= 2 * SERIES + 2);
        }
        assert_eq!(launch.open_fences(), 2);
        assert_eq!(out.ended.len(), 100 * SERIES);
        launch.on_frame(NodeIndex(1), up(key("running", 0)), &mut out);
        launch.begin(key("early", 3), &ALL, Vec::new(), &mut out).unwrap();
        assert_eq!(launch.open_fences(), 0);
        assert_eq!(out.ended.len(), 100 * SERIES + 2);
    }

    #[test]
    fn what_was_kept_for_a_fence_is_let_go_when_it_begins_whatever_becomes_of_it() {
        let limits = Limits { held_frames: 1, ..Limits::default() };
        let mut launch = Launch::new(NodeIndex(0), 2, FanOut::STAR, limits);
        let mut out = Outbox::default();
        for epoch in 0..3 {
            launch.on_frame(NodeIndex(1), up(key("", epoch)), &mut out);
            assert_eq!((out.counted.early, out.counted.dropped), (epoch + 1, 0));
            if epoch == 1 {
                launch.lost(NodeIndex(1), "gone", true, &mut out);
            }
            launch.begin(key("", epoch), &ALL, Vec::new(), &mut out).unwrap();
            assert_eq!(out.ended.last().unwrap().1.is_ok(), epoch == 0);
        }
    }
}
