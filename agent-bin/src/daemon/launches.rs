//! Table of the launches on this node. A launch is accepted once, stays until its report is acknowledged, and can be ended by its id.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pmi_transport::signature::Serial;
use tokio::sync::{Notify, mpsc};

use super::config::WhenStopped;
use super::ending::Ending;
use super::report_relay::Relayed;
use super::serials::Serials;
use super::wire::launch_request::Assignment;

/// Maximum number of remembered ids of launches that have ended; none of them is accepted again.
const ENDED_MAX: usize = 1 << 14;

/// Maximum number of remembered ids of launches that were given up before they arrived.
const GIVEN_UP_MAX: usize = 1 << 10;

/// The table of launches.
#[derive(Default)]
pub(super) struct Launches {
    state: Mutex<State>,
    /// Decides which launches may be new if their ids are not remembered.
    pub(super) serials: Serials,
    /// Notified when a launch leaves the table.
    left: Notify,
}

#[derive(Default)]
struct State {
    running: HashMap<String, Handle>,
    ended: VecDeque<(String, Serial)>,
    /// Launches that the API server gave up while this node was admitting them.
    given_up: VecDeque<String>,
    /// The agent is stopping, and accepts no more launches.
    closed: bool,
}

/// Handle of a running launch.
#[derive(Clone)]
pub(super) struct Handle {
    /// Serial number that the API server signed.
    pub(super) serial: Serial,
    /// Names of its nodes.
    pub(super) nodes: Arc<[String]>,
    /// Its session continues without an agent.
    pub(super) outlives_agent: bool,
    /// Queue of its orders, except orders on the API server's stream.
    pub(super) orders: mpsc::UnboundedSender<LaunchOrder>,
    /// Route of its reports; `None` if they use a stream to the API server from the start.
    pub(super) relayed: Option<Arc<Relayed>>,
}

/// Order to a launch, addressed by its id.
#[derive(Debug)]
pub(super) enum LaunchOrder {
    /// Ends the ranks in this way.
    End(Ending),
    /// Ends the ranks, because the launch has lost this node. Reports that cause as soon as the API server can be reached.
    NodeLost {
        /// Reason as text, after "node NAME was lost".
        reason: String,
    },
    /// Forgets the launch: no server takes its report any more.
    Forget,
}

/// Reason why a launch is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotTaken {
    /// The launch runs here.
    Running,
    /// The launch ran here and has ended.
    Ended,
    /// The API server has given up the launch meanwhile.
    GivenUp,
    /// The agent is stopping.
    Stopping,
}

impl WhenStopped {
    fn ends(self, handle: &Handle) -> bool {
        self == Self::End || !handle.outlives_agent
    }
}

impl Launches {
    /// Enters a launch; the caller must remove it.
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
        if state.given_up.iter().any(|given_up| given_up == id) {
            return Err(NotTaken::GivenUp);
        }
        state.running.insert(id.to_owned(), handle);
        Ok(())
    }

    /// Removes a launch that is over, after its report was acknowledged.
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

    /// Records that the API server has given up a launch that is not here: it is refused if it arrives.
    pub(super) fn give_up(&self, id: &str) {
        let mut state = self.state.lock();
        if state.ended.iter().any(|(ended, _)| ended == id) {
            return;
        }
        if state.given_up.len() == GIVEN_UP_MAX {
            state.given_up.pop_front();
        }
        state.given_up.push_back(id.to_owned());
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

    /// Ends all launches, because they have lost this node. The first of several reasons counts.
    pub(super) fn lose_all(&self, reason: &str) {
        self.lose(reason, WhenStopped::End);
    }

    /// Stops waiting for acknowledgements of reports, because no server is left to send them.
    pub(super) fn forget_all(&self) {
        self.state.lock().running.values().for_each(|handle| handle.order(LaunchOrder::Forget));
    }

    /// Accepts no more launches, ends for `reason` the launches that are not to be kept, and waits until they have left, at most for
    /// `time_limit`.
    pub(super) async fn stop(&self, what: WhenStopped, reason: &str, time_limit: Duration) {
        self.state.lock().closed = true;
        self.lose(reason, what);
        let all_left = async {
            loop {
                let mut left = std::pin::pin!(self.left.notified());
                left.as_mut().enable();
                if self.count_ending(what) == 0 {
                    break;
                }
                left.await;
            }
        };
        if tokio::time::timeout(time_limit, all_left).await.is_err() {
            tracing::warn!(launches = self.count_ending(what), "launches are left to the fork server");
        }
    }

    fn lose(&self, reason: &str, what: WhenStopped) {
        for handle in self.state.lock().running.values().filter(|handle| what.ends(handle)) {
            handle.order(LaunchOrder::NodeLost { reason: reason.to_owned() });
        }
    }

    fn count_ending(&self, what: WhenStopped) -> usize {
        self.state.lock().running.values().filter(|handle| what.ends(handle)).count()
    }
}

impl Handle {
    /// Creates the handle of a launch; its orders go to `orders`.
    pub(super) fn new(
        assignment: &Assignment,
        orders: mpsc::UnboundedSender<LaunchOrder>,
        relayed: Option<Arc<Relayed>>,
    ) -> Self {
        Self {
            serial: assignment.serial,
            nodes: assignment.members.iter().map(|member| member.name.clone()).collect(),
            outlives_agent: assignment.outlives_agent(),
            orders,
            relayed,
        }
    }

    /// Sends an order to the launch; a launch that has ended needs none.
    pub(super) fn order(&self, order: LaunchOrder) {
        let _ = self.orders.send(order);
    }
}

#[cfg(test)]
mod tests {
    use super::super::serials::NotNew;
    use super::*;

    fn handle(serial: u64) -> Handle {
        Handle {
            serial: Serial(serial),
            nodes: Arc::new([]),
            outlives_agent: true,
            orders: mpsc::unbounded_channel().0,
            relayed: None,
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_launch_is_taken_once() {
        let launches = Launches::default();
        assert_eq!(launches.enter("a", handle(1)), Ok(()));
        assert_eq!(launches.enter("a", handle(1)), Err(NotTaken::Running));
        launches.remove("a");
        assert_eq!(launches.enter("a", handle(1)), Err(NotTaken::Ended));
        assert_eq!(launches.enter("b", handle(1)), Ok(()));
        launches.stop(WhenStopped::End, "its agent was stopped", Duration::ZERO).await;
        assert_eq!(launches.enter("c", handle(1)), Err(NotTaken::Stopping));
    }

    /// Two running launches, and their orders.
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
        tokio::join!(launches.stop(WhenStopped::End, "a test", Duration::from_secs(20)), leaving);
        assert_eq!((launches.count(), begun.elapsed()), (0, Duration::from_secs(6)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_launch_that_does_not_leave_holds_a_stop_up_until_its_time_limit() {
        let launches = Launches::default();
        let _orders = two_launches(&launches);
        let begun = tokio::time::Instant::now();
        launches.stop(WhenStopped::End, "a test", Duration::from_secs(20)).await;
        assert_eq!((launches.count(), begun.elapsed().as_secs()), (2, 20));
        assert_eq!(launches.enter("c", handle(2)), Err(NotTaken::Stopping));
    }

    #[tokio::test(start_paused = true)]
    async fn launches_that_outlive_their_agent_are_kept_when_it_is_stopped() {
        let launches = Launches::default();
        let mut orders = two_launches(&launches);
        let (orders_of_third, mut third) = mpsc::unbounded_channel();
        let handle = Handle { outlives_agent: false, orders: orders_of_third, ..handle(1) };
        assert_eq!(launches.enter("c", handle), Ok(()));
        let leaving = async {
            assert!(matches!(third.recv().await.unwrap(), LaunchOrder::NodeLost { .. }));
            launches.remove("c");
        };
        tokio::join!(launches.stop(WhenStopped::Keep, "a test", Duration::from_secs(20)), leaving);
        assert!(orders.iter_mut().all(|ordered| ordered.try_recv().is_err()));
        assert_eq!((launches.count(), launches.enter("d", self::handle(2))), (2, Err(NotTaken::Stopping)));
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
        // A second removal has no effect.
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
