//! Table of the launches of this node: each is taken once, is known until its report was acknowledged, and can be ended by its id.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pmi_transport::signature::Serial;
use tokio::sync::{Notify, mpsc};

use super::ending::Ending;
use super::serials::Serials;

/// Number of ids of launches that have ended that are remembered, so that none is taken again.
const ENDED_MAX: usize = 1 << 14;

/// The table of launches.
#[derive(Default)]
pub(super) struct Launches {
    state: Mutex<State>,
    /// Decides which launches that are not remembered may be new.
    pub(super) serials: Serials,
    /// Notified when a launch leaves.
    left: Notify,
}

#[derive(Default)]
struct State {
    running: HashMap<String, Handle>,
    ended: VecDeque<(String, Serial)>,
    /// No more are taken: the agent is stopping.
    closed: bool,
}

/// Handle of a running launch.
#[derive(Clone)]
pub(super) struct Handle {
    /// Serial number under which the API server signed it.
    pub(super) serial: Serial,
    /// The names of its nodes.
    pub(super) nodes: Arc<[String]>,
    /// Queue of its orders, but for those that come on the API server's stream.
    pub(super) orders: mpsc::UnboundedSender<LaunchOrder>,
}

/// Order to a launch, by its id.
#[derive(Debug)]
pub(super) enum LaunchOrder {
    /// End the ranks in this way.
    End(Ending),
    /// End the ranks, because this node is lost to the launch, and report that as the cause as soon as the API server can be reached.
    NodeLost {
        /// Reason in words, after "node NAME was lost".
        reason: String,
    },
    /// Forget the launch: nobody takes its report any more.
    Forget,
}

/// Reason why a launch is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotTaken {
    /// The launch runs here.
    Running,
    /// The launch was here and has ended.
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
        if state.running.contains_key(id) {
            return Err(NotTaken::Running);
        }
        if state.ended.iter().any(|(ended, _)| ended == id) {
            return Err(NotTaken::Ended);
        }
        state.running.insert(id.to_owned(), handle);
        Ok(())
    }

    /// Removes a launch that is over, and whose report was acknowledged.
    pub(super) fn remove(&self, id: &str) {
        let mut state = self.state.lock();
        let Some(handle) = state.running.remove(id) else { return };
        if state.ended.len() == ENDED_MAX
            && let Some((_, forgotten)) = state.ended.pop_front()
        {
            self.serials.forget(forgotten);
        }
        state.ended.push_back((id.to_owned(), handle.serial));
        self.left.notify_waiters();
    }

    /// Handle of the launch of this id, if it is here.
    pub(super) fn get(&self, id: &str) -> Option<Handle> {
        self.state.lock().running.get(id).cloned()
    }

    /// Ids of all launches.
    pub(super) fn ids(&self) -> Vec<String> {
        self.state.lock().running.keys().cloned().collect()
    }

    /// Number of launches.
    pub(super) fn count(&self) -> usize {
        self.state.lock().running.len()
    }

    /// Ends all launches, because this node is lost to them; the first reason of several counts.
    pub(super) fn lose_all(&self, reason: &str) {
        for handle in self.state.lock().running.values() {
            handle.order(LaunchOrder::NodeLost { reason: reason.to_owned() });
        }
    }

    /// Takes no more launches, ends those that are here for `reason`, and waits until they have left, for `time_limit` at most.
    pub(super) async fn end_all(&self, reason: &str, time_limit: Duration) {
        self.state.lock().closed = true;
        self.lose_all(reason);
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
        if tokio::time::timeout(time_limit, all_left).await.is_err() {
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
        assert_eq!(launches.enter("a", handle(1)), Err(NotTaken::Running));
        launches.remove("a");
        assert_eq!(launches.enter("a", handle(1)), Err(NotTaken::Ended));
        assert_eq!(launches.enter("b", handle(1)), Ok(()));
        launches.end_all("its agent was stopped", Duration::ZERO).await;
        assert_eq!(launches.enter("c", handle(1)), Err(NotTaken::Stopping));
    }

    /// Two launches that run, and their orders.
    fn two_launches(launches: &Launches) -> Vec<mpsc::UnboundedReceiver<LaunchOrder>> {
        let enter = |id: &str| {
            let (orders, ordered) = mpsc::unbounded_channel();
            assert_eq!(launches.enter(id, Handle { orders, ..handle(1) }), Ok(()));
            ordered
        };
        ["a", "b"].map(enter).into()
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_stops_waits_until_its_launches_have_left() {
        let launches = Launches::default();
        let orders = two_launches(&launches);
        let leaving = async {
            for (id, mut ordered) in ["a", "b"].into_iter().zip(orders) {
                let order = ordered.recv().await.unwrap();
                assert!(matches!(&order, LaunchOrder::NodeLost { reason } if reason == "a test"), "{order:?}");
                tokio::time::sleep(Duration::from_secs(3)).await;
                launches.remove(id);
            }
        };
        let begun = tokio::time::Instant::now();
        tokio::join!(launches.end_all("a test", Duration::from_secs(20)), leaving);
        assert_eq!((launches.count(), begun.elapsed()), (0, Duration::from_secs(6)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_launch_that_does_not_leave_holds_a_stop_up_until_its_time_limit() {
        let launches = Launches::default();
        let _orders = two_launches(&launches);
        let begun = tokio::time::Instant::now();
        launches.end_all("a test", Duration::from_secs(20)).await;
        assert_eq!((launches.count(), begun.elapsed().as_secs()), (2, 20));
        assert_eq!(launches.enter("c", handle(2)), Err(NotTaken::Stopping));
    }

    #[test]
    fn a_launch_is_found_while_it_runs() {
        let launches = Launches::default();
        let _orders = two_launches(&launches);
        let mut ids = launches.ids();
        ids.sort();
        assert_eq!(ids, ["a", "b"]);
        launches.remove("a");
        assert!(launches.get("a").is_none() && launches.get("b").is_some());
        // Another time does no harm.
        launches.remove("a");
        assert_eq!(launches.count(), 1);
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
