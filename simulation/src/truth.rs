//! The true course of a run, and the reports about it. Every difference that violates the invariants I1 to I8 is recorded.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use lattice_api_server::simulation::{ClientEvent, Record};
use lattice_session::cause::{Cause, RankExit};
use lattice_session::settings::FailedRanks;
use pmi_core::ids::Rank;

use self::input::InputTruth;
use crate::scenario::Scenario;

mod causes;
mod input;

/// The true course of a run, which no part of the cluster can observe.
#[derive(Debug)]
pub(crate) struct Truth {
    scenario: Scenario,
    size: u32,
    /// By rank: number of the fences before which it has put, that it has entered, and that it has left.
    puts: ByRank,
    entered: ByRank,
    left: ByRank,
    /// By rank: end of its process.
    pub(crate) exits: BTreeMap<Rank, RankExit>,
    /// By ended rank: the number of fences that each rank had left before the end.
    left_before: BTreeMap<Rank, ByRank>,
    /// A rank had an error that ends the launch, with any exit status.
    pub(crate) has_erred: bool,
    /// Ranks of the spawned job, after its start was reported to the parent.
    spawned: Range<u32>,
    /// The disk of the API server has failed.
    pub(crate) disk_failed: bool,
    /// Nodes with an event because of which the launch may lose them.
    pub(crate) struck: BTreeSet<u32>,
    /// An event because of which the API server may lose reports.
    pub(crate) forgets: bool,
    /// Nodes with a session that had no agent for the agent lease. Such a session ends its ranks with SIGHUP.
    pub(crate) left_alone: BTreeSet<u32>,
    /// The API server was killed before the cause was on its disk. The nodes only have the signals that it ordered.
    pub(crate) forgot_causes: bool,
    /// The launch was ended from outside.
    pub(crate) is_ended_by_others: bool,
    /// The API server was killed before it reported the start to the client that ordered the launch. No client follows the launch.
    pub(crate) is_orphaned: bool,
    /// An agent was killed before the launch reached its node. Either the node refuses the launch, because it has no agent, or the
    /// launch loses the node when the next agent registers.
    pub(crate) may_not_begin: bool,
    /// Exits that were reported to the client since the start of the API server.
    told_exits: BTreeMap<Rank, RankExit>,
    /// By rank: the number of the last line that its session has read, and of the last line that the client has displayed.
    printed: ByRank,
    shown: ByRank,
    /// Causes that the API server reported since its start. The cause from its disk is the first one.
    causes: Vec<Cause>,
    /// The cause on the disk of the API server.
    kept_cause: Option<Cause>,
    complete: Vec<Completed>,
    pub(crate) input: InputTruth,
    violations: Vec<String>,
}

/// A number for each rank; 0 until it is set.
#[derive(Clone, Debug, Default)]
struct ByRank(Vec<u32>);

impl ByRank {
    fn get(&self, rank: Rank) -> u32 {
        self.0.get(rank.index()).copied().unwrap_or_default()
    }

    fn of(&mut self, rank: Rank) -> &mut u32 {
        if self.0.len() <= rank.index() {
            self.0.resize(rank.index() + 1, 0);
        }
        &mut self.0[rank.index()]
    }
}

/// End of the launch, according to a client or the disk.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Completed {
    pub(crate) cause: Option<Cause>,
    pub(crate) ends: Vec<(Rank, RankExit)>,
}

impl Truth {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let size = scenario.size();
        Self {
            scenario: scenario.clone(),
            size,
            puts: ByRank::default(),
            entered: ByRank::default(),
            left: ByRank::default(),
            exits: BTreeMap::new(),
            left_before: BTreeMap::new(),
            has_erred: false,
            spawned: 0..0,
            disk_failed: false,
            struck: BTreeSet::new(),
            forgets: false,
            left_alone: BTreeSet::new(),
            forgot_causes: false,
            is_ended_by_others: false,
            is_orphaned: false,
            may_not_begin: false,
            told_exits: BTreeMap::new(),
            printed: ByRank::default(),
            shown: ByRank::default(),
            causes: Vec::new(),
            kept_cause: None,
            complete: Vec::new(),
            input: InputTruth::new(scenario),
            violations: Vec::new(),
        }
    }

    /// Returns true if the launch may be ending because of a failure. Then a PMIx server answers with errors.
    pub(crate) fn may_be_ending(&self) -> bool {
        let has_failed = self.exits.values().any(|exit| !exit.is_success());
        has_failed || self.has_erred || self.is_ended_by_others || !self.struck.is_empty() || !self.causes.is_empty()
    }

    /// Records that the start of the spawned job of this number, from 1, was reported to its parent.
    pub(crate) fn has_spawned(&mut self, job: u32) {
        let ranks = self.scenario.spawn.map_or(0, |spawn| spawn.ranks);
        let first = self.size + job.saturating_sub(1) * ranks;
        self.spawned = first..first + ranks;
    }

    /// Returns true if a spawn may be refused.
    pub(crate) fn may_refuse_spawn(&self) -> bool {
        let is_missing = self.scenario.programs.iter().skip(self.size as usize).any(|program| program.is_missing);
        self.may_be_ending() || self.forgets || self.disk_failed || is_missing
    }

    /// Records a violated invariant.
    pub(crate) fn wrong(&mut self, what: String) {
        if !self.violations.contains(&what) {
            self.violations.push(what);
        }
    }

    pub(crate) fn violations(&self) -> &[String] {
        &self.violations
    }

    pub(crate) fn put(&mut self, rank: Rank, epoch: u32) {
        *self.puts.of(rank) = epoch + 1;
    }

    pub(crate) fn has_put(&self, rank: Rank, epoch: u32) -> bool {
        self.puts.get(rank) > epoch
    }

    pub(crate) fn enter(&mut self, rank: Rank, epoch: u32) {
        *self.entered.of(rank) = epoch + 1;
    }

    /// A rank leaves a fence. All ranks must have entered the fence, except failed ranks without which the launch continues.
    pub(crate) fn leave(&mut self, rank: Rank, epoch: u32) {
        *self.left.of(rank) = epoch + 1;
        let is_missing =
            |other: &u32| self.entered.get(Rank(*other)) <= epoch && !self.is_done_without(Rank(*other), epoch);
        if let Some(missing) = self.scenario.family_of(rank).find(is_missing) {
            self.wrong(format!("I2: rank {rank} leaves fence {epoch}, which rank {missing} has not entered"));
        }
    }

    /// Returns true if a fence may complete without a rank, and without its puts before that fence. These conditions must hold:
    ///
    /// - The launch continues after failures.
    /// - The rank failed before a rank that has not failed left the fence.
    /// - It was not the first fence.
    ///
    /// A rank that left the fence and failed as well cannot provide the result, because its node may have no living rank.
    pub(crate) fn is_done_without(&self, rank: Rank, epoch: u32) -> bool {
        let was_left = self.left_before.get(&rank).is_some_and(|left| {
            let mut family = self.scenario.family_of(rank).map(Rank);
            family.any(|other| left.get(other) > epoch && !self.has_failed(other))
        });
        self.scenario.failed_ranks == FailedRanks::AreBorne && self.has_failed(rank) && epoch > 0 && !was_left
    }

    fn has_failed(&self, rank: Rank) -> bool {
        self.exits.get(&rank).is_some_and(|exit| !exit.is_success())
    }

    pub(crate) fn exited(&mut self, rank: Rank, exit: RankExit) {
        self.left_before.insert(rank, self.left.clone());
        if self.exits.insert(rank, exit).is_some() {
            self.wrong(format!("I3: rank {rank} ended twice"));
        }
    }

    /// The API server is gone. Reports that it had not written to its disk may be determined again.
    pub(crate) fn api_killed(&mut self) {
        self.forgets = true;
        let has_cause = !self.causes.is_empty() || self.complete.iter().any(|completed| completed.cause.is_some());
        self.forgot_causes |= has_cause && self.kept_cause.is_none();
        self.causes = self.kept_cause.iter().cloned().collect();
        self.complete.clear();
    }

    /// The disk of the API server has this record.
    pub(crate) fn written(&mut self, record: &Record) {
        self.kept_cause = record.cause();
    }

    /// A session has read a line of a rank.
    pub(crate) fn printed(&mut self, rank: Rank) {
        *self.printed.of(rank) += 1;
    }

    /// The client receives an event.
    pub(crate) fn told(&mut self, event: &ClientEvent) {
        match event {
            ClientEvent::Exited(rank, exit) => {
                if self.exits.get(rank) != Some(exit) {
                    self.wrong(format!("I8: the client is told that rank {rank} {exit}; {:?}", self.exits.get(rank)));
                }
                if self.told_exits.insert(*rank, *exit).is_some() && !self.forgets {
                    self.wrong(format!("I8: the client is told twice that rank {rank} {exit}"));
                }
            }
            ClientEvent::Output(rank, bytes) => self.shown(*rank, bytes),
            ClientEvent::Complete { .. } => self.check_output(),
            ClientEvent::Ending(_) | ClientEvent::Started(..) | ClientEvent::Unclean(_) | ClientEvent::Other => {}
        }
    }

    /// The client receives the end of the launch. It must have displayed all printed lines, unless the host with the lines was lost.
    fn check_output(&mut self) {
        if self.forgets || !self.struck.is_empty() {
            return;
        }
        let ranks = (0..self.printed.0.len().max(self.shown.0.len()) as u32).map(Rank);
        let lines = ranks.map(|rank| (rank, self.printed.get(rank), self.shown.get(rank)));
        let lost = lines.filter(|(_, printed, shown)| printed != shown);
        let lost = lost
            .map(|(rank, printed, shown)| format!("I8: rank {rank} printed {printed} lines, and {shown} are shown"));
        let lost: Vec<String> = lost.collect();
        lost.into_iter().for_each(|what| self.wrong(what));
    }

    fn shown(&mut self, rank: Rank, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        let Some(line) = text.split_whitespace().next().and_then(|line| line.parse::<u32>().ok()) else { return };
        let last = std::mem::replace(self.shown.of(rank), line);
        if line <= last {
            self.wrong(format!("I8: line {line} of rank {rank} is shown after line {last}"));
        } else if line != last + 1 && !self.forgets {
            self.wrong(format!("I8: line {line} of rank {rank} is shown right after line {last}"));
        }
    }

    /// The end is reported, or written to the disk.
    pub(crate) fn completed(&mut self, completed: &Completed) {
        for (rank, exit) in &completed.ends {
            if self.exits.get(rank) != Some(exit) {
                self.wrong(format!("I8: rank {rank} is said to have ended as {exit}; {:?}", self.exits.get(rank)));
            }
        }
        if completed.cause.is_none() {
            // If a job does not start on all nodes, its ranks are killed, and the launch continues.
            let counts = |rank: &Rank| rank.0 < self.size || self.spawned.contains(&rank.0);
            let bad = self
                .exits
                .iter()
                .find(|(rank, exit)| counts(rank) && !exit.is_success())
                .map(|(rank, exit)| (*rank, *exit));
            if let Some((rank, exit)) = bad {
                self.wrong(format!("I8: the launch succeeded, and rank {rank} {exit}"));
            }
            if completed.ends.len() < self.size as usize && !self.forgets {
                let known = completed.ends.len();
                self.wrong(format!("I8: the launch succeeded, and {known} of {} ends are known", self.size));
            }
        }
        if let Some(before) = self.complete.last().filter(|before| before.cause != completed.cause).cloned() {
            let text = |cause: &Option<Cause>| cause.as_ref().map_or("success".to_owned(), ToString::to_string);
            let (before, now) = (text(&before.cause), text(&completed.cause));
            self.wrong(format!("I3: the launch ended with {before}, then with {now}"));
        }
        if let (Some(before), Some(cause)) = (self.causes.first(), &completed.cause)
            && before != cause
        {
            self.wrong(format!("I3: the launch was ending for {before}, and has ended for {cause}"));
        }
        self.complete.push(completed.clone());
    }

    /// Returns true if all ranks of a node have ended.
    fn has_ended_on(&self, node: u32) -> bool {
        self.ranks_on(node).all(|rank| self.exits.contains_key(&Rank(rank)))
    }

    /// Returns the numbers of the ranks of a node.
    fn ranks_on(&self, node: u32) -> Range<u32> {
        let ranks = &self.scenario.ranks;
        let first: u32 = ranks.iter().take(node as usize).sum();
        first..first + ranks.get(node as usize).copied().unwrap_or(0)
    }

    /// Returns the last reported end.
    pub(crate) fn completion(&self) -> Option<&Completed> {
        self.complete.last()
    }
}

#[cfg(test)]
mod tests;
