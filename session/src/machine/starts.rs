//! Starts of ranks: ranks that run, that fail to start, and that run but cannot be served.

use std::time::Instant;

use super::jobs::JobNumber;
use super::ranks::SlotId;
use super::{Phase, SessionMachine, StartFailure};
use crate::cause::{CauseKind, StartClass};
use crate::event::Event;

impl SessionMachine {
    /// Records that the process of a rank runs, with `outputs` streams to read.
    pub(crate) fn on_started(&mut self, slot: SlotId, pid: u32, outputs: usize, now: Instant) {
        if !self.ranks.started(slot, pid, outputs, now) {
            return;
        }
        let rank = self.ranks.get(slot).rank;
        self.report_event(Event::Started { rank, pid, at: self.began.unix_time(now) });
        self.count_start(slot);
        self.advance(now);
    }

    /// Records that a rank failed to start.
    pub(crate) fn on_not_started(&mut self, slot: SlotId, failure: StartFailure, now: Instant) {
        if !self.ranks.not_started(slot) {
            return;
        }
        if let StartFailure::Failed { class, reason } = failure {
            self.fail_start(slot, class, reason, now);
        }
        self.count_start(slot);
        self.advance(now);
    }

    /// Handles a rank that runs and cannot be served. It counts as a failed start, and is ended with its job.
    pub(crate) fn on_not_served(&mut self, slot: SlotId, reason: String, now: Instant) {
        self.fail_start(slot, StartClass::System, reason, now);
        self.advance(now);
    }

    fn fail_start(&mut self, slot: SlotId, class: StartClass, reason: String, now: Instant) {
        match self.ranks.get(slot).job {
            JobNumber::LAUNCHED => self.fail(CauseKind::NotStarted { reason, class }, now),
            job => self.disown(job, &reason),
        }
    }

    /// Counts a start that has succeeded or failed.
    fn count_start(&mut self, slot: SlotId) {
        let job = self.ranks.get(slot).job;
        self.jobs.get_mut(job).count_start();
        self.settle_start(job);
        if self.ranks.starting() == 0
            && let Phase::Ending(ending) = &self.phase
        {
            // Ranks that started after the end had begun have received no signal.
            let signal = ending.for_late_ranks();
            self.signal_all(signal);
        }
    }
}
