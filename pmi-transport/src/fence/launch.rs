//! Fences and questions of one launch on one node, as a pure state machine. Its input is the calls of this node's session and frames of
//! other nodes. Its output is [`Effects`].
//!
//! ```text
//!   session: begin, give_up, ask, withdraw, answer ──┐            ┌──> frames     to other nodes of the launch
//!   links:   on_frame, lost ─────────────────────────┼── Launch ──┼──> ended      fences that were begun here
//!   clock:   tick                                    │            ├──> answered   questions of this node
//!   end:     leave ──────────────────────────────────┘            └──> asked      questions of other nodes
//! ```
//! Frames of a fence that this node has not begun are stored, within limits. Frames of an ended fence are dropped. [`Series`] shows the
//! states of a fence. [`Questions`] shows the states of a question.

use std::mem;
use std::sync::Arc;

use bytes::Bytes;
use pmi_core::ids::{Epoch, NodeIndex};

use super::budget::{Budget, Holding};
use super::effects::{AnswerId, Brought, Effects, Question, QuestionId};
use super::fast_map::FastMap;
use super::frames::{Blame, NOBODY, failed, kept_bytes, key_bytes};
use super::gather::Gather;
use super::members::Members;
use super::questions::Questions;
use super::series::Series;
use super::{AskError, FanOut, FenceError, Limits};
use crate::limits::WHOLE_MAX;
use crate::proto::v1::{FenceKey, link_frame::What};

/// Minimum number of series at which idle ones are dropped.
const SERIES: usize = 256;

/// Reason that other nodes receive after this node has left the launch.
pub(super) const LEFT: &str = "it has left the launch";

/// Extent of the loss of another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Its link broke: open fences and questions fail. Later ones may succeed over a new link.
    Link,
    /// The node is down: its later fences fail as well.
    Node,
    /// It has left the launch, or not yet joined it. It is treated as if it had left normally.
    Absent,
}

/// Fences and questions of a launch on one node.
#[derive(Debug)]
pub struct Launch {
    me: NodeIndex,
    nodes: u32,
    fan_out: FanOut,
    limits: Limits,
    series: SeriesTable,
    questions: Questions,
    /// Nodes that are down, with the reason.
    down: FastMap<NodeIndex, String>,
    /// Nodes that left normally, with the reason for error messages. The end of their links is not a loss.
    left: FastMap<NodeIndex, String>,
    held: HeldFrames,
}

/// Known series of a launch.
#[derive(Debug)]
struct SeriesTable {
    me: NodeIndex,
    /// By their key, which has no epoch.
    by_key: FastMap<FenceKey, Series>,
    /// Number of series at which idle ones are dropped.
    room: usize,
}

/// Accounting of the frames that are stored for fences that this node has not begun.
#[derive(Debug)]
struct HeldFrames {
    frames: usize,
    bytes: Holding,
}

impl Launch {
    /// State of the node `me`, one of `nodes`, in the launch `id`.
    pub fn new(id: &str, me: NodeIndex, nodes: u32, fan_out: FanOut, limits: Limits) -> Self {
        Self::with_budget(&Budget::new(limits.all_held_bytes), id, me, nodes, fan_out, limits)
    }

    /// The same, with a budget for stored frames that is shared with other launches.
    pub(super) fn with_budget(
        budget: &Budget,
        id: &str,
        me: NodeIndex,
        nodes: u32,
        fan_out: FanOut,
        limits: Limits,
    ) -> Self {
        Self {
            me,
            nodes,
            fan_out,
            limits,
            series: SeriesTable { me, by_key: FastMap::default(), room: SERIES },
            questions: Questions::new(Arc::from(id), me, limits.open_questions),
            down: FastMap::default(),
            left: FastMap::default(),
            held: HeldFrames { frames: 0, bytes: budget.holding() },
        }
    }

    /// Adds this node's contribution to a fence of `members`, which are ascending and include this node. Returns the complete key. The end
    /// of the fence is an effect of this input or a later one, under that key.
    ///
    /// # Errors
    /// Refuses members that are not ascending, outside the launch or without this node, and a fence that was begun here before.
    pub fn begin(
        &mut self,
        mut key: FenceKey,
        members: &[NodeIndex],
        brought: Brought,
        effects: &mut Effects,
    ) -> Result<FenceKey, FenceError> {
        let epoch = mem::take(&mut key.epoch);
        let refused = || FenceError::Members { epoch: Epoch(epoch) };
        let members = Members::of(members, self.nodes).ok_or_else(refused)?;
        let position = members.position(self.me).ok_or_else(refused)?;
        key.members = members.digest();
        let down = self.down.iter().find(|(node, _)| members.position(**node).is_some());
        let name_bytes = key_bytes(&key);
        let series = self.series.get_or_insert(key);
        if series.has_begun(epoch) {
            return Err(FenceError::Repeated { epoch: Epoch(epoch) });
        }
        let name = series.name(epoch);
        let gather = Gather::new(position, members.count(), self.fan_out, self.limits);
        let early = series.begin(epoch, gather, members);
        early.iter().for_each(|(_, what)| self.held.release(name_bytes + kept_bytes(what)));
        if let Some((node, reason)) = down {
            series.fail(epoch, Some(*node), reason.clone(), None, effects);
            return Ok(name);
        }
        series.step(epoch, effects, |gather, effects| gather.bring(brought, effects));
        for (from, what) in early {
            // The fence was begun, so no frame is returned.
            let _ = series.on_frame(epoch, from, what, effects);
        }
        Ok(name)
    }

    /// Processes a frame of another node of the launch. The caller has checked its launch id.
    pub fn on_frame(&mut self, from: NodeIndex, mut what: What, effects: &mut Effects) {
        if !self.left.is_empty() {
            self.left.remove(&from);
        }
        let key = match &mut what {
            What::Up(frame) => frame.key.take(),
            What::Down(frame) => frame.key.take(),
            What::Failed(frame) => {
                frame.node = frame.node.filter(|node| *node < self.nodes || *node == NOBODY);
                frame.key.take()
            }
            What::Awaited(key) => Some(mem::take(key)),
            What::DataRequest(request) => return self.questions.on_request(from, mem::take(request), effects),
            What::DataReply(reply) => return self.questions.on_reply(from, mem::take(reply), effects),
            What::Left(_) => return self.on_left(from, LEFT, effects),
        };
        let Some(mut key) = key else {
            effects.counters.foreign += 1;
            return;
        };
        key.scope.get_or_insert_default().node_gaps.clear();
        let epoch = mem::take(&mut key.epoch);
        let name_bytes = key_bytes(&key);
        let series = self.series.get_or_insert(key);
        let Some(what) = series.on_frame(epoch, from, what, effects) else { return };
        // Its fence was not begun here.
        if series.is_held(epoch, from, &what) {
            return;
        }
        if self.held.keep(name_bytes + kept_bytes(&what), &self.limits) {
            effects.counters.early += 1;
            series.hold(epoch, from, what);
        } else {
            effects.counters.dropped += 1;
            let reason = "it cannot keep more for fences that it has not reached";
            effects.frames.push((from, failed(&series.name(epoch), Blame::Sender, reason)));
        }
    }

    /// Fails a fence for all nodes, because its caller has stopped waiting.
    pub fn give_up(&mut self, key: &FenceKey, effects: &mut Effects) {
        let me = Some(self.me);
        if let Some(series) = self.series.by_key.get_mut(&without_epoch(key)) {
            series.fail(key.epoch, me, "it does not wait any longer".into(), None, effects);
        }
    }

    /// Asks another node of the launch. The answer is an effect of a later input.
    ///
    /// # Errors
    /// Refuses a node outside the launch, and a question that exceeds the size limit.
    pub fn ask(&mut self, node: NodeIndex, question: Question, effects: &mut Effects) -> Result<QuestionId, AskError> {
        if node.0 >= self.nodes {
            return Err(AskError::NoSuchNode { node, nodes: self.nodes });
        }
        let len = question.len();
        if len > WHOLE_MAX {
            return Err(AskError::QuestionTooLong { node, len });
        }
        Ok(self.questions.ask(node, question, effects))
    }

    /// Drops a question, because its caller has stopped waiting.
    pub fn withdraw(&mut self, id: QuestionId) {
        self.questions.withdraw(id);
    }

    /// Answers a question of another node, with data or with the reason for an error.
    pub fn answer(&mut self, id: AnswerId, answer: Result<Bytes, String>, effects: &mut Effects) {
        self.questions.answer(id, answer, effects);
    }

    /// Fails every open fence with `node`, and every open question to it.
    pub fn lost(&mut self, node: NodeIndex, reason: &str, loss: Loss, effects: &mut Effects) {
        if loss == Loss::Absent {
            return self.on_left(node, reason, effects);
        }
        if loss == Loss::Node {
            self.down.insert(node, reason.to_owned());
        }
        if loss == Loss::Node || !self.left.contains_key(&node) {
            self.series.by_key.values_mut().for_each(|series| series.lose(node, reason, effects));
        }
        self.questions.lose(node, reason, effects);
    }

    /// Records that a node has left normally. Fences that it took part in continue. Fences that still need it fail some ticks later, unless
    /// it has rejoined by then.
    fn on_left(&mut self, node: NodeIndex, reason: &str, effects: &mut Effects) {
        self.left.insert(node, reason.to_owned());
        self.questions.lose(node, reason, effects);
    }

    fn fail_without_left(&mut self, effects: &mut Effects) {
        if !self.left.is_empty() {
            let left = &self.left;
            self.series.by_key.values_mut().for_each(|series| series.fail_without(left, effects));
        }
    }

    /// Leaves the launch: fails the open fences and questions of other nodes. Must be the last call.
    pub fn leave(&mut self, effects: &mut Effects) {
        self.series.by_key.drain().for_each(|(_, series)| series.leave(LEFT, effects));
        self.questions.leave(LEFT, effects);
    }

    /// Notifies the nodes that a fence has waited for. Must be called about once a second. The notice opens a link if there is none, so
    /// that the loss of an awaited node is always detected.
    pub fn tick(&mut self, effects: &mut Effects) {
        self.fail_without_left(effects);
        self.series.by_key.values_mut().for_each(|series| series.tick(effects));
    }

    /// Returns true if this fence was begun here and has ended recently.
    pub fn has_ended(&self, key: &FenceKey) -> bool {
        self.series.by_key.get(&without_epoch(key)).is_some_and(|series| series.has_ended(key.epoch))
    }

    /// Number of fences that have not ended: running fences, and fences with early frames only.
    pub fn open_fences(&self) -> usize {
        self.series.by_key.values().map(Series::open_fences).sum()
    }
}

impl SeriesTable {
    /// Returns the series of a key without epoch; creates it if it is unknown.
    fn get_or_insert(&mut self, key: FenceKey) -> &mut Series {
        let me = self.me;
        if self.by_key.len() >= self.room && !self.by_key.contains_key(&key) {
            self.by_key.retain(|_, series| !series.is_idle());
            let open = self.by_key.values().filter(|series| series.open_fences() > 0).count();
            // Adds the number of open series, so that a flood of them is not searched at each insertion.
            self.room = self.by_key.len() + SERIES.max(open);
        }
        self.by_key.entry(key).or_insert_with_key(|key| Series::new(key.clone(), me))
    }
}

impl HeldFrames {
    /// Counts a stored frame of this many bytes; returns false if it exceeds a limit.
    fn keep(&mut self, bytes: usize, limits: &Limits) -> bool {
        let fits = self.frames < limits.held_frames && self.bytes.take(bytes, limits.fence_bytes);
        self.frames += usize::from(fits);
        fits
    }

    /// Counts a frame that is no longer stored.
    fn release(&mut self, bytes: usize) {
        self.frames -= 1;
        self.bytes.give(bytes);
    }
}

fn without_epoch(key: &FenceKey) -> FenceKey {
    FenceKey { epoch: 0, ..key.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::v1::{FenceScope, FenceUp, LinkFrame};

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
        let mut launch = Launch::new("launch", NodeIndex(0), 2, FanOut::STAR, Limits::default());
        let mut effects = Effects::default();
        launch.on_frame(NodeIndex(1), up(key("early", 3)), &mut effects);
        launch.begin(key("running", 0), &ALL, Brought::default(), &mut effects).unwrap();
        for number in 0..100 * SERIES {
            let name = number.to_string();
            let begun = launch.begin(key(&name, 0), &ALL[..1], Brought::default(), &mut effects).unwrap();
            assert!(launch.has_ended(&begun), "what has just ended is remembered");
            assert!(launch.series.by_key.len() <= 2 * SERIES + 2);
        }
        assert_eq!(launch.open_fences(), 2);
        assert_eq!(effects.ended.len(), 100 * SERIES);
        launch.on_frame(NodeIndex(1), up(key("running", 0)), &mut effects);
        launch.begin(key("early", 3), &ALL, Brought::default(), &mut effects).unwrap();
        assert_eq!(launch.open_fences(), 0);
        assert_eq!(effects.ended.len(), 100 * SERIES + 2);
    }

    #[test]
    fn what_was_kept_for_a_fence_is_let_go_when_it_begins_whatever_becomes_of_it() {
        let limits = Limits { held_frames: 1, ..Limits::default() };
        let mut launch = Launch::new("launch", NodeIndex(0), 2, FanOut::STAR, limits);
        let mut effects = Effects::default();
        for epoch in 0..3 {
            launch.on_frame(NodeIndex(1), up(key("", epoch)), &mut effects);
            assert_eq!((effects.counters.early, effects.counters.dropped), (epoch + 1, 0));
            if epoch == 1 {
                launch.lost(NodeIndex(1), "gone", Loss::Node, &mut effects);
            }
            launch.begin(key("", epoch), &ALL, Brought::default(), &mut effects).unwrap();
            assert_eq!(effects.ended.last().unwrap().1.is_ok(), epoch == 0);
        }
    }

    /// A node that closes its first link, because it was late, has not received the frames of that link.
    #[test]
    fn a_contribution_that_was_lost_with_a_link_is_sent_again() {
        let mut nodes = [0, 1].map(|me| Launch::new("launch", NodeIndex(me), 2, FanOut::STAR, Limits::default()));
        let mut effects = [Effects::default(), Effects::default()];
        nodes[1].begin(key("", 0), &ALL, Brought::default(), &mut effects[1]).unwrap();
        let lost = mem::take(&mut effects[1].frames);
        assert!(matches!(&lost[..], [(NodeIndex(0), LinkFrame { what: Some(What::Up(_)) })]), "{lost:?}");
        nodes[1].lost(NodeIndex(0), "it closed its link", Loss::Absent, &mut effects[1]);
        nodes[0].begin(key("", 0), &ALL, Brought::default(), &mut effects[0]).unwrap();
        for _ in 0..4 {
            (0..2).for_each(|me| nodes[me].tick(&mut effects[me]));
            while let Some(from) = (0..2).find(|&from| !effects[from].frames.is_empty()) {
                for (to, frame) in mem::take(&mut effects[from].frames) {
                    let what = frame.what.expect("a frame has content");
                    nodes[to.index()].on_frame(NodeIndex(from as u32), what, &mut effects[to.index()]);
                }
            }
        }
        for (node, effects) in nodes.iter().zip(&effects) {
            assert_eq!((node.open_fences(), effects.ended.len()), (0, 1));
            assert!(effects.ended[0].1.is_ok(), "{:?}", effects.ended);
        }
    }

    #[test]
    fn long_names_of_fences_that_are_not_reached_are_charged() {
        let limits = Limits { fence_bytes: 10_000, ..Limits::default() };
        let mut launch = Launch::new("launch", NodeIndex(0), 2, FanOut::STAR, limits);
        let mut effects = Effects::default();
        for name in ["a", "b"].map(|letter| letter.repeat(6_000)) {
            launch.on_frame(NodeIndex(1), up(key(&name, 0)), &mut effects);
        }
        assert_eq!((effects.counters.early, effects.counters.dropped), (1, 1));
        launch.begin(key(&"a".repeat(6_000), 0), &ALL, Brought::default(), &mut effects).unwrap();
        launch.on_frame(NodeIndex(1), up(key(&"b".repeat(6_000), 0)), &mut effects);
        assert_eq!((effects.counters.early, effects.counters.dropped), (2, 1), "the room is given back");
    }
}
