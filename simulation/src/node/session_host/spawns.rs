//! Requests of ranks for new jobs. They are repeated until the API server answers, as the agent repeats its calls.

use std::time::Duration;

use super::SessionHost;
use crate::connection::Host;
use crate::event::{Call, SessionEvent};
use crate::surroundings::{SpawnWish, Surroundings};

/// Pause before the request is repeated.
const AGAIN: Duration = Duration::from_secs(1);

impl SessionHost {
    pub(super) fn wish_for_job(&mut self, wish: SpawnWish, around: &mut Surroundings) {
        let number = around.wishes.len();
        around.wishes.push(wish);
        self.wishes.insert(number);
        self.ask_for_job(number, around);
    }

    pub(super) fn ask_for_job(&mut self, wish: usize, around: &mut Surroundings) {
        if self.wishes.contains(&wish) && !self.has_ended() {
            let (node, session) = (self.node, self.process);
            around.call(Host(node), Host::API, Call::Spawn { node, wish });
            around.after(AGAIN, SessionEvent::Spawn { node, session, wish });
        }
    }

    pub(crate) fn spawn_answered(&mut self, wish: usize, answer: usize, around: &mut Surroundings) {
        if self.wishes.remove(&wish) {
            let (call, answer) = (around.wishes[wish].call, around.answers[answer].clone());
            self.input(around, |session, now| session.spawn_answered(call, answer, now));
        }
    }
}
