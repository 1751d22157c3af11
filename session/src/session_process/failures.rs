//! Carries out the [`FailurePolicy`] of a session: receives causes from this node and other nodes, and notifies other nodes over links.
//!
//! Notifications use the tree of the fences: each node passes a failure on to the nodes below it. If a node cannot be reached, its parent
//! notifies the nodes below it.

use pmi_transport::task;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use pmi_core::ids::NodeIndex;
use pmi_transport::fence::shares;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::failure_policy::{Decision, FailurePolicy, SentCause, Stage, concerns_others};
use super::node_links::{NodeLinks, ReportedFailure};
use crate::cause::Cause;
use crate::deadline::until;
use crate::session_io::Control;
use crate::timeouts;
use crate::wire::failure::{self, LaunchFailure};

/// Limit of nodes that one session notifies at a time.
const TELLING_MAX: usize = 32;

/// The policy of a session, and its channels.
pub(super) struct Failures {
    pub(super) policy: FailurePolicy,
    pub(super) links: Arc<NodeLinks>,
    /// The cause that was sent to the API server.
    pub(super) told: watch::Receiver<SentCause>,
    pub(super) heard: mpsc::Receiver<ReportedFailure>,
    /// Receiver of the first cause, which is reported in place of this session's own cause.
    pub(super) chosen: mpsc::Sender<Cause>,
    /// The session; this weak sender does not keep it alive.
    pub(super) control: mpsc::WeakSender<Control>,
    /// Receives each new stage of the launch's failure.
    pub(super) stage: watch::Sender<Stage>,
}

impl Failures {
    /// Runs until the session has sent its last message.
    pub(super) async fn run(mut self) {
        let mut telling = JoinSet::new();
        loop {
            while let Some(decision) = self.policy.poll_decision() {
                self.carry_out(decision, &mut telling).await;
            }
            let stage = if telling.is_empty() { self.policy.stage() } else { Stage::Open };
            self.stage.send_if_modified(|before| std::mem::replace(before, stage) != stage);
            tokio::select! {
                changed = self.told.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let told = self.told.borrow_and_update().clone();
                    self.policy.on_told(told, Instant::now());
                }
                Some((from, failure)) = self.heard.recv() => self.policy.on_failure(from, failure, Instant::now()),
                Some(_) = telling.join_next(), if !telling.is_empty() => {}
                () = until(self.policy.next_wake()) => self.policy.on_time(Instant::now()),
            }
        }
    }

    async fn carry_out(&self, decision: Decision, telling: &mut JoinSet<()>) {
        let links = Arc::clone(&self.links);
        match decision {
            Decision::TellRoot(failure) => {
                telling.spawn(task::boxed(async move { drop(tell(&links, 0, failure).await) }));
            }
            Decision::TellBelow(failure) => {
                telling.spawn(task::boxed(tell_below(links, failure)));
            }
            // Sends fail when the session has ended and does not need them.
            Decision::Take(cause) => {
                let _ = self.chosen.send(cause).await;
                if let Some(control) = self.control.upgrade() {
                    let _ = control.send(Control::GiveUp).await;
                }
            }
        }
    }
}

/// Waits until all nodes that need a failure notification have received it, or the time is over. `own` is the cause of this session, which
/// the policy may not have received yet.
pub(super) async fn until_settled(own: Option<&Cause>, stage: &mut watch::Receiver<Stage>) {
    let is_known = |stage: &Stage| match own.is_some_and(concerns_others) {
        true => *stage == Stage::Settled,
        false => *stage != Stage::Open,
    };
    let _ = timeout(timeouts::UNHEARD + timeouts::TELL, stage.wait_for(is_known)).await;
}

/// Sends the failure to the next `below` nodes after this one.
async fn tell_below(links: Arc<NodeLinks>, LaunchFailure { cause, below, .. }: LaunchFailure) {
    let first = links.me().0 + 1;
    let all = first..links.nodes().min(first.saturating_add(below));
    let mut waiting: VecDeque<Range<u32>> = shares(all, links.fan_out()).collect();
    let mut telling = JoinSet::new();
    loop {
        while telling.len() < TELLING_MAX
            && let Some(share) = waiting.pop_front()
        {
            let (links, cause) = (Arc::clone(&links), cause.clone());
            telling.spawn(task::boxed(async move {
                let failure = LaunchFailure { cause, below: share.len() as u32 - 1, api_is_silent: false };
                let told = tell(&links, share.start, failure).await;
                told.err().map(|Unacknowledged| share.start + 1..share.end)
            }));
        }
        match telling.join_next().await {
            Some(Ok(Some(untold))) => waiting.extend(shares(untold, links.fan_out())),
            Some(_) => {}
            None => return,
        }
    }
}

/// Error of a node that did not acknowledge the failure in time.
struct Unacknowledged;

async fn tell(links: &NodeLinks, node: u32, failure: LaunchFailure) -> Result<(), Unacknowledged> {
    let told = timeout(timeouts::TELL, links.tell(NodeIndex(node), failure::encode(&failure))).await;
    told.map_err(|_| Unacknowledged)?.map_err(|_| Unacknowledged)
}

#[cfg(test)]
mod tests {
    use pmi_core::ids::Rank;
    use rank_spawner::RankExit;

    use super::*;
    use crate::cause::CauseKind;

    /// Returns the wait time of a session that ends for this cause, if no cause was reported to the API server or other nodes.
    async fn wait_for(kind: CauseKind) -> std::time::Duration {
        let (_policy, mut stage) = watch::channel(Stage::NoFailure);
        let (begin, cause) = (Instant::now(), Cause { host: "n0".to_owned(), kind });
        until_settled(Some(&cause), &mut stage).await;
        begin.elapsed()
    }

    /// Failures that a launch tolerates (`--kill-on-bad-exit=0`, `lattice exec`) end no ranks, so they are sent to no session.
    #[tokio::test(start_paused = true)]
    async fn others_are_told_of_what_ends_their_ranks_alone() {
        let exit = RankExit::Code(1);
        assert_eq!(wait_for(CauseKind::FailedRanks { failed: vec![(Rank(0), exit)] }).await.as_millis(), 0);
        let waits = wait_for(CauseKind::Failed { rank: Rank(0), exit }).await;
        assert_eq!(waits, timeouts::UNHEARD + timeouts::TELL);
    }
}
