//! The ranks of all jobs of a launch: the node of each rank, its start and its end. Reports of a node are accepted only for its own ranks.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use lattice_session::cause::RankExit;
use lattice_session::ended_ranks::{EndMeaning, EndedRanks};
use lattice_session::event::RankProgress;
use pmi_core::deaths::{Death, DeathKind};
use pmi_core::ids::{NodeIndex, Rank};
use pmi_core::job::Placement;
use pmi_core::{DialoguePoint, Phase};

use super::event::{Departure, Programs, RankEnd};

/// Ranks of one launch, without ranks of spawned jobs that were removed.
#[derive(Debug)]
pub(crate) struct Ranks {
    /// By the number under which a job's first rank is shown. Numbers of spawned jobs follow the numbers of the launched job.
    jobs: BTreeMap<u32, JobRanks>,
    /// Number under which the next rank will be shown.
    size: u32,
    /// Number of ranks that may still run.
    expected: usize,
    /// Ends of ranks of removed jobs.
    forgotten: EndedRanks,
}

/// Ranks of a job.
#[derive(Debug)]
struct JobRanks {
    /// In order.
    ranks: Vec<RankState>,
    earliest: EarliestEnds,
    /// Number of its ranks that may still run.
    expected: usize,
    /// True if the job did not start on all its nodes.
    void: bool,
}

impl JobRanks {
    /// Recomputes the totals.
    fn count(&mut self) {
        self.expected = self.ranks.iter().filter(|rank| rank.is_expected()).count();
        self.find_earliest();
    }

    fn find_earliest(&mut self) {
        let mut earliest = EarliestEnds::default();
        let ranks = self.ranks.iter().filter(|rank| rank.death.is_none() && !self.void);
        ranks.filter_map(|rank| rank.end).for_each(|end| earliest.note(end));
        self.earliest = earliest;
    }

    fn range(&self, first: u32) -> Range<u32> {
        first..first + self.ranks.len() as u32
    }
}

/// For each kind of end, the first rank of the job that completed the fewest fences. Ranks that the job continues without are ignored. The
/// result is cached, because it is needed at each exit.
#[derive(Clone, Copy, Debug, Default)]
struct EarliestEnds {
    silent: Option<RankEnd>,
    left: Option<RankEnd>,
}

impl EarliestEnds {
    fn of(self, departure: Departure) -> Option<RankEnd> {
        match departure {
            Departure::Silent => self.silent,
            Departure::Left => self.left,
        }
    }

    fn note(&mut self, end: RankEnd) {
        let earliest = match Departure::of(&end) {
            Some(Departure::Silent) => &mut self.silent,
            Some(Departure::Left) => &mut self.left,
            None => return,
        };
        let order = |end: &RankEnd| (end.fences(), end.rank);
        *earliest = Some(earliest.map_or(end, |before| std::cmp::min_by_key(before, end, order)));
    }

    fn has(self, rank: Rank) -> bool {
        [self.silent, self.left].into_iter().flatten().any(|end| end.rank == rank)
    }
}

#[derive(Clone, Debug)]
struct RankState {
    node: NodeIndex,
    pid: Option<u32>,
    program: Bytes,
    /// True if the rank has contacted its PMI server.
    initialized: bool,
    end: Option<RankEnd>,
    /// Source of the report of its end.
    end_source: EndSource,
    /// Kind of its death, if its job continues without it.
    death: Option<DeathKind>,
    /// True if its job did not start on all nodes: no report is expected from the rank, even if it ran.
    void: bool,
}

impl RankState {
    /// Returns true if it may still run.
    fn is_expected(&self) -> bool {
        self.end.is_none() && self.death.is_none() && !self.void
    }

    /// Returns true if no report of its end will follow.
    fn is_settled(&self) -> bool {
        let has_reported = self.end.is_some() && self.end_source == EndSource::Event;
        has_reported || self.void || self.death == Some(DeathKind::NodeLost)
    }
}

/// Source of the report of a rank's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndSource {
    /// No report, or the answer to a query: clients have not received the end.
    Query,
    /// An event of the rank, or the report of its node.
    Event,
}

/// Progress of the launched job's start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Starts {
    /// Ranks that have started.
    pub started: u32,
    /// Ranks that have contacted their PMI server.
    pub initialized: u32,
    /// By node: its ranks that have not started.
    pub missing: Vec<u32>,
}

impl Ranks {
    /// The ranks of a launch with this placement of its job.
    pub(crate) fn new(placement: &Placement) -> Self {
        let mut ranks = Self { jobs: BTreeMap::new(), size: 0, expected: 0, forgotten: EndedRanks::default() };
        ranks.add_job(placement);
        ranks
    }

    /// Adds the ranks of a job. Returns the number under which its first rank is shown.
    pub(crate) fn add_job(&mut self, placement: &Placement) -> u32 {
        let mut all = Vec::new();
        for block in placement.blocks() {
            for node in block.first_node.0..block.first_node.0 + block.nodes {
                let rank = RankState {
                    node: NodeIndex(node),
                    pid: None,
                    program: Bytes::new(),
                    initialized: false,
                    end: None,
                    end_source: EndSource::Query,
                    death: None,
                    void: false,
                };
                all.extend(std::iter::repeat_n(rank, block.ranks_per_node as usize));
            }
        }
        let (first, expected) = (self.size, all.len());
        let job = JobRanks { ranks: all, earliest: EarliestEnds::default(), expected, void: false };
        self.size = job.range(first).end;
        self.expected += expected;
        self.jobs.insert(first, job);
        first
    }

    /// Reserves all numbers below this one, because ranks of removed jobs had them.
    pub(crate) fn skip_to(&mut self, rank: u32) {
        self.size = self.size.max(rank);
    }

    /// Restores the ends of ranks of removed jobs.
    pub(crate) fn resume_forgotten(&mut self, forgotten: &EndedRanks) {
        self.forgotten = forgotten.clone();
    }

    /// Ends of ranks of removed jobs.
    pub(crate) fn forgotten(&self) -> &EndedRanks {
        &self.forgotten
    }

    /// Returns true if no reports will follow from the job that starts at this rank.
    pub(crate) fn is_over(&self, first: u32) -> bool {
        let job = self.jobs.get(&first);
        job.is_none_or(|job| job.expected == 0 && job.ranks.iter().all(RankState::is_settled))
    }

    /// Removes the ranks of a job that is over, and keeps their ends. Returns their numbers.
    pub(crate) fn forget_job(&mut self, first: u32) -> Range<u32> {
        let Some(job) = self.jobs.remove(&first) else { return first..first };
        for end in job.ranks.iter().filter(|rank| !rank.void).filter_map(|rank| rank.end) {
            self.forgotten.add(end.rank, end.exit, EndMeaning::Counts);
        }
        job.range(first)
    }

    /// The job with these ranks did not start on all its nodes.
    pub(crate) fn void_job(&mut self, ranks: &Range<u32>) {
        let Some(job) = self.jobs.get_mut(&ranks.start) else { return };
        job.void = true;
        job.ranks.iter_mut().for_each(|rank| rank.void = true);
        self.count();
    }

    /// Recomputes the totals.
    fn count(&mut self) {
        self.jobs.values_mut().for_each(JobRanks::count);
        self.expected = self.jobs.values().map(|job| job.expected).sum();
    }

    /// Changes the state of the end of an existing rank.
    fn change(&mut self, rank: Rank, change: impl FnOnce(&mut RankState)) {
        let Some((first, job)) = self.jobs.range_mut(..=rank.0).next_back() else { return };
        let Some(known) = job.ranks.get_mut((rank.0 - first) as usize) else { return };
        let was_expected = known.is_expected();
        change(known);
        let has_ended = usize::from(was_expected && !known.is_expected());
        let end = known.end.filter(|_| known.death.is_none());
        job.expected -= has_ended;
        self.expected -= has_ended;
        if job.earliest.has(rank) {
            job.find_earliest();
        } else if let Some(end) = end.filter(|_| !job.void) {
            job.earliest.note(end);
        }
    }

    /// Restores the ends and the deaths that another server had recorded.
    pub(crate) fn resume(&mut self, ends: &[RankEnd], deaths: &[Death]) {
        for death in deaths {
            if let Some(rank) = self.find_mut(death.rank) {
                rank.death = Some(death.kind);
            }
        }
        for end in ends {
            if let Some(rank) = self.find_mut(end.rank) {
                rank.end = Some(*end);
                rank.end_source = EndSource::Event;
            }
        }
        self.count();
    }

    /// A rank has started. Returns false if the report is a repetition, or the rank is not on this node.
    pub(crate) fn on_started(&mut self, node: NodeIndex, rank: Rank, pid: u32, programs: &Programs) -> bool {
        let Some(known) = self.rank_of(node, rank) else { return false };
        let new = known.pid.is_none();
        known.pid = Some(pid);
        if let Some((_, program)) = programs.first() {
            known.program.clone_from(program);
        }
        new
    }

    /// A rank has ended. Returns false if the report is a repetition, or the rank is not on this node.
    pub(crate) fn on_exited(&mut self, node: NodeIndex, end: RankEnd) -> bool {
        let Some(rank) = self.rank_of(node, end.rank) else { return false };
        if std::mem::replace(&mut rank.end_source, EndSource::Event) == EndSource::Event {
            return false;
        }
        self.change(end.rank, |rank| rank.end = Some(end));
        true
    }

    /// A rank has died, and the launch continues without it. Returns false if the report is a repetition, or the rank is not on this node.
    pub(crate) fn on_died(&mut self, node: NodeIndex, death: Death) -> bool {
        let is_news = self.rank_of(node, death.rank).is_some_and(|rank| rank.death.is_none());
        if is_news {
            self.change(death.rank, |rank| rank.death = Some(death.kind));
        }
        is_news
    }

    /// The node is lost: its ranks that have not ended are dead. Returns the new deaths.
    pub(crate) fn on_lost(&mut self, node: NodeIndex) -> Vec<Death> {
        let all = self.jobs.iter_mut().flat_map(|(&first, job)| (first..).zip(&mut job.ranks));
        let living = all.filter(|(_, rank)| rank.node == node && rank.is_expected());
        let lost = living.map(|(number, rank)| {
            rank.death = Some(DeathKind::NodeLost);
            Death { rank: Rank(number), kind: DeathKind::NodeLost }
        });
        let lost: Vec<Death> = lost.collect();
        self.count();
        lost
    }

    /// Dead ranks that the launch continues without, in the order of their numbers.
    pub(crate) fn deaths(&self) -> Vec<Death> {
        self.iter().filter_map(|(rank, known)| Some(Death { rank, kind: known.death? })).collect()
    }

    /// Applies a node's answer about its ranks. After a restart of the API server, it is the only report that a rank runs.
    pub(crate) fn on_progress(&mut self, node: NodeIndex, ranks: &[RankProgress], programs: &Programs) {
        for progress in ranks {
            if let Some(rank) = self.rank_of(node, progress.rank) {
                rank.pid = rank.pid.or(progress.pid);
                rank.initialized |= matches!(progress.phase, Some(Phase::Open | Phase::Finalized));
                let fences = progress.fences.unwrap_or_default();
                let reached = progress.phase.map(|phase| DialoguePoint { phase, fences });
                let end = progress.exit.map(|exit| RankEnd { rank: progress.rank, exit, reached });
                if let Some(end) = end.filter(|_| rank.end.is_none()) {
                    self.change(progress.rank, |rank| rank.end = Some(end));
                }
            }
        }
        for (rank, program) in programs {
            if let Some(rank) = self.rank_of(node, *rank) {
                rank.program.clone_from(program);
            }
        }
    }

    /// The number of ranks of all jobs, including removed jobs.
    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    /// The ranks of each job that has started and was not removed, the launched job first.
    pub(crate) fn jobs(&self) -> impl Iterator<Item = Range<u32>> {
        self.jobs.iter().filter(|(_, job)| !job.void).map(|(&first, job)| job.range(first))
    }

    fn iter(&self) -> impl Iterator<Item = (Rank, &RankState)> {
        self.jobs.iter().flat_map(|(&first, job)| (first..).map(Rank).zip(&job.ranks))
    }

    fn find(&self, rank: Rank) -> Option<&RankState> {
        let (first, job) = self.jobs.range(..=rank.0).next_back()?;
        job.ranks.get((rank.0 - first) as usize)
    }

    fn find_mut(&mut self, rank: Rank) -> Option<&mut RankState> {
        let (first, job) = self.jobs.range_mut(..=rank.0).next_back()?;
        job.ranks.get_mut((rank.0 - first) as usize)
    }

    /// Returns true if a rank with this number runs, or ran, on the node.
    pub(crate) fn owns(&self, node: NodeIndex, rank: Rank) -> bool {
        self.node_of(rank) == Some(node)
    }

    /// The node of a rank; `None` if there is no such rank, or its job was removed.
    pub(crate) fn node_of(&self, rank: Rank) -> Option<NodeIndex> {
        self.find(rank).map(|known| known.node)
    }

    /// Returns true if every rank of every job has ended. Then nodes without ranks need not wait.
    pub(crate) fn all_exited(&self) -> bool {
        self.expected == 0
    }

    /// Ends of the ended ranks of jobs that were not removed, in the order of their numbers.
    pub(crate) fn ends(&self) -> Vec<RankEnd> {
        self.iter().filter_map(|(_, rank)| rank.end).collect()
    }

    /// Ends of all ended ranks, in the order of their numbers.
    pub(crate) fn all_ends(&self) -> Vec<RankEnd> {
        let forgotten = self.forgotten.iter().map(|(rank, exit)| RankEnd { rank, exit, reached: None });
        let mut ends: Vec<RankEnd> = forgotten.chain(self.ends()).collect();
        ends.sort_by_key(|end| end.rank);
        ends
    }

    /// For each job, the first rank with this kind of end that completed the fewest fences, if there is one. Ranks that the job continues
    /// without are ignored.
    pub(crate) fn earliest_ends(&self, departure: Departure) -> impl Iterator<Item = (Range<u32>, RankEnd)> {
        let end = move |(&first, job): (&u32, &JobRanks)| Some((job.range(first), job.earliest.of(departure)?));
        self.jobs.iter().filter_map(end)
    }

    /// The lowest rank of the launched job that has ended.
    pub(crate) fn first_launched_end(&self) -> Option<Rank> {
        self.launched().iter().find_map(|rank| rank.end).map(|end| end.rank)
    }

    /// Failures of ranks of jobs that did start, in the order of their numbers.
    pub(crate) fn failures(&self) -> Vec<(Rank, RankExit)> {
        let ends = self.iter().filter(|(_, rank)| !rank.void).filter_map(|(_, rank)| rank.end);
        let failed = ends.filter(|end| !end.exit.is_success()).map(|end| (end.rank, end.exit));
        let mut failed: Vec<_> = failed.chain(self.forgotten.failures()).collect();
        failed.sort_by_key(|&(rank, _)| rank);
        failed
    }

    /// The number of running ranks on each of `nodes` nodes.
    pub(crate) fn load(&self, nodes: usize) -> Vec<u32> {
        let mut load = vec![0; nodes];
        for (_, rank) in self.iter().filter(|(_, rank)| rank.end.is_none() && !rank.void) {
            load[rank.node.index()] += 1;
        }
        load
    }

    /// The number of ranks of the launched job.
    pub(crate) fn launched_size(&self) -> u32 {
        self.launched().len() as u32
    }

    /// Progress of the launched job's start on `nodes` nodes.
    pub(crate) fn starts(&self, nodes: usize) -> Starts {
        let mut starts = Starts { started: 0, initialized: 0, missing: vec![0; nodes] };
        for rank in self.launched() {
            match rank.pid {
                Some(_) => starts.started += 1,
                None => starts.missing[rank.node.index()] += 1,
            }
            starts.initialized += u32::from(rank.initialized);
        }
        starts
    }

    /// Progress of the ranks of each of `nodes` nodes without a query, with the program of each rank.
    pub(crate) fn known(&self, nodes: usize) -> Vec<Vec<(RankProgress, Bytes)>> {
        let mut by_node = vec![Vec::new(); nodes];
        for (number, rank) in self.iter().filter(|(_, rank)| !rank.void) {
            let lost = rank.end.is_none() && rank.death == Some(DeathKind::NodeLost);
            let known = RankProgress {
                // Another process may have its pid by now.
                pid: rank.pid.filter(|_| !lost),
                lost,
                phase: rank.end.and_then(|end| end.phase()),
                fences: rank.end.map(|end| end.fences()),
                exit: rank.end.map(|end| end.exit),
                ..RankProgress::unknown(number)
            };
            by_node[rank.node.index()].push((known, rank.program.clone()));
        }
        by_node
    }

    fn launched(&self) -> &[RankState] {
        self.jobs.get(&0).map_or(&[], |job| &job.ranks)
    }

    fn rank_of(&mut self, node: NodeIndex, rank: Rank) -> Option<&mut RankState> {
        self.find_mut(rank).filter(|known| known.node == node)
    }
}

#[cfg(test)]
pub(super) mod tests;
