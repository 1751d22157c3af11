//! A rank that has left while others wait for it in a fence, seen across nodes: each node judges only its own ranks.

use std::collections::BTreeSet;

use pmi_transport::proto::v1::cause::Kind;
use pmi_transport::proto::v1::{Cause, LeftBeforeInit, LeftFence, Progress, RankExitStatus, RankPhase};

use super::Judge;

/// A rank has left, others wait for it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Desertion {
    /// Certain: it never spoke to its PMI server, so no fence of all ranks can have been complete.
    Certain(Cause),
    /// It went through MPI_Finalize; those who wait may be about to leave the last fence that it took part in. Certain if they
    /// still wait when they are asked again.
    Suspected,
}

impl Judge {
    /// Ranks of a node wait in a fence of all ranks, and miss none of their own node.
    pub(crate) fn waits(&mut self, node: u32, ranks: &[u32]) {
        let mine = |rank: &&u32| self.ranks.get(**rank as usize).is_some_and(|known| known.node == node);
        let waiting: BTreeSet<u32> = ranks.iter().filter(mine).copied().collect();
        self.nodes[node as usize].waiting = waiting;
    }

    /// Whether a rank of the launched job has left while others wait for it.
    pub(crate) fn desertion(&self) -> Option<Desertion> {
        if self.cause.get().is_some() || self.nodes.iter().all(|node| node.waiting.is_empty()) {
            return None;
        }
        if let Some((rank, exit)) = self.first_gone(RankPhase::Silent) {
            let left = LeftBeforeInit { exit: Some(exit), others: self.waiting() };
            return Some(Desertion::Certain(self.cause_at(rank, Kind::LeftBeforeInit(left))));
        }
        self.first_gone(RankPhase::Finalized).map(|_| Desertion::Suspected)
    }

    /// Whether ranks are known to wait in a fence.
    pub(crate) fn does_anybody_wait(&self) -> bool {
        self.cause.get().is_none() && self.nodes.iter().any(|node| !node.waiting.is_empty())
    }

    /// The cause of a desertion that was suspected, now that nodes have said which ranks wait.
    pub(crate) fn confirm(&mut self, answers: &[Option<Progress>]) -> Option<Cause> {
        for (node, answer) in (0..).zip(answers) {
            let Some(answer) = answer else { continue };
            let waiting: Vec<u32> = answer.ranks.iter().filter(|rank| rank.waiting).map(|rank| rank.rank).collect();
            self.waits(node, &waiting);
        }
        let waiting = self.waiting();
        if self.cause.get().is_some() || waiting.is_empty() {
            return None;
        }
        let (rank, _) = self.first_gone(RankPhase::Finalized)?;
        Some(self.cause_at(rank, Kind::LeftFence(LeftFence { rank: rank as u32, waiting })))
    }

    pub(super) fn waiting(&self) -> Vec<u32> {
        let waiting: BTreeSet<u32> = self.nodes.iter().flat_map(|node| node.waiting.iter().copied()).collect();
        waiting.into_iter().collect()
    }

    fn first_gone(&self, phase: RankPhase) -> Option<(usize, RankExitStatus)> {
        let launched = self.ranks.iter().take(self.launched as usize).enumerate();
        launched.filter_map(|(rank, known)| Some((rank, known.exit?))).find(|(_, exit)| exit.phase() == phase)
    }

    fn cause_at(&self, rank: usize, kind: Kind) -> Cause {
        let node = self.ranks[rank].node;
        Cause { host: self.nodes[node as usize].host.clone(), kind: Some(kind) }
    }
}

#[cfg(test)]
mod tests {
    use pmi_transport::proto::v1::RankProgress;

    use super::super::tests::{exit, judge};
    use super::*;

    fn waiting(ranks: &[u32]) -> Option<Progress> {
        let ranks = ranks.iter().map(|&rank| RankProgress { rank, waiting: true, ..Default::default() });
        Some(Progress { question: 1, ranks: ranks.collect() })
    }

    #[test]
    fn a_rank_that_never_spoke_is_missed_for_certain() {
        // In either order of the news.
        for exit_first in [true, false] {
            let mut judge = judge();
            let leave = |judge: &mut Judge| assert!(judge.exited(1, &exit(3, RankPhase::Silent)));
            if exit_first {
                leave(&mut judge);
            }
            assert_eq!(judge.desertion(), None);
            judge.waits(0, &[0, 1]);
            if !exit_first {
                leave(&mut judge);
            }
            let Some(Desertion::Certain(cause)) = judge.desertion() else { panic!("{:?}", judge.desertion()) };
            assert_eq!(cause.host, "b");
            let left = LeftBeforeInit { exit: Some(exit(3, RankPhase::Silent)), others: vec![0, 1] };
            assert_eq!(cause.kind, Some(Kind::LeftBeforeInit(left)));
        }
    }

    #[test]
    fn an_exit_that_an_answer_told_of_is_news_all_the_same() {
        let mut judge = judge();
        judge.waits(0, &[0, 1]);
        let told = RankProgress { rank: 3, exit: Some(exit(3, RankPhase::Silent)), ..Default::default() };
        judge.learn(1, &Progress { question: 1, ranks: vec![told] });
        assert!(matches!(judge.desertion(), Some(Desertion::Certain(_))));
        assert!(judge.exited(1, &exit(3, RankPhase::Silent)), "the client has not heard of it");
        assert!(!judge.exited(1, &exit(3, RankPhase::Silent)), "told twice");
    }

    #[test]
    fn a_rank_that_finalized_is_missed_only_by_those_who_still_wait() {
        let mut judge = judge();
        judge.waits(0, &[0, 1]);
        assert!(judge.exited(1, &exit(2, RankPhase::Finalized)));
        assert_eq!(judge.desertion(), Some(Desertion::Suspected));
        assert_eq!(judge.confirm(&[waiting(&[]), None]), None);
        assert_eq!(judge.desertion(), None, "the fence was complete");

        judge.waits(0, &[0, 1]);
        let cause = judge.confirm(&[waiting(&[1]), None]).unwrap();
        assert_eq!(cause.kind, Some(Kind::LeftFence(LeftFence { rank: 2, waiting: vec![1] })));
    }

    #[test]
    fn a_rank_without_pmi_is_missed_by_nobody() {
        let mut judge = judge();
        judge.waits(0, &[0]);
        assert!(judge.exited(1, &exit(2, RankPhase::Unspecified)));
        assert!(judge.exited(1, &exit(3, RankPhase::Initialized)));
        assert_eq!(judge.desertion(), None);
    }
}
