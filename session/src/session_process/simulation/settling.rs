//! Effects of an input of a simulated session: carries out the actions of its machines until no action is left.

use std::mem;
use std::time::Instant;

use bytes::BytesMut;
use pmi_core::Phase as Dialogue;
use pmi_core::ids::{LocalRank, Rank};
use pmi_core::server::{Action, FenceStatus};

use super::super::failure_policy::{Decision, Stage, concerns_others};
use super::super::waiting::Word;
use super::input::Asker;
use super::links::{Links, News};
use super::pmix::{Pmix, PmixEffect};
use super::{Ending, SessionEffect, SimulatedSession};
use crate::event::{Event, Notice, Report, SpokenProtocol};
use crate::machine::Phase;
use crate::machine::desertion::FenceSeen;
use crate::machine::effect::{Effect, Look};
use crate::machine::jobs::JobNumber;
use crate::machine::ranks::{RankState, Slot, SlotId};
use crate::machine::reports::RankSeen;
use crate::machine::watch::SilentSeen;
use crate::session_io::Control;
use crate::settings::StdinTarget;
use crate::timeouts;
use crate::wire;

impl SimulatedSession {
    /// Carries out all pending actions.
    pub(super) fn settle(&mut self, now: Instant) {
        let mut batch = BytesMut::new();
        loop {
            self.take_actions(now);
            if let Some((job, reason)) = self.reason.take() {
                self.machine.on_end_reason(job, reason, &[], now);
            }
            if self.take_effects(&mut batch, now)
                | self.take_news(&mut batch)
                | self.take_fences(now)
                | self.take_input(&mut batch, now)
                | self.take_decisions(&mut batch, now)
                | self.proceed_to_end(&mut batch, now)
            {
                continue;
            }
            break;
        }
        if self.is_connected && !batch.is_empty() {
            self.effects.push_back(SessionEffect::ToAgent(batch.freeze()));
        }
        if self.waiting.is_over() && matches!(self.ending, Ending::Reported) {
            self.ending = Ending::Over;
            self.effects.push_back(SessionEffect::Exit);
        }
    }

    /// Carries out the actions of the PMI server.
    pub(super) fn take_actions(&mut self, now: Instant) {
        while let Some(action) = self.server.poll_action() {
            match action {
                Action::Send { connection, bytes } => {
                    if let Some(rank) = self.server.rank_of(connection) {
                        self.effects.push_back(SessionEffect::ToRank(rank, bytes));
                    }
                }
                Action::Close { connection } => {
                    if let Some(rank) = self.server.rank_of(connection) {
                        self.effects.push_back(SessionEffect::HangUp(rank));
                    }
                }
                Action::Fence { id, contribution } => {
                    let alone = match &mut self.links {
                        Some(links) => links.begin(id.clone(), contribution, now),
                        None => Some(contribution),
                    };
                    if let Some(alone) = alone {
                        self.server.handle_fence(&id, Ok(alone.segments.into()));
                    }
                }
                Action::Died(death) => self.machine.on_died(JobNumber::LAUNCHED, death),
                Action::End(reason) => self.reason = Some((JobNumber::LAUNCHED, reason)),
                Action::Call { ticket, rank, call } => self.call_host(JobNumber::LAUNCHED, ticket, rank, call),
                _ => {}
            }
        }
        self.take_spawned_actions();
        let need = self.pmix.as_ref().map(Pmix::need);
        while let Some(effect) = self.pmix.as_mut().and_then(|pmix| pmix.poll_effect(now)) {
            self.take_pmix_effect(effect, now);
        }
        if self.pmix.as_ref().map(Pmix::need) != need {
            self.tell_need(now);
        }
    }

    fn take_pmix_effect(&mut self, effect: PmixEffect, now: Instant) {
        let rank_of = |local: LocalRank| {
            self.machine.ranks().iter().find(|(_, slot)| slot.local == local).map(|(_, slot)| slot.rank)
        };
        match effect {
            PmixEffect::Send(local, bytes) => {
                self.effects.extend(rank_of(local).map(|rank| SessionEffect::ToRank(rank, bytes)));
            }
            PmixEffect::Close(local) => self.effects.extend(rank_of(local).map(SessionEffect::HangUp)),
            PmixEffect::Fence(id, contribution) => {
                let alone = match &mut self.links {
                    Some(links) => links.begin(id.clone(), contribution, now),
                    None => Some(contribution),
                };
                if let (Some(alone), Some(pmix)) = (alone, &mut self.pmix) {
                    pmix.handle_fence(&id, Ok(alone.segments.into()));
                }
            }
            PmixEffect::Ask(ticket, node, question) => match &mut self.links {
                Some(links) => links.ask_server(node, question, ticket, now),
                None => {
                    if let Some(pmix) = &mut self.pmix {
                        pmix.handle_peer_answer(ticket, None);
                    }
                }
            },
            PmixEffect::Reply(ticket, answer) => {
                if let (Some(links), Some(asked)) = (&mut self.links, self.asked.remove(&ticket)) {
                    links.answer(asked, Ok(answer), now);
                }
            }
            PmixEffect::Died(death) => self.machine.on_died(JobNumber::LAUNCHED, death),
            PmixEffect::End(reason) => self.reason = Some((JobNumber::LAUNCHED, reason)),
        }
    }

    /// Handles a question or an answer from a server of another node.
    fn take_peer_news(&mut self, news: News, now: Instant) {
        let Some(pmix) = &mut self.pmix else { return };
        match news {
            News::ServerAsked(id, question) => {
                let ticket = pmix.handle_question(&question);
                self.asked.insert(ticket, id);
            }
            News::ServerAnswered(ticket, answer) => pmix.handle_peer_answer(ticket, answer.ok().as_ref()),
            News::InputAsked(..) | News::InputAnswered(..) => {}
        }
        self.take_actions(now);
    }

    fn take_effects(&mut self, batch: &mut BytesMut, now: Instant) -> bool {
        let mut any = false;
        while let Some(effect) = self.machine.poll_effect() {
            any = true;
            match effect {
                Effect::PrepareJob { job, .. } => self.prepare_job(job, now),
                Effect::StartRanks { job } => {
                    let new = self.machine.ranks().iter().filter(|(_, slot)| slot.job == job);
                    let starts: Vec<_> = new.map(|(_, slot)| SessionEffect::Start(slot.rank)).collect();
                    self.effects.extend(starts);
                }
                Effect::Signal { signal, slots } => {
                    let ranks = slots.iter().map(|&slot| self.machine.ranks().get(slot).rank);
                    let signals: Vec<_> = ranks.map(|rank| SessionEffect::Signal(rank, signal)).collect();
                    self.effects.extend(signals);
                }
                Effect::AnnounceDeaths { job, deaths } if job != JobNumber::LAUNCHED => {
                    let server = self.spawned.server(job);
                    server.into_iter().for_each(|server| server.handle_deaths(&deaths));
                }
                Effect::AnnounceDeaths { deaths, .. } => {
                    match &mut self.pmix {
                        Some(pmix) => pmix.handle_deaths(&deaths),
                        None => self.server.handle_deaths(&deaths),
                    }
                    if let Some(links) = &mut self.links {
                        links.ranks_died(&deaths, now);
                    }
                }
                Effect::Report(event) => self.outbox.push_back(event),
                Effect::Alarm(cause) => {
                    self.waiting.take(Word::Alarm(cause), &self.credit, batch);
                }
                Effect::Look(look) => self.look(look, now),
                Effect::Sweep => self.effects.push_back(SessionEffect::Sweep),
                Effect::DrainOutputs => self.machine.on_drained(&SilentSeen::default(), now),
                Effect::LookAtStacks { look, .. } => self.machine.on_stacks_seen(look, Vec::new(), now),
                Effect::FeedStdin => self.feed(),
                Effect::ReleaseJob { job, .. } => self.spawned.release(job),
                // Ranks of the simulation have no terminals. The API server places their jobs. Sessions do not gather, and work takes no
                // time.
                Effect::ResizeTerminal(_) | Effect::AnswerSpawn { .. } | Effect::Tell { .. } | Effect::GiveWay => {}
            }
        }
        any
    }

    /// Starts the input of the ranks that read it.
    fn feed(&mut self) {
        let slots = self.machine.ranks().iter().map(|(_, slot)| slot);
        let runs = |slot: &&Slot| slot.job == JobNumber::LAUNCHED && matches!(slot.state, RankState::Running { .. });
        let is_reader = |rank: Rank| match self.spec.settings.stdin {
            StdinTarget::All => true,
            ref one => one.one_reader() == Some(rank),
        };
        let ranks = slots.filter(runs).map(|slot| slot.rank).filter(|&rank| is_reader(rank)).collect();
        self.input.feed(ranks);
    }

    /// Moves input.
    fn take_input(&mut self, batch: &mut BytesMut, now: Instant) -> bool {
        let mut any = false;
        while let Some(news) = self.links.as_mut().and_then(Links::poll_news) {
            any = true;
            match news {
                News::InputAsked(id, piece) => self.input.arrived(piece, Asker::Session(id)),
                News::InputAnswered(number, part, answer) => self.input.answered(number, part, answer),
                peer => self.take_peer_news(peer, now),
            }
        }
        let outcome = self.input.pump(now);
        any |= !outcome.is_nothing();
        for frame in outcome.to_agent {
            self.waiting.take(Word::Urgent(frame), &self.credit, batch);
        }
        for sent in outcome.shares {
            match &mut self.links {
                Some(links) => links.pass_on(sent, now),
                None => self.input.answered(sent.number, sent.part, Err("there are no links".to_owned())),
            }
        }
        for (id, answer) in outcome.answers {
            if let Some(links) = &mut self.links {
                links.answer(id, answer, now);
            }
        }
        for &rank in &outcome.closed {
            self.outbox.push_back(Event::Notice(Notice::StdinClosed { rank }));
            self.effects.push_back(SessionEffect::InputCut(Some(rank)));
        }
        if outcome.ended.is_some() {
            self.effects.push_back(SessionEffect::InputCut(None));
        }
        self.effects.extend(outcome.ready.into_iter().map(SessionEffect::InputReady));
        any
    }

    /// Forwards events, as far as there is room.
    fn take_news(&mut self, batch: &mut BytesMut) -> bool {
        let mut news = self.confirmations.take();
        let mut any = news.connection.is_some() || news.resume.is_some() || news.end.is_some();
        if news.connection.take().is_some() {
            batch.clear();
            self.waiting.break_off();
        }
        self.waiting.learn(&news, &self.confirmations, batch);
        while self.waiting.expects_events()
            && self.waiting.has_room(&self.credit)
            && let Some(event) = self.outbox.pop_front()
        {
            let encoded = wire::event::encode(&event);
            self.waiting.take(Word::Event(event, encoded), &self.credit, batch);
            any = true;
        }
        self.waiting.let_go(&self.credit, &self.confirmations, batch);
        any
    }

    fn take_fences(&mut self, now: Instant) -> bool {
        let Some(links) = &mut self.links else { return false };
        let mut any = false;
        while let Some((id, result)) = links.poll_ended() {
            match &mut self.pmix {
                Some(pmix) => pmix.handle_fence(&id, result),
                None => self.server.handle_fence(&id, result),
            }
            any = true;
        }
        while let Some((from, failure)) = links.poll_heard() {
            self.policy.on_failure(from, failure, now.into());
            any = true;
        }
        self.effects.extend(links.take_frames().map(|(node, frame)| SessionEffect::ToNode(node, frame)));
        any
    }

    fn take_decisions(&mut self, batch: &mut BytesMut, now: Instant) -> bool {
        let Some(links) = &mut self.links else { return false };
        let mut any = false;
        if !self.waiting.has_told(&self.told) {
            self.told = self.waiting.told();
            self.policy.on_told(self.told.clone(), now.into());
            any = true;
        }
        while let Some(decision) = self.policy.poll_decision() {
            any = true;
            match decision {
                Decision::TellRoot(failure) => links.tell_root(failure, now),
                Decision::TellBelow(failure) => links.tell_below(&failure, now),
                Decision::Take(cause) => {
                    self.waiting.take(Word::Chosen(cause), &self.credit, batch);
                    self.machine.on_control(Control::GiveUp, now);
                }
            }
        }
        any
    }

    /// Proceeds from the end of the last rank to the report, unless a failure notification is pending.
    fn proceed_to_end(&mut self, batch: &mut BytesMut, now: Instant) -> bool {
        match mem::replace(&mut self.ending, Ending::Over) {
            Ending::NotYet if matches!(self.machine.phase(), Phase::Done { .. }) => {
                let until = now + timeouts::UNHEARD + timeouts::TELL;
                self.ending = Ending::Telling { report: self.machine.report(), until };
                true
            }
            Ending::Telling { report, until } if !self.is_settled(&report) && now < until => {
                self.ending = Ending::Telling { report, until };
                false
            }
            Ending::Telling { report, .. } => {
                if let Some(links) = &mut self.links {
                    links.leave();
                }
                self.ending = Ending::Draining { report };
                true
            }
            Ending::Draining { report } => {
                if self.outbox.is_empty() && self.waiting.expects_events() {
                    self.waiting.take(Word::End, &self.credit, batch);
                }
                if !self.waiting.expects_report() {
                    self.ending = Ending::Draining { report };
                    return false;
                }
                self.waiting.take(Word::Report(Some(report)), &self.credit, batch);
                self.ending = Ending::Reported;
                true
            }
            other => {
                self.ending = other;
                false
            }
        }
    }

    fn is_settled(&self, report: &Report) -> bool {
        let Some(links) = &self.links else { return true };
        let stage = if links.is_telling() { Stage::Open } else { self.policy.stage() };
        match report.cause.as_ref().is_some_and(concerns_others) {
            true => stage == Stage::Settled,
            false => stage != Stage::Open,
        }
    }

    fn look(&mut self, look: Look, now: Instant) {
        match look {
            Look::Silent(look) => {
                let silent = |state: RankState, dialogue| {
                    matches!(state, RankState::Running { .. }) && dialogue == Some(Dialogue::Silent)
                };
                let slots = self.machine.ranks().iter();
                let slots: Vec<SlotId> =
                    slots.filter(|(_, slot)| silent(slot.state, self.dialogue(slot))).map(|(id, _)| id).collect();
                let seen = SilentSeen { slots, ..SilentSeen::default() };
                self.machine.on_silent_seen(look, &seen, now);
            }
            Look::Fences(look) => {
                let fences = self.fences();
                self.machine.on_fences_seen(look, &fences, now);
            }
            Look::Progress { asker, detail } => {
                // Ranks of the simulation have no processes.
                let seen = |slot: &Slot| RankSeen { dialogue: self.progress_of(slot), ..RankSeen::default() };
                let seen = self.machine.ranks().iter().map(|(_, slot)| seen(slot)).collect();
                let fences = self.fences();
                self.machine.on_progress_seen(asker, detail, seen, &fences);
            }
        }
    }

    fn dialogue(&self, slot: &Slot) -> Option<Dialogue> {
        self.progress_of(slot).map(|progress| progress.phase)
    }

    fn fences(&self) -> Vec<FenceSeen> {
        let seen = |fence: FenceStatus| {
            let missing = fence.missing.iter().filter_map(|&local| self.progress(local));
            let missing = missing.map(|progress| (progress.rank, progress.last_command)).collect();
            let FenceStatus { name, epoch, whole_job, at_start, waiting, .. } = fence;
            FenceSeen {
                job: JobNumber::LAUNCHED,
                protocol: if self.pmix.is_some() { SpokenProtocol::Pmix } else { SpokenProtocol::Pmi },
                name,
                epoch,
                whole_job,
                at_start,
                waiting,
                missing,
                strangers: Vec::new(),
            }
        };
        let fences = self.pmix.as_ref().map_or_else(|| self.server.pending_fences(), Pmix::pending_fences);
        fences.into_iter().map(seen).collect()
    }
}
