//! Fences of one scope of one job, by epoch, as a pure state machine: the open fences, and the last ended ones.
//!
//! ```text
//!            a frame arrives first           begin                       end: done, failed, given up
//! unknown ─────────────────────> Early(frames) ──> Running(gather) ──────────────────────────────────> remembered for a while
//!    └───────────────────────────────────────────────^   begin
//! ```
//! A frame finds its fence by the series' key, which is long, and then by its epoch. An agent has few microseconds for each frame,
//! so this takes two lookups, for any number of open fences. [`Gather`] executes the steps of one fence.

use std::mem;

use pmi_core::ids::{Epoch, NodeIndex};

use super::FenceError;
use super::effects::{Effects, FenceResult};
use super::fast_map::FastMap;
use super::frames::{Blame, failed};
use super::gather::{Fault, Gather, GatherEffects, Progress};
use super::members::Members;
use super::recent::Recent;
use crate::proto::v1::{FenceFailed, FenceKey, LinkFrame, link_frame::What};

/// Number of ended fences that one series remembers.
const REMEMBERED: usize = 64;

/// Number of ticks for which a fence waits for a node that has left normally.
const PATIENCE: u32 = 2;

/// Fences that differ only in their epochs.
#[derive(Debug)]
pub(super) struct Series {
    me: NodeIndex,
    /// Their common key, without epoch.
    key: FenceKey,
    /// By epoch.
    open: FastMap<u64, Fence>,
    ended: Recent<u64, Ended>,
    /// Set by every begin and stored frame; cleared by [`Series::is_idle`].
    was_used: bool,
}

#[derive(Debug)]
enum Fence {
    /// Not begun here: the stored frames.
    Early(Vec<(NodeIndex, What)>),
    Running(Box<Running>),
}

#[derive(Debug)]
struct Running {
    gather: Gather,
    members: Members,
    /// Number of ticks since it was begun.
    age: u32,
}

/// Memory of a fence that has ended.
#[derive(Debug)]
enum Ended {
    /// Complete; these nodes received their result from this node.
    Complete(Box<[NodeIndex]>),
    Failed {
        node: Option<NodeIndex>,
        reason: String,
    },
}

impl Series {
    /// The fences that `key` names on the node `me`.
    pub(super) fn new(key: FenceKey, me: NodeIndex) -> Self {
        Self { me, key, open: FastMap::default(), ended: Recent::new(REMEMBERED), was_used: true }
    }

    /// Returns true if it may be dropped: no fence is open, and it was not used since the last call.
    pub(super) fn is_idle(&mut self) -> bool {
        !mem::take(&mut self.was_used) && self.open.is_empty()
    }

    /// Returns true if this node has begun that fence, or has ended it recently.
    pub(super) fn has_begun(&self, epoch: u64) -> bool {
        self.has_ended(epoch) || matches!(self.open.get(&epoch), Some(Fence::Running(_)))
    }

    pub(super) fn has_ended(&self, epoch: u64) -> bool {
        self.ended.get(&epoch).is_some()
    }

    /// Number of fences that have not ended.
    pub(super) fn open_fences(&self) -> usize {
        self.open.len()
    }

    /// Begins a fence that was not begun before, and returns its stored frames.
    pub(super) fn begin(&mut self, epoch: u64, gather: Gather, members: Members) -> Vec<(NodeIndex, What)> {
        self.was_used = true;
        let running = Running { gather, members, age: 0 };
        match self.open.insert(epoch, Fence::Running(Box::new(running))) {
            Some(Fence::Early(frames)) => frames,
            _ => Vec::new(),
        }
    }

    /// Returns true if a frame of a fence that was not begun repeats a stored one.
    pub(super) fn is_held(&self, epoch: u64, from: NodeIndex, what: &What) -> bool {
        let is_known = |held: &(NodeIndex, What)| held.0 == from && matches!(held.1, What::Awaited(_));
        let Some(Fence::Early(frames)) = self.open.get(&epoch) else { return false };
        matches!(what, What::Awaited(_)) && frames.iter().any(is_known)
    }

    /// Stores a frame of a fence that was not begun.
    pub(super) fn hold(&mut self, epoch: u64, from: NodeIndex, what: What) {
        self.was_used = true;
        if let Fence::Early(frames) = self.open.entry(epoch).or_insert_with(|| Fence::Early(Vec::new())) {
            frames.push((from, what));
        }
    }

    /// Processes a frame of a running or ended fence; otherwise returns it.
    pub(super) fn on_frame(&mut self, epoch: u64, from: NodeIndex, what: What, effects: &mut Effects) -> Option<What> {
        match self.open.get(&epoch) {
            Some(Fence::Running(running)) => {
                let Some(position) = running.members.position(from) else {
                    effects.counters.foreign += 1;
                    return None;
                };
                match what {
                    What::Up(frame) => {
                        self.step(epoch, effects, |gather, effects| gather.on_up(position, frame, effects));
                    }
                    What::Down(frame) => {
                        self.step(epoch, effects, |gather, effects| gather.on_down(position, frame, effects));
                    }
                    What::Failed(frame) => self.on_failed(epoch, from, frame, effects),
                    What::Awaited(_) => {
                        self.step(epoch, effects, |gather, effects| gather.on_awaited(position, effects));
                    }
                    What::DataRequest(_) | What::DataReply(_) | What::Left(_) => {}
                }
                None
            }
            Some(Fence::Early(_)) => Some(what),
            None => match self.ended.get(&epoch) {
                Some(ended) => {
                    self.answer_late(epoch, ended, from, &what, effects);
                    None
                }
                None => Some(what),
            },
        }
    }

    /// Runs the next step of a running fence's gather.
    pub(super) fn step(
        &mut self,
        epoch: u64,
        effects: &mut Effects,
        step: impl FnOnce(&mut Gather, &mut GatherEffects) -> Progress,
    ) {
        let Some(Fence::Running(running)) = self.open.get_mut(&epoch) else { return };
        let mut steps = GatherEffects::default();
        let progress = step(&mut running.gather, &mut steps);
        effects.counters += steps.counters;
        let node = |position| running.members.node(position);
        let mut children = Vec::new();
        for (position, mut what) in steps.frames {
            let key = || Some(name(&self.key, epoch));
            match &mut what {
                What::Up(frame) => frame.key = key(),
                What::Down(frame) => {
                    frame.key = key();
                    if frame.last {
                        children.push(node(position));
                    }
                }
                _ => {}
            }
            effects.frames.push((node(position), LinkFrame { what: Some(what) }));
        }
        match progress {
            Ok(None) => {}
            Ok(Some(gathered)) => {
                effects.counters.completed += 1;
                self.end(epoch, Ended::Complete(children.into()), Ok(gathered), effects);
            }
            Err(fault) => {
                let culprit = match &fault {
                    // The node that adds up the contributions is not the cause.
                    Fault::TooLarge { .. } => None,
                    Fault::Misbehaved { from, .. } => Some(node(*from)),
                };
                self.fail(epoch, culprit, fault.to_string(), None, effects);
            }
        }
    }

    /// Ends a running fence, and notifies its neighbours, except the node that reported the failure.
    pub(super) fn fail(
        &mut self,
        epoch: u64,
        node: Option<NodeIndex>,
        reason: String,
        knows: Option<NodeIndex>,
        effects: &mut Effects,
    ) {
        let Some(Fence::Running(running)) = self.open.get(&epoch) else { return };
        for neighbour in running.gather.neighbours().into_iter().map(|position| running.members.node(position)) {
            if Some(neighbour) != knows {
                effects.frames.push((neighbour, failed(&self.name(epoch), Blame::of(node), &reason)));
            }
        }
        effects.counters.failed += 1;
        let error = FenceError::Failed { node, epoch: Epoch(epoch), reason: reason.clone() };
        self.end(epoch, Ended::Failed { node, reason }, Err(error), effects);
    }

    /// Fails the running fences of `node`, because it was lost.
    pub(super) fn lose(&mut self, node: NodeIndex, reason: &str, effects: &mut Effects) {
        for epoch in self.running(|members| members.position(node).is_some()) {
            self.fail(epoch, Some(node), reason.to_owned(), Some(node), effects);
        }
    }

    /// Fails the running fences that wait for nodes that have left normally, and will not take part. Only fences of a minimum age
    /// fail. By then, the reports of waiting and ended ranks show which rank has deserted the fence, which is a more precise
    /// error.
    pub(super) fn fail_without(&mut self, left: &FastMap<NodeIndex, String>, effects: &mut Effects) {
        let mut missed = Vec::new();
        for (epoch, fence) in &self.open {
            let Fence::Running(running) = fence else { continue };
            if running.age < PATIENCE {
                continue;
            }
            let has_left = |position| left.contains_key(&running.members.node(position));
            if let Some(position) = running.gather.misses(has_left) {
                missed.push((*epoch, running.members.node(position)));
            }
        }
        for (epoch, node) in missed {
            let reason = left.get(&node).cloned().unwrap_or_default();
            self.fail(epoch, Some(node), reason, Some(node), effects);
        }
    }

    /// Fails all running fences. Nodes that wait in other fences are notified that this node has left.
    pub(super) fn leave(mut self, reason: &str, effects: &mut Effects) {
        for epoch in self.running(|_| true) {
            self.fail(epoch, Some(self.me), reason.to_owned(), None, effects);
        }
    }

    /// Notifies nodes after a fence has waited for them for 2, 4, 8, ... ticks.
    pub(super) fn tick(&mut self, effects: &mut Effects) {
        for (epoch, fence) in &mut self.open {
            let Fence::Running(running) = fence else { continue };
            running.age = running.age.saturating_add(1);
            if running.age < 2 || !running.age.is_power_of_two() {
                continue;
            }
            for position in running.gather.awaited() {
                let what = Some(What::Awaited(name(&self.key, *epoch)));
                effects.frames.push((running.members.node(position), LinkFrame { what }));
            }
        }
    }

    /// The name of one fence.
    pub(super) fn name(&self, epoch: u64) -> FenceKey {
        name(&self.key, epoch)
    }

    fn on_failed(&mut self, epoch: u64, from: NodeIndex, frame: FenceFailed, effects: &mut Effects) {
        /// The longest reason that is accepted from another node, in characters.
        const REASON_MAX: usize = 500;
        let node = Blame::read(&frame, from);
        let reason = frame.reason.chars().filter(|c| !c.is_control()).take(REASON_MAX).collect();
        self.fail(epoch, node, reason, Some(from), effects);
    }

    fn end(&mut self, epoch: u64, ended: Ended, result: FenceResult, effects: &mut Effects) {
        self.open.remove(&epoch);
        self.ended.insert(epoch, ended);
        effects.ended.push((self.name(epoch), result));
    }

    /// Drops a frame of a fence that has ended here. A sender that still waits receives the reason why the fence cannot complete.
    fn answer_late(&self, epoch: u64, ended: &Ended, from: NodeIndex, what: &What, effects: &mut Effects) {
        effects.counters.late += 1;
        if !matches!(what, What::Awaited(_)) {
            return;
        }
        match ended {
            Ended::Failed { node, reason } => {
                effects.frames.push((from, failed(&self.name(epoch), Blame::of(*node), reason)));
            }
            // Links preserve the order, so the earlier result for this node was lost with a previous link.
            Ended::Complete(served) if served.contains(&from) => {
                let reason = "what it sent was lost on the way";
                effects.frames.push((from, failed(&self.name(epoch), Blame::Sender, reason)));
            }
            Ended::Complete(_) => {}
        }
    }

    fn running(&self, is_meant: impl Fn(&Members) -> bool) -> Vec<u64> {
        let meant = |(epoch, fence): (&u64, &Fence)| match fence {
            Fence::Running(running) if is_meant(&running.members) => Some(*epoch),
            _ => None,
        };
        self.open.iter().filter_map(meant).collect()
    }
}

fn name(series: &FenceKey, epoch: u64) -> FenceKey {
    FenceKey { epoch, ..series.clone() }
}
