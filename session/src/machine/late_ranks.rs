//! Call stacks of ranks. They are read for the missing ranks of a start that takes long. They are read for all ranks at the time limit, or
//! on request. At the limit, ranks are ended only after this look, which has a time limit of its own.

use std::mem;
use std::time::Instant;

use nix::sys::signal::Signal;

use super::effect::{Asker, Effect, ProgressDetail, StackLook};
use super::ending::Ending;
use super::verdict::Verdict;
use super::{Phase, SessionMachine, SlotId};
use crate::call_stacks::CallStacks;
use crate::cause::CauseKind;
use crate::event::{Event, Notice};
use crate::rank_ranges::RankRanges;
use crate::timeouts;

/// Looks in progress.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StackLooks {
    is_late: bool,
    is_at_limit: bool,
    /// Number of the launch's last question about all ranks.
    asked: Option<u64>,
    /// Tickets of sessions with the same question.
    tickets: Vec<u64>,
}

impl StackLooks {
    /// Returns true while a requested look is in progress.
    fn is_asked(&self) -> bool {
        self.asked.is_some() || !self.tickets.is_empty()
    }

    fn take_askers(&mut self) -> Vec<Asker> {
        let sessions = mem::take(&mut self.tickets).into_iter().map(Asker::Session);
        self.asked.take().map(Asker::Launch).into_iter().chain(sessions).collect()
    }
}

impl SessionMachine {
    /// Looks at the ranks here among `ranks`, for which other ranks wait.
    pub(super) fn look_at_late_ranks(&mut self, ranks: &RankRanges, now: Instant) {
        let slots = self.ranks.alive().filter(|(_, slot)| ranks.contains(slot.rank));
        self.look_at_late_slots(slots.map(|(slot, _)| slot).collect(), now);
    }

    pub(super) fn look_at_late_slots(&mut self, slots: Vec<SlotId>, now: Instant) {
        if !slots.is_empty() && !self.stack_looks.is_late && !self.stack_looks.is_at_limit {
            self.stack_looks.is_late = true;
            self.look_at_stacks(StackLook::Late, slots, now);
        }
    }

    /// The launch has failed at its time limit, here or just before on another node. Looks at its ranks, and then ends them.
    pub(super) fn end_after_look(&mut self, now: Instant) {
        let alive: Vec<SlotId> = self.ranks.alive().map(|(slot, _)| slot).collect();
        let grace = self.spec.settings.timeouts.grace_after_interrupt;
        if alive.is_empty() || matches!(self.phase, Phase::Ending(_)) {
            return self.end(Signal::SIGTERM, grace, now);
        }
        self.stack_looks.is_at_limit = true;
        let until = now + timeouts::STACKS_AT_LIMIT;
        self.phase = Phase::Ending(Ending::begin(Signal::SIGTERM, grace, until));
        self.effects.push_back(Effect::LookAtStacks { look: StackLook::AtLimit, slots: alive, until });
    }

    /// Answers a request for the call stacks of all ranks. One look serves all requests that arrive while it is in progress. An earlier
    /// request gets the other data at once. The answer to the last request has the stacks.
    pub(super) fn look_at_all_ranks(&mut self, question: u64, now: Instant) {
        let is_under_way = self.stack_looks.is_asked();
        match self.stack_looks.asked.replace(question) {
            Some(earlier) => self.look_at_progress(Asker::Launch(earlier), ProgressDetail::Dialogue),
            None if is_under_way => {}
            None => self.look_at_all_stacks(now),
        }
    }

    /// Answers a session's request for the call stacks of all ranks.
    pub(super) fn look_at_ranks_for(&mut self, ticket: u64, now: Instant) {
        let is_under_way = self.stack_looks.is_asked();
        self.stack_looks.tickets.push(ticket);
        if !is_under_way {
            self.look_at_all_stacks(now);
        }
    }

    fn look_at_all_stacks(&mut self, now: Instant) {
        let alive = self.ranks.alive().map(|(slot, _)| slot).collect();
        self.look_at_stacks(StackLook::Asked, alive, now);
    }

    /// Returns true while ranks are inspected before their end.
    pub(super) fn ends_after_look(&self) -> bool {
        self.stack_looks.is_at_limit
    }

    /// Handles the time limit.
    pub(super) fn on_time_limit(&mut self, kind: CauseKind, now: Instant) {
        if self.verdict == Verdict::Open {
            self.blame(self.spec.node, kind);
            self.end_after_look(now);
        }
    }

    pub(super) fn look_at_stacks(&mut self, look: StackLook, slots: Vec<SlotId>, now: Instant) {
        let time = match look {
            StackLook::Finalizing => timeouts::CALL_STACKS_OF_A_WAIT,
            StackLook::Late | StackLook::Asked | StackLook::AtLimit => timeouts::CALL_STACKS,
        };
        self.effects.push_back(Effect::LookAtStacks { look, slots, until: now + time });
    }

    /// Handles the answer to [`Effect::LookAtStacks`]: a text for each inspected rank.
    pub(crate) fn on_stacks_seen(&mut self, look: StackLook, seen: Vec<(SlotId, String)>, now: Instant) {
        if self.is_over() {
            return;
        }
        if matches!(look, StackLook::Finalizing | StackLook::Late) {
            self.judge_finalizing(&seen);
        }
        if look == StackLook::Finalizing {
            return self.advance(now);
        }
        let mut stacks = CallStacks::default();
        let known = seen.into_iter().filter_map(|(slot, text)| Some((self.ranks.find(slot)?.rank, text)));
        known.for_each(|(rank, text)| stacks.add([rank], text));
        if look == StackLook::Asked {
            let seen = stacks.into_stacks();
            for asker in self.stack_looks.take_askers() {
                self.look_at_progress(asker, ProgressDetail::Stacks(seen.clone()));
            }
            return;
        }
        if !stacks.is_empty() {
            self.report_event(Event::Notice(Notice::Stacks { stacks: stacks.into_stacks() }));
        }
        match look {
            StackLook::Asked | StackLook::Finalizing => {}
            StackLook::Late => self.stack_looks.is_late = false,
            StackLook::AtLimit => {
                self.stack_looks.is_at_limit = false;
                self.end(Signal::SIGTERM, self.spec.settings.timeouts.grace_after_interrupt, now);
            }
        }
        self.advance(now);
    }
}
