//! How a session ends its ranks: step by step, each with a deadline.

use std::time::Duration;

use crate::timeouts;
use nix::sys::signal::Signal;
use pmi_core::ids::{NodeIndex, Rank};
use rank_spawner::{Orphans, SweepScope, nothing_to_sweep, sweep};
use tokio::time::Instant;

use super::Session;
use super::judgement::Verdict;
use crate::cause::{Cause, CauseKind};
use crate::event::Event;
use crate::spec::Patience;

/// The steps that are still to be taken.
#[derive(Debug)]
pub(super) struct Ending {
    patience: Patience,
    /// When the launch has run for its whole time.
    time_limit: Option<Instant>,
    /// When to send what; empty before the end has begun, and after the last step.
    steps: Vec<(Instant, Signal)>,
    last: Option<Signal>,
}

impl Ending {
    pub(super) fn new(patience: Patience, started: Instant) -> Self {
        let time_limit = patience.timeout.map(|limit| started + limit);
        Self { patience, time_limit, steps: Vec::new(), last: None }
    }

    /// Whether ranks have been told to end.
    pub(super) fn has_begun(&self) -> bool {
        self.last.is_some()
    }

    /// The strongest signal sent so far.
    pub(super) fn last_signal(&self) -> Signal {
        self.last.unwrap_or(Signal::SIGTERM)
    }

    /// When the next step is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.steps.first().map(|&(at, _)| at).into_iter().chain(self.time_limit).min()
    }

    /// Plans the steps of an end that is beginning; one that is under way only becomes faster.
    fn plan(&mut self, first: Signal, grace: Duration) {
        let now = Instant::now();
        let mut steps = vec![(now, first)];
        if first != Signal::SIGKILL {
            if first != Signal::SIGTERM {
                steps.push((now + grace / 2, Signal::SIGTERM));
            }
            steps.push((now + grace, Signal::SIGKILL));
        }
        let sooner = |steps: &[(Instant, Signal)]| steps.last().map(|&(at, _)| at);
        if self.last.is_none() || sooner(&steps) < sooner(&self.steps) {
            self.steps = steps;
        }
    }

    /// The signal that is due now.
    fn due(&mut self) -> Option<Signal> {
        let &(at, signal) = self.steps.first()?;
        if at > Instant::now() {
            return None;
        }
        self.steps.remove(0);
        self.last = Some(signal);
        Some(signal)
    }
}

impl Session {
    /// The launch has failed here: this is why, if nothing was before. Its ranks end soon.
    pub(super) fn fail(&mut self, kind: CauseKind) {
        self.fail_on(self.spec.node, kind);
    }

    /// The same for what has happened on another node.
    pub(super) fn fail_on(&mut self, node: NodeIndex, kind: CauseKind) {
        let grace = match kind {
            CauseKind::Interrupted { .. } | CauseKind::TimedOut { .. } => self.spec.patience.after_interrupt,
            _ => self.spec.patience.after_failure,
        };
        let first = match kind {
            CauseKind::Interrupted { signal } => Signal::try_from(signal).unwrap_or(Signal::SIGTERM),
            _ => Signal::SIGTERM,
        };
        self.blame_on(node, kind);
        self.end(first, grace);
    }

    /// Remembers the first cause, and tells of it.
    pub(super) fn blame(&mut self, kind: CauseKind) {
        self.blame_on(self.spec.node, kind);
    }

    fn blame_on(&mut self, node: NodeIndex, kind: CauseKind) {
        if !matches!(self.verdict, Verdict::Open) {
            return;
        }
        let cause = Cause { host: self.spec.host(node).to_owned(), kind };
        if let Some(alarm) = self.surroundings.alarm.take() {
            // Who does not listen any more gets it with the events.
            let _ = alarm.send(cause.clone());
        }
        self.outbox.push_back(Event::Ending(cause.clone()));
        self.verdict = Verdict::Here(cause);
    }

    pub(super) fn end(&mut self, first: Signal, grace: Duration) {
        self.ending.plan(first, grace);
        self.end_by_time();
    }

    /// Takes the steps that are due.
    pub(super) fn end_by_time(&mut self) {
        if self.ending.time_limit.is_some_and(|limit| limit <= Instant::now()) {
            let limit = self.ending.patience.timeout.unwrap_or_default();
            self.ending.time_limit = None;
            self.fail(CauseKind::TimedOut { limit });
        }
        while let Some(signal) = self.ending.due() {
            self.signal_ranks(signal);
        }
    }

    /// Sends a signal to every living rank and its process group.
    pub(super) fn signal_ranks(&self, signal: Signal) {
        self.signal_some(signal, |_| true);
    }

    /// Sends a signal to every living rank that is meant, and its process group.
    pub(super) fn signal_some(&self, signal: Signal, is_meant: impl Fn(Rank) -> bool) {
        for slot in self.ranks.iter().filter(|slot| slot.exit.is_none() && is_meant(slot.rank)) {
            if let Some(process) = &slot.process {
                // It may have ended this very moment.
                let _ = process.signal_group(signal);
            }
        }
    }

    /// Kills what the ranks left behind, and returns what cannot be killed. Dismisses the keeper.
    pub(super) async fn sweep(&mut self) -> Vec<u32> {
        let (tag, ranks, keeper) = (self.tag(), self.pids(), self.surroundings.keeper.take());
        // As a rule; a thread for nothing would take as long as a rank takes to start.
        if ranks.is_empty() || nothing_to_sweep() {
            if let Some(keeper) = keeper {
                let _ = keeper.done();
            }
            return Vec::new();
        }
        let hunt = move || {
            let except: Vec<_> = keeper.iter().map(rank_spawner::Keeper::pid).collect();
            let orphans = if keeper.is_some() { Orphans::Claim { except: &except } } else { Orphans::Leave };
            let belongings = SweepScope { tag: &tag, ranks: &ranks, orphans };
            let swept = sweep(&belongings, timeouts::SWEEP);
            if let Some(keeper) = keeper {
                // It is dismissed; that it was gone before its time changes nothing now.
                let _ = keeper.done();
            }
            swept
        };
        match tokio::task::spawn_blocking(hunt).await {
            Ok(Ok(swept)) => swept.survivors.iter().map(|survivor| survivor.pid.as_raw().unsigned_abs()).collect(),
            Ok(Err(_)) | Err(_) => Vec::new(),
        }
    }
}
