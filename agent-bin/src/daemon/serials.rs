//! Replay protection: decides if a launch that another agent forwards was signed for this agent, and did not run here before.
//!
//! The holder of a member's key can repeat a request that the API server signed once. An agent remembers the ids of many launches, but not of
//! all. It has no ids of launches that an earlier agent ran, or that never arrived. So it accepts no launch below the [floor](Floor).

use lattice_session::timeouts;
use pmi_transport::signature::Serial;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::floor::Floor;

/// The floor; there is none until the agent has registered.
pub(super) struct Serials {
    floor: watch::Sender<Floor>,
}

/// Reason why a signed launch is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotNew {
    /// The launch may have run here before.
    #[error("the launch was signed before this agent started, or long ago; only new launches are passed on")]
    Old,
    /// The API server requested the launch before this agent registered.
    #[error("its agent was started anew when the launch was started")]
    AskedBefore,
    /// The API server assigns numbers again that it assigned before.
    #[error(
        "the API server's numbers of launches have gone back, as where it has lost its state and its clock was set back; restart this \
         node's agent"
    )]
    Behind,
    /// The agent has not registered yet.
    #[error("the agent has not registered with the API server yet, and cannot distinguish new launches from old ones")]
    Unregistered,
}

impl Default for Serials {
    fn default() -> Self {
        Self { floor: watch::Sender::new(Floor::default()) }
    }
}

impl Serials {
    /// See [`Floor::register`].
    pub(super) fn register(&self, last: Serial) {
        self.floor.send_modify(|floor| floor.register(last));
    }

    /// Records that the API server has signed launches up to `last` by now.
    pub(super) fn hear(&self, last: Serial, now: Instant) {
        self.floor.send_modify(|floor| floor.hear(last, now.into_std()));
    }

    /// Raises the floor, because the id of this launch is no longer remembered.
    pub(super) fn forget(&self, serial: Serial) {
        self.floor.send_modify(|floor| floor.raise(serial));
    }

    /// Checks that a launch with this number was signed for this agent and is not forgotten.
    pub(super) async fn check(&self, serial: Serial) -> Result<(), NotNew> {
        match self.known(|floor| (floor.least(), floor.is_behind())).await {
            Some((Some(least), _)) if serial > least => Ok(()),
            Some((_, true)) => Err(NotNew::Behind),
            Some((_, false)) => Err(NotNew::Old),
            None => Err(NotNew::Unregistered),
        }
    }

    /// Checks that a launch that the API server itself requests was signed after this agent registered. An older launch was requested from an
    /// earlier agent, and counts as lost here unless it was adopted. Servers without numbers send 0.
    pub(super) async fn check_asked(&self, serial: Serial) -> Result<(), NotNew> {
        if serial == Serial(0) {
            return Ok(());
        }
        match self.known(|floor| (floor.first(), floor.is_behind())).await {
            Some((first, is_behind)) if is_behind || first < Some(serial) => Ok(()),
            Some(_) => Err(NotNew::AskedBefore),
            None => Err(NotNew::Unregistered),
        }
    }

    /// The state of the floor as soon as it exists; `None` if the agent does not register in time.
    async fn known<T>(&self, state: impl FnOnce(&Floor) -> T) -> Option<T> {
        let mut watched = self.floor.subscribe();
        let registered = timeout(timeouts::KNOWN, watched.wait_for(|floor| floor.least().is_some())).await;
        registered.ok()?.ok().map(|floor| state(&floor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::floor::UNDER_WAY;

    #[tokio::test(start_paused = true)]
    async fn launches_below_the_floor_are_old() {
        let serials = Serials::default();
        assert_eq!(serials.check(Serial(9)).await, Err(NotNew::Unregistered));
        serials.forget(Serial(1));
        serials.register(Serial(5));
        assert_eq!((serials.check(Serial(5)).await, serials.check(Serial(6)).await), (Err(NotNew::Old), Ok(())));
        serials.forget(Serial(7));
        serials.forget(Serial(6));
        assert_eq!((serials.check(Serial(7)).await, serials.check(Serial(8)).await), (Err(NotNew::Old), Ok(())));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_signed_long_ago_is_old() {
        let serials = Serials::default();
        serials.register(Serial(5));
        let start = Instant::now();
        serials.hear(Serial(7), start);
        serials.hear(Serial(9), start + UNDER_WAY / 2);
        assert_eq!(serials.check(Serial(6)).await, Ok(()), "it may be under way");
        serials.hear(Serial(9), start + UNDER_WAY);
        assert_eq!((serials.check(Serial(7)).await, serials.check(Serial(8)).await), (Err(NotNew::Old), Ok(())));
        // A server that has lost its numbers makes none of them new.
        serials.register(Serial(3));
        assert_eq!(serials.check(Serial(6)).await, Err(NotNew::Behind));
        serials.hear(Serial(3), start + 2 * UNDER_WAY);
        assert_eq!(serials.check(Serial(6)).await, Err(NotNew::Behind));
        serials.hear(Serial(12), start + 2 * UNDER_WAY);
        assert_eq!((serials.check(Serial(6)).await, serials.check(Serial(13)).await), (Err(NotNew::Old), Ok(())));
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_api_server_asks_for_is_old_if_it_was_signed_before_this_agent_registered() {
        let serials = Serials::default();
        assert_eq!(
            (serials.check_asked(Serial(9)).await, serials.check_asked(Serial(0)).await),
            (Err(NotNew::Unregistered), Ok(()))
        );
        serials.register(Serial(5));
        serials.forget(Serial(8));
        assert_eq!(
            (serials.check_asked(Serial(5)).await, serials.check_asked(Serial(6)).await),
            (Err(NotNew::AskedBefore), Ok(())),
            "however long its credentials took"
        );
        // The server has lost its state, and trusts its own numbers.
        serials.register(Serial(3));
        assert_eq!(serials.check_asked(Serial(4)).await, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn registering_again_makes_no_launch_old() {
        let serials = Serials::default();
        serials.register(Serial(5));
        serials.register(Serial(8));
        assert_eq!(serials.check(Serial(6)).await, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_launch_waits_for_the_registration_that_is_under_way() {
        let serials = Serials::default();
        let registering = async { serials.register(Serial(5)) };
        assert_eq!(tokio::join!(serials.check(Serial(6)), registering).0, Ok(()));
    }
}
