//! State machine of a session: one launch on one node. Pure: its input is events and the time, its output is [`Effect`]s. It has
//! no process, socket, channel or clock. [`crate::runner`] carries out the effects.
//!
//! ```text
//!            all were started        last rank ended          nothing is left
//! Starting ──────────────────> Running ─────────────> Draining ────────────> Done
//!     │  a start fails            │  first cause         ^  (leftovers swept, pipes read empty)
//!     └──────────┬────────────────┘                      │
//!                v                                       │
//!             Ending: signal ─grace─> SIGTERM ─grace─> SIGKILL, until the last rank ended
//! ```
//! A node without ranks of the launch is Running too. It waits for spawned jobs until it is released.
//!
//! Parts:
//! - [`ranks`]: a slot for each process.
//! - [`jobs`]: the launched job and the spawned jobs.
//! - [`verdict`]: the rules about the first cause.
//! - [`ending`]: the deadlines of an end.
//! - [`limits`]: the time limits of the launch.
//! - [`watch`]: silent ranks and stuck starts.
//! - [`desertion`]: long waits in fences.
//! - `late_ranks`: call stacks of ranks that make no progress.
//! - `mortality`: notifications of dead ranks.
//! - `orders`: requests of the launch.
//! - `spawn`: admission of new jobs.
//! - `starts`: starts of ranks.
//! - `reports`: messages to the launch.
//! - `resources`: releases that take too long.

pub(crate) mod desertion;
pub(crate) mod effect;
pub(crate) mod ending;
mod finalizing;
pub(crate) mod jobs;
mod late_ranks;
mod limits;
mod mortality;
mod orders;
pub(crate) mod ranks;
pub(crate) mod reports;
mod resources;
mod spawn;
mod starts;
#[cfg(test)]
mod tests;
pub(crate) mod verdict;
pub(crate) mod watch;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use pmi_core::ids::NodeIndex;
use pmi_core::server::EndReason;
use pmix_core::server::Need;
use rank_spawner::RankExit;

use self::desertion::{FenceWaits, NodeCount};
use self::effect::{Effect, FenceLook, Look};
use self::ending::Ending;
use self::finalizing::Finalizing;
use self::jobs::{JobNumber, JobPhase, JobState, Jobs};
use self::late_ranks::StackLooks;
use self::limits::{Limits, Reached};
use self::ranks::{RankState, Ranks, SlotId};
pub(crate) use self::spawn::PrepareFailure;
use self::verdict::{ExitMeaning, UnreportedEnd, Verdict, cause_of};
use self::watch::{Watch, WatchLook};
use crate::cause::{Cause, CauseKind, StartClass};
use crate::ended_ranks::EndMeaning;
use crate::event::{Event, Notice, Report};
use crate::settings::FailedRanks;
use crate::spec::SessionSpec;

/// Maximum number of finished spawned jobs that stay known because a report about their silent ranks is still due.
const SILENT_JOBS_MAX: usize = 4;

/// Phase of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Ranks of the launched job are being started.
    Starting,
    /// All of them were started; no event has ended the launch.
    Running,
    /// Ranks are being ended.
    Ending(Ending),
    /// The last rank has ended. The runner kills leftover processes and reads outputs to their end.
    Draining {
        /// Time from the start of the session to the end of the last rank.
        duration: Duration,
    },
    /// No process and no output is left.
    Done {
        /// As in `Draining`.
        duration: Duration,
    },
}

/// Failure to start a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StartFailure {
    /// The start itself failed.
    Failed { class: StartClass, reason: String },
    /// The start was abandoned because another rank failed to start. That failure is reported separately.
    GivenUp,
}

/// Start of a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Began {
    pub(crate) now: Instant,
    /// `now` as the time since 1970, by the clock of the node.
    pub(crate) unix: Duration,
}

impl Began {
    fn unix_time(self, now: Instant) -> Duration {
        self.unix + now.saturating_duration_since(self.now)
    }
}

/// The machine. After every call of an `on_*` method the runner takes effects with [`SessionMachine::poll_effect`] until none is
/// left. It calls [`SessionMachine::on_time`] at [`SessionMachine::next_wake`].
#[derive(Debug)]
pub(crate) struct SessionMachine {
    spec: Arc<SessionSpec>,
    began: Began,
    phase: Phase,
    limits: Limits,
    verdict: Verdict,
    ranks: Ranks,
    jobs: Jobs,
    watch: Watch,
    waits: FenceWaits,
    stack_looks: StackLooks,
    finalizing: Finalizing,
    /// Number of failed spawns that were reported to the user.
    refusals_told: u32,
    /// Number of overdue releases that were reported to the user.
    overdue_told: u32,
    /// How long servers of other nodes may ask this node's servers for committed keys of its ranks.
    pub(crate) need: Need,
    effects: VecDeque<Effect>,
}

impl SessionMachine {
    /// Creates the machine; its first effect prepares the launched job.
    pub(crate) fn new(spec: Arc<SessionSpec>, began: Began) -> Self {
        let now = began.now;
        let nodes = if spec.hosts.len() > 1 { NodeCount::Several } else { NodeCount::One };
        let prepare = Effect::PrepareJob { job: JobNumber::LAUNCHED, parent: None };
        Self {
            began,
            phase: Phase::Starting,
            limits: Limits::new(&spec.settings.timeouts, now),
            verdict: Verdict::Open,
            ranks: Ranks::default(),
            jobs: Jobs::new(Arc::clone(&spec)),
            watch: Watch::new(&spec, now),
            stack_looks: StackLooks::default(),
            waits: FenceWaits::new(spec.settings.timeouts.fence, nodes, now),
            finalizing: Finalizing::Unseen,
            refusals_told: 0,
            overdue_told: 0,
            need: Need::Over,
            effects: VecDeque::from([prepare]),
            spec,
        }
    }

    /// Returns the next effect to carry out.
    pub(crate) fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Returns the time at which [`SessionMachine::on_time`] must be called; `None` if only events can change the state.
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        let step = match &self.phase {
            Phase::Ending(ending) => ending.next(),
            Phase::Draining { .. } | Phase::Done { .. } => return None,
            Phase::Starting | Phase::Running => None,
        };
        [step, self.limits.next(), self.watch.next(), self.waits.next()].into_iter().flatten().min()
    }

    pub(crate) fn phase(&self) -> &Phase {
        &self.phase
    }

    pub(crate) fn ranks(&self) -> &Ranks {
        &self.ranks
    }

    pub(crate) fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    /// Returns the present meaning of an exit of this slot's rank.
    pub(crate) fn meaning_of(&self, slot: SlotId, exit: RankExit) -> ExitMeaning {
        let disowned = self.jobs.get(self.ranks.get(slot).job).is_disowned();
        match self.spec.settings.failed_ranks {
            _ if disowned || self.verdict != Verdict::Open => ExitMeaning::Nothing,
            _ if exit.is_success() => ExitMeaning::LeftInOrder,
            FailedRanks::AreBorne => ExitMeaning::Borne,
            FailedRanks::EndLaunch => ExitMeaning::Failed,
        }
    }

    /// Returns the result of the session. It is complete once the phase is [`Phase::Done`].
    pub(crate) fn report(&self) -> Report {
        let known = self.ranks.iter().filter_map(|(_, slot)| Some((slot.rank, slot.state.exit()?)));
        let mut exits: Vec<_> = known.chain(self.ranks.forgotten().iter()).collect();
        exits.sort_by_key(|&(rank, _)| rank);
        let cause = match &self.verdict {
            Verdict::Here(cause) => Some(cause.clone()),
            Verdict::Open => self.borne_failures(),
            Verdict::Elsewhere => None,
        };
        let duration = match self.phase {
            Phase::Draining { duration } | Phase::Done { duration } => duration,
            _ => Duration::ZERO,
        };
        Report { exits, cause, duration, ..Report::default() }
    }

    /// Returns the failures that the launch tolerated, as a cause.
    fn borne_failures(&self) -> Option<Cause> {
        if self.spec.settings.failed_ranks != FailedRanks::AreBorne {
            return None;
        }
        let counts = |slot: &ranks::Slot| !self.jobs.get(slot.job).is_disowned();
        let ends = self.ranks.iter().filter(|(_, slot)| counts(slot));
        let ends = ends.filter_map(|(_, slot)| Some((slot.rank, slot.state.exit()?)));
        let failed = ends.filter(|(_, exit)| !exit.is_success());
        let mut failed: Vec<_> = failed.chain(self.ranks.forgotten().failures()).collect();
        failed.sort_by_key(|&(rank, _)| rank);
        let host = self.spec.host(self.spec.node).to_owned();
        (!failed.is_empty()).then_some(Cause { host, kind: CauseKind::FailedRanks { failed } })
    }

    /// Handles the reason of a PMI server to end its job. `unreported` has the exits of processes that the machine has not
    /// received yet. They matter only to an abort.
    pub(crate) fn on_end_reason(
        &mut self,
        job: JobNumber,
        reason: EndReason,
        unreported: &[UnreportedEnd],
        now: Instant,
    ) {
        self.judge(job, reason, unreported, now);
        self.advance(now);
    }

    fn judge(&mut self, job: JobNumber, reason: EndReason, unreported: &[UnreportedEnd], now: Instant) {
        // An end in progress keeps the time that its cause allows, whatever its ranks do meanwhile.
        if !self.jobs.knows(job) || self.jobs.get(job).is_disowned() || self.is_over() || self.verdict != Verdict::Open
        {
            return;
        }
        let counts = |end: &&UnreportedEnd| !self.jobs.get(self.ranks.get(end.slot).job).is_disowned();
        let unreported: Vec<UnreportedEnd> = unreported.iter().filter(counts).copied().collect();
        let (node, kind) = cause_of(self.jobs.get(job).show(reason), &self.ranks, &unreported);
        self.fail_on(node.unwrap_or(self.spec.node), kind, now);
    }

    /// Handles a reaped process. `reasons` are the end reasons that its servers gave for its last messages and its end. They count
    /// before the exit itself: a client may abort and exit at once. `others` is as `unreported` of
    /// [`SessionMachine::on_end_reason`].
    pub(crate) fn on_exit(
        &mut self,
        end: UnreportedEnd,
        reasons: Vec<(JobNumber, EndReason)>,
        others: &[UnreportedEnd],
        now: Instant,
    ) {
        let UnreportedEnd { slot, exit, reached } = end;
        if !self.ranks.ended(slot, exit, reached, now) {
            return;
        }
        let unreported = [&[end], others].concat();
        for (job, reason) in reasons {
            self.judge(job, reason, &unreported, now);
        }
        let (rank, job) = (self.ranks.get(slot).rank, self.ranks.get(slot).job);
        if self.meaning_of(slot, exit) == ExitMeaning::Failed {
            self.fail(CauseKind::Failed { rank, exit }, now);
        }
        if job == JobNumber::LAUNCHED {
            self.limits.on_exit(rank, now);
        }
        self.report_exit(slot);
        self.forget_if_over(job);
        self.advance(now);
    }

    /// Handles the end of one of a rank's output streams.
    pub(crate) fn on_output_end(&mut self, slot: SlotId) {
        let was_news = self.ranks.exit_news(slot).is_some();
        self.ranks.output_ended(slot);
        if !was_news {
            self.report_exit(slot);
        }
        if let Some(job) = self.ranks.find(slot).map(|slot| slot.job) {
            self.forget_if_over(job);
        }
    }

    /// Removes a spawned job after its ranks have ended on all nodes, unless a report of silent ranks needs it.
    fn forget_if_over(&mut self, job: JobNumber) {
        let is_over = |(number, state): (JobNumber, &JobState)| {
            number != JobNumber::LAUNCHED && state.waits_for_ranks_here_alone() && self.ranks.are_done(number)
        };
        if self.is_over() || !self.jobs.knows(job) || !is_over((job, self.jobs.get(job))) {
            return;
        }
        let is_silent =
            self.minds_silent_ends() && self.jobs.get(job).spec.job.size() > 1 && self.ranks.has_silent(job);
        if is_silent && self.jobs.iter().filter(|&known| is_over(known)).count() <= SILENT_JOBS_MAX {
            return;
        }
        let Some(JobState { spec, phase, .. }) = self.jobs.forget(job) else { return };
        let is_disowned = matches!(phase, JobPhase::Disowned { .. });
        let meaning = if is_disowned { EndMeaning::Nothing } else { EndMeaning::Counts };
        let slots = self.ranks.forget(job, meaning);
        self.effects.push_back(Effect::ReleaseJob { job, spec, slots });
    }

    /// Sets how long servers of other nodes may ask this node's servers for committed keys of its ranks. The session stays for
    /// that time even without ranks, unless the launch has failed.
    pub(crate) fn on_need(&mut self, need: Need, now: Instant) {
        self.need = need;
        self.advance(now);
    }

    /// Returns the time until the launch's time limit; `None` if it has none.
    pub(crate) fn time_left(&self, now: Instant) -> Option<Duration> {
        self.limits.left(now)
    }

    /// Handles the time of [`SessionMachine::next_wake`].
    pub(crate) fn on_time(&mut self, now: Instant) {
        if self.is_over() {
            return;
        }
        while let Some(reached) = self.limits.due(now) {
            match reached {
                Reached::Signal(signal) if self.verdict == Verdict::Open => self.on_signal(signal, |_| true),
                // The ranks are already being ended.
                Reached::Signal(_) => {}
                Reached::TimeLimit { limit } => self.on_time_limit(CauseKind::TimedOut { limit }, now),
                Reached::FirstExit(cause) => self.fail(cause, now),
            }
        }
        self.take_due_steps(now);
        while let Some(look) = self.watch.due(now) {
            self.effects.push_back(Effect::Look(match look {
                WatchLook::Stuck => Look::Fences(FenceLook::Stuck { after: self.watch.age(now) }),
                look => Look::Silent(look),
            }));
        }
        if self.waits.begin_look(now) {
            self.effects.push_back(Effect::Look(Look::Fences(FenceLook::Waits)));
        }
        self.advance(now);
    }

    /// Handles the end of the sweep. Of the processes that ranks left running, only `survivors` are not killed.
    pub(crate) fn on_swept(&mut self, survivors: Vec<u32>) {
        if !survivors.is_empty() {
            self.report_event(Event::Notice(Notice::Leftover { pids: survivors }));
        }
        self.effects.push_back(Effect::DrainOutputs);
    }

    /// Fails the launch here, and ends its ranks soon. `kind` is the cause unless there is an earlier one.
    fn fail(&mut self, kind: CauseKind, now: Instant) {
        self.fail_on(self.spec.node, kind, now);
    }

    fn fail_on(&mut self, node: NodeIndex, kind: CauseKind, now: Instant) {
        let timeouts = &self.spec.settings.timeouts;
        let (first, grace) = match kind {
            CauseKind::Interrupted { signal } => {
                (Signal::try_from(signal).unwrap_or(Signal::SIGTERM), timeouts.grace_after_interrupt)
            }
            CauseKind::Ended { .. } => (Signal::SIGTERM, timeouts.grace_after_interrupt),
            _ => (Signal::SIGTERM, timeouts.grace_after_failure),
        };
        self.blame(node, kind);
        self.end(first, grace, now);
    }

    /// Sets the verdict, if it is open.
    fn blame(&mut self, node: NodeIndex, kind: CauseKind) {
        if self.verdict == Verdict::Open {
            let cause = Cause { host: self.spec.host(node).to_owned(), kind };
            self.effects.push_back(Effect::Alarm(cause.clone()));
            self.report_event(Event::Ending(cause.clone()));
            self.verdict = Verdict::Here(cause);
        }
    }

    fn end(&mut self, first: Signal, grace: Duration, now: Instant) {
        // An order to kill is not delayed.
        if self.is_over() || (self.ends_after_look() && first != Signal::SIGKILL) {
            return;
        }
        match &mut self.phase {
            Phase::Ending(ending) => {
                ending.hasten(first, grace, now);
                self.take_due_steps(now);
            }
            phase => {
                *phase = Phase::Ending(Ending::begin(first, grace, now));
                self.take_due_steps(now);
                self.effects.push_back(Effect::GiveWay);
            }
        }
    }

    fn take_due_steps(&mut self, now: Instant) {
        while let Phase::Ending(ending) = &mut self.phase
            && let Some(signal) = ending.due(now)
        {
            self.signal_all(signal);
        }
    }

    fn signal_all(&mut self, signal: Signal) {
        self.signal(signal, |_| true);
    }

    fn signal_job(&mut self, job: JobNumber, signal: Signal) {
        self.signal(signal, |slot| slot.job == job);
    }

    fn signal(&mut self, signal: Signal, is_meant: impl Fn(&ranks::Slot) -> bool) {
        let slots: Vec<SlotId> = self.ranks.alive().filter(|(_, slot)| is_meant(slot)).map(|(slot, _)| slot).collect();
        if !slots.is_empty() {
            self.effects.push_back(Effect::Signal { signal, slots });
        }
    }

    /// Returns true once the last rank has ended and no other rank can start.
    fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Draining { .. } | Phase::Done { .. })
    }

    /// Advances to the next phase as far as its condition holds.
    fn advance(&mut self, now: Instant) {
        let launched = self.jobs.get(JobNumber::LAUNCHED).phase;
        if self.phase == Phase::Starting && launched == JobPhase::Running {
            self.phase = Phase::Running;
        }
        let idle = self.ranks.starting() == 0 && self.ranks.running() == 0;
        let is_last = match &self.phase {
            Phase::Starting | Phase::Draining { .. } | Phase::Done { .. } => false,
            Phase::Running => self.jobs.lets_end(self.need),
            Phase::Ending(_) => !matches!(launched, JobPhase::Preparing { .. }),
        };
        if idle && is_last {
            self.phase = Phase::Draining { duration: now.saturating_duration_since(self.began.now) };
            self.effects.push_back(Effect::Sweep);
        }
    }
}

impl RankState {
    /// Returns true if the process was started, whether it still runs or not.
    pub(crate) fn was_started(self) -> bool {
        self.pid().is_some()
    }
}
