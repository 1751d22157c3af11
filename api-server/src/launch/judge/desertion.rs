//! A rank that has left while others wait for it in a fence, seen across nodes: each node judges only its own ranks.

use std::collections::BTreeSet;
use std::ops::Range;

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
    /// Ranks of a node wait in a fence of all ranks of their job, and miss none of their own node. Of other jobs nothing is said.
    pub(crate) fn waits(&mut self, node: u32, ranks: &[u32]) {
        let jobs: Vec<&Range<u32>> =
            self.jobs.iter().filter(|job| ranks.iter().any(|rank| job.contains(rank))).collect();
        let mine = |rank: &&u32| self.ranks.get(**rank as usize).is_some_and(|known| known.node == node);
        let waiting = &mut self.nodes[node as usize].waiting;
        waiting.retain(|rank| !jobs.iter().any(|job| job.contains(rank)));
        waiting.extend(ranks.iter().filter(mine));
    }

    /// Whether a rank has left while others of its job wait for it.
    pub(crate) fn desertion(&self) -> Option<Desertion> {
        if !self.does_anybody_wait() {
            return None;
        }
        let certain = self.deserted(RankPhase::Silent).next().map(|(rank, exit, others)| {
            let left = LeftBeforeInit { exit: Some(exit), others };
            Desertion::Certain(self.cause_at(rank, Kind::LeftBeforeInit(left)))
        });
        certain.or_else(|| self.deserted(RankPhase::Finalized).next().map(|_| Desertion::Suspected))
    }

    /// Whether ranks are known to wait in a fence.
    pub(crate) fn does_anybody_wait(&self) -> bool {
        self.cause.get().is_none() && self.nodes.iter().any(|node| !node.waiting.is_empty())
    }

    /// The cause of a desertion that was suspected, now that nodes have said which ranks wait.
    pub(crate) fn confirm(&mut self, answers: &[Option<Progress>]) -> Option<Cause> {
        for (node, answer) in self.nodes.iter_mut().zip(answers) {
            let Some(answer) = answer else { continue };
            node.waiting = answer.ranks.iter().filter(|rank| rank.waiting).map(|rank| rank.rank).collect();
        }
        if !self.does_anybody_wait() {
            return None;
        }
        let (rank, _, waiting) = self.deserted(RankPhase::Finalized).next()?;
        Some(self.cause_at(rank, Kind::LeftFence(LeftFence { rank: rank as u32, waiting })))
    }

    pub(super) fn waiting(&self) -> Vec<u32> {
        let waiting: BTreeSet<u32> = self.nodes.iter().flat_map(|node| node.waiting.iter().copied()).collect();
        waiting.into_iter().collect()
    }

    /// The first rank of each job that ended in this phase while others of the job wait, with its end and those who wait.
    fn deserted(&self, phase: RankPhase) -> impl Iterator<Item = (usize, RankExitStatus, Vec<u32>)> {
        let waiting = self.waiting();
        self.jobs.iter().filter_map(move |job| {
            let others: Vec<u32> = waiting.iter().copied().filter(|rank| job.contains(rank)).collect();
            let mut ranks = job.clone().map(|rank| rank as usize);
            let gone = ranks.find_map(|rank| Some((rank, self.ranks[rank].exit.filter(|exit| exit.phase() == phase)?)));
            gone.filter(|_| !others.is_empty()).map(|(rank, exit)| (rank, exit, others))
        })
    }

    fn cause_at(&self, rank: usize, kind: Kind) -> Cause {
        let node = self.ranks[rank].node;
        Cause { host: self.nodes[node as usize].host.clone(), kind: Some(kind) }
    }
}

#[cfg(test)]
mod tests {
    use pmi_core::job::Placement;
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
    fn ranks_of_a_spawned_job_are_missed_by_those_of_their_own_job_only() {
        for phase in [RankPhase::Silent, RankPhase::Finalized] {
            let mut judge = judge();
            // Ranks 4 and 5: one on each node.
            judge.add(&Placement::block(&[1, 1]));
            judge.waits(0, &[0, 1]);
            assert!(judge.exited(1, &exit(5, phase)));
            assert_eq!(judge.desertion(), None, "it is of another job");
            judge.waits(0, &[4]);
            assert_eq!(judge.waiting(), [0, 1, 4], "what is said of one job says nothing of the other");
            let cause = match judge.desertion() {
                Some(Desertion::Certain(cause)) => cause,
                Some(Desertion::Suspected) => judge.confirm(&[waiting(&[0, 1, 4]), None]).unwrap(),
                None => panic!("nobody is missed"),
            };
            let kind = match phase {
                RankPhase::Silent => {
                    Kind::LeftBeforeInit(LeftBeforeInit { exit: Some(exit(5, phase)), others: vec![4] })
                }
                _ => Kind::LeftFence(LeftFence { rank: 5, waiting: vec![4] }),
            };
            assert_eq!(cause, Cause { host: "b".to_owned(), kind: Some(kind) });
        }
    }

    #[test]
    fn nobody_waits_for_a_job_that_was_not_started() {
        let mut judge = judge();
        judge.add(&Placement::block(&[1, 1]));
        judge.waits(0, &[4]);
        assert!(judge.exited(1, &exit(5, RankPhase::Silent)));
        judge.void(4, 2);
        assert_eq!(judge.desertion(), None);
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
