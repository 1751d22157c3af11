//! Frames of launches that are unknown to this node. The start of the launch may arrive at any moment, so the frames are
//! stored for a while, within limits per sender and for all senders together. Time is counted in ticks; [`Unclaimed::tick`]
//! adds one.

use std::collections::{HashMap, VecDeque};

use super::budget::{Budget, Holding};
use super::frames::{kept_bytes, launch_of};
use crate::proto::v1::link_frame::What;

/// Frame of an unknown launch.
#[derive(Debug)]
pub(super) struct UnclaimedFrame {
    /// Tick of its arrival.
    since: u32,
    /// Name of the node that sent it.
    pub(super) from: String,
    pub(super) what: What,
}

/// All such frames, in order of arrival.
#[derive(Debug)]
pub(super) struct Unclaimed {
    frames: VecDeque<UnclaimedFrame>,
    /// Stored bytes, by sender.
    held: HashMap<String, Holding>,
    budget: Budget,
    now: u32,
}

impl Unclaimed {
    /// Creates an empty store for at most `max` bytes.
    pub(super) fn new(max: usize) -> Self {
        Self { frames: VecDeque::new(), held: HashMap::new(), budget: Budget::new(max), now: 0 }
    }

    /// Stores a frame, or returns it if its sender would exceed `max` bytes, or all senders together their limit.
    pub(super) fn keep(&mut self, from: &str, what: What, max: usize) -> Option<What> {
        let held = self.held.entry(from.to_owned()).or_insert_with(|| self.budget.holding());
        if !held.take(kept_bytes(&what), max) {
            if held.is_empty() {
                self.held.remove(from);
            }
            return Some(what);
        }
        self.frames.push_back(UnclaimedFrame { since: self.now, from: from.to_owned(), what });
        None
    }

    /// Removes the frames of a launch that has become known.
    pub(super) fn claim(&mut self, launch: &str) -> Vec<UnclaimedFrame> {
        let is_claimed = |frame: &UnclaimedFrame| launch_of(&frame.what) == launch;
        let (claimed, others) = std::mem::take(&mut self.frames).into_iter().partition::<VecDeque<_>, _>(is_claimed);
        self.frames = others;
        let claimed = Vec::from(claimed);
        self.release(&claimed);
        claimed
    }

    /// Counts a tick, and removes the frames older than `ticks`.
    pub(super) fn tick(&mut self, ticks: u32) -> Vec<UnclaimedFrame> {
        self.now = self.now.wrapping_add(1);
        let age = |frame: &UnclaimedFrame| self.now.wrapping_sub(frame.since);
        let old = self.frames.iter().take_while(|frame| age(frame) > ticks).count();
        let expired: Vec<_> = self.frames.drain(..old).collect();
        self.release(&expired);
        expired
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    fn release(&mut self, frames: &[UnclaimedFrame]) {
        for UnclaimedFrame { from, what, .. } in frames {
            if let Some(held) = self.held.get(from) {
                held.give(kept_bytes(what));
                if held.is_empty() {
                    self.held.remove(from);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::v1::FenceKey;

    fn awaited(launch: &str) -> What {
        What::Awaited(FenceKey { launch_id: launch.into(), ..FenceKey::default() })
    }

    #[test]
    fn frames_are_claimed_in_their_order_and_by_their_launch_alone() {
        let mut unclaimed = Unclaimed::new(usize::MAX);
        for (from, launch) in [("a", "1"), ("b", "2"), ("b", "1")] {
            unclaimed.keep(from, awaited(launch), usize::MAX);
        }
        let claimed: Vec<_> = unclaimed.claim("1").into_iter().map(|frame| frame.from).collect();
        assert_eq!(claimed, ["a", "b"]);
        assert!(unclaimed.claim("1").is_empty() && !unclaimed.is_empty());
    }

    #[test]
    fn one_sender_cannot_take_the_room_of_others() {
        let mut unclaimed = Unclaimed::new(usize::MAX);
        let max = 2 * kept_bytes(&awaited("1"));
        let mut keep = |from| unclaimed.keep(from, awaited("1"), max).is_none();
        assert_eq!(["a", "a", "a", "b"].map(&mut keep), [true, true, false, true]);
        assert_eq!(unclaimed.tick(0).len(), 3);
        assert!(unclaimed.keep("a", awaited("1"), max).is_none());
    }

    #[test]
    fn frames_are_kept_for_as_many_ticks_as_they_may_see() {
        let mut unclaimed = Unclaimed::new(usize::MAX);
        // The tick counter wraps around.
        unclaimed.now = u32::MAX - 1;
        for from in ["a", "b"] {
            unclaimed.keep(from, awaited("1"), usize::MAX);
            unclaimed.tick(2);
        }
        let mut tick = || unclaimed.tick(2).into_iter().map(|frame| frame.from).collect::<Vec<_>>();
        assert_eq!([tick(), tick(), tick()], [vec!["a".to_owned()], vec!["b".to_owned()], vec![]]);
        assert!(unclaimed.is_empty() && unclaimed.held.is_empty());
    }

    #[test]
    fn many_senders_cannot_take_more_than_there_is_room() {
        let one = kept_bytes(&awaited("1"));
        let mut unclaimed = Unclaimed::new(2 * one);
        let mut keep = |from| unclaimed.keep(from, awaited("1"), one).is_none();
        assert_eq!(["a", "b", "c"].map(&mut keep), [true, true, false]);
        assert_eq!((unclaimed.held.len(), unclaimed.claim("1").len()), (2, 2));
        assert!(unclaimed.keep("c", awaited("1"), one).is_none());
    }
}
