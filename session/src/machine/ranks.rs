//! The ranks of a session, one slot each, from the start of their processes to the reports of their exits.
//!
//! ```text
//! Starting ──> Running { outputs } ──> Ended { exit, outputs }     an exit is reported once no output of the rank is open
//!     └──────> NeverStarted
//! ```

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use pmi_core::ids::{LocalRank, Rank};
use pmi_core::{DialoguePoint, Phase};
use rank_spawner::RankExit;

use super::jobs::JobNumber;
use crate::ended_ranks::{EndMeaning, EndedRanks};

/// Position of a rank in its session: first the ranks of the launched job by local rank, then the ranks of spawned jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SlotId(pub(crate) usize);

/// One rank of this node.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    /// Displayed number of the rank; unique in the launch.
    pub(crate) rank: Rank,
    pub(crate) job: JobNumber,
    /// Position among the ranks of its job on this node.
    pub(crate) local: LocalRank,
    pub(crate) state: RankState,
}

/// Progress of a rank's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RankState {
    /// Its start has neither succeeded nor failed.
    Starting,
    /// Its start failed or was abandoned.
    NeverStarted,
    /// Its process runs.
    Running {
        pid: u32,
        /// Number of output streams that are not at their end.
        outputs: usize,
        since: Instant,
    },
    /// Its process was reaped.
    Ended {
        pid: u32,
        exit: RankExit,
        /// Progress of its dialogue with its PMI server at its end; `None` without a dialogue.
        reached: Option<DialoguePoint>,
        outputs: usize,
        /// Time from its start to its end.
        ran: Duration,
    },
}

/// An exit that must be reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExitNews {
    pub(crate) rank: Rank,
    pub(crate) exit: RankExit,
    pub(crate) reached: Option<DialoguePoint>,
    pub(crate) ran: Duration,
}

/// All ranks of this node.
#[derive(Debug, Default)]
pub(crate) struct Ranks {
    slots: BTreeMap<SlotId, Slot>,
    /// Number of ranks that were added.
    count: usize,
    /// Exits of ranks of removed jobs.
    forgotten: EndedRanks,
    by_rank: HashMap<Rank, SlotId>,
    starting: usize,
    running: usize,
    /// Number of starting or running ranks of each job; jobs without such ranks have no entry.
    alive: HashMap<JobNumber, usize>,
}

impl Ranks {
    /// Adds a rank at the beginning of its start.
    pub(crate) fn add(&mut self, rank: Rank, job: JobNumber, local: LocalRank) -> SlotId {
        let id = SlotId(self.count);
        self.count += 1;
        self.slots.insert(id, Slot { rank, job, local, state: RankState::Starting });
        self.by_rank.insert(rank, id);
        self.starting += 1;
        *self.alive.entry(job).or_default() += 1;
        id
    }

    /// Returns the number of ranks that were added, including ranks of removed jobs.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Returns the number of ranks with a start that has neither succeeded nor failed.
    pub(crate) fn starting(&self) -> usize {
        self.starting
    }

    /// Returns the number of ranks with a running process.
    pub(crate) fn running(&self) -> usize {
        self.running
    }

    /// Returns true if a rank of this job starts or runs.
    pub(crate) fn has_alive(&self, job: JobNumber) -> bool {
        self.alive.contains_key(&job)
    }

    /// Returns the number of jobs with a rank that starts or runs.
    pub(crate) fn jobs_alive(&self) -> usize {
        self.alive.len()
    }

    fn count_end(&mut self, job: JobNumber) {
        if let Some(alive) = self.alive.get_mut(&job) {
            *alive -= 1;
            if *alive == 0 {
                self.alive.remove(&job);
            }
        }
    }

    /// # Panics
    /// If the job of the slot was removed.
    pub(crate) fn get(&self, slot: SlotId) -> &Slot {
        &self.slots[&slot]
    }

    /// Returns the slot; `None` if its job was removed.
    pub(crate) fn find(&self, slot: SlotId) -> Option<&Slot> {
        self.slots.get(&slot)
    }

    /// Returns true if no rank of this job starts or runs, and all of their outputs are at their end.
    pub(crate) fn are_done(&self, job: JobNumber) -> bool {
        let is_open = |slot: &Slot| matches!(slot.state, RankState::Ended { outputs: 1.., .. });
        !self.has_alive(job) && !self.slots.values().any(|slot| slot.job == job && is_open(slot))
    }

    /// Returns true if a rank of this job has ended without known contact to a server.
    pub(crate) fn has_silent(&self, job: JobNumber) -> bool {
        let is_silent = |state: RankState| match state {
            RankState::Ended { reached, .. } => reached.is_none_or(|reached| reached.phase == Phase::Silent),
            _ => false,
        };
        self.slots.values().any(|slot| slot.job == job && is_silent(slot.state))
    }

    /// Removes the ranks of a finished job, and stores their exits. Returns their slots.
    pub(crate) fn forget(&mut self, job: JobNumber, meaning: EndMeaning) -> Vec<SlotId> {
        let slots: Vec<SlotId> = self.iter().filter(|(_, slot)| slot.job == job).map(|(id, _)| id).collect();
        for slot in slots.iter().filter_map(|id| self.slots.remove(id)) {
            self.by_rank.remove(&slot.rank);
            if let Some(exit) = slot.state.exit() {
                self.forgotten.add(slot.rank, exit, meaning);
            }
        }
        slots
    }

    /// Returns the exits of ranks of removed jobs.
    pub(crate) fn forgotten(&self) -> &EndedRanks {
        &self.forgotten
    }

    /// Returns the slot of a rank, by its displayed number.
    pub(crate) fn slot_of(&self, rank: Rank) -> Option<SlotId> {
        self.by_rank.get(&rank).copied()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SlotId, &Slot)> {
        self.slots.iter().map(|(&id, slot)| (id, slot))
    }

    /// Returns the slots with processes that run and were not reaped.
    pub(crate) fn alive(&self) -> impl Iterator<Item = (SlotId, &Slot)> {
        self.iter().filter(|(_, slot)| matches!(slot.state, RankState::Running { .. }))
    }

    /// Records that a process runs, with `outputs` streams to read. Returns false if its start had already ended.
    pub(crate) fn started(&mut self, slot: SlotId, pid: u32, outputs: usize, now: Instant) -> bool {
        self.end_start(slot, RankState::Running { pid, outputs, since: now }) && {
            self.running += 1;
            true
        }
    }

    /// Records that a rank failed to start. Returns false if its start had already ended.
    pub(crate) fn not_started(&mut self, slot: SlotId) -> bool {
        self.end_start(slot, RankState::NeverStarted) && {
            self.count_end(self.get(slot).job);
            true
        }
    }

    fn end_start(&mut self, slot: SlotId, state: RankState) -> bool {
        let Some(known) = self.slots.get_mut(&slot).filter(|known| known.state == RankState::Starting) else {
            return false;
        };
        known.state = state;
        self.starting -= 1;
        true
    }

    /// Records that a process was reaped. Returns false if it does not run.
    pub(crate) fn ended(&mut self, slot: SlotId, exit: RankExit, reached: Option<DialoguePoint>, now: Instant) -> bool {
        let Some(&mut Slot { ref mut state, job, .. }) = self.slots.get_mut(&slot) else { return false };
        let RankState::Running { pid, outputs, since } = *state else { return false };
        *state = RankState::Ended { pid, exit, reached, outputs, ran: now.saturating_duration_since(since) };
        self.running -= 1;
        self.count_end(job);
        true
    }

    /// Records the end of an output stream.
    pub(crate) fn output_ended(&mut self, slot: SlotId) {
        if let Some(Slot { state, .. }) = self.slots.get_mut(&slot)
            && let RankState::Running { outputs, .. } | RankState::Ended { outputs, .. } = state
        {
            *outputs = outputs.saturating_sub(1);
        }
    }

    /// Records the end of all output streams. Returns the slots with exits that a stream held back.
    pub(crate) fn close_outputs(&mut self) -> Vec<SlotId> {
        let mut held = Vec::new();
        for (&id, slot) in &mut self.slots {
            if let RankState::Ended { outputs, .. } = &mut slot.state
                && std::mem::take(outputs) > 0
            {
                held.push(id);
            }
        }
        held
    }

    /// Returns an exit for a report, once all outputs of the rank are at their end.
    pub(crate) fn exit_news(&self, slot: SlotId) -> Option<ExitNews> {
        let slot = self.find(slot)?;
        match slot.state {
            RankState::Ended { exit, reached, outputs: 0, ran, .. } => {
                Some(ExitNews { rank: slot.rank, exit, reached, ran })
            }
            _ => None,
        }
    }
}

impl RankState {
    /// Returns the process id of a rank that was started.
    pub(crate) fn pid(self) -> Option<u32> {
        match self {
            Self::Running { pid, .. } | Self::Ended { pid, .. } => Some(pid),
            Self::Starting | Self::NeverStarted => None,
        }
    }

    pub(crate) fn exit(self) -> Option<RankExit> {
        match self {
            Self::Ended { exit, .. } => Some(exit),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one() -> (Ranks, SlotId, Instant) {
        let mut ranks = Ranks::default();
        let slot = ranks.add(Rank(4), JobNumber(0), LocalRank(0));
        (ranks, slot, Instant::now())
    }

    #[test]
    fn an_exit_is_news_only_after_the_last_output() {
        let (mut ranks, slot, now) = one();
        assert!(ranks.started(slot, 99, 2, now));
        ranks.output_ended(slot);
        let ran = Duration::from_secs(3);
        assert!(ranks.ended(slot, RankExit::Code(3), None, now + ran));
        assert_eq!(ranks.exit_news(slot), None);
        ranks.output_ended(slot);
        let news = ExitNews { rank: Rank(4), exit: RankExit::Code(3), reached: None, ran };
        assert_eq!(ranks.exit_news(slot), Some(news));
        assert_eq!(ranks.close_outputs(), [], "it was held back by nothing");
    }

    #[test]
    fn an_exit_that_an_output_held_back_is_news_when_outputs_are_closed() {
        let (mut ranks, slot, now) = one();
        ranks.started(slot, 99, 2, now);
        ranks.ended(slot, RankExit::Code(0), None, now);
        assert_eq!(ranks.close_outputs(), [slot]);
        assert!(ranks.exit_news(slot).is_some());
    }

    #[test]
    fn counts_follow_what_happens_once_each() {
        let (mut ranks, slot, now) = one();
        let counts = |ranks: &Ranks| (ranks.starting(), ranks.running());
        assert_eq!(counts(&ranks), (1, 0));
        assert!(!ranks.ended(slot, RankExit::Code(0), None, now), "it does not run");
        assert!(ranks.started(slot, 99, 0, now) && !ranks.started(slot, 98, 0, now) && !ranks.not_started(slot));
        assert_eq!((counts(&ranks), ranks.get(slot).state.pid()), ((0, 1), Some(99)));
        assert!(ranks.ended(slot, RankExit::Code(0), None, now) && !ranks.ended(slot, RankExit::Code(1), None, now));
        assert_eq!((counts(&ranks), ranks.get(slot).state.exit()), ((0, 0), Some(RankExit::Code(0))));
        assert_eq!((ranks.alive().count(), ranks.jobs_alive(), ranks.has_alive(JobNumber(0))), (0, 0, false));
        let other = SlotId(7);
        assert!(
            !ranks.started(other, 1, 0, now) && !ranks.ended(other, RankExit::Code(0), None, now),
            "there is no such slot"
        );
        ranks.output_ended(other);
    }

    #[test]
    fn a_rank_that_never_started_has_neither_process_nor_exit() {
        let (mut ranks, slot, _) = one();
        assert!(ranks.not_started(slot));
        let state = ranks.get(slot).state;
        assert_eq!((state.pid(), state.exit(), ranks.exit_news(slot)), (None, None, None));
        assert_eq!(ranks.slot_of(Rank(4)), Some(slot));
        assert_eq!(ranks.slot_of(Rank(5)), None);
    }
}
