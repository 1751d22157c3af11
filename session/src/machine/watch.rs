//! Watch of the wire-up: ranks that never call their PMI server, and start-ups that do not complete.

use std::mem;
use std::time::{Duration, Instant};

use crate::event::MpiLibrary;
use crate::settings::{PmiFamily, Timeouts};
use crate::spec::SessionSpec;

use super::desertion::{FenceKey, FenceSeen};
use super::ranks::SlotId;

/// Times at which the memory maps of silent ranks are read, in milliseconds after the start. Early looks catch a program that ends soon,
/// late looks a program that loads its MPI library late.
const LOOKS: &[u64] = &[30, 100, 300, 1000, 3000];
/// Factor by which silence may last longer while ranks can still call their server. A program may read its input for a while before it
/// calls `MPI_Init`, and an overloaded node starts slowly.
const PATIENCE: u32 = 6;

/// Observations of the runner about ranks that have sent their server nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SilentSeen {
    /// Ranks that were started, and from which no server has received a message.
    pub(crate) slots: Vec<SlotId>,
    /// MPI library in the memory of the first running one.
    pub(crate) mapped: Option<MpiLibrary>,
    /// True if the library of this first rank can still call its server.
    pub(crate) may_still_call: bool,
    /// MPI libraries that programs list as needed, each with a rank that runs the program.
    pub(crate) needed: Vec<(SlotId, MpiLibrary)>,
}

/// A question of the watch to its runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchLook {
    /// Find an MPI library in silent ranks.
    Library,
    /// Report silent ranks that run.
    Silence,
    /// Find fences in which ranks wait. Report a fence of the start-up if ranks already waited in it at half of the launch's age.
    Stuck,
}

/// State of the watch.
#[derive(Debug)]
pub(crate) struct Watch {
    started: Instant,
    timeouts: Timeouts,
    /// False if silence is normal: in a job of one rank, and without PMI.
    minds_silence: bool,
    looks: usize,
    /// Time at which silent ranks are reported; `None` after the report.
    silence_at: Option<Instant>,
    was_patient: bool,
    stuck_at: Instant,
    /// Fences in which ranks waited at the previous look.
    waited_in: Vec<FenceKey>,
    /// First MPI library that was found in a silent rank.
    library: Option<(SlotId, MpiLibrary)>,
}

impl Watch {
    pub(crate) fn new(spec: &SessionSpec, started: Instant) -> Self {
        Self {
            started,
            timeouts: spec.settings.timeouts,
            minds_silence: spec.job.size() > 1 && spec.settings.pmi.family != PmiFamily::None,
            looks: 0,
            silence_at: Some(started + spec.settings.timeouts.silent),
            was_patient: false,
            stuck_at: started + spec.settings.timeouts.stuck / 2,
            waited_in: Vec::new(),
            library: None,
        }
    }

    /// Returns the time of the next look; `None` if silence is normal.
    pub(crate) fn next(&self) -> Option<Instant> {
        let look = LOOKS.get(self.looks).map(|&millis| self.started + Duration::from_millis(millis));
        self.minds_silence.then(|| look.into_iter().chain(self.silence_at).chain([self.stuck_at]).min()).flatten()
    }

    /// Returns a look that is due and counts it as taken. Must be called until it returns `None`.
    pub(crate) fn due(&mut self, now: Instant) -> Option<WatchLook> {
        if !self.minds_silence {
            return None;
        }
        let age = self.age(now);
        if LOOKS.get(self.looks).is_some_and(|&millis| age >= Duration::from_millis(millis)) {
            self.looks += 1;
            return Some(WatchLook::Library);
        }
        if self.silence_at.take_if(|at| now >= *at).is_some() {
            return Some(WatchLook::Silence);
        }
        if now >= self.stuck_at {
            // The interval grows with the age, and is positive even if no time has passed.
            self.stuck_at = now + age.max(Duration::from_secs(1));
            return Some(WatchLook::Stuck);
        }
        None
    }

    /// Returns the time that the launch has run.
    pub(crate) fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.started)
    }

    /// Stores the fences in which ranks wait now. Returns the fences in which ranks already waited at the previous look.
    pub(crate) fn still_waited_in<'seen>(&mut self, fences: &'seen [FenceSeen]) -> Vec<&'seen FenceSeen> {
        let before = mem::replace(&mut self.waited_in, fences.iter().map(FenceSeen::key).collect());
        fences.iter().filter(|fence| before.contains(&fence.key())).collect()
    }

    /// Returns true if ranks that ended in silence must still be reported.
    pub(crate) fn minds_silent_ends(&self) -> bool {
        self.minds_silence && self.silence_at.is_some()
    }

    /// Returns true once if ranks can still call their server: silent ranks are then reported later.
    pub(crate) fn is_patient_with(&mut self, seen: &SilentSeen) -> bool {
        let patient = seen.may_still_call && !mem::replace(&mut self.was_patient, true);
        if patient {
            self.silence_at = Some(self.started + self.timeouts.silent * PATIENCE);
        }
        patient
    }

    /// Stores the first MPI library that is found in a silent rank. Returns it with the rank.
    pub(crate) fn remember_library(&mut self, seen: &SilentSeen) -> Option<(SlotId, MpiLibrary)> {
        if self.library.is_none() {
            self.library = seen.slots.first().copied().zip(seen.mapped.clone());
        }
        self.library.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::tests::spec;
    use super::*;

    fn looks(watch: &mut Watch, start: Instant, millis: u64) -> Vec<WatchLook> {
        std::iter::from_fn(|| watch.due(start + Duration::from_millis(millis))).collect()
    }

    #[test]
    fn each_look_comes_once_at_its_time() {
        let start = Instant::now();
        let spec = spec(4);
        let mut watch = Watch::new(&spec, start);
        let mut seen = Vec::new();
        while let Some(at) = watch.next().filter(|&at| at <= start + Duration::from_secs(130)) {
            let millis = (at - start).as_millis() as u64;
            let due = looks(&mut watch, start, millis);
            assert!(!due.is_empty(), "a wake-up for nothing at {millis}");
            seen.extend(due.into_iter().map(|look| (millis, look)));
        }
        let libraries = LOOKS.iter().map(|&millis| (millis, WatchLook::Library));
        let stuck = [15_000, 30_000, 60_000, 120_000].map(|millis| (millis, WatchLook::Stuck));
        let expected: Vec<_> = libraries.chain([(5000, WatchLook::Silence)]).chain(stuck).collect();
        assert_eq!(seen, expected);
        assert!(!watch.minds_silent_ends(), "it was reported while they ran");
    }

    #[test]
    fn ranks_that_can_still_call_are_waited_for_once() {
        let start = Instant::now();
        let mut watch = Watch::new(&spec(4), start);
        let seen = SilentSeen { may_still_call: true, ..SilentSeen::default() };
        assert!(looks(&mut watch, start, 5000).contains(&WatchLook::Silence));
        assert!(watch.is_patient_with(&seen) && watch.minds_silent_ends());
        assert!(!looks(&mut watch, start, 29_999).contains(&WatchLook::Silence));
        assert!(looks(&mut watch, start, 30_000).contains(&WatchLook::Silence));
        assert!(!watch.is_patient_with(&seen) && !watch.minds_silent_ends());

        let mut watch = Watch::new(&spec(4), start);
        assert!(looks(&mut watch, start, 5000).contains(&WatchLook::Silence));
        assert!(!watch.is_patient_with(&SilentSeen::default()), "no call can come");
    }

    #[test]
    fn silence_of_one_rank_or_without_pmi_means_nothing() {
        let start = Instant::now();
        let check = |size, family| {
            let mut spec = spec(size);
            Arc::make_mut(&mut spec).settings.pmi.family = family;
            let mut watch = Watch::new(&spec, start);
            let minds = (watch.next().is_some(), watch.minds_silent_ends());
            (minds, looks(&mut watch, start, 60_000).is_empty())
        };
        assert_eq!(check(1, PmiFamily::Auto), ((false, false), true));
        assert_eq!(check(2, PmiFamily::None), ((false, false), true));
        assert_eq!(check(2, PmiFamily::Pmi1), ((true, true), false));
    }

    #[test]
    fn a_watch_without_timeouts_still_rests() {
        let start = Instant::now();
        let mut spec = spec(2);
        Arc::make_mut(&mut spec).settings.timeouts.stuck = Duration::ZERO;
        let mut watch = Watch::new(&spec, start);
        assert_eq!(looks(&mut watch, start, 0), [WatchLook::Stuck]);
        assert!(watch.next().unwrap() > start);
    }
}
