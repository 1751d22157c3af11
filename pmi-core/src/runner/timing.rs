//! Deadlines of a runner: the claim deadlines of connections, and the protocol's timers. One task waits for all of them.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{self, Instant};

use super::deadlines::Deadline;
use super::protocol::Protocol;
use super::state::{Shared, State};

/// Longest time to a deadline, longer than any job; a later time may exceed the range of `Instant`.
const FOREVER: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

impl<P: Protocol> Shared<P> {
    /// Sets a deadline. One task waits for all deadlines, from the first on.
    pub(super) fn set(self: &Arc<Self>, state: &mut State<P>, deadline: Deadline<P::Timer>, after: Duration) {
        let is_next = state.deadlines.set(deadline, Instant::now() + after.min(FOREVER));
        if !state.keeps_time {
            state.keeps_time = true;
            let shared = Arc::clone(self);
            state.spawn(async move { shared.keep_time().await });
        } else if is_next {
            self.rescheduled.notify_one();
        }
    }

    async fn keep_time(self: Arc<Self>) {
        loop {
            let next = self.state.lock().deadlines.next();
            match next {
                Some(next) => tokio::select! {
                    () = time::sleep_until(next) => self.meet_deadlines(),
                    () = self.rescheduled.notified() => {}
                },
                None => self.rescheduled.notified().await,
            }
        }
    }

    fn meet_deadlines(self: &Arc<Self>) {
        let mut state = self.state.lock();
        let now = Instant::now();
        while let Some(deadline) = state.deadlines.pop_due(now) {
            match deadline {
                Deadline::Claim(id) => {
                    state.unclaimed -= 1;
                    state.protocol.handle_disconnect(id);
                    state.close(id);
                }
                Deadline::Timer(timer) => state.protocol.handle_timer(timer),
            }
            self.carry_out(&mut state);
        }
    }
}
