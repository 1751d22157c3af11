//! Ranks that wait in `MPI_Finalize` for ranks in another MPI function, which in turn wait for them.
//!
//! A rank that raises an exception reaches `MPI_Finalize` while other ranks are in a barrier, which calls no server. Ranks in
//! `MPI_Finalize` may also wait for a rank that writes its results, so the call stacks of the missing ranks decide. In a launch on
//! several nodes, the launch finds the missing ranks and evaluates their call stacks.

use std::mem;
use std::time::{Duration, Instant};

use super::desertion::FenceSeen;
use super::effect::StackLook;
use super::{SessionMachine, SlotId};
use crate::event::Event;
use crate::fence_wait::FenceWait;

/// State of the search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Finalizing {
    #[default]
    Unseen,
    /// The call stacks of the missing ranks are being read.
    Looking(FenceWait),
    /// A wait was reported.
    Reported,
}

impl SessionMachine {
    /// Requests the call stacks of the missing ranks of a fence, unless a look is in progress or a wait was reported.
    pub(super) fn look_for_mpi_calls(&mut self, fence: &FenceSeen, since: Duration, now: Instant) {
        let slots = fence.missing.iter().filter_map(|(rank, _)| self.ranks.slot_of(*rank));
        let slots: Vec<SlotId> =
            slots.filter(|&slot| self.ranks.find(slot).is_some_and(|slot| slot.state.exit().is_none())).collect();
        let is_free = match &self.finalizing {
            Finalizing::Unseen => true,
            Finalizing::Looking(wait) => wait.at_start,
            Finalizing::Reported => false,
        };
        if is_free && !slots.is_empty() {
            let waiting = self.shown_ranks(fence.job, &fence.waiting);
            self.finalizing = Finalizing::Looking(FenceWait { waiting, since, at_start: fence.at_start });
            // A look at the ranks of a late start is already in progress, or the launch will request it.
            if !fence.at_start {
                self.look_at_stacks(StackLook::Finalizing, slots, now);
            }
        }
    }

    /// Returns true once a wait was reported. From then on the launch waits for no start.
    pub(super) fn is_misuse_reported(&self) -> bool {
        self.finalizing == Finalizing::Reported
    }

    /// Reports the wait if a missing rank is in MPI, or if it may be in MPI because this node has no debugger.
    pub(super) fn judge_finalizing(&mut self, seen: &[(SlotId, String)]) {
        if self.is_misuse_reported() {
            return;
        }
        let Finalizing::Looking(wait) = mem::take(&mut self.finalizing) else { return };
        // The jobs of some ranks may be over.
        let seen: Vec<_> =
            seen.iter().filter_map(|(slot, text)| Some((self.ranks.find(*slot)?.rank, &**text))).collect();
        if let Some(misuse) = wait.misuse(&seen) {
            self.finalizing = Finalizing::Reported;
            self.report_event(Event::Notice(misuse));
        }
    }
}
