//! Frames of launches that this node does not know: it may be told of them any moment, so they are kept for a while.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::budget::{Budget, Holding};
use super::launch::held_bytes;
use crate::proto::v1::link_frame::What;

/// A frame whose launch is not known.
#[derive(Debug)]
pub(super) struct Stray {
    since: Instant,
    /// The name of the node that sent it.
    pub(super) from: String,
    pub(super) what: What,
}

/// All such frames, in the order in which they came.
#[derive(Debug)]
pub(super) struct Strays {
    frames: VecDeque<Stray>,
    /// By sender.
    held: HashMap<String, Holding>,
    budget: Budget,
}

impl Strays {
    /// None yet; all that will be kept takes at most `max` bytes.
    pub(super) fn new(max: usize) -> Self {
        Self { frames: VecDeque::new(), held: HashMap::new(), budget: Budget::new(max) }
    }

    /// Keeps a frame, or gives it back if its sender has `max` bytes here already, or all senders together have too many.
    pub(super) fn keep(&mut self, from: &str, what: What, max: usize) -> Option<What> {
        let held = self.held.entry(from.to_owned()).or_insert_with(|| self.budget.holding());
        if !held.take(held_bytes(&what), max) {
            if held.is_empty() {
                self.held.remove(from);
            }
            return Some(what);
        }
        self.frames.push_back(Stray { since: Instant::now(), from: from.to_owned(), what });
        None
    }

    /// Takes out the frames of a launch that has become known.
    pub(super) fn claim(&mut self, launch: &str) -> Vec<Stray> {
        let mut claimed = Vec::new();
        for stray in std::mem::take(&mut self.frames) {
            if launch_of(&stray.what) == launch {
                claimed.push(stray);
            } else {
                self.frames.push_back(stray);
            }
        }
        self.forget(&claimed);
        claimed
    }

    /// Takes out the frames that have waited for longer than `patience`.
    pub(super) fn expire(&mut self, patience: Duration) -> Vec<Stray> {
        let old = self.frames.iter().take_while(|stray| stray.since.elapsed() > patience).count();
        let expired: Vec<_> = self.frames.drain(..old).collect();
        self.forget(&expired);
        expired
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    fn forget(&mut self, strays: &[Stray]) {
        for Stray { from, what, .. } in strays {
            if let Some(held) = self.held.get(from) {
                held.give(held_bytes(what));
                if held.is_empty() {
                    self.held.remove(from);
                }
            }
        }
    }
}

/// The launch that a frame is of; an empty text, which no launch has, if it does not say.
pub(super) fn launch_of(what: &What) -> &str {
    let key = match what {
        What::Up(frame) => frame.key.as_ref(),
        What::Down(frame) => frame.key.as_ref(),
        What::Failed(frame) => frame.key.as_ref(),
        What::Awaited(key) => Some(key),
        What::DataRequest(request) => return &request.launch_id,
        What::DataReply(reply) => return &reply.launch_id,
    };
    key.map_or("", |key| &key.launch_id)
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
        let mut strays = Strays::new(usize::MAX);
        for (from, launch) in [("a", "1"), ("b", "2"), ("b", "1")] {
            strays.keep(from, awaited(launch), usize::MAX);
        }
        let claimed: Vec<_> = strays.claim("1").into_iter().map(|stray| stray.from).collect();
        assert_eq!(claimed, ["a", "b"]);
        assert!(strays.claim("1").is_empty() && !strays.is_empty());
    }

    #[test]
    fn one_sender_cannot_take_the_room_of_others() {
        let mut strays = Strays::new(usize::MAX);
        let max = 2 * held_bytes(&awaited("1"));
        let mut keep = |from| strays.keep(from, awaited("1"), max).is_none();
        assert_eq!(["a", "a", "a", "b"].map(&mut keep), [true, true, false, true]);
        assert_eq!(strays.expire(Duration::ZERO).len(), 3);
        assert!(strays.keep("a", awaited("1"), max).is_none() && strays.expire(Duration::from_secs(3600)).is_empty());
    }

    #[test]
    fn many_senders_cannot_take_more_than_there_is_room() {
        let one = held_bytes(&awaited("1"));
        let mut strays = Strays::new(2 * one);
        let mut keep = |from| strays.keep(from, awaited("1"), one).is_none();
        assert_eq!(["a", "b", "c"].map(&mut keep), [true, true, false]);
        assert_eq!((strays.held.len(), strays.claim("1").len()), (2, 2));
        assert!(strays.keep("c", awaited("1"), one).is_none());
    }
}
