//! What the launch asks of a session, and how it is done.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::judgement::Verdict;
use super::{Control, Session};
use crate::cause::CauseKind;
use crate::event::Event;

impl Session {
    pub(super) fn on_control(&mut self, control: Option<Control>) {
        match control {
            Some(Control::Signal(signal)) => {
                if let Ok(signal) = Signal::try_from(signal) {
                    self.signal_ranks(signal);
                }
            }
            Some(Control::SignalRanks(signal, ranks)) => {
                if let Ok(signal) = Signal::try_from(signal) {
                    self.signal_some(signal, |rank| ranks.contains(rank));
                }
            }
            Some(Control::End(signal)) => self.fail(CauseKind::Interrupted { signal }),
            Some(Control::Kill(signal)) => {
                self.blame(CauseKind::Interrupted { signal });
                self.end(Signal::SIGKILL, Duration::ZERO);
            }
            Some(Control::GiveUp) => self.give_up(),
            Some(Control::Spawn(order)) => self.on_spawn(order),
            Some(Control::Disown(job)) => self.disown(&job),
            Some(Control::AskProgress(question)) => self.tell_progress(question),
            Some(Control::Release) => self.released = true,
            Some(Control::Question { question, reply }) => self.on_question(&question, reply),
            // The launch is gone without a word.
            None => {
                self.controlled = false;
                if !self.ending.has_begun() {
                    self.fail(CauseKind::Interrupted { signal: Signal::SIGHUP as i32 });
                }
            }
        }
    }

    /// The launch failed elsewhere. What happens to the ranks here follows from that.
    fn give_up(&mut self) {
        if matches!(self.verdict, Verdict::Open) {
            self.verdict = Verdict::Elsewhere;
        }
        self.end(Signal::SIGTERM, self.spec.patience.after_failure);
    }

    /// Nothing more can be asked of this session: its last rank has ended. Whoever asks from now on is told so by the closed channel.
    pub(super) fn stop_listening(&mut self) {
        self.surroundings.control.close();
        while let Ok(control) = self.surroundings.control.try_recv() {
            match control {
                Control::Spawn(order) => {
                    let failure = Some("this node's part of the launch is over".to_owned());
                    self.outbox.push_back(Event::Spawned { job: order.job.id, failure });
                }
                Control::AskProgress(question) => self.tell_progress(question),
                // No rank is left that these could concern; a question is answered by its channel's end.
                _ => {}
            }
        }
    }
}
