//! State of a launch's nodes and ranks: the phase of each node, and the cause of the launch's end. Pure. Reports of a node are accepted only for
//! its own ranks.
//!
//! ```text
//! a node:  Awaited ──stream──> Reporting ──report──> Ended
//!             └───────────┬───────┘
//!                         └──no report for too long──> Lost
//! ```
//! A node checks its own ranks. Only this server detects that a rank has left while ranks of other nodes wait for it
//! ([`desertion`](super::desertion)).

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use lattice_session::cause::{Cause, CauseKind, FirstCause, RankExit};
use lattice_session::event::{Usage, UsageRange};
use pmi_core::deaths::Death;
use pmi_core::ids::{NodeIndex, Rank};
use pmi_core::job::Placement;

use super::checkpoint::Progressed;
use super::desertion::{Deserter, Desertion, FenceWaits};
use super::event::{Departure, RankEnd, StartProgress};
use super::progress_query::Answer;
use super::ranks::Ranks;

/// All ranks and nodes of one launch.
#[derive(Debug)]
pub(crate) struct LaunchState {
    nodes: Vec<Node>,
    pub(super) ranks: Ranks,
    waits: FenceWaits,
    pub(super) cause: FirstCause,
    /// Resources that ranks used, summed over the nodes that have ended their part; `None` if no node has reported any.
    usage: Option<Usage>,
    /// Of these nodes, the ones with the lowest and the highest usage.
    by_node: Option<UsageRange>,
}

#[derive(Debug)]
struct Node {
    host: String,
    phase: NodePhase,
    /// Reason for the loss of the node.
    loss: String,
}

/// Phase of a node's part of the launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodePhase {
    /// The node was asked to start the launch, and has not begun to report.
    Awaited,
    /// The node reports.
    Reporting,
    /// The node has reported the end of its part.
    Ended,
    /// The node was lost.
    Lost,
}

impl NodePhase {
    /// Returns true if more reports are expected from the node.
    pub(crate) fn is_live(self) -> bool {
        matches!(self, Self::Awaited | Self::Reporting)
    }
}

impl LaunchState {
    /// A launch on `hosts` with this placement of its job.
    pub(crate) fn new(hosts: &[String], placement: &Placement) -> Self {
        let node = |host: &String| Node { host: host.clone(), phase: NodePhase::Awaited, loss: String::new() };
        Self {
            nodes: hosts.iter().map(node).collect(),
            ranks: Ranks::new(placement),
            waits: FenceWaits::new(hosts.len()),
            cause: FirstCause::default(),
            usage: None,
            by_node: None,
        }
    }

    /// Progress of the launch without its spawned jobs, for the next server, which restores it with [`Self::resume`].
    pub(crate) fn progressed(&self, last_event: u64) -> Progressed {
        Progressed {
            ended: self.nodes_in(NodePhase::Ended),
            lost: self.nodes_in(NodePhase::Lost),
            has_lost_a_node: false,
            ends: self.ranks.ends(),
            deaths: self.ranks.deaths(),
            cause: self.cause().cloned(),
            usage: self.usage,
            by_node: self.by_node,
            ranks_shown: self.ranks.size(),
            forgotten: self.ranks.forgotten().clone(),
            last_event,
            ..Progressed::default()
        }
    }

    /// Restores the state that another server recorded. The ranks of spawned jobs must have been added.
    pub(crate) fn resume(&mut self, known: &Progressed) {
        self.ranks.resume_forgotten(&known.forgotten);
        self.ranks.resume(&known.ends, &known.deaths);
        for (nodes, phase) in [(&known.ended, NodePhase::Ended), (&known.lost, NodePhase::Lost)] {
            for &node in nodes {
                if let Some(node) = self.nodes.get_mut(node.index()) {
                    node.phase = phase;
                    "it was lost to the API server before this one".clone_into(&mut node.loss);
                }
            }
        }
        self.cause = known.cause.clone().map_or(FirstCause::None, FirstCause::Counts);
        (self.usage, self.by_node) = (known.usage, known.by_node);
    }

    /// The job with these ranks did not start on all its nodes.
    pub(crate) fn void_job(&mut self, ranks: &Range<u32>) {
        self.ranks.void_job(ranks);
        self.waits.void_job(ranks);
    }

    /// Removes the ranks of a spawned job that is over. `first` is its first rank.
    pub(crate) fn forget_job(&mut self, first: u32) {
        let ranks = self.ranks.forget_job(first);
        self.waits.void_job(&ranks);
    }

    /// A node opens its first report stream, or a new one.
    pub(crate) fn on_stream(&mut self, node: NodeIndex) {
        let phase = &mut self.nodes[node.index()].phase;
        if *phase == NodePhase::Awaited {
            *phase = NodePhase::Reporting;
        }
    }

    /// A rank has ended. Returns false if the report is a repetition, or the rank is not on this node.
    pub(crate) fn on_exited(&mut self, node: NodeIndex, end: RankEnd) -> bool {
        let is_news = self.ranks.on_exited(node, end);
        if is_news {
            self.waits.on_exited(node, end.rank);
        }
        is_news
    }

    /// Ranks of a node wait in a fence of all ranks of their job, and no rank of the same node is missing. The report does not cover other jobs.
    pub(crate) fn on_waiting(&mut self, node: NodeIndex, ranks: &[Rank]) {
        self.waits.on_waiting(node, ranks, &self.ranks);
    }

    /// A node has ended its part.
    pub(crate) fn on_report(&mut self, node: NodeIndex, exits: &[(Rank, RankExit)], usage: Option<Usage>) {
        if let Some(usage) = usage {
            self.usage = Some(self.usage.unwrap_or_default().plus(usage));
            self.by_node = Some(UsageRange::with(self.by_node, node, usage));
        }
        for &(rank, exit) in exits {
            self.on_exited(node, RankEnd { rank, exit, reached: None });
        }
        self.leave(node, NodePhase::Ended);
    }

    /// A node is lost. Returns true if that ends the launch.
    pub(crate) fn on_lost(&mut self, node: NodeIndex, reason: &str) -> bool {
        if !self.leave_lost(node, reason) {
            return false;
        }
        let host = self.host(node).to_owned();
        self.cause.fail(Cause { host, kind: CauseKind::NodeLost { reason: reason.to_owned() } })
    }

    /// A node is lost to a launch that tolerates the loss. Returns the deaths of its ranks.
    pub(crate) fn on_lost_and_borne(&mut self, node: NodeIndex, reason: &str) -> Vec<Death> {
        if self.leave_lost(node, reason) { self.ranks.on_lost(node) } else { Vec::new() }
    }

    /// Returns false for a node that has ended its part.
    fn leave_lost(&mut self, node: NodeIndex, reason: &str) -> bool {
        let is_live = self.phase(node).is_live();
        if is_live {
            self.leave(node, NodePhase::Lost);
            reason.clone_into(&mut self.nodes[node.index()].loss);
        }
        is_live
    }

    /// The nodes that were lost, with the reasons.
    pub(crate) fn losses(&self) -> Vec<(String, String)> {
        let lost = self.nodes.iter().filter(|node| node.phase == NodePhase::Lost);
        lost.map(|node| (node.host.clone(), node.loss.clone())).collect()
    }

    fn leave(&mut self, node: NodeIndex, phase: NodePhase) {
        self.nodes[node.index()].phase = phase;
        self.waits.on_node_gone(node);
    }

    /// The phase of a node's part.
    pub(crate) fn phase(&self, node: NodeIndex) -> NodePhase {
        self.nodes[node.index()].phase
    }

    /// The name of a node.
    pub(crate) fn host(&self, node: NodeIndex) -> &str {
        &self.nodes[node.index()].host
    }

    /// The number of all nodes.
    pub(crate) fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// All nodes.
    pub(crate) fn all(&self) -> impl Iterator<Item = NodeIndex> + use<> {
        (0..self.nodes.len() as u32).map(NodeIndex)
    }

    /// The nodes from which more reports are expected.
    pub(crate) fn live(&self) -> impl Iterator<Item = NodeIndex> {
        self.all().zip(&self.nodes).filter(|(_, node)| node.phase.is_live()).map(|(index, _)| index)
    }

    /// The nodes in this phase.
    pub(crate) fn nodes_in(&self, phase: NodePhase) -> Vec<NodeIndex> {
        self.all().zip(&self.nodes).filter(|(_, node)| node.phase == phase).map(|(index, _)| index).collect()
    }

    /// The cause that counts; `None` if the launch has none.
    pub(crate) fn cause(&self) -> Option<&Cause> {
        self.cause.get()
    }

    /// Resources that ranks used, summed over the nodes that have ended their part.
    pub(crate) fn usage(&self) -> Option<Usage> {
        self.usage
    }

    /// Of these nodes, the ones with the lowest and the highest usage.
    pub(crate) fn usage_by_node(&self) -> Option<UsageRange> {
        self.by_node
    }

    /// Progress of the launched job's start.
    pub(crate) fn start_progress(&self) -> StartProgress {
        let starts = self.ranks.starts(self.nodes.len());
        let complete = |(node, &missing): (&Node, &u32)| missing == 0 && node.phase != NodePhase::Awaited;
        StartProgress {
            nodes: self.nodes.len() as u32,
            nodes_started: self.nodes.iter().zip(&starts.missing).filter(|&pair| complete(pair)).count() as u32,
            ranks: self.ranks.launched_size(),
            ranks_started: starts.started,
            ranks_initialized: starts.initialized,
        }
    }

    /// Returns true if ranks wait in a fence and the launch has no cause yet.
    pub(crate) fn does_anybody_wait(&self) -> bool {
        self.cause().is_none() && !self.waits.is_empty()
    }

    /// Returns the desertion of a rank that has left while ranks of its job wait for it, if there is one.
    pub(crate) fn desertion(&self) -> Option<Desertion> {
        if !self.does_anybody_wait() {
            return None;
        }
        let silent = self.waits.deserter(Departure::Silent, |_| true, &self.ranks);
        let certain = silent.map(|Deserter { end, waiting }| {
            let kind = CauseKind::LeftBeforeInit { rank: end.rank, exit: end.exit, others: waiting };
            Desertion::Certain(self.cause_at(end.rank, kind))
        });
        let is_suspected = || self.waits.is_any_missed(Departure::Left, &self.ranks);
        certain.or_else(|| is_suspected().then_some(Desertion::Suspected))
    }

    /// Nodes have answered which of their ranks wait.
    pub(crate) fn on_waits(&mut self, answers: &[Option<Arc<Answer>>]) {
        for (index, answer) in self.all().zip(answers) {
            if let Some(answer) = answer.as_ref().filter(|_| self.phase(index).is_live()) {
                self.waits.on_answer(index, &answer.ranks, &self.ranks);
            }
        }
    }

    /// The cause of a suspected desertion, after the answers of nodes about waiting ranks.
    pub(crate) fn confirm(&mut self, answers: &[Option<Arc<Answer>>]) -> Option<Cause> {
        self.on_waits(answers);
        if !self.does_anybody_wait() {
            return None;
        }
        let has_answered = |node: NodeIndex| matches!(answers.get(node.index()), Some(Some(_)));
        let Deserter { end, waiting } = self.waits.deserter(Departure::Left, has_answered, &self.ranks)?;
        let kind = match end.exit {
            exit if exit.is_success() => CauseKind::LeftFence { rank: end.rank, waiting },
            exit => CauseKind::Failed { rank: end.rank, exit },
        };
        Some(self.cause_at(end.rank, kind))
    }

    /// The first failure of a rank on this node, as a cause.
    pub(super) fn first_failure_on(&self, host: &str) -> Option<Cause> {
        let is_here = |rank| self.ranks.node_of(rank).is_some_and(|node| self.host(node) == host);
        let (rank, exit) = self.ranks.failures().into_iter().find(|&(rank, _)| is_here(rank))?;
        Some(Cause { host: host.to_owned(), kind: CauseKind::Failed { rank, exit } })
    }

    pub(super) fn cause_at(&self, rank: Rank, kind: CauseKind) -> Cause {
        let host = self.ranks.node_of(rank).map_or("", |node| self.host(node));
        Cause { host: host.to_owned(), kind }
    }

    /// The nodes of these ranks, as a hostlist. Ranks of removed jobs are skipped.
    pub(super) fn hosts_of(&self, ranks: impl Iterator<Item = Rank>) -> String {
        let nodes: BTreeSet<NodeIndex> = ranks.filter_map(|rank| self.ranks.node_of(rank)).collect();
        hostlist::fold(&nodes.into_iter().map(|node| self.host(node)).collect::<Vec<_>>())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use pmi_core::Phase;

    use super::super::event::Programs;
    use super::super::ranks::tests::end;
    use super::*;

    /// Two ranks on each of two nodes.
    pub(in super::super) fn state() -> LaunchState {
        LaunchState::new(&["a".to_owned(), "b".to_owned()], &Placement::block(&[2, 2]))
    }

    #[test]
    fn the_first_cause_counts() {
        let mut state = state();
        assert!(state.on_lost(NodeIndex(1), "3 heartbeats were missed"));
        let fence = CauseKind::Fence { reason: "node b".to_owned() };
        assert!(!state.cause.fail(Cause { host: "a".to_owned(), kind: fence }));
        let cause = state.cause().unwrap();
        assert_eq!((cause.host.as_str(), state.phase(NodeIndex(1))), ("b", NodePhase::Lost));
        assert_eq!(state.live().collect::<Vec<_>>(), [NodeIndex(0)]);
        state.on_report(NodeIndex(0), &[], None);
        assert_eq!(state.live().next(), None);
    }

    #[test]
    fn a_node_has_started_when_it_reports_and_all_its_ranks_run() {
        let mut state = state();
        let started = |state: &LaunchState| {
            let StartProgress { nodes, nodes_started, ranks, ranks_started, .. } = state.start_progress();
            assert_eq!((nodes, ranks), (2, 4));
            (nodes_started, ranks_started)
        };
        [0, 1]
            .into_iter()
            .for_each(|rank| assert!(state.ranks.on_started(NodeIndex(0), Rank(rank), 7, &Programs::new())));
        assert_eq!(started(&state), (0, 2), "its stream is not there");
        state.on_stream(NodeIndex(0));
        state.on_stream(NodeIndex(1));
        assert_eq!(started(&state), (1, 2));
    }

    #[test]
    fn what_ranks_used_adds_up_over_nodes_and_servers() {
        let used = |seconds, peak_memory| {
            let time = Duration::from_secs(seconds);
            Some(Usage { user: time, system: time / 2, peak_memory })
        };
        let mut state = state();
        state.on_report(NodeIndex(0), &[], used(2, 100));
        let mut resumed = self::state();
        resumed.resume(&state.progressed(0));
        assert_eq!(resumed.usage(), used(2, 100));
        resumed.on_report(NodeIndex(1), &[], used(4, 70));
        assert_eq!(resumed.usage(), used(6, 100));
        let UsageRange { least, most } = resumed.usage_by_node().unwrap();
        assert_eq!((least, most), ((NodeIndex(0), used(2, 100).unwrap()), (NodeIndex(1), used(4, 70).unwrap())));
    }

    #[test]
    fn what_was_found_out_is_taken_over_by_another_server() {
        let mut state = state();
        state.on_stream(NodeIndex(0));
        state.on_report(NodeIndex(0), &[(Rank(0), RankExit::Code(0)), (Rank(1), RankExit::Code(3))], None);
        assert!(state.on_exited(NodeIndex(1), end(2, Some(Phase::Finalized))));
        assert!(state.on_lost(NodeIndex(1), "no heartbeat came"));
        let progressed = state.progressed(0);
        let mut resumed = self::state();
        resumed.resume(&progressed);
        assert_eq!(resumed.progressed(0), progressed);
        assert_eq!((resumed.phase(NodeIndex(0)), resumed.phase(NodeIndex(1))), (NodePhase::Ended, NodePhase::Lost));
        assert!(!resumed.on_exited(NodeIndex(1), end(2, Some(Phase::Finalized))), "it is no news");
    }
}
