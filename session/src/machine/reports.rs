//! Reports of a session to its launch: exits, progress, silent ranks, stuck starts, long waits.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use pmi_core::ids::{LocalRank, Rank};
use pmi_core::server::Progress;

use super::desertion::{FenceSeen, LongWait};
use super::effect::{Asker, Effect, FenceLook, Look, ProgressDetail};
use super::jobs::JobNumber;
use super::ranks::ExitNews;
use super::verdict::Verdict;
use super::watch::{SilentSeen, WatchLook};
use super::{Phase, SessionMachine, SlotId};
use crate::cause::{CauseKind, two_protocols};
use crate::event::{Event, Notice, RankAffinity, RankProgress, RankUsage, SpokenProtocol};
use crate::gathered::GatherDetail;
use crate::session_io::RanksAnswer;

/// Observed state of a rank.
#[derive(Clone, Debug, Default)]
pub(crate) struct RankSeen {
    /// Its dialogue with its server, if it has one.
    pub(crate) dialogue: Option<Progress>,
    /// Protocol that it has spoken, if only one.
    pub(crate) protocol: Option<SpokenProtocol>,
    /// Resources that its processes use, if requested.
    pub(crate) usage: Option<RankUsage>,
    /// Its CPUs, if resources were requested.
    pub(crate) affinity: Option<RankAffinity>,
}

/// State of the silent ranks of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Silent {
    Running,
    Ended,
}

impl SessionMachine {
    pub(super) fn report_event(&mut self, event: Event) {
        self.effects.push_back(Effect::Report(event));
    }

    /// Reports a rank's exit if all of its outputs are at their end.
    pub(super) fn report_exit(&mut self, slot: SlotId) {
        if let Some(news) = self.ranks.exit_news(slot) {
            let ExitNews { rank, exit, reached, ran } = news;
            self.report_event(Event::Exited { rank, exit, reached, ran });
        }
    }

    /// Handles a session's question about the progress of the ranks here, under this ticket. After the end of all
    /// ranks there is no answer.
    pub(crate) fn on_tell(&mut self, ticket: u64, detail: GatherDetail, now: Instant) {
        if self.is_over() {
            return;
        }
        match detail {
            GatherDetail::Usage => self.look_at_progress(Asker::Session(ticket), ProgressDetail::Usage),
            GatherDetail::Stacks => self.look_at_ranks_for(ticket, now),
        }
        self.advance(now);
    }

    pub(super) fn look_at_progress(&mut self, asker: Asker, detail: ProgressDetail) {
        self.effects.push_back(Effect::Look(Look::Progress { asker, detail }));
    }

    /// Handles the answer to [`super::effect::Look::Progress`]: the state of every slot, and the fences in which
    /// ranks wait.
    pub(crate) fn on_progress_seen(
        &mut self,
        asker: Asker,
        detail: ProgressDetail,
        seen: Vec<RankSeen>,
        fences: &[FenceSeen],
    ) {
        let waits = |fence: &FenceSeen| {
            let job = fence.job;
            fence.waiting.iter().map(move |&local| (job, local)).collect::<Vec<_>>()
        };
        let waiting: HashSet<(JobNumber, LocalRank)> = fences.iter().flat_map(waits).collect();
        let waiting_for_all: HashSet<_> = fences.iter().filter(|fence| fence.whole_job).flat_map(waits).collect();
        let ranks = self.ranks.iter().zip(seen).map(|((_, slot), RankSeen { dialogue, protocol, usage, affinity })| {
            RankProgress {
                rank: slot.rank,
                pid: slot.state.pid(),
                phase: dialogue.as_ref().map(|dialogue| dialogue.phase),
                fences: dialogue.as_ref().map(|dialogue| dialogue.fences),
                protocol,
                in_init: slot.state.exit().is_none() && dialogue.as_ref().is_some_and(Progress::is_in_init),
                last_command: dialogue.and_then(|dialogue| dialogue.last_command),
                usage,
                affinity,
                waiting: waiting.contains(&(slot.job, slot.local)),
                waits_for_all: waiting_for_all.contains(&(slot.job, slot.local)),
                exit: slot.state.exit(),
                lost: false,
            }
        });
        let ranks = ranks.collect();
        let stacks = match detail {
            ProgressDetail::Stacks(stacks) => Some(stacks),
            ProgressDetail::Dialogue | ProgressDetail::Usage => None,
        };
        match asker {
            Asker::Launch(question) => self.report_event(Event::Progress { question, ranks, stacks }),
            Asker::Session(ticket) => {
                self.effects.push_back(Effect::Tell { ticket, told: RanksAnswer { ranks, stacks } });
            }
        }
    }

    /// Handles the answer to [`super::effect::Look::Silent`].
    pub(crate) fn on_silent_seen(&mut self, look: WatchLook, seen: &SilentSeen, now: Instant) {
        self.watch.remember_library(seen);
        if look == WatchLook::Silence && !self.watch.is_patient_with(seen) {
            self.report_silence(Silent::Running, seen, now);
        }
    }

    /// Returns true if [`SessionMachine::on_drained`] needs the ranks that ended in silence.
    pub(crate) fn minds_silent_ends(&self) -> bool {
        self.watch.minds_silent_ends() && self.verdict == Verdict::Open
    }

    /// Completes the session: all outputs were read to their ends, and nothing is left.
    pub(crate) fn on_drained(&mut self, silent: &SilentSeen, now: Instant) {
        let Phase::Draining { duration } = self.phase else { return };
        for slot in self.ranks.close_outputs() {
            self.report_exit(slot);
        }
        if self.minds_silent_ends() {
            self.report_silence(Silent::Ended, silent, now);
        }
        self.phase = Phase::Done { duration };
    }

    /// Reports each job of several ranks that has silent ranks.
    fn report_silence(&mut self, state: Silent, seen: &SilentSeen, now: Instant) {
        let mapped = self.watch.remember_library(seen);
        let ended = state == Silent::Ended;
        let counts = |slot: SlotId| {
            let state = self.ranks.get(slot).state;
            state.was_started() && state.exit().is_some() == ended
        };
        let mut notices = Vec::new();
        for (job, known) in self.jobs.iter().filter(|(_, known)| known.spec.job.size() > 1) {
            let mine = |slot: SlotId| self.ranks.get(slot).job == job && counts(slot);
            let slots: Vec<SlotId> = seen.slots.iter().copied().filter(|&slot| mine(slot)).collect();
            if slots.is_empty() {
                continue;
            }
            let needed =
                || seen.needed.iter().find(|(slot, _)| slots.contains(slot)).map(|(_, library)| library.clone());
            // A rank that has since contacted its server was only slow. Its library gives no information about
            // other ranks.
            let in_one = mapped.as_ref().filter(|(slot, _)| slots.contains(slot)).map(|(_, library)| library.clone());
            let ranks = slots.iter().map(|&slot| self.ranks.get(slot).rank).collect();
            let (size, after) = (known.spec.job.size(), self.watch.age(now));
            notices.push(Notice::Silent { ranks, size, ended, after, library: in_one.or_else(needed) });
        }
        for notice in notices {
            self.report_event(Event::Notice(notice));
        }
    }

    /// Handles the answer to [`super::effect::Look::Fences`].
    pub(crate) fn on_fences_seen(&mut self, look: FenceLook, fences: &[FenceSeen], now: Instant) {
        match look {
            FenceLook::Stuck { after } => self.report_stuck(after, fences, now),
            FenceLook::Waits => self.judge_waits(fences, now),
        }
    }

    /// Reports ranks that wait for missing ranks in their start-up; [`super::finalizing`] evaluates waits after it.
    /// In a launch on several nodes, missing ranks may be on other nodes, and the launch identifies them.
    fn report_stuck(&mut self, after: Duration, fences: &[FenceSeen], now: Instant) {
        let several_nodes = self.spec.hosts.len() > 1;
        let is_missed = |fence: &FenceSeen| !fence.missing.is_empty() || (several_nodes && fence.whole_job);
        let is_stuck = |fence: &&FenceSeen| fence.at_start && is_missed(fence);
        let waited_in = self.watch.still_waited_in(fences);
        if let Some(fence) = waited_in.iter().find(|fence| fence.whole_job && !fence.strangers.is_empty()) {
            let waiting = self.shown_ranks(fence.job, &fence.waiting);
            let cause =
                two_protocols::cause(&(waiting, fence.protocol), &(fence.strangers.clone(), fence.protocol.other()));
            self.fail(cause, now);
            return self.advance(now);
        }
        let is_late = |fence: &&&FenceSeen| fence.whole_job && !fence.missing.is_empty();
        // The previous look was at half of this age.
        let since = after / 2;
        if several_nodes {
            if waited_in.iter().any(|fence| fence.whole_job && !fence.at_start) {
                self.report_event(Event::LongWait { since });
            }
        } else if let Some(fence) = waited_in.iter().find(is_late) {
            self.look_for_mpi_calls(fence, since, now);
        }
        if let Some(fence) = waited_in.into_iter().find(is_stuck).filter(|_| !self.is_misuse_reported()) {
            let (waiting, missing) = (fence.waiting.len(), fence.missing.clone());
            let late = missing.iter().filter_map(|(rank, _)| self.ranks.slot_of(*rank)).collect();
            self.report_event(Event::Notice(Notice::Stuck { after, waiting, missing }));
            if !several_nodes {
                self.look_at_late_slots(late, now);
            }
        }
    }

    fn judge_waits(&mut self, fences: &[FenceSeen], now: Instant) {
        for (index, wait) in self.waits.look(fences, now) {
            let fence = &fences[index];
            match wait {
                LongWait::ForOtherNodes => {
                    let ranks = self.shown_ranks(fence.job, &fence.waiting);
                    self.report_event(Event::Waiting { ranks });
                }
                LongWait::Exceeded { limit } => {
                    let (waiting, missing) = (fence.waiting.len(), fence.missing.clone());
                    self.fail(CauseKind::FenceTimeout { limit, waiting, missing }, now);
                    return self.advance(now);
                }
            }
        }
    }

    pub(super) fn shown_ranks(&self, job: JobNumber, locals: &[LocalRank]) -> Vec<Rank> {
        let job = self.jobs.get(job);
        let ranks = job.ranks_here();
        locals.iter().filter_map(|local| Some(job.shown(*ranks.get(local.index())?))).collect()
    }
}
