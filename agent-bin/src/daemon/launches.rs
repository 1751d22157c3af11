//! The launches of this node: each is taken once, is known until its report was delivered, and can be ended by its id.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use nix::libc::SIGTERM;
use parking_lot::Mutex;
use pmi_transport::proto::v1 as proto;
use pmi_transport::signature::Serial;
use proto::node_command::What;
use tokio::sync::{Notify, mpsc};

use super::serials::Serials;

/// How many ids of launches that have ended are remembered, so that none is taken again.
const ENDED_MAX: usize = 1 << 14;

/// The table of launches.
#[derive(Default)]
pub(super) struct Launches {
    state: Mutex<State>,
    /// Which launches that are not remembered may be new.
    pub(super) serials: Serials,
    /// Told when a launch leaves.
    left: Notify,
}

#[derive(Default)]
struct State {
    at_work: HashMap<String, Handle>,
    ended: VecDeque<(String, Serial)>,
    /// No more are taken: the agent is stopping.
    closed: bool,
}

/// The way to a launch at work.
#[derive(Clone)]
pub(super) struct Handle {
    /// Under which number the API server signed it.
    pub(super) serial: Serial,
    /// The names of its nodes.
    pub(super) nodes: Arc<[String]>,
    /// What is asked of it by others than the API server's stream.
    pub(super) orders: mpsc::UnboundedSender<LaunchOrder>,
}

/// What can be asked of a launch by its id.
#[derive(Debug)]
pub(super) enum LaunchOrder {
    /// End the ranks.
    End(What),
    /// End the ranks, and tell the API server when it is there again that this was why.
    CutOff {
        /// In words.
        reason: String,
    },
    /// Nobody wants to hear of it any more.
    Forget,
}

/// Why a launch is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotTaken {
    /// It is at work here.
    AtWork,
    /// It was here and has ended.
    Ended,
    /// The agent is stopping.
    Stopping,
}

impl Launches {
    /// Enters a launch; whoever does must remove it.
    pub(super) fn enter(&self, id: &str, handle: Handle) -> Result<(), NotTaken> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(NotTaken::Stopping);
        }
        if state.at_work.contains_key(id) {
            return Err(NotTaken::AtWork);
        }
        if state.ended.iter().any(|(ended, _)| ended == id) {
            return Err(NotTaken::Ended);
        }
        state.at_work.insert(id.to_owned(), handle);
        Ok(())
    }

    /// A launch is over, and its report was delivered.
    pub(super) fn remove(&self, id: &str) {
        let mut state = self.state.lock();
        let Some(handle) = state.at_work.remove(id) else { return };
        if state.ended.len() == ENDED_MAX
            && let Some((_, forgotten)) = state.ended.pop_front()
        {
            self.serials.forget(forgotten);
        }
        state.ended.push_back((id.to_owned(), handle.serial));
        self.left.notify_waiters();
    }

    /// The launch of this id, if it is here.
    pub(super) fn get(&self, id: &str) -> Option<Handle> {
        self.state.lock().at_work.get(id).cloned()
    }

    /// The ids of all launches.
    pub(super) fn ids(&self) -> Vec<String> {
        self.state.lock().at_work.keys().cloned().collect()
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.state.lock().at_work.len()
    }

    /// The API server cannot be heard: all launches are ended for that. Those that are being ended for it already go on so.
    pub(super) fn cut_off(&self, reason: &str) {
        for handle in self.state.lock().at_work.values() {
            handle.order(LaunchOrder::CutOff { reason: reason.to_owned() });
        }
    }

    /// Takes no more launches, ends those that are here, and waits until they have left, for `patience` at most.
    pub(super) async fn end_all(&self, patience: Duration) {
        let handles: Vec<Handle> = {
            let mut state = self.state.lock();
            state.closed = true;
            state.at_work.values().cloned().collect()
        };
        for handle in handles {
            handle.order(LaunchOrder::End(What::End(SIGTERM)));
        }
        let all_left = async {
            loop {
                let mut left = std::pin::pin!(self.left.notified());
                left.as_mut().enable();
                if self.count() == 0 {
                    break;
                }
                left.await;
            }
        };
        if tokio::time::timeout(patience, all_left).await.is_err() {
            tracing::warn!(launches = self.count(), "launches are left to the fork server");
        }
    }
}

impl Handle {
    /// Passes an order on; one that has ended needs none.
    pub(super) fn order(&self, order: LaunchOrder) {
        let _ = self.orders.send(order);
    }
}

#[cfg(test)]
mod tests {
    use super::super::serials::NotNew;
    use super::*;

    fn handle(serial: u64) -> Handle {
        Handle { serial: Serial(serial), nodes: Arc::new([]), orders: mpsc::unbounded_channel().0 }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_launch_is_taken_once() {
        let launches = Launches::default();
        assert_eq!(launches.enter("a", handle(1)), Ok(()));
        assert_eq!(launches.enter("a", handle(1)), Err(NotTaken::AtWork));
        launches.remove("a");
        assert_eq!(launches.enter("a", handle(1)), Err(NotTaken::Ended));
        assert_eq!(launches.enter("b", handle(1)), Ok(()));
        launches.end_all(Duration::ZERO).await;
        assert_eq!(launches.enter("c", handle(1)), Err(NotTaken::Stopping));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_is_remembered_is_bounded_and_what_is_forgotten_is_old() {
        let launches = Launches::default();
        launches.serials.register(Serial(100));
        for number in 101..=101 + ENDED_MAX as u64 {
            assert_eq!(launches.enter(&number.to_string(), handle(number)), Ok(()));
            launches.remove(&number.to_string());
        }
        assert_eq!(launches.state.lock().ended.len(), ENDED_MAX);
        assert_eq!(launches.serials.check(Serial(101)).await, Err(NotNew::Old));
        assert_eq!(launches.serials.check(Serial(102)).await, Ok(()));
        assert_eq!(launches.enter("102", handle(102)), Err(NotTaken::Ended));
    }
}
