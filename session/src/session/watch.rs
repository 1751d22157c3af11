//! The wire-up watch: notices ranks that never speak to their server, and start-ups that do not come to an end.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use pmi_core::Phase;
use pmi_core::ids::LocalRank;
use pmi_core::server::FenceStatus;
use tokio::time::Instant;

use super::Session;
use super::judgement::Verdict;
use crate::event::{Event, MpiLibrary, Notice, RankProgress};
use crate::library;
use crate::spec::{Patience, PmiFamily, SessionSpec};

/// When the memory maps of silent ranks are looked at, in milliseconds after the start: a program that ends soon is seen
/// early, one that loads its MPI library late is seen as well.
const LOOKS: &[u64] = &[30, 100, 300, 1000, 3000];

/// What is still to be noticed.
#[derive(Debug)]
pub(super) struct Watch {
    started: Instant,
    patience: Patience,
    /// Whether silence means anything: in a job of one rank, or without PMI, it does not.
    minds_silence: bool,
    looks: usize,
    /// Whether running silent ranks were reported.
    silence_told: bool,
    /// When a start-up that is not complete is reported next.
    stuck_at: Instant,
    /// The MPI library that was seen in a silent rank.
    library: Option<MpiLibrary>,
}

impl Watch {
    pub(super) fn new(spec: &SessionSpec, started: Instant) -> Self {
        Self {
            started,
            patience: spec.patience,
            minds_silence: spec.job.size() > 1 && spec.pmi.family != PmiFamily::None,
            looks: 0,
            silence_told: false,
            stuck_at: started + spec.patience.stuck,
            library: None,
        }
    }

    /// When to look again.
    pub(super) fn next(&self) -> Option<Instant> {
        let look = LOOKS.get(self.looks).map(|&millis| self.started + Duration::from_millis(millis));
        let silence = (!self.silence_told).then(|| self.started + self.patience.silent);
        self.minds_silence.then(|| look.into_iter().chain(silence).chain([self.stuck_at]).min()).flatten()
    }
}

impl Session {
    /// Looks at the ranks if it is time to.
    pub(super) fn look_at_ranks(&mut self) {
        let now = Instant::now();
        if self.watch.next().is_none_or(|at| at > now) {
            return;
        }
        let since = |at: Instant| now.saturating_duration_since(at);
        let age = since(self.watch.started);
        if LOOKS.get(self.watch.looks).is_some_and(|&millis| age >= Duration::from_millis(millis)) {
            self.watch.looks += 1;
            self.look_for_library();
        }
        if !self.watch.silence_told && age >= self.watch.patience.silent {
            self.watch.silence_told = true;
            self.look_for_library();
            self.tell_of_silence(false, age);
        }
        if now >= self.watch.stuck_at {
            self.watch.stuck_at = now + age;
            self.tell_if_stuck(age);
        }
    }

    /// The ranks that never said a word, and that have ended or not.
    fn silent_ranks(&self, ended: bool) -> Vec<LocalRank> {
        let locals = (0..).map(LocalRank).zip(&self.ranks);
        locals
            .filter(|(local, slot)| {
                slot.process.is_some() && slot.exit.is_some() == ended && self.phase(*local) == Some(Phase::Silent)
            })
            .map(|(local, _)| local)
            .collect()
    }

    fn look_for_library(&mut self) {
        if self.watch.library.is_none() {
            let silent = self.silent_ranks(false);
            let process = silent.first().and_then(|local| self.ranks[local.index()].process.as_ref());
            self.watch.library = process.and_then(|process| library::in_process(process.pid().as_raw().unsigned_abs()));
        }
    }

    /// Tells of each job that has silent ranks and should have none.
    fn tell_of_silence(&mut self, ended: bool, after: Duration) {
        let silent = self.silent_ranks(ended);
        for (index, job) in self.jobs.iter().enumerate().filter(|(_, job)| job.spec.job.size() > 1) {
            let of_job = |local: &&LocalRank| self.ranks[local.index()].job == index;
            let mine: Vec<LocalRank> = silent.iter().filter(of_job).copied().collect();
            let Some(&first) = mine.first() else { continue };
            let ranks = mine.iter().map(|local| self.ranks[local.index()].rank).collect();
            let library = self.watch.library.clone().or_else(|| library::needed_by(&self.program_of(first)?));
            let size = job.spec.job.size();
            self.outbox.push_back(Event::Notice(Notice::Silent { ranks, size, ended, after, library }));
        }
    }

    fn program_of(&self, local: LocalRank) -> Option<PathBuf> {
        let slot = &self.ranks[local.index()];
        let job = self.jobs.get(slot.job)?;
        let rank = *job.ranks_here().get(slot.local.index())?;
        job.programs.get(&job.spec.job.app_index(rank)?).cloned()
    }

    /// At the end of a launch that nothing else explains: which ranks came and went without a word.
    pub(super) fn tell_of_silent_ranks(&mut self) {
        if self.watch.minds_silence && matches!(self.verdict, Verdict::Open) && !self.watch.silence_told {
            self.tell_of_silence(true, self.started.elapsed());
        }
    }

    /// Tells how far each rank has come.
    pub(super) fn tell_progress(&mut self, question: u64) {
        let mut ranks = Vec::with_capacity(self.ranks.len());
        let waits = |(job, standing): (usize, FenceStatus)| standing.waiting.into_iter().map(move |local| (job, local));
        let waiting: HashSet<(usize, LocalRank)> = self.standings().into_iter().flat_map(waits).collect();
        for (local, slot) in (0..).map(LocalRank).zip(&self.ranks) {
            let (serving, own) = self.serving(local);
            let progress = serving.progress(own);
            ranks.push(RankProgress {
                rank: slot.rank,
                pid: slot.process.as_ref().map(|process| process.pid().as_raw().unsigned_abs()),
                phase: progress.as_ref().map(|progress| progress.phase),
                last_command: progress.and_then(|progress| progress.last_command),
                waiting: waiting.contains(&(slot.job, own)),
                exit: slot.exit,
            });
        }
        self.outbox.push_back(Event::Progress { question, ranks });
    }

    /// Tells of ranks that wait for others. In a launch on several nodes these may be elsewhere, and the launch finds out who they are.
    fn tell_if_stuck(&mut self, after: Duration) {
        let several_nodes = self.spec.hosts.len() > 1;
        let is_stuck = |standing: &FenceStatus| !standing.missing.is_empty() || (several_nodes && standing.whole_job);
        let stuck = self.standings().into_iter().find(|(_, standing)| is_stuck(standing));
        if let Some((job, standing)) = stuck {
            let (waiting, missing) = (standing.waiting.len(), self.with_last_words(job, &standing.missing));
            self.outbox.push_back(Event::Notice(Notice::Stuck { after, waiting, missing }));
        }
    }
}
