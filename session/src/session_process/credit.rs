//! Output credit of a session process. The task that reads grants from the agent and the task that writes events share it.

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::flow_control::Credit;

/// Limit of events that are held for lack of credit, in bytes of cost ([`crate::wire::event::cost`]). At the limit, the session's events
/// are no longer received, which slows its ranks down.
pub(super) const HELD_MAX: usize = 1 << 20;

/// The same limit while a progress query waits. Its answer follows events in the session's queue that are not received yet.
pub(super) const HELD_MAX_FOR_ANSWER: usize = 16 << 20;

/// Output credit, and the progress queries that change the limit of held events.
pub(super) struct OutputCredit {
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    credit: Credit,
    /// Number of progress queries without an answer.
    queries: usize,
}

impl OutputCredit {
    /// Returns the credit of a session with an initial window of `window` bytes of output.
    pub(super) fn new(window: u64) -> Self {
        Self { state: Mutex::new(State { credit: Credit::new(window), queries: 0 }), changed: Notify::new() }
    }

    /// Adds a grant of `bytes` from the agent.
    pub(super) fn grant(&self, bytes: u64) {
        self.state.lock().credit.grant(bytes);
        self.changed.notify_one();
    }

    /// Cancels an overdraft: a new API server's grants do not compensate it. Must be called before the first grant of the new server.
    pub(super) fn forgive(&self) {
        self.state.lock().credit.forgive();
    }

    /// Removes the limit permanently, because the agent is gone and no output can reach it.
    pub(super) fn lift(&self) {
        self.state.lock().credit.lift();
        self.changed.notify_one();
    }

    /// Counts a progress query that the session must answer.
    pub(super) fn expect_answer(&self) {
        self.state.lock().queries += 1;
        self.changed.notify_one();
    }

    /// Counts the answer to a progress query.
    pub(super) fn answered(&self) {
        let state = &mut *self.state.lock();
        state.queries = state.queries.saturating_sub(1);
    }

    /// Current limit of held events, in bytes of cost.
    pub(super) fn held_max(&self) -> usize {
        if self.state.lock().queries > 0 { HELD_MAX_FOR_ANSWER } else { HELD_MAX }
    }

    /// Spends the cost of one event and returns true, if the event may be sent now. An event without cost may always be sent.
    pub(super) fn spend(&self, cost: usize) -> bool {
        let credit = &mut self.state.lock().credit;
        let may_send = cost == 0 || credit.is_available();
        if may_send {
            credit.overdraw(cost as u64);
        }
        may_send
    }

    /// Waits until credit or queries have changed since the last call.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_sent_while_there_is_credit_and_the_last_may_overdraw_it() {
        let credit = OutputCredit::new(100);
        assert_eq!([60, 60, 1].map(|cost| credit.spend(cost)), [true, true, false]);
        assert!(credit.spend(0), "an event without cost needs no credit");
        credit.grant(20);
        assert!(!credit.spend(1), "20 bytes were overdrawn");
        credit.grant(1);
        assert!(credit.spend(1));
    }

    #[test]
    fn a_new_api_server_grants_a_window_that_is_smaller_than_what_was_overdrawn() {
        let credit = OutputCredit::new(100);
        assert_eq!([300, 1].map(|cost| credit.spend(cost)), [true, false]);
        credit.forgive();
        assert!(!credit.spend(1), "it grants first");
        credit.grant(100);
        assert_eq!([300, 1].map(|cost| credit.spend(cost)), [true, false]);
    }

    #[test]
    fn a_session_without_an_agent_needs_no_credit() {
        let credit = OutputCredit::new(0);
        assert!(!credit.spend(1));
        credit.lift();
        assert!((0..1000).all(|_| credit.spend(1 << 30)));
    }

    #[test]
    fn more_may_be_held_while_a_progress_query_waits_for_its_answer() {
        let credit = OutputCredit::new(0);
        credit.answered();
        assert_eq!(credit.held_max(), HELD_MAX, "an answer that nobody asked for counts for nothing");
        credit.expect_answer();
        credit.expect_answer();
        credit.answered();
        assert_eq!(credit.held_max(), HELD_MAX_FOR_ANSWER);
        credit.answered();
        assert_eq!(credit.held_max(), HELD_MAX);
    }

    #[tokio::test]
    async fn a_writer_that_waits_for_credit_learns_of_each_change() {
        let credit = OutputCredit::new(0);
        let changes: [fn(&OutputCredit); 3] =
            [|credit| credit.grant(1), |credit| credit.lift(), |credit| credit.expect_answer()];
        for change in changes {
            change(&credit);
            // A change before the wait also counts.
            credit.changed().await;
        }
    }
}
