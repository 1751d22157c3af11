//! What is known of a launch's nodes and ranks, and what follows from it: whether it goes on, why it does not, and whether it
//! is over. Pure; what comes from nodes is believed only where it concerns ranks of theirs.
//!
//! ```text
//! a node:  Awaited ──stream──> Reporting ──report──> Over
//!             └───────────┬───────┘
//!                         └──no word for too long──> Lost
//! ```
//! The first cause counts ([`FirstCause`]). A node judges its own ranks; a rank that has left while others wait for it on other
//! nodes is seen only here ([`desertion`]).

pub(super) mod desertion;

use std::collections::BTreeSet;
use std::ops::Range;

use bytes::Bytes;
use pmi_core::ids::NodeIndex;
use pmi_core::job::Placement;
use pmi_transport::proto::v1::cause::Kind;
use pmi_transport::proto::v1::{Cause, Progress, RankExitStatus, RankPhase, RankProgress, RankStarted, SessionReport};

use super::first_cause::{FirstCause, Heard};
use crate::store::Course;

/// All ranks and nodes of one launch.
#[derive(Debug)]
pub(crate) struct Judge {
    nodes: Vec<Node>,
    /// By the number under which a rank is shown; those of spawned jobs follow those of the launched one.
    ranks: Vec<Rank>,
    /// The ranks of each job, the launched one first; those of a job that did not start are empty.
    jobs: Vec<Range<u32>>,
    cause: FirstCause,
}

#[derive(Debug)]
struct Node {
    host: String,
    standing: Standing,
    /// Its ranks that were said to wait in a fence of all ranks.
    waiting: BTreeSet<u32>,
}

/// Where a node is in its part of the launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It was asked, and has not begun to report.
    Awaited,
    /// It reports.
    Reporting,
    /// It has said how its part ended.
    Over,
    /// It was lost.
    Lost,
}

impl Standing {
    /// Whether more is to be expected from the node.
    pub(crate) fn is_live(self) -> bool {
        matches!(self, Self::Awaited | Self::Reporting)
    }
}

#[derive(Clone, Debug)]
struct Rank {
    node: u32,
    pid: Option<u32>,
    program: Bytes,
    /// It was seen to have spoken to its PMI server.
    initialized: bool,
    exit: Option<RankExitStatus>,
    /// Its exit came as an event of its own; before that, the answer to a question may have told of it.
    exit_came: bool,
    /// Its job did not start on all nodes: nothing is expected of it, whether it ever ran or not.
    void: bool,
}

impl Judge {
    /// A launch on `hosts`, whose job is placed like this.
    pub(crate) fn new(hosts: &[String], placement: &Placement) -> Self {
        let node = |host: &String| Node { host: host.clone(), standing: Standing::Awaited, waiting: BTreeSet::new() };
        let mut judge = Self {
            nodes: hosts.iter().map(node).collect(),
            ranks: Vec::new(),
            jobs: Vec::new(),
            cause: FirstCause::default(),
        };
        judge.add(placement);
        judge
    }

    /// Takes over what another server had found out.
    pub(crate) fn resume(&mut self, course: &Course) {
        for exit in &course.exits {
            if let Some(rank) = self.ranks.get_mut(exit.rank as usize) {
                rank.exit = Some(*exit);
                rank.exit_came = true;
            }
        }
        for (nodes, standing) in [(&course.over, Standing::Over), (&course.lost, Standing::Lost)] {
            for &node in nodes {
                if let Some(node) = self.nodes.get_mut(node as usize) {
                    node.standing = standing;
                }
            }
        }
        self.cause = course.cause.clone().map_or(FirstCause::None, FirstCause::Counts);
    }

    /// The ranks of one more job. Returns the number under which its first rank is shown.
    pub(crate) fn add(&mut self, placement: &Placement) -> u32 {
        let first = self.ranks.len() as u32;
        for block in placement.blocks() {
            for node in block.first_node.0..block.first_node.0 + block.nodes {
                let rank = Rank {
                    node,
                    pid: None,
                    program: Bytes::new(),
                    initialized: false,
                    exit: None,
                    exit_came: false,
                    void: false,
                };
                self.ranks.extend(std::iter::repeat_n(rank, block.ranks_per_node as usize));
            }
        }
        self.jobs.push(first..self.ranks.len() as u32);
        first
    }

    /// The number of ranks of the launched job.
    fn launched(&self) -> usize {
        self.jobs.first().map_or(0, ExactSizeIterator::len)
    }

    /// The job whose first rank has this number, and which has so many, did not start on all its nodes.
    pub(crate) fn void(&mut self, first: u32, size: u32) {
        self.jobs.iter_mut().filter(|job| job.start == first).for_each(|job| job.end = first);
        self.ranks.iter_mut().skip(first as usize).take(size as usize).for_each(|rank| rank.void = true);
    }

    /// A node begins to report, or does so again.
    pub(crate) fn reports(&mut self, node: u32) {
        let standing = &mut self.nodes[node as usize].standing;
        if *standing == Standing::Awaited {
            *standing = Standing::Reporting;
        }
    }

    /// A rank runs. False for news that is none, or that is not this node's to tell.
    pub(crate) fn started(&mut self, node: u32, started: &RankStarted) -> bool {
        let Some(rank) = self.rank_of(node, started.rank) else { return false };
        let new = rank.pid.is_none();
        rank.pid = Some(started.pid);
        rank.program.clone_from(&started.program);
        new
    }

    /// A rank has ended. False for news that is none, or that is not this node's to tell.
    pub(crate) fn exited(&mut self, node: u32, exit: &RankExitStatus) -> bool {
        let Some(rank) = self.rank_of(node, exit.rank) else { return false };
        if std::mem::replace(&mut rank.exit_came, true) {
            return false;
        }
        rank.exit = Some(*exit);
        self.nodes[node as usize].waiting.remove(&exit.rank);
        true
    }

    /// A node's part is over.
    pub(crate) fn over(&mut self, node: u32, report: &SessionReport) {
        for exit in &report.exits {
            self.exited(node, exit);
        }
        self.leave(node, Standing::Over);
    }

    /// A node is lost. Returns whether that ends the launch.
    pub(crate) fn lost(&mut self, node: u32, reason: &str) -> bool {
        if !self.standing(node).is_live() {
            return false;
        }
        self.leave(node, Standing::Lost);
        let host = self.nodes[node as usize].host.clone();
        self.fail(Cause { host, kind: Some(Kind::NodeLost(reason.to_owned())) })
    }

    fn leave(&mut self, node: u32, standing: Standing) {
        let node = &mut self.nodes[node as usize];
        node.standing = standing;
        node.waiting.clear();
    }

    /// A node says what ends the launch there.
    pub(crate) fn hear(&mut self, node: u32, cause: Cause) -> Heard {
        self.cause.hear(node, cause)
    }

    /// Something ends the launch that follows from nothing else. False if something else has before.
    pub(crate) fn fail(&mut self, cause: Cause) -> bool {
        self.cause.fail(cause)
    }

    /// No cause is waited for that a held one could follow from. Returns the node whose cause counts from now on.
    pub(crate) fn settle(&mut self) -> Option<u32> {
        self.cause.settle()
    }

    /// More is known of the cause that counts.
    pub(crate) fn complete_cause(&mut self, cause: Cause) {
        self.cause = FirstCause::Counts(cause);
    }

    /// Where a node is in its part.
    pub(crate) fn standing(&self, node: u32) -> Standing {
        self.nodes[node as usize].standing
    }

    /// The name of a node.
    pub(crate) fn host(&self, node: u32) -> &str {
        &self.nodes[node as usize].host
    }

    /// The nodes from which more is to be expected.
    pub(crate) fn live(&self) -> impl Iterator<Item = u32> {
        (0..).zip(&self.nodes).filter(|(_, node)| node.standing.is_live()).map(|(index, _)| index)
    }

    /// The nodes that are at this point.
    pub(crate) fn at(&self, standing: Standing) -> Vec<u32> {
        (0..).zip(&self.nodes).filter(|(_, node)| node.standing == standing).map(|(index, _)| index).collect()
    }

    /// Whether nothing more is to be expected from any node.
    pub(crate) fn is_over(&self) -> bool {
        self.live().next().is_none()
    }

    /// Whether every rank of every job has ended, so that nodes without ranks have nothing to wait for.
    pub(crate) fn all_exited(&self) -> bool {
        self.ranks.iter().all(|rank| rank.exit.is_some() || rank.void)
    }

    /// Why the launch ends early or failed, if it does.
    pub(crate) fn cause(&self) -> Option<&Cause> {
        self.cause.get()
    }

    /// How every rank that is known to have ended did so, in the order of their numbers.
    pub(crate) fn exits(&self) -> Vec<RankExitStatus> {
        self.ranks.iter().filter_map(|rank| rank.exit).collect()
    }

    /// The number of ranks of all jobs.
    pub(crate) fn size(&self) -> u32 {
        self.ranks.len() as u32
    }

    /// How many ranks run on each node at present.
    pub(crate) fn load(&self) -> Vec<u32> {
        let mut load = vec![0; self.nodes.len()];
        for rank in self.ranks.iter().filter(|rank| rank.exit.is_none() && !rank.void) {
            load[rank.node as usize] += 1;
        }
        load
    }

    /// How many nodes have started all their ranks of the launched job, and how many of its ranks have started.
    pub(crate) fn starts(&self) -> (u32, u32) {
        let mut missing = vec![0_u32; self.nodes.len()];
        let mut started = 0;
        for rank in self.ranks.iter().take(self.launched()) {
            match rank.pid {
                Some(_) => started += 1,
                None => missing[rank.node as usize] += 1,
            }
        }
        let complete = |(node, &missing): (&Node, &u32)| missing == 0 && node.standing != Standing::Awaited;
        (self.nodes.iter().zip(&missing).filter(|&pair| complete(pair)).count() as u32, started)
    }

    /// Takes over what a node says of its ranks; after a restart of the API server, nothing else tells that they run.
    pub(crate) fn learn(&mut self, node: u32, progress: &Progress) {
        for told in &progress.ranks {
            if let Some(rank) = self.rank_of(node, told.rank) {
                rank.pid = rank.pid.or((told.pid != 0).then_some(told.pid));
                if !told.program.is_empty() {
                    rank.program.clone_from(&told.program);
                }
                rank.initialized |= matches!(told.phase(), RankPhase::Initialized | RankPhase::Finalized);
                rank.exit = rank.exit.or(told.exit);
            }
        }
    }

    /// What is known of a node's ranks without asking it, with the program of each.
    pub(crate) fn known(&self, node: NodeIndex) -> (Vec<RankProgress>, Vec<Bytes>) {
        let mine = (0..).zip(&self.ranks).filter(|(_, rank)| rank.node == node.0 && !rank.void);
        let progress = |(number, rank): (u32, &Rank)| {
            let known = RankProgress {
                rank: number,
                pid: rank.pid.unwrap_or(0),
                phase: rank.exit.map_or(0, |exit| exit.phase),
                exit: rank.exit,
                ..Default::default()
            };
            (known, rank.program.clone())
        };
        mine.map(progress).unzip()
    }

    /// Whether a rank with this number runs, or ran, on the node.
    pub(crate) fn owns(&self, node: u32, rank: u32) -> bool {
        self.ranks.get(rank as usize).is_some_and(|known| known.node == node)
    }

    /// How many ranks of the launched job are known to have spoken to their PMI server.
    pub(crate) fn initialized(&self) -> u32 {
        self.ranks.iter().take(self.launched()).filter(|rank| rank.initialized).count() as u32
    }

    fn rank_of(&mut self, node: u32, rank: u32) -> Option<&mut Rank> {
        self.ranks.get_mut(rank as usize).filter(|known| known.node == node)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Two ranks on each of two nodes.
    pub(super) fn judge() -> Judge {
        Judge::new(&["a".to_owned(), "b".to_owned()], &Placement::block(&[2, 2]))
    }

    pub(super) fn exit(rank: u32, phase: RankPhase) -> RankExitStatus {
        RankExitStatus { rank, phase: phase.into(), ..Default::default() }
    }

    #[test]
    fn the_first_cause_counts() {
        let mut judge = judge();
        assert!(judge.lost(1, "3 heartbeats were missed"));
        assert!(!judge.fail(Cause { host: "a".to_owned(), kind: Some(Kind::Fence("node b".to_owned())) }));
        let cause = judge.cause().unwrap();
        assert_eq!((cause.host.as_str(), judge.standing(1)), ("b", Standing::Lost));
        assert!(!judge.is_over());
        judge.over(0, &SessionReport::default());
        assert!(judge.is_over());
    }

    #[test]
    fn a_node_speaks_for_its_own_ranks_only() {
        let mut judge = judge();
        assert!(!judge.exited(0, &exit(2, RankPhase::Silent)));
        assert!(!judge.exited(0, &exit(99, RankPhase::Silent)));
        assert!(judge.exited(1, &exit(2, RankPhase::Finalized)));
        assert!(!judge.exited(1, &exit(2, RankPhase::Silent)), "told twice");
        judge.waits(0, &[0, 3, 77]);
        assert_eq!(judge.waiting(), [0]);
    }

    #[test]
    fn spawned_ranks_are_counted_on() {
        let mut judge = judge();
        assert_eq!(judge.add(&Placement::block(&[0, 3])), 4);
        assert!(judge.started(1, &RankStarted { rank: 6, pid: 7, ..Default::default() }));
        assert_eq!((judge.size(), judge.load()), (7, vec![2, 5]));
        assert!(judge.exited(1, &exit(6, RankPhase::Silent)));
        judge.waits(0, &[0]);
        assert_eq!(judge.desertion(), None, "it is not of their job");
        assert_eq!(judge.exits().len(), 1);
    }
}
