//! Knowledge about a launch's nodes and ranks: where each is, how it ended, why the launch ends. Pure; what comes from nodes is
//! believed only where it concerns ranks of theirs.
//!
//! ```text
//! a node:  Awaited ──stream──> Reporting ──report──> Ended
//!             └───────────┬───────┘
//!                         └──no word for too long──> Lost
//! ```
//! A node judges its own ranks; a rank that has left while others wait for it on other nodes is seen only here
//! ([`desertion`](super::desertion)).

use std::collections::BTreeSet;
use std::ops::Range;

use bytes::Bytes;
use lattice_session::cause::{Cause, CauseKind, RankExit};
use lattice_session::event::RankProgress;
use pmi_core::Phase;
use pmi_core::ids::Rank;
use pmi_core::job::Placement;
use tokio::time::Instant;

use super::checkpoint::Progressed;
use super::event::{Programs, RankEnd};
use super::first_cause::{FirstCause, Reported};

/// All ranks and nodes of one launch.
#[derive(Debug)]
pub(crate) struct LaunchState {
    pub(super) nodes: Vec<Node>,
    /// By the number under which a rank is shown; those of spawned jobs follow those of the launched one.
    pub(super) ranks: Vec<RankState>,
    /// The ranks of each job, the launched one first; those of a job that did not start are empty.
    pub(super) jobs: Vec<Range<u32>>,
    pub(super) cause: FirstCause,
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) host: String,
    phase: NodePhase,
    /// Its ranks that were reported to wait in a fence of all ranks.
    pub(super) waiting: BTreeSet<u32>,
}

/// Where a node is in its part of the launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodePhase {
    /// The node was asked, and has not begun to report.
    Awaited,
    /// The node reports.
    Reporting,
    /// The node has reported how its part ended.
    Ended,
    /// The node was lost.
    Lost,
}

impl NodePhase {
    /// Returns true if more is to be expected from the node.
    pub(crate) fn is_live(self) -> bool {
        matches!(self, Self::Awaited | Self::Reporting)
    }
}

#[derive(Clone, Debug)]
pub(super) struct RankState {
    pub(super) node: u32,
    pid: Option<u32>,
    program: Bytes,
    /// The rank was seen to have spoken to its PMI server.
    initialized: bool,
    pub(super) end: Option<RankEnd>,
    /// Where the news of its end came from.
    end_source: EndSource,
    /// Its job did not start on all nodes: nothing is expected of it, whether it ever ran or not.
    void: bool,
}

/// Where the news of a rank's end came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndSource {
    /// From nowhere, or from the answer to a query: the client has not been told.
    Query,
    /// From an event of its own, or from its node's report.
    Event,
}

impl LaunchState {
    /// A launch on `hosts`, whose job is placed like this.
    pub(crate) fn new(hosts: &[String], placement: &Placement) -> Self {
        let node = |host: &String| Node { host: host.clone(), phase: NodePhase::Awaited, waiting: BTreeSet::new() };
        let nodes = hosts.iter().map(node).collect();
        let mut state = Self { nodes, ranks: Vec::new(), jobs: Vec::new(), cause: FirstCause::default() };
        state.add_job(placement);
        state
    }

    /// Takes over what another server had found out.
    pub(crate) fn resume(&mut self, known: &Progressed) {
        for end in &known.ends {
            if let Some(rank) = self.ranks.get_mut(end.rank.0 as usize) {
                rank.end = Some(*end);
                rank.end_source = EndSource::Event;
            }
        }
        for (nodes, phase) in [(&known.ended, NodePhase::Ended), (&known.lost, NodePhase::Lost)] {
            for &node in nodes {
                if let Some(node) = self.nodes.get_mut(node as usize) {
                    node.phase = phase;
                }
            }
        }
        self.cause = known.cause.clone().map_or(FirstCause::None, FirstCause::Counts);
    }

    /// Adds the ranks of one more job. Returns the number under which its first rank is shown.
    pub(crate) fn add_job(&mut self, placement: &Placement) -> u32 {
        let first = self.ranks.len() as u32;
        for block in placement.blocks() {
            for node in block.first_node.0..block.first_node.0 + block.nodes {
                let rank = RankState {
                    node,
                    pid: None,
                    program: Bytes::new(),
                    initialized: false,
                    end: None,
                    end_source: EndSource::Query,
                    void: false,
                };
                self.ranks.extend(std::iter::repeat_n(rank, block.ranks_per_node as usize));
            }
        }
        self.jobs.push(first..self.ranks.len() as u32);
        first
    }

    /// The job whose first rank has this number, and which has so many, did not start on all its nodes.
    pub(crate) fn void_job(&mut self, first: u32, size: u32) {
        self.jobs.iter_mut().filter(|job| job.start == first).for_each(|job| job.end = first);
        self.ranks.iter_mut().skip(first as usize).take(size as usize).for_each(|rank| rank.void = true);
        for node in &mut self.nodes {
            node.waiting.retain(|&rank| !(first..first + size).contains(&rank));
        }
    }

    /// A node begins to report, or does so again.
    pub(crate) fn on_stream(&mut self, node: u32) {
        let phase = &mut self.nodes[node as usize].phase;
        if *phase == NodePhase::Awaited {
            *phase = NodePhase::Reporting;
        }
    }

    /// A rank runs. False for news that is none, or that is not this node's to report.
    pub(crate) fn on_started(&mut self, node: u32, rank: Rank, pid: u32, programs: &Programs) -> bool {
        let Some(known) = self.rank_of(node, rank.0) else { return false };
        let new = known.pid.is_none();
        known.pid = Some(pid);
        if let Some((_, program)) = programs.first() {
            known.program.clone_from(program);
        }
        new
    }

    /// A rank has ended. False for news that is none, or that is not this node's to report.
    pub(crate) fn on_exited(&mut self, node: u32, end: RankEnd) -> bool {
        let Some(rank) = self.rank_of(node, end.rank.0) else { return false };
        if std::mem::replace(&mut rank.end_source, EndSource::Event) == EndSource::Event {
            return false;
        }
        rank.end = Some(end);
        self.nodes[node as usize].waiting.remove(&end.rank.0);
        true
    }

    /// A node's part is over.
    pub(crate) fn on_report(&mut self, node: u32, exits: &[(Rank, RankExit)]) {
        for &(rank, exit) in exits {
            self.on_exited(node, RankEnd { rank, exit, phase: None });
        }
        self.leave(node, NodePhase::Ended);
    }

    /// A node is lost. Returns whether that ends the launch.
    pub(crate) fn on_lost(&mut self, node: u32, reason: &str) -> bool {
        if !self.phase(node).is_live() {
            return false;
        }
        self.leave(node, NodePhase::Lost);
        let host = self.nodes[node as usize].host.clone();
        self.fail(Cause { host, kind: CauseKind::NodeLost { reason: reason.to_owned() } })
    }

    fn leave(&mut self, node: u32, phase: NodePhase) {
        let node = &mut self.nodes[node as usize];
        node.phase = phase;
        node.waiting.clear();
    }

    /// A node reports a cause for which it ends its part.
    pub(crate) fn on_cause(&mut self, node: u32, cause: Cause, now: Instant) -> Reported {
        self.cause.report(node, cause, now)
    }

    /// Something ends the launch that follows from nothing else. False if something else has before.
    pub(crate) fn fail(&mut self, cause: Cause) -> bool {
        self.cause.fail(cause)
    }

    /// More is known of the cause that counts.
    pub(crate) fn complete_cause(&mut self, cause: Cause) {
        self.cause = FirstCause::Counts(cause);
    }

    /// Takes over what a node answered of its ranks; after a restart of the API server, nothing else tells that they run.
    pub(crate) fn on_progress(&mut self, node: u32, ranks: &[RankProgress], programs: &Programs) {
        for progress in ranks {
            if let Some(rank) = self.rank_of(node, progress.rank.0) {
                rank.pid = rank.pid.or(progress.pid);
                rank.initialized |= matches!(progress.phase, Some(Phase::Open | Phase::Finalized));
                let end = progress.exit.map(|exit| RankEnd { rank: progress.rank, exit, phase: progress.phase });
                rank.end = rank.end.or(end);
            }
        }
        for (rank, program) in programs {
            if let Some(rank) = self.rank_of(node, rank.0) {
                rank.program.clone_from(program);
            }
        }
    }

    /// Where a node is in its part.
    pub(crate) fn phase(&self, node: u32) -> NodePhase {
        self.nodes[node as usize].phase
    }

    /// The name of a node.
    pub(crate) fn host(&self, node: u32) -> &str {
        &self.nodes[node as usize].host
    }

    /// The number of all nodes.
    pub(crate) fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// The nodes from which more is to be expected.
    pub(crate) fn live(&self) -> impl Iterator<Item = u32> {
        (0..).zip(&self.nodes).filter(|(_, node)| node.phase.is_live()).map(|(index, _)| index)
    }

    /// The nodes in this phase.
    pub(crate) fn nodes_in(&self, phase: NodePhase) -> Vec<u32> {
        (0..).zip(&self.nodes).filter(|(_, node)| node.phase == phase).map(|(index, _)| index).collect()
    }

    /// Returns true if every rank of every job has ended, so that nodes without ranks have nothing to wait for.
    pub(crate) fn all_exited(&self) -> bool {
        self.ranks.iter().all(|rank| rank.end.is_some() || rank.void)
    }

    /// Why the launch ends early or failed, if it does.
    pub(crate) fn cause(&self) -> Option<&Cause> {
        self.cause.get()
    }

    /// Ends of all ranks that are known to have ended, in the order of their numbers.
    pub(crate) fn ends(&self) -> Vec<RankEnd> {
        self.ranks.iter().filter_map(|rank| rank.end).collect()
    }

    /// The number of ranks of all jobs.
    pub(crate) fn size(&self) -> u32 {
        self.ranks.len() as u32
    }

    /// The number of ranks that run on each node at present.
    pub(crate) fn load(&self) -> Vec<u32> {
        let mut load = vec![0; self.nodes.len()];
        for rank in self.ranks.iter().filter(|rank| rank.end.is_none() && !rank.void) {
            load[rank.node as usize] += 1;
        }
        load
    }

    fn launched(&self) -> &[RankState] {
        let size = self.jobs.first().map_or(0, ExactSizeIterator::len);
        &self.ranks[..size]
    }

    /// The number of nodes that have started all their ranks of the launched job, and of its ranks that have started.
    pub(crate) fn starts(&self) -> (u32, u32) {
        let mut missing = vec![0_u32; self.nodes.len()];
        let mut started = 0;
        for rank in self.launched() {
            match rank.pid {
                Some(_) => started += 1,
                None => missing[rank.node as usize] += 1,
            }
        }
        let complete = |(node, &missing): (&Node, &u32)| missing == 0 && node.phase != NodePhase::Awaited;
        (self.nodes.iter().zip(&missing).filter(|&pair| complete(pair)).count() as u32, started)
    }

    /// The number of ranks of the launched job that are known to have spoken to their PMI server.
    pub(crate) fn initialized(&self) -> u32 {
        self.launched().iter().filter(|rank| rank.initialized).count() as u32
    }

    /// Returns the progress of a node's ranks as it is known without asking, with the program of each.
    pub(crate) fn known(&self, node: u32) -> impl Iterator<Item = (RankProgress, Bytes)> {
        let own = (0..).zip(&self.ranks).filter(move |(_, rank)| rank.node == node && !rank.void);
        own.map(|(number, rank)| {
            let known = RankProgress {
                rank: Rank(number),
                pid: rank.pid,
                phase: rank.end.and_then(|end| end.phase),
                last_command: None,
                waiting: false,
                exit: rank.end.map(|end| end.exit),
            };
            (known, rank.program.clone())
        })
    }

    /// Returns true if a rank with this number runs, or ran, on the node.
    pub(crate) fn owns(&self, node: u32, rank: Rank) -> bool {
        self.ranks.get(rank.0 as usize).is_some_and(|known| known.node == node)
    }

    fn rank_of(&mut self, node: u32, rank: u32) -> Option<&mut RankState> {
        self.ranks.get_mut(rank as usize).filter(|known| known.node == node)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Two ranks on each of two nodes.
    pub(in super::super) fn state() -> LaunchState {
        LaunchState::new(&["a".to_owned(), "b".to_owned()], &Placement::block(&[2, 2]))
    }

    pub(in super::super) fn end(rank: u32, phase: Option<Phase>) -> RankEnd {
        RankEnd { rank: Rank(rank), exit: RankExit::Code(0), phase }
    }

    #[test]
    fn the_first_cause_counts() {
        let mut state = state();
        assert!(state.on_lost(1, "3 heartbeats were missed"));
        let fence = CauseKind::Fence { reason: "node b".to_owned() };
        assert!(!state.fail(Cause { host: "a".to_owned(), kind: fence }));
        let cause = state.cause().unwrap();
        assert_eq!((cause.host.as_str(), state.phase(1)), ("b", NodePhase::Lost));
        assert_eq!(state.live().collect::<Vec<_>>(), [0]);
        state.on_report(0, &[]);
        assert_eq!(state.live().next(), None);
    }

    #[test]
    fn a_node_reports_its_own_ranks_only() {
        let mut state = state();
        assert!(!state.on_exited(0, end(2, Some(Phase::Silent))));
        assert!(!state.on_exited(0, end(99, Some(Phase::Silent))));
        assert!(state.on_exited(1, end(2, Some(Phase::Finalized))));
        assert!(!state.on_exited(1, end(2, Some(Phase::Silent))), "reported twice");
        state.on_waiting(0, &[Rank(0), Rank(3), Rank(77)]);
        assert_eq!(state.waiting(), [Rank(0)]);
    }

    #[test]
    fn spawned_ranks_are_counted_on() {
        let mut state = state();
        assert_eq!(state.add_job(&Placement::block(&[0, 3])), 4);
        assert!(state.on_started(1, Rank(6), 7, &Programs::new()));
        assert_eq!((state.size(), state.load()), (7, vec![2, 5]));
        assert!(state.on_exited(1, end(6, Some(Phase::Silent))));
        state.on_waiting(0, &[Rank(0)]);
        assert_eq!(state.desertion(), None, "it is not of their job");
        assert_eq!(state.ends().len(), 1);
    }
}
