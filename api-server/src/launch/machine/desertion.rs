//! Detects ranks that have left while other ranks of their job wait for them in a fence, across nodes. Each node checks only its own ranks.
//!
//! ```text
//!                       a silent rank has ended, ranks wait
//! (nothing suspected) ──────────────────────────────────────> certain
//!        │  ^                                                    ^
//!        │  └──no rank waits──────────┐                          │ ranks still wait
//!        └──a finalized rank has ended, ranks wait───> suspected ──GRACE──> all nodes are asked
//! ```

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use lattice_session::cause::Cause;
use lattice_session::event::RankProgress;
use pmi_core::ids::{NodeIndex, Rank};
use tokio::time::Instant;

use super::event::{Departure, RankEnd};
use super::ranks::Ranks;

/// A rank that left is certainly missing if other ranks still wait for it after this time. By then, the last fence that it took part in is
/// complete.
const GRACE: Duration = Duration::from_secs(1);
/// Interval of queries to nodes for exits that wait in the queue after output. Longer than the time limit for their answers.
const ASK_FOR_EXITS: Duration = Duration::from_secs(2);

/// A rank has left while other ranks wait for it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Desertion {
    /// Certain: the rank never contacted its PMI server, so no fence of all ranks can have completed.
    Certain(Cause),
    /// The rank called MPI_Finalize, or failed. The waiting ranks may be about to leave the last fence that it took part in. The desertion is
    /// certain if they still wait when they are queried again. A node may not answer because its output is held up. It is queried until it
    /// answers.
    Suspected,
}

/// Schedule of the queries to nodes for waiting ranks.
#[derive(Debug)]
pub(crate) struct DesertionWatch {
    /// The time since which a rank is suspected to have left while other ranks wait for it.
    suspected: Option<Instant>,
    /// The time of the last query for exits that nodes could not report.
    exits_asked: Instant,
}

impl DesertionWatch {
    pub(crate) fn new(now: Instant) -> Self {
        Self { suspected: None, exits_asked: now }
    }

    /// Starts a suspicion, unless one exists.
    pub(crate) fn suspect(&mut self, now: Instant) {
        self.suspected.get_or_insert(now);
    }

    /// Drops the suspicion.
    pub(crate) fn clear(&mut self) {
        self.suspected = None;
    }

    /// Returns true if it is time to confirm a suspicion.
    pub(crate) fn is_to_be_confirmed(&self, now: Instant) -> bool {
        self.suspected.is_some_and(|since| now.saturating_duration_since(since) >= GRACE)
    }

    /// Returns true if it is time to query nodes again for exits that wait after output.
    pub(crate) fn asks_for_exits(&mut self, now: Instant) -> bool {
        let due = now >= self.exits_asked + ASK_FOR_EXITS;
        if due {
            self.exits_asked = now;
        }
        due
    }
}

/// The ranks that wait in a fence of all ranks of their job, as their nodes have reported.
#[derive(Debug)]
pub(crate) struct FenceWaits {
    /// The waiting ranks of each node. The value is the number of fences that the rank has completed, once its node has answered.
    by_node: Vec<BTreeMap<u32, Option<u64>>>,
}

/// A rank that left while other ranks of its job wait for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Deserter {
    pub end: RankEnd,
    /// The ranks that wait for it.
    pub waiting: Vec<Rank>,
}

impl FenceWaits {
    /// A launch on `nodes` nodes without waiting ranks.
    pub(crate) fn new(nodes: usize) -> Self {
        Self { by_node: vec![BTreeMap::new(); nodes] }
    }

    /// Ranks of a node wait in a fence of all ranks of their job, and no rank of the same node is missing. The report does not cover other jobs.
    pub(crate) fn on_waiting(&mut self, node: NodeIndex, reported: &[Rank], ranks: &Ranks) {
        let is_meant = |job: &Range<u32>| reported.iter().any(|rank| job.contains(&rank.0));
        let jobs: Vec<Range<u32>> = ranks.jobs().filter(is_meant).collect();
        let waiting = &mut self.by_node[node.index()];
        waiting.retain(|rank, _| !jobs.iter().any(|job| job.contains(rank)));
        waiting.extend(reported.iter().filter(|&&rank| ranks.owns(node, rank)).map(|rank| (rank.0, None)));
    }

    /// A node has answered which of its ranks wait. A fence of some ranks needs no other rank.
    pub(crate) fn on_answer(&mut self, node: NodeIndex, answer: &[RankProgress], ranks: &Ranks) {
        let own = answer.iter().filter(|rank| rank.waits_for_all && ranks.owns(node, rank.rank));
        self.by_node[node.index()] = own.map(|rank| (rank.rank.0, rank.fences)).collect();
    }

    /// A rank that has ended does not wait.
    pub(crate) fn on_exited(&mut self, node: NodeIndex, rank: Rank) {
        self.by_node[node.index()].remove(&rank.0);
    }

    /// The node is gone: none of its ranks waits.
    pub(crate) fn on_node_gone(&mut self, node: NodeIndex) {
        self.by_node[node.index()].clear();
    }

    /// The job with these ranks did not start, or is over: none of its ranks waits.
    pub(crate) fn void_job(&mut self, job: &Range<u32>) {
        self.by_node.iter_mut().for_each(|waiting| waiting.retain(|rank, _| !job.contains(rank)));
    }

    /// Returns true if no rank is known to wait.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_node.iter().all(BTreeMap::is_empty)
    }

    /// The rank that left in this way while ranks of its job wait for it on nodes that satisfy `on_node`.
    pub(crate) fn deserter(
        &self,
        departure: Departure,
        on_node: impl Fn(NodeIndex) -> bool,
        ranks: &Ranks,
    ) -> Option<Deserter> {
        ranks.earliest_ends(departure).find_map(|(job, end)| {
            let mut waiting: Vec<Rank> = self.missing(&job, &end, &on_node).collect();
            waiting.sort_unstable();
            (!waiting.is_empty()).then_some(Deserter { end, waiting })
        })
    }

    /// Returns true if a rank that left in this way is missing. This runs at each exit, so it builds no list of the waiting ranks.
    pub(crate) fn is_any_missed(&self, departure: Departure, ranks: &Ranks) -> bool {
        ranks.earliest_ends(departure).any(|(job, end)| self.missing(&job, &end, |_| true).next().is_some())
    }

    /// The ranks of a job that wait for the rank with this end, on nodes that satisfy `on_node`. A rank that has completed fewer fences than the
    /// ended rank does not wait for it: the result of the fence is on its way.
    fn missing(
        &self,
        job: &Range<u32>,
        end: &RankEnd,
        on_node: impl Fn(NodeIndex) -> bool,
    ) -> impl Iterator<Item = Rank> {
        let nodes = (0..).map(NodeIndex).zip(&self.by_node).filter(move |(node, _)| on_node(*node));
        let (of_job, reached) = (job.clone(), end.fences());
        let misses_it = move |fences: &Option<u64>| fences.is_none_or(|fences| fences >= reached);
        let waiting = nodes.flat_map(move |(_, waiting)| waiting.range(of_job.clone()));
        waiting.filter(move |(_, fences)| misses_it(fences)).map(|(&rank, _)| Rank(rank))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lattice_session::cause::{CauseKind, RankExit};
    use pmi_core::job::Placement;
    use pmi_core::{DialoguePoint, Phase};

    use super::super::event::Programs;
    use super::super::progress_query::Answer;
    use super::super::ranks::tests::end;
    use super::super::state::LaunchState;
    use super::super::state::tests::state;
    use super::*;

    fn ranks(ranks: &[u32]) -> Vec<Rank> {
        ranks.iter().copied().map(Rank).collect()
    }

    fn progress(rank: u32) -> RankProgress {
        RankProgress::unknown(Rank(rank))
    }

    fn answer(waiting: &[u32]) -> Option<Arc<Answer>> {
        let ranks = waiting.iter().map(|&rank| RankProgress { waits_for_all: true, ..progress(rank) }).collect();
        Some(Arc::new(Answer { ranks, ..Answer::default() }))
    }

    #[test]
    fn a_rank_that_never_spoke_is_missed_for_certain() {
        // The two reports may arrive in either order.
        for exit_first in [true, false] {
            let mut state = state();
            let leave = |state: &mut LaunchState| assert!(state.on_exited(NodeIndex(1), end(3, Some(Phase::Silent))));
            if exit_first {
                leave(&mut state);
            }
            assert_eq!(state.desertion(), None);
            state.on_waiting(NodeIndex(0), &ranks(&[0, 1]));
            if !exit_first {
                leave(&mut state);
            }
            let exit = RankExit::Code(0);
            let kind = CauseKind::LeftBeforeInit { rank: Rank(3), exit, others: ranks(&[0, 1]) };
            assert_eq!(state.desertion(), Some(Desertion::Certain(Cause { host: "b".to_owned(), kind })));
        }
    }

    #[test]
    fn an_exit_that_an_answer_told_of_is_news_all_the_same() {
        let mut state = state();
        state.on_waiting(NodeIndex(0), &ranks(&[0, 1]));
        let told = RankProgress { phase: Some(Phase::Silent), exit: Some(RankExit::Code(0)), ..progress(3) };
        state.ranks.on_progress(NodeIndex(1), &[told], &Programs::new());
        assert!(matches!(state.desertion(), Some(Desertion::Certain(_))));
        assert!(state.on_exited(NodeIndex(1), end(3, Some(Phase::Silent))), "the client does not know of it");
        assert!(!state.on_exited(NodeIndex(1), end(3, Some(Phase::Silent))), "reported twice");
    }

    #[test]
    fn a_rank_that_finalized_is_missed_only_by_those_who_still_wait() {
        let mut state = state();
        state.on_waiting(NodeIndex(0), &ranks(&[0, 1]));
        assert!(state.on_exited(NodeIndex(1), end(2, Some(Phase::Finalized))));
        assert_eq!(state.desertion(), Some(Desertion::Suspected));
        assert_eq!(state.confirm(&[answer(&[]), None]), None);
        assert_eq!(state.desertion(), None, "the fence was complete");

        state.on_waiting(NodeIndex(0), &ranks(&[0, 1]));
        assert_eq!(
            state.confirm(&[None, answer(&[])]),
            None,
            "a node that does not answer may have no rank that waits"
        );
        assert_eq!(state.desertion(), Some(Desertion::Suspected), "it is asked again");
        let cause = state.confirm(&[answer(&[1]), None]).unwrap();
        assert_eq!(cause.kind, CauseKind::LeftFence { rank: Rank(2), waiting: ranks(&[1]) });
    }

    #[test]
    fn nobody_waits_for_a_rank_that_has_been_through_more_fences() {
        let mut state = state();
        let left = |rank, fences| {
            let reached = Some(DialoguePoint { phase: Phase::Finalized, fences });
            RankEnd { reached, ..end(rank, None) }
        };
        let answer = |rank, fences| {
            let waiting = RankProgress { waits_for_all: true, fences, ..progress(rank) };
            Some(Arc::new(Answer { ranks: vec![waiting], ..Answer::default() }))
        };
        state.on_waiting(NodeIndex(0), &ranks(&[1]));
        assert!(state.on_exited(NodeIndex(1), left(2, 5)));
        assert_eq!(state.desertion(), Some(Desertion::Suspected), "its node has not said in which fence it waits");
        assert_eq!(state.confirm(&[answer(1, Some(4)), None]), None, "the result is on its way");
        let in_group = RankProgress { waiting: true, fences: Some(5), ..progress(1) };
        let in_group = Some(Arc::new(Answer { ranks: vec![in_group], ..Answer::default() }));
        assert_eq!(state.confirm(&[in_group, None]), None, "it waits for a part of its job");
        assert_eq!(state.desertion(), None);
        let left_fence = |rank| CauseKind::LeftFence { rank: Rank(rank), waiting: ranks(&[1]) };
        assert_eq!(state.confirm(&[answer(1, Some(5)), None]).unwrap().kind, left_fence(2));
        assert_eq!(
            state.confirm(&[answer(1, None), None]).unwrap().kind,
            left_fence(2),
            "an older session does not say"
        );

        assert_eq!(state.confirm(&[answer(1, Some(4)), None]), None);
        assert!(state.on_exited(NodeIndex(1), left(3, 4)));
        assert_eq!(state.desertion(), Some(Desertion::Suspected));
        assert_eq!(
            state.confirm(&[answer(1, Some(4)), None]).unwrap().kind,
            left_fence(3),
            "not the first one that left"
        );
    }

    #[test]
    fn a_rank_that_failed_and_was_borne_is_to_blame_if_others_wait_for_it() {
        let mut state = state();
        state.on_waiting(NodeIndex(0), &ranks(&[0, 1]));
        let exit = RankExit::Code(9);
        assert!(state.on_exited(NodeIndex(1), RankEnd { exit, ..end(2, Some(Phase::Open)) }));
        assert_eq!(state.desertion(), Some(Desertion::Suspected));
        let cause = state.confirm(&[answer(&[1]), None]).unwrap();
        assert_eq!(cause, Cause { host: "b".to_owned(), kind: CauseKind::Failed { rank: Rank(2), exit } });
    }

    #[test]
    fn a_rank_without_pmi_is_missed_by_nobody() {
        let mut state = state();
        state.on_waiting(NodeIndex(0), &ranks(&[0]));
        assert!(state.on_exited(NodeIndex(1), end(2, None)));
        assert!(state.on_exited(NodeIndex(1), end(3, Some(Phase::Open))));
        assert_eq!(state.desertion(), None);
    }

    #[test]
    fn ranks_of_a_spawned_job_are_missed_by_those_of_their_own_job_only() {
        for phase in [Phase::Silent, Phase::Finalized] {
            let mut state = state();
            // Ranks 4 and 5: one on each node.
            state.ranks.add_job(&Placement::block(&[1, 1]));
            state.on_waiting(NodeIndex(0), &ranks(&[0, 1]));
            assert!(state.on_exited(NodeIndex(1), end(5, Some(phase))));
            assert_eq!(state.desertion(), None, "it is of another job");
            state.on_waiting(NodeIndex(0), &ranks(&[4]));
            let cause = match state.desertion() {
                Some(Desertion::Certain(cause)) => cause,
                Some(Desertion::Suspected) => state.confirm(&[answer(&[0, 1, 4]), None]).unwrap(),
                None => panic!("nobody is missed"),
            };
            let kind = match phase {
                Phase::Silent => {
                    CauseKind::LeftBeforeInit { rank: Rank(5), exit: RankExit::Code(0), others: ranks(&[4]) }
                }
                _ => CauseKind::LeftFence { rank: Rank(5), waiting: ranks(&[4]) },
            };
            assert_eq!(cause, Cause { host: "b".to_owned(), kind });
        }
    }

    #[test]
    fn reports_of_a_node_concern_its_own_ranks_and_the_jobs_that_they_name() {
        let mut all = Ranks::new(&Placement::block(&[2, 2]));
        all.add_job(&Placement::block(&[1, 1]));
        let mut waits = FenceWaits::new(2);
        let waiting = |waits: &FenceWaits| {
            let mut all: Vec<_> = waits.by_node.iter().flat_map(BTreeMap::keys).copied().map(Rank).collect();
            all.sort_unstable();
            all
        };
        waits.on_waiting(NodeIndex(0), &ranks(&[0, 3, 77]), &all);
        assert_eq!(waiting(&waits), ranks(&[0]), "rank 3 is of another node, and 77 of none");
        waits.on_waiting(NodeIndex(0), &ranks(&[4]), &all);
        assert_eq!(waiting(&waits), ranks(&[0, 4]), "what is said of one job says nothing of the other");
        waits.on_waiting(NodeIndex(0), &ranks(&[1]), &all);
        assert_eq!(waiting(&waits), ranks(&[1, 4]), "a new fence of the job");
        waits.on_answer(NodeIndex(0), &answer(&[3, 4]).unwrap().ranks, &all);
        assert_eq!(waiting(&waits), ranks(&[4]), "an answer tells of all ranks of the node");
        waits.on_exited(NodeIndex(0), Rank(4));
        assert!(waits.is_empty());
    }

    #[test]
    fn nobody_waits_for_a_job_that_was_not_started() {
        let mut state = state();
        state.ranks.add_job(&Placement::block(&[1, 1]));
        state.on_waiting(NodeIndex(0), &ranks(&[4]));
        assert!(state.on_exited(NodeIndex(1), end(5, Some(Phase::Silent))));
        state.void_job(&(4..6));
        assert_eq!(state.desertion(), None);
    }

    #[test]
    fn a_suspicion_is_confirmed_after_its_grace_and_forgotten_with_its_reason() {
        let now = Instant::now();
        let mut watch = DesertionWatch::new(now);
        watch.suspect(now);
        watch.suspect(now + GRACE / 2);
        assert_eq!([GRACE / 2, GRACE].map(|passed| watch.is_to_be_confirmed(now + passed)), [false, true]);
        watch.clear();
        assert!(!watch.is_to_be_confirmed(now + 2 * GRACE));
        assert_eq!(
            [1, 2, 3].map(|second| watch.asks_for_exits(now + Duration::from_secs(second))),
            [false, true, false]
        );
    }
}
