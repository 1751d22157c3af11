//! Batch jobs that could not start their script for a temporary reason, and nodes that took no part in a launch. Pure; times are passed in,
//! in seconds since 1970.
//!
//! ```text
//! begins ──not started──> waits for a pause, each time twice as long ──> begins on other nodes ...
//!                          └── after ATTEMPTS_MAX attempts the job has ended
//! ```
//! The next server has none of this state, and tries each job at once.

use std::collections::HashMap;

/// The most attempts to start a script. With the pauses between them they take more than three hours.
pub(crate) const ATTEMPTS_MAX: u32 = 30;
/// Pauses after failed attempts, in seconds: the first one, and the longest one. Each pause is twice as long as the previous one.
const PAUSE_FIRST: u64 = 2;
const PAUSE_MAX: u64 = 600;
/// Seconds for which a node is not used after it took no part in a launch, unless its agent registers again.
const AVOIDED_FOR: u64 = 30;

/// Batch jobs and nodes that are not tried again yet.
#[derive(Debug, Default)]
pub(crate) struct Postponed {
    /// By the id of the allocation.
    jobs: HashMap<String, Attempts>,
    /// By node, the time from which it is used again.
    nodes: HashMap<String, u64>,
}

/// Failed attempts to start a script.
#[derive(Clone, Copy, Debug)]
struct Attempts {
    number: u32,
    /// Time of the next attempt.
    next: u64,
}

impl Postponed {
    /// Records that the script of a job could not be started. Returns false if there is no further attempt.
    pub(crate) fn postpone(&mut self, id: &str, now: u64) -> bool {
        let number = self.jobs.get(id).map_or(0, |attempts| attempts.number) + 1;
        if number >= ATTEMPTS_MAX {
            self.jobs.remove(id);
            return false;
        }
        let pause = PAUSE_FIRST.saturating_mul(1 << number.min(16) >> 1).min(PAUSE_MAX);
        self.jobs.insert(id.to_owned(), Attempts { number, next: now.saturating_add(pause) });
        true
    }

    /// Returns true if the next attempt of a job is not due yet.
    pub(crate) fn waits(&self, id: &str, now: u64) -> bool {
        self.jobs.get(id).is_some_and(|attempts| now < attempts.next)
    }

    /// Removes a job, because its script runs or the job is over.
    pub(crate) fn forget(&mut self, id: &str) {
        self.jobs.remove(id);
    }

    /// Records that a node took no part in a launch: it could not be reached, or was busy.
    pub(crate) fn avoid(&mut self, node: &str, now: u64) {
        self.nodes.retain(|_, until| now < *until);
        self.nodes.insert(node.to_owned(), now.saturating_add(AVOIDED_FOR));
    }

    /// The time from which a node is used again; `None` if it can be used now.
    pub(crate) fn avoided_until(&self, node: &str, now: u64) -> Option<u64> {
        self.nodes.get(node).copied().filter(|&until| now < until)
    }

    /// Permits the use of a node again after its agent has registered.
    pub(crate) fn node_is_there(&mut self, node: &str) {
        self.nodes.remove(node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_bound_and_attempts_are_counted() {
        let mut postponed = Postponed::default();
        let mut now = 1000;
        let mut pauses = Vec::new();
        while postponed.postpone("job", now) {
            let begun = now;
            while postponed.waits("job", now) {
                now += 1;
            }
            pauses.push(now - begun);
        }
        assert_eq!((&pauses[..4], pauses.last(), pauses.len()), (&[2, 4, 8, 16][..], Some(&600), 29));
        assert!(now - 1000 > 3 * 3600);
        assert!(postponed.postpone("job", now), "another script of it is tried anew");
        postponed.forget("job");
        assert!(!postponed.waits("job", now) && postponed.jobs.is_empty());
    }

    #[test]
    fn a_node_is_avoided_for_a_while_or_until_its_agent_registers() {
        let mut postponed = Postponed::default();
        postponed.avoid("a0", 1000);
        postponed.avoid("a1", 1010);
        assert_eq!(postponed.avoided_until("a0", 1029), Some(1030));
        assert_eq!((postponed.avoided_until("a0", 1030), postponed.avoided_until("b0", 1000)), (None, None));
        postponed.node_is_there("a1");
        assert_eq!(postponed.avoided_until("a1", 1010), None);
        postponed.avoid("a1", 2000);
        assert_eq!(postponed.nodes.len(), 1, "what is over is not kept");
    }
}
