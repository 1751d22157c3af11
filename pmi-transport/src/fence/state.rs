//! State of one node: its launches, frames of unknown launches, and the output. Every operation runs under one lock, is short, and never
//! waits. Frames are queued before the lock is released, so their order is preserved.

use std::sync::Arc;

use super::Limits;
use super::budget::Budget;
use super::frames::{launch_of, refusal};
use super::launch::{LEFT, Loss};
use super::launches::{Joined, LaunchGuard, Launches};
use super::links::StreamId;
use super::membership::{Membership, MembershipId, Questions};
use super::outbound::Outbound;
use super::recent::Recent;
use super::unclaimed::Unclaimed;
use crate::proto::v1::{LinkFrame, link_frame::What};

/// Number of launches that are remembered after this node has left them.
const REMEMBERED: usize = 1024;

/// Launches and links of one node.
pub(super) struct State {
    launches: Launches,
    /// Launches that this node has left.
    left: Recent<String, ()>,
    unclaimed: Unclaimed,
    /// Maximum bytes of early frames of all launches together.
    held: Budget,
    pub(super) outbound: Outbound,
    is_ticking: bool,
}

impl State {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            launches: Launches::default(),
            left: Recent::new(REMEMBERED),
            unclaimed: Unclaimed::new(limits.all_unclaimed_bytes),
            held: Budget::new(limits.all_held_bytes),
            outbound: Outbound::new(limits),
            is_ticking: false,
        }
    }

    /// Joins a launch, and processes its stored frames.
    pub(super) fn join(&mut self, membership: Membership, source: Arc<dyn Questions>) -> MembershipId {
        let launch_id = membership.launch_id.clone();
        self.left.forget(&launch_id);
        self.outbound.pmi_fence.forget(&launch_id);
        let (id, earlier) = self.launches.join(membership, source, &self.held, self.outbound.limits);
        if let Some(earlier) = earlier {
            self.outbound.ends.extend(earlier.into_ends());
        }
        for frame in self.unclaimed.claim(&launch_id) {
            self.on_frame(&frame.from, frame.what);
        }
        id
    }

    /// Ends a membership, and fails the fences and questions of other nodes.
    pub(super) fn leave(&mut self, id: MembershipId) {
        let Some(mut joined) = self.launches.remove(id) else { return };
        LaunchGuard { joined: &mut joined, outbound: &mut self.outbound }.leave();
        let Membership { launch_id, me, nodes, .. } = &joined.membership;
        for (_, member) in nodes.iter().enumerate().filter(|(index, _)| *index != me.index()) {
            self.tell_of_leave(launch_id, &member.name);
        }
        self.outbound.pmi_fence.forget(&joined.membership.launch_id);
        self.left.insert(joined.membership.launch_id, ());
    }

    fn tell_of_leave(&mut self, launch_id: &str, to: &str) {
        let left = LinkFrame { what: Some(What::Left(launch_id.to_owned())) };
        self.outbound.answer(to, left);
    }

    /// Returns the fences of a membership, unless it has ended.
    pub(super) fn fences(&mut self, id: MembershipId) -> Option<LaunchGuard<'_>> {
        let joined = self.launches.get_mut(id)?;
        Some(LaunchGuard { joined, outbound: &mut self.outbound })
    }

    /// Returns the fences of a launch that this node takes part in.
    pub(super) fn fences_of(&mut self, launch_id: &str) -> Option<LaunchGuard<'_>> {
        let joined = self.launches.of_launch(launch_id)?;
        Some(LaunchGuard { joined, outbound: &mut self.outbound })
    }

    /// Returns a membership, unless it has ended.
    pub(super) fn joined(&mut self, id: MembershipId) -> Option<&mut Joined> {
        self.launches.get_mut(id)
    }

    /// Processes a frame from a stream of the node `from`, unless its link has ended. A reader that is aborted with the link may still
    /// have a frame.
    pub(super) fn on_stream_frame(&mut self, from: &str, stream: StreamId, what: What) {
        if self.outbound.links.has(from, stream) {
            self.on_frame(from, what);
        }
    }

    /// Processes a frame from a link of the node `from`, or a stored one.
    pub(super) fn on_frame(&mut self, from: &str, what: What) {
        self.outbound.counters.frames += 1;
        match self.fences_of(launch_of(&what)) {
            Some(mut fences) => fences.on_frame(from, what),
            None => self.on_unclaimed(from, what),
        }
    }

    /// Processes a frame of a launch that this node does not take part in.
    fn on_unclaimed(&mut self, from: &str, what: What) {
        let id = launch_of(&what);
        if id.is_empty() {
            self.outbound.counters.foreign += 1;
        } else if self.left.get(&id.to_owned()).is_some() {
            self.outbound.counters.late += 1;
            match what {
                What::Up(_) | What::Awaited(_) => self.tell_of_leave(id, from),
                _ => self.refuse(from, &what, LEFT),
            }
        } else if let Some(what) = self.unclaimed.keep(from, what, self.outbound.limits.unclaimed_bytes) {
            self.outbound.counters.dropped += 1;
            self.refuse(from, &what, "it knows no such launch, and cannot keep more");
        }
    }

    /// Processes the loss of the node `name` in all launches.
    pub(super) fn lost(&mut self, name: &str, reason: &str, loss: Loss) {
        for joined in self.launches.iter_mut() {
            LaunchGuard { joined, outbound: &mut self.outbound }.lost(name, reason, loss);
        }
    }

    /// Executes the work of each second. Returns false if there is nothing left to tick for.
    pub(super) fn tick(&mut self) -> bool {
        for frame in self.unclaimed.tick(self.outbound.limits.unclaimed_ticks) {
            self.outbound.counters.dropped += 1;
            self.refuse(&frame.from, &frame.what, "it has no such launch");
        }
        for joined in self.launches.iter_mut() {
            LaunchGuard { joined, outbound: &mut self.outbound }.tick();
        }
        self.is_ticking = self.has_open();
        self.is_ticking
    }

    /// Returns true if ticking must start. It continues until [`State::tick`] returns false.
    pub(super) fn begins_ticking(&mut self) -> bool {
        let begins = !self.is_ticking && self.has_open();
        self.is_ticking |= begins;
        begins
    }

    fn has_open(&self) -> bool {
        !self.unclaimed.is_empty() || !self.launches.is_empty()
    }

    /// Answers a frame that cannot be served, if its sender waits for an answer.
    fn refuse(&mut self, to: &str, what: &What, reason: &str) {
        if let Some(frame) = refusal(what, reason) {
            self.outbound.answer(to, frame);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::v1::FenceKey;

    #[test]
    fn frames_of_a_link_that_was_cut_or_replaced_are_not_taken() {
        let mut state = State::new(Limits::default());
        let taken = |state: &mut State, stream| {
            let before = state.outbound.counters.frames;
            state.on_stream_frame("a", stream, What::Awaited(FenceKey::default()));
            state.outbound.counters.frames - before
        };
        let first = state.outbound.links.accept("a").id;
        assert_eq!(taken(&mut state, first), 1);
        let second = state.outbound.links.accept("a").id;
        assert_eq!((taken(&mut state, first), taken(&mut state, second)), (0, 1));
        state.outbound.links.cut("a");
        assert_eq!(taken(&mut state, second), 0);
    }
}
