//! The ranks of all jobs of a launch: where each is, whether it started, and how it ended. What comes from a node is believed only of
//! its own ranks.

use std::ops::Range;

use bytes::Bytes;
use lattice_session::cause::RankExit;
use lattice_session::event::RankProgress;
use pmi_core::deaths::{Death, DeathKind};
use pmi_core::ids::Rank;
use pmi_core::job::Placement;
use pmi_core::{DialoguePoint, Phase};

use super::event::{Departure, Programs, RankEnd};

/// All ranks of one launch.
#[derive(Debug)]
pub(crate) struct Ranks {
    /// By the number under which a rank is shown; those of spawned jobs follow those of the launched one.
    all: Vec<RankState>,
    /// The ranks of each job, the launched one first; those of a job that did not start are empty.
    jobs: Vec<Range<u32>>,
    /// By job.
    earliest: Vec<EarliestEnds>,
    /// Number of ranks that may still run.
    expected: usize,
}

/// Of a job's ranks that others do not go on without, for each kind of end the first one that was through the fewest fences. Kept, as it is
/// asked for at each exit of a launch.
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
    node: u32,
    pid: Option<u32>,
    program: Bytes,
    /// The rank was seen to have spoken to its PMI server.
    initialized: bool,
    end: Option<RankEnd>,
    /// Source of the news of its end.
    end_source: EndSource,
    /// Kind of its end, if the others of its job go on without it.
    death: Option<DeathKind>,
    /// Its job did not start on all nodes: nothing is expected of it, whether it ever ran or not.
    void: bool,
}

impl RankState {
    /// Returns true if it may still run.
    fn is_expected(&self) -> bool {
        self.end.is_none() && self.death.is_none() && !self.void
    }
}

/// Source of the news of a rank's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndSource {
    /// From nowhere, or from the answer to a query: the client has not been told.
    Query,
    /// From an event of its own, or from its node's report.
    Event,
}

/// Progress of the launched job's start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Starts {
    /// Ranks that have started.
    pub started: u32,
    /// Ranks that have spoken to their PMI server.
    pub initialized: u32,
    /// By node: its ranks that have not started.
    pub missing: Vec<u32>,
}

impl Ranks {
    /// The ranks of a launch whose job is placed like this.
    pub(crate) fn new(placement: &Placement) -> Self {
        let mut ranks = Self { all: Vec::new(), jobs: Vec::new(), earliest: Vec::new(), expected: 0 };
        ranks.add_job(placement);
        ranks
    }

    /// Adds the ranks of one more job. Returns the number under which its first rank is shown.
    pub(crate) fn add_job(&mut self, placement: &Placement) -> u32 {
        let first = self.size();
        for block in placement.blocks() {
            for node in block.first_node.0..block.first_node.0 + block.nodes {
                let rank = RankState {
                    node,
                    pid: None,
                    program: Bytes::new(),
                    initialized: false,
                    end: None,
                    end_source: EndSource::Query,
                    death: None,
                    void: false,
                };
                self.all.extend(std::iter::repeat_n(rank, block.ranks_per_node as usize));
            }
        }
        self.jobs.push(first..self.size());
        self.earliest.push(EarliestEnds::default());
        self.expected += (self.size() - first) as usize;
        first
    }

    /// The job with these ranks did not start on all its nodes.
    pub(crate) fn void_job(&mut self, ranks: &Range<u32>) {
        self.jobs.iter_mut().filter(|job| job.start == ranks.start).for_each(|job| job.end = job.start);
        self.all.iter_mut().skip(ranks.start as usize).take(ranks.len()).for_each(|rank| rank.void = true);
        self.count();
    }

    /// Finds anew what is kept about all ranks.
    fn count(&mut self) {
        self.expected = self.all.iter().filter(|rank| rank.is_expected()).count();
        (0..self.jobs.len()).for_each(|job| self.find_earliest(job));
    }

    fn find_earliest(&mut self, job: usize) {
        let mut earliest = EarliestEnds::default();
        let Range { start, end } = self.jobs[job];
        let ranks = self.all[start as usize..end as usize].iter().filter(|rank| rank.death.is_none());
        ranks.filter_map(|rank| rank.end).for_each(|end| earliest.note(end));
        self.earliest[job] = earliest;
    }

    /// Changes what is known of the end of a rank, which there is.
    fn change(&mut self, rank: Rank, change: impl FnOnce(&mut RankState)) {
        let known = &mut self.all[rank.0 as usize];
        let was_expected = known.is_expected();
        change(known);
        self.expected -= usize::from(was_expected && !known.is_expected());
        let end = known.end.filter(|_| known.death.is_none());
        let job = self.jobs.partition_point(|job| job.start <= rank.0) - 1;
        if self.earliest[job].has(rank) {
            self.find_earliest(job);
        } else if let Some(end) = end.filter(|_| self.jobs[job].contains(&rank.0)) {
            self.earliest[job].note(end);
        }
    }

    /// Takes over the ends and the deaths that another server was told of.
    pub(crate) fn resume(&mut self, ends: &[RankEnd], deaths: &[Death]) {
        for death in deaths {
            if let Some(rank) = self.all.get_mut(death.rank.0 as usize) {
                rank.death = Some(death.kind);
            }
        }
        for end in ends {
            if let Some(rank) = self.all.get_mut(end.rank.0 as usize) {
                rank.end = Some(*end);
                rank.end_source = EndSource::Event;
            }
        }
        self.count();
    }

    /// A rank runs. False for news that is none, or that is not this node's to report.
    pub(crate) fn on_started(&mut self, node: u32, rank: Rank, pid: u32, programs: &Programs) -> bool {
        let Some(known) = self.rank_of(node, rank) else { return false };
        let new = known.pid.is_none();
        known.pid = Some(pid);
        if let Some((_, program)) = programs.first() {
            known.program.clone_from(program);
        }
        new
    }

    /// A rank has ended. False for news that is none, or that is not this node's to report.
    pub(crate) fn on_exited(&mut self, node: u32, end: RankEnd) -> bool {
        let Some(rank) = self.rank_of(node, end.rank) else { return false };
        if std::mem::replace(&mut rank.end_source, EndSource::Event) == EndSource::Event {
            return false;
        }
        self.change(end.rank, |rank| rank.end = Some(end));
        true
    }

    /// A rank has died, and the others go on without it. False for news that is none, or that is not this node's to report.
    pub(crate) fn on_died(&mut self, node: u32, death: Death) -> bool {
        let is_news = self.rank_of(node, death.rank).is_some_and(|rank| rank.death.is_none());
        if is_news {
            self.change(death.rank, |rank| rank.death = Some(death.kind));
        }
        is_news
    }

    /// The node is lost: those of its ranks are dead that have not ended. Returns those that were not before.
    pub(crate) fn on_lost(&mut self, node: u32) -> Vec<Death> {
        let ranks = (0..).zip(&mut self.all).filter(|(_, rank)| rank.node == node && !rank.void);
        let living = ranks.filter(|(_, rank)| rank.is_expected());
        let lost = living.map(|(number, rank)| {
            rank.death = Some(DeathKind::NodeLost);
            Death { rank: Rank(number), kind: DeathKind::NodeLost }
        });
        let lost: Vec<Death> = lost.collect();
        self.expected -= lost.len();
        lost
    }

    /// The ranks that others go on without, in the order of their numbers.
    pub(crate) fn deaths(&self) -> Vec<Death> {
        let death = |(rank, known): (u32, &RankState)| Some(Death { rank: Rank(rank), kind: known.death? });
        (0..).zip(&self.all).filter_map(death).collect()
    }

    /// Takes over what a node answered of its ranks; after a restart of the API server, nothing else tells that they run.
    pub(crate) fn on_progress(&mut self, node: u32, ranks: &[RankProgress], programs: &Programs) {
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

    /// The number of ranks of all jobs.
    pub(crate) fn size(&self) -> u32 {
        self.all.len() as u32
    }

    /// The ranks of each job, the launched one first; none of a job that did not start.
    pub(crate) fn jobs(&self) -> &[Range<u32>] {
        &self.jobs
    }

    /// Returns true if a rank with this number runs, or ran, on the node.
    pub(crate) fn owns(&self, node: u32, rank: Rank) -> bool {
        self.node_of(rank) == Some(node)
    }

    /// The node of a rank; `None` if there is no rank with this number.
    pub(crate) fn node_of(&self, rank: Rank) -> Option<u32> {
        self.all.get(rank.0 as usize).map(|known| known.node)
    }

    /// Returns true if every rank of every job has ended, so that nodes without ranks have nothing to wait for.
    pub(crate) fn all_exited(&self) -> bool {
        self.expected == 0
    }

    /// Ends of all ranks that are known to have ended, in the order of their numbers.
    pub(crate) fn ends(&self) -> Vec<RankEnd> {
        self.all.iter().filter_map(|rank| rank.end).collect()
    }

    /// By job, if there is one: of its ranks whose end is of this kind, and that others do not go on without, the first one that was through
    /// the fewest fences.
    pub(crate) fn earliest_ends(&self, departure: Departure) -> impl Iterator<Item = (&Range<u32>, RankEnd)> {
        let jobs = self.jobs.iter().zip(&self.earliest);
        jobs.filter_map(move |(job, earliest)| Some((job, earliest.of(departure)?)))
    }

    /// The first of the launched job's ranks that is known to have ended.
    pub(crate) fn first_launched_end(&self) -> Option<Rank> {
        self.launched().iter().find_map(|rank| rank.end).map(|end| end.rank)
    }

    /// Failures of ranks whose jobs did start, in the order of their numbers.
    pub(crate) fn failures(&self) -> Vec<(Rank, RankExit)> {
        let ends = self.all.iter().filter(|rank| !rank.void).filter_map(|rank| rank.end);
        ends.filter(|end| !end.exit.is_success()).map(|end| (end.rank, end.exit)).collect()
    }

    /// The number of ranks that run on each of `nodes` nodes at present.
    pub(crate) fn load(&self, nodes: usize) -> Vec<u32> {
        let mut load = vec![0; nodes];
        for rank in self.all.iter().filter(|rank| rank.end.is_none() && !rank.void) {
            load[rank.node as usize] += 1;
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
                None => starts.missing[rank.node as usize] += 1,
            }
            starts.initialized += u32::from(rank.initialized);
        }
        starts
    }

    /// Progress of the ranks of each of `nodes` nodes as it is known without asking, with the program of each.
    pub(crate) fn known(&self, nodes: usize) -> Vec<Vec<(RankProgress, Bytes)>> {
        let mut by_node = vec![Vec::new(); nodes];
        for (number, rank) in (0..).zip(&self.all).filter(|(_, rank)| !rank.void) {
            let lost = rank.end.is_none() && rank.death == Some(DeathKind::NodeLost);
            let known = RankProgress {
                // Its number may be another process's by now.
                pid: rank.pid.filter(|_| !lost),
                lost,
                phase: rank.end.and_then(|end| end.phase()),
                fences: rank.end.map(|end| end.fences()),
                exit: rank.end.map(|end| end.exit),
                ..RankProgress::unknown(Rank(number))
            };
            by_node[rank.node as usize].push((known, rank.program.clone()));
        }
        by_node
    }

    fn launched(&self) -> &[RankState] {
        let size = self.jobs.first().map_or(0, ExactSizeIterator::len);
        &self.all[..size]
    }

    fn rank_of(&mut self, node: u32, rank: Rank) -> Option<&mut RankState> {
        self.all.get_mut(rank.0 as usize).filter(|known| known.node == node)
    }
}

#[cfg(test)]
pub(super) mod tests;
