//! Questions to all nodes of a launch about how far their ranks are, each open until all have answered or its time is over.

use std::time::Duration;

use pmi_transport::proto::v1::{MissingRank, Progress, RankProgress};
use tokio::time::Instant;

/// How long nodes have to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// The questions that are open. `P` says what each was asked for.
#[derive(Debug)]
pub(crate) struct Inquiries<P> {
    open: Vec<Inquiry<P>>,
    last: u64,
}

/// One question.
#[derive(Debug)]
pub(crate) struct Inquiry<P> {
    number: u64,
    /// What it was asked for.
    pub purpose: P,
    /// By node; `None` where no answer came.
    pub answers: Vec<Option<Progress>>,
    /// Nodes that may still answer.
    awaited: Vec<u32>,
    deadline: Instant,
}

impl<P> Default for Inquiries<P> {
    fn default() -> Self {
        Self { open: Vec::new(), last: 0 }
    }
}

impl<P> Inquiries<P> {
    /// Asks `nodes`, of `count` in all; returns the number of the question.
    pub(crate) fn ask(&mut self, purpose: P, nodes: Vec<u32>, count: usize, now: Instant) -> u64 {
        self.last += 1;
        let answers = vec![None; count];
        let deadline = now + PATIENCE;
        self.open.push(Inquiry { number: self.last, purpose, answers, awaited: nodes, deadline });
        self.last
    }

    /// A node answers. What it says is the latest, so it answers all questions before this one as well.
    pub(crate) fn answer(&mut self, node: u32, progress: &Progress) {
        for inquiry in self.open.iter_mut().filter(|inquiry| inquiry.number <= progress.question) {
            inquiry.awaited.retain(|&awaited| awaited != node);
            if let Some(answer) = inquiry.answers.get_mut(node as usize) {
                *answer = Some(progress.clone());
            }
        }
    }

    /// A node will not answer.
    pub(crate) fn leave(&mut self, node: u32) {
        for inquiry in &mut self.open {
            inquiry.awaited.retain(|&awaited| awaited != node);
        }
    }

    /// The questions that are answered, or whose time is over.
    pub(crate) fn take_closed(&mut self, now: Instant) -> Vec<Inquiry<P>> {
        self.open.extract_if(.., |inquiry| inquiry.awaited.is_empty() || inquiry.deadline <= now).collect()
    }

    /// Whether a question is open for such a purpose.
    pub(crate) fn any(&self, is: impl Fn(&P) -> bool) -> bool {
        self.open.iter().any(|inquiry| is(&inquiry.purpose))
    }
}

impl<P> Inquiry<P> {
    fn ranks(&self) -> impl Iterator<Item = &RankProgress> {
        self.answers.iter().flatten().flat_map(|progress| &progress.ranks)
    }

    /// How many ranks wait in a fence for others.
    pub(crate) fn waiting(&self) -> u32 {
        self.ranks().filter(|rank| rank.waiting).count() as u32
    }

    /// The ranks that others wait for: those that run and do not wait themselves. `told` adds what was known before, for nodes
    /// that did not answer.
    pub(crate) fn missing(&self, told: &[MissingRank]) -> Vec<MissingRank> {
        let late = self.ranks().filter(|rank| !rank.waiting && rank.exit.is_none());
        let missing = |rank: &RankProgress| MissingRank { rank: rank.rank, last_command: rank.last_command.clone() };
        let mut all: Vec<MissingRank> = late.map(missing).collect();
        all.extend(told.iter().cloned());
        all.sort_by_key(|missing| missing.rank);
        all.dedup_by_key(|missing| missing.rank);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(question: u64, ranks: &[(u32, bool)]) -> Progress {
        let rank = |&(rank, waiting): &(u32, bool)| RankProgress { rank, waiting, ..Default::default() };
        Progress { question, ranks: ranks.iter().map(rank).collect() }
    }

    #[tokio::test]
    async fn missing_ranks_of_all_nodes_are_put_together() {
        let now = Instant::now();
        let mut inquiries = Inquiries::default();
        let number = inquiries.ask("why", vec![0, 1], 3, now);
        inquiries.answer(0, &progress(number, &[(0, true), (1, false)]));
        assert!(inquiries.take_closed(now).is_empty());
        inquiries.answer(1, &progress(number, &[(2, true), (3, false)]));
        let closed = inquiries.take_closed(now);
        let told = [MissingRank { rank: 5, last_command: None }, MissingRank { rank: 3, last_command: None }];
        let missing: Vec<u32> = closed[0].missing(&told).iter().map(|missing| missing.rank).collect();
        assert_eq!((closed[0].waiting(), missing), (2, vec![1, 3, 5]));
    }

    #[tokio::test]
    async fn a_node_that_is_silent_is_not_waited_for_long() {
        let now = Instant::now();
        let mut inquiries = Inquiries::default();
        inquiries.ask((), vec![0, 1], 2, now);
        assert!(inquiries.take_closed(now).is_empty());
        assert_eq!(inquiries.take_closed(now + PATIENCE).len(), 1);
        inquiries.ask((), vec![0], 2, now);
        inquiries.leave(0);
        assert_eq!(inquiries.take_closed(now).len(), 1);
    }

    #[tokio::test]
    async fn a_late_answer_serves_earlier_questions_too() {
        let now = Instant::now();
        let mut inquiries = Inquiries::default();
        inquiries.ask("first", vec![0], 1, now);
        let second = inquiries.ask("second", vec![0], 1, now);
        inquiries.answer(0, &progress(second, &[(0, true)]));
        assert_eq!(inquiries.take_closed(now).len(), 2);
    }
}
