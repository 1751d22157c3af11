//! Control messages of the launch to its session, and the loss of their channel.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use pmi_core::ids::Rank;

use super::effect::{Asker, Effect, ProgressDetail};
use super::jobs::{Elsewhere, JobNumber};
use super::verdict::Verdict;
use super::{Phase, SessionMachine};
use crate::cause::CauseKind;
use crate::session_io::Control;

impl SessionMachine {
    /// Handles a control message of the launch. The runner answers questions of other nodes.
    pub(crate) fn on_control(&mut self, control: Control, now: Instant) {
        if self.is_over() {
            return self.answer_after_the_end(control);
        }
        match control {
            Control::Signal(signal) => self.on_signal(signal, |_| true),
            Control::SignalRanks(signal, ranks) => self.on_signal(signal, |rank| ranks.contains(rank)),
            Control::End(signal) => self.fail(CauseKind::Interrupted { signal }, now),
            Control::Abort { who, reason } => self.fail(CauseKind::Ended { who, reason }, now),
            Control::Kill(signal) => {
                self.blame(self.spec.node, CauseKind::Interrupted { signal });
                self.end(Signal::SIGKILL, Duration::ZERO, now);
            }
            Control::GiveUp => {
                // An end in progress continues: a restarted API server sends this message to all nodes.
                if self.verdict == Verdict::Open {
                    self.verdict = Verdict::Elsewhere;
                    if self.limits.is_at_limit(now) {
                        self.end_after_look(now);
                    } else {
                        self.end(Signal::SIGTERM, self.spec.settings.timeouts.grace_after_failure, now);
                    }
                }
            }
            Control::Spawn(order) => self.on_spawn_order(order),
            Control::Disown(id) => {
                // The launched job is the launch itself.
                if let Some(job) = self.jobs.by_id(&id).filter(|&job| job != JobNumber::LAUNCHED) {
                    self.disown(job, "the job was ended, as it was not started on all nodes");
                }
            }
            Control::JobOver(id) => {
                if let Some(job) = self.jobs.by_id(&id) {
                    self.jobs.get_mut(job).elsewhere = Elsewhere::Over;
                    self.forget_if_over(job);
                }
            }
            Control::ResizeTerminal(size) => self.effects.push_back(Effect::ResizeTerminal(size)),
            Control::AskProgress(question) => self.look_at_progress(Asker::Launch(question), ProgressDetail::Dialogue),
            Control::AskUsage(question) => self.look_at_progress(Asker::Launch(question), ProgressDetail::Usage),
            Control::AskStacks(question) => self.look_at_all_ranks(question, now),
            Control::Deaths(deaths) => self.on_deaths(&deaths),
            Control::LookAtStacks(ranks) => self.look_at_late_ranks(&ranks, now),
            Control::Release => self.jobs.release(),
            // The runner handles these, or the host, which has the links.
            Control::Tell { .. } | Control::Question { .. } | Control::CutOff(_) => {}
        }
        self.advance(now);
    }

    /// Handles the loss of the control channel: the launch is gone without notice, and no request can arrive
    /// any more.
    pub(crate) fn on_control_lost(&mut self, now: Instant) {
        if !self.is_over() && !matches!(self.phase, Phase::Ending(_)) {
            self.fail(CauseKind::Interrupted { signal: Signal::SIGHUP as i32 }, now);
            self.advance(now);
        }
    }

    pub(super) fn on_signal(&mut self, signal: i32, is_meant: impl Fn(Rank) -> bool) {
        if let Ok(signal) = Signal::try_from(signal) {
            self.signal(signal, |slot| is_meant(slot.rank));
        }
    }
}
