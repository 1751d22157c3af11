//! Queries to all nodes of a launch for the progress of their ranks. Each query is open until all nodes have answered or its time limit is over.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use lattice_session::call_stacks::RankStack;
use lattice_session::cause::{CauseKind, in_two_protocols};
use lattice_session::event::RankProgress;
use lattice_session::timeouts::CALL_STACKS;
use pmi_core::ids::{NodeIndex, Rank};
use tokio::time::Instant;

use super::event::Programs;

/// Time limit for answers.
pub(super) const ANSWER: Duration = Duration::from_secs(1);
/// The same for answers with call stacks, which take time to read.
const ANSWER_STACKS: Duration = CALL_STACKS.saturating_add(Duration::from_secs(2));
/// The longest time limit for a collected answer. The caller waits a little longer (30 s).
const GATHERED_MAX: Duration = Duration::from_secs(25);
/// The largest number of open queries. Further queries are closed without an answer, because clients can send any number of queries.
const OPEN_MAX: usize = 1024;

/// A missing rank, with the last PMI command that it sent, if any.
pub(crate) type Missing = (Rank, Option<String>);

/// The open queries. `P` is the type of their purpose.
#[derive(Debug)]
pub(crate) struct ProgressQueries<P> {
    open: Vec<ProgressQuery<P>>,
    last: u64,
}

/// One query.
#[derive(Debug)]
pub(crate) struct ProgressQuery<P> {
    number: u64,
    /// Purpose of the query.
    pub purpose: P,
    /// By node; `None` for a node without an answer. Empty if the answers need not be kept.
    pub answers: Vec<Option<Arc<Answer>>>,
    extent: Extent,
    way: Way,
    awaited: Awaited,
    deadline: Instant,
}

/// Nodes that may still answer.
#[derive(Debug, Default)]
struct Awaited {
    /// By node.
    is_awaited: Vec<bool>,
    left: usize,
}

impl Awaited {
    fn new(nodes: &[NodeIndex]) -> Self {
        let mut is_awaited = vec![false; nodes.iter().max().map_or(0, |&last| last.index() + 1)];
        nodes.iter().for_each(|&node| is_awaited[node.index()] = true);
        Self { left: is_awaited.iter().filter(|is_awaited| **is_awaited).count(), is_awaited }
    }

    fn remove(&mut self, node: NodeIndex) {
        let is_awaited = self.is_awaited.get_mut(node.index()).is_some_and(std::mem::take);
        self.left -= usize::from(is_awaited);
    }
}

/// Answer of a node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    /// Progress of each of its ranks.
    pub ranks: Vec<RankProgress>,
    /// Programs of its ranks, as far as the answer contains them.
    pub programs: Programs,
    /// Call stacks of its ranks, if the query asked for them.
    pub stacks: Option<Vec<RankStack>>,
    /// Number of its ranks that did not fit into the answer.
    pub left_out: u32,
}

/// Route of a query to nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Directly to each node.
    Directly,
    /// Through the root, and directly to nodes that the root's answer does not include.
    Gathered,
}

impl Extent {
    pub(super) const ALL: [Self; 2] = [Self::Progress, Self::Stacks];

    /// Time limit for the queried nodes.
    pub(super) fn limit(self) -> Duration {
        match self {
            Self::Progress => ANSWER,
            Self::Stacks => ANSWER_STACKS,
        }
    }
}

/// Extent of the answers that a query needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    Progress,
    /// Progress and call stacks.
    Stacks,
}

impl<P> Default for ProgressQueries<P> {
    fn default() -> Self {
        Self { open: Vec::new(), last: 0 }
    }
}

impl<P> ProgressQueries<P> {
    /// Opens a query to `nodes`, which keeps the answers of the first `count` nodes of the launch. Returns its number, which the messages to the
    /// nodes must carry. Returns `None` if too many queries are open; the query then closes without an answer.
    pub(crate) fn open(
        &mut self,
        purpose: P,
        (extent, way): (Extent, Way),
        nodes: &[NodeIndex],
        count: usize,
        now: Instant,
    ) -> Option<u64> {
        let asks = self.open.len() < OPEN_MAX;
        self.last += 1;
        let awaited = if asks { Awaited::new(nodes) } else { Awaited::default() };
        let time = match way {
            Way::Directly => extent.limit(),
            // The query waits for the previous one, then for its own answer, then for nodes that are queried directly.
            Way::Gathered => (3 * extent.limit()).min(GATHERED_MAX),
        };
        let (answers, deadline) = (vec![None; count], now + time);
        let query = ProgressQuery { number: self.last, purpose, answers, extent, way, awaited, deadline };
        self.open.push(query);
        asks.then_some(self.last)
    }

    /// Accepts a node's answer. Because it is the latest, it also answers all earlier queries, as far as it contains the data that they need.
    pub(crate) fn on_answer(&mut self, node: NodeIndex, question: u64, answer: Answer) {
        let answer = Arc::new(answer);
        let serves = |query: &ProgressQuery<P>| match query.extent {
            Extent::Progress => true,
            Extent::Stacks => answer.stacks.is_some(),
        };
        self.open.iter_mut().filter(|query| query.number <= question && serves(query)).for_each(|query| {
            query.learn(node, &answer);
        });
    }

    /// Accepts the answer of a node from a collected answer. It answers only queries that are collected.
    pub(crate) fn on_gathered(&mut self, node: NodeIndex, question: u64, extent: Extent, answer: Answer) {
        let answer = Arc::new(answer);
        self.gathered(question, extent).for_each(|query| query.learn(node, &answer));
    }

    /// The nodes without an answer are queried directly from now on.
    pub(crate) fn ask_directly(&mut self, question: u64, extent: Extent, now: Instant) {
        let deadline = now + extent.limit();
        self.gathered(question, extent).for_each(|query| query.deadline = query.deadline.min(deadline));
    }

    fn gathered(&mut self, question: u64, extent: Extent) -> impl Iterator<Item = &mut ProgressQuery<P>> {
        let is_meant = move |query: &&mut ProgressQuery<P>| {
            query.way == Way::Gathered && query.extent == extent && query.number <= question
        };
        self.open.iter_mut().filter(is_meant)
    }

    /// A node will not answer.
    pub(crate) fn on_gone(&mut self, node: NodeIndex) {
        self.open.iter_mut().for_each(|query| query.awaited.remove(node));
    }

    /// Removes and returns the queries that are answered or have timed out.
    pub(crate) fn take_closed(&mut self, now: Instant) -> Vec<ProgressQuery<P>> {
        self.open.extract_if(.., |query| query.awaited.left == 0 || query.deadline <= now).collect()
    }

    /// Returns true if a query with such a purpose is open.
    pub(crate) fn any(&self, is: impl Fn(&P) -> bool) -> bool {
        self.open.iter().any(|query| is(&query.purpose))
    }
}

impl<P> ProgressQuery<P> {
    fn learn(&mut self, node: NodeIndex, answer: &Arc<Answer>) {
        self.awaited.remove(node);
        if let Some(known) = self.answers.get_mut(node.index()) {
            *known = Some(Arc::clone(answer));
        }
    }

    /// Returns true if this query has the same answers as `other`, by identity.
    pub(crate) fn has_answers_of(&self, other: &Self) -> bool {
        let is_same = |(one, other): (&Option<Arc<Answer>>, &Option<Arc<Answer>>)| match (one, other) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        };
        self.answers.len() == other.answers.len() && self.answers.iter().zip(&other.answers).all(is_same)
    }

    fn ranks(&self) -> impl Iterator<Item = &RankProgress> {
        self.answers.iter().flatten().flat_map(|answer| &answer.ranks)
    }

    /// The number of ranks that wait in a fence.
    pub(crate) fn waiting(&self) -> usize {
        self.ranks().filter(|rank| rank.waiting).count()
    }

    /// The ranks that wait in a fence, in order.
    pub(crate) fn waiting_ranks(&self) -> Vec<Rank> {
        let mut waiting: Vec<Rank> = self.ranks().filter(|rank| rank.waiting).map(|rank| rank.rank).collect();
        waiting.sort_unstable();
        waiting
    }

    /// The missing ranks in the jobs of the waiting ranks.
    pub(crate) fn missing_in(&self, jobs: impl Iterator<Item = Range<u32>>, waiting: &[Rank]) -> Vec<Missing> {
        let waited: Vec<_> = jobs.filter(|job| waiting.iter().any(|rank| job.contains(&rank.0))).collect();
        let mut missing = self.missing(&[]);
        missing.retain(|(rank, _)| waited.iter().any(|job| job.contains(&rank.0)));
        missing
    }

    /// The cause, if ranks of one of these jobs wait for each other in two protocols.
    pub(crate) fn in_two_protocols(&self, mut jobs: impl Iterator<Item = Range<u32>>) -> Option<CauseKind> {
        jobs.find_map(|job| {
            let mut ranks: Vec<_> = self.ranks().filter(|rank| job.contains(&rank.rank.0)).collect();
            ranks.sort_unstable_by_key(|rank| rank.rank);
            in_two_protocols(&ranks)
        })
    }

    /// The missing ranks: ranks that run and do not wait. `known` adds ranks from earlier reports, for nodes that did not answer.
    pub(crate) fn missing(&self, known: &[Missing]) -> Vec<Missing> {
        let late = self.ranks().filter(|rank| !rank.waiting && rank.exit.is_none());
        let mut all: Vec<Missing> = late.map(|rank| (rank.rank, rank.last_command.clone())).collect();
        all.extend(known.iter().cloned());
        all.sort_unstable_by_key(|(rank, _)| *rank);
        all.dedup_by_key(|(rank, _)| *rank);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(ranks: &[(u32, bool)]) -> Answer {
        let rank = |&(rank, waiting): &(u32, bool)| RankProgress { waiting, ..RankProgress::unknown(Rank(rank)) };
        Answer { ranks: ranks.iter().map(rank).collect(), ..Answer::default() }
    }

    #[test]
    fn missing_ranks_of_all_nodes_are_put_together() {
        let now = Instant::now();
        let mut queries = ProgressQueries::default();
        let number =
            queries.open("why", (Extent::Progress, Way::Directly), &[NodeIndex(0), NodeIndex(1)], 3, now).unwrap();
        queries.on_answer(NodeIndex(0), number, answer(&[(0, true), (1, false)]));
        assert!(queries.take_closed(now).is_empty());
        queries.on_answer(NodeIndex(1), number, answer(&[(2, true), (3, false)]));
        let closed = queries.take_closed(now);
        let known = [(Rank(5), None), (Rank(3), None)];
        let missing: Vec<u32> = closed[0].missing(&known).iter().map(|(rank, _)| rank.0).collect();
        assert_eq!((closed[0].waiting(), missing), (2, vec![1, 3, 5]));
    }

    #[test]
    fn a_node_that_is_silent_is_not_waited_for_long() {
        let now = Instant::now();
        let mut queries = ProgressQueries::default();
        queries.open((), (Extent::Progress, Way::Directly), &[NodeIndex(0), NodeIndex(1)], 2, now).unwrap();
        assert!(queries.take_closed(now).is_empty());
        assert_eq!(queries.take_closed(now + ANSWER).len(), 1);
        queries.open((), (Extent::Progress, Way::Directly), &[NodeIndex(0)], 2, now).unwrap();
        queries.on_gone(NodeIndex(0));
        assert_eq!(queries.take_closed(now).len(), 1);
    }

    #[test]
    fn an_answer_is_kept_once_for_all_queries_and_not_for_those_that_need_none() {
        let now = Instant::now();
        let mut queries = ProgressQueries::default();
        let way = (Extent::Progress, Way::Directly);
        let numbers = [1, 1, 0].map(|count| queries.open("why", way, &[NodeIndex(0)], count, now).unwrap());
        queries.on_answer(NodeIndex(0), numbers[2], answer(&[(0, true)]));
        let closed = queries.take_closed(now);
        let [Some(first), Some(second)] = [&closed[0].answers[0], &closed[1].answers[0]] else { panic!("no answer") };
        assert!(Arc::ptr_eq(first, second));
        assert!(closed[2].answers.is_empty());
    }

    #[test]
    fn a_late_answer_serves_earlier_queries_too() {
        let now = Instant::now();
        let mut queries = ProgressQueries::default();
        queries.open("first", (Extent::Progress, Way::Directly), &[NodeIndex(0)], 1, now).unwrap();
        let second = queries.open("second", (Extent::Progress, Way::Directly), &[NodeIndex(0)], 1, now).unwrap();
        queries.on_answer(NodeIndex(0), second, answer(&[(0, true)]));
        assert_eq!(queries.take_closed(now).len(), 2);
    }

    #[test]
    fn a_query_for_call_stacks_waits_for_them() {
        let now = Instant::now();
        let mut queries = ProgressQueries::default();
        let stacks = queries.open("stacks", (Extent::Stacks, Way::Directly), &[NodeIndex(0)], 1, now).unwrap();
        let later = queries.open("later", (Extent::Progress, Way::Directly), &[NodeIndex(0)], 1, now).unwrap();
        queries.on_answer(NodeIndex(0), later, answer(&[(0, true)]));
        assert_eq!(queries.take_closed(now + ANSWER).len(), 1, "the later one");
        queries.on_answer(NodeIndex(0), stacks, Answer { stacks: Some(Vec::new()), ..answer(&[(0, true)]) });
        assert_eq!(queries.take_closed(now + ANSWER).len(), 1);
        queries.open("silent", (Extent::Stacks, Way::Directly), &[NodeIndex(0)], 1, now).unwrap();
        assert!(queries.take_closed(now + CALL_STACKS).is_empty());
        assert_eq!(queries.take_closed(now + ANSWER_STACKS).len(), 1);
    }

    #[test]
    fn what_was_gathered_serves_those_who_look_and_nobody_else() {
        let now = Instant::now();
        let mut queries = ProgressQueries::default();
        queries.open("judges", (Extent::Progress, Way::Directly), &[NodeIndex(0)], 1, now).unwrap();
        queries.open("looks at stacks", (Extent::Stacks, Way::Gathered), &[NodeIndex(0)], 1, now).unwrap();
        let looks = queries.open("looks", (Extent::Progress, Way::Gathered), &[NodeIndex(0)], 1, now).unwrap();
        queries.on_gathered(NodeIndex(0), looks, Extent::Progress, answer(&[(0, true)]));
        let closed: Vec<_> = queries.take_closed(now).iter().map(|query| query.purpose).collect();
        assert_eq!(closed, ["looks"]);
    }

    #[test]
    fn nodes_that_are_asked_one_by_one_in_the_end_have_the_time_of_others() {
        let (now, mut queries) = (Instant::now(), ProgressQueries::default());
        let number = queries.open((), (Extent::Progress, Way::Gathered), &[NodeIndex(0)], 1, now).unwrap();
        assert!(queries.take_closed(now + 2 * ANSWER).is_empty());
        queries.ask_directly(number, Extent::Progress, now + ANSWER / 2);
        assert!(queries.take_closed(now + ANSWER).is_empty());
        assert_eq!(queries.take_closed(now + ANSWER / 2 + ANSWER).len(), 1);
    }

    #[test]
    fn open_queries_do_not_pile_up() {
        let now = Instant::now();
        let mut queries = ProgressQueries::default();
        let asked = (0..2 * OPEN_MAX)
            .filter(|&number| {
                queries.open(number, (Extent::Progress, Way::Directly), &[NodeIndex(0)], 1, now).is_some()
            })
            .count();
        assert_eq!(asked, OPEN_MAX);
        assert_eq!(queries.take_closed(now).len(), OPEN_MAX, "they are closed without an answer");
        assert_eq!(queries.take_closed(now + ANSWER).len(), OPEN_MAX);
        assert!(queries.open(0, (Extent::Progress, Way::Directly), &[NodeIndex(0)], 1, now).is_some());
    }
}
