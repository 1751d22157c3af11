//! How long API server, agents and sessions wait for each other. In one place, because each limit is right only beside others:
//! whoever waits for somebody who waits himself must wait longer, or the wrong one is blamed, and things are given out twice.
//!
//! ```text
//! life    2 HEARTBEAT + HEARTBEAT_ANSWER  <  LOST_AFTER  <  LEASE_MIN  <=  lease
//! start   CLAIM  <  NODE_ANSWER  <=  start_answer(depth) - HOP for each relay on the way  <  START_ANSWER
//! end     grace + SWEEP  <  grace + END          then KILL is ordered
//!         KILL + EXIT    <  LAST                 then the node is given up
//!         grace + SWEEP  <  STOP                 of an agent that is stopped, by the default grace
//! report  REPORT_PAUSE  <  REPORT_AGAIN  <  FIRST_REPORT  <  REPORT_AFTER_RESTART  <  REPORT_KEPT
//! client  COME_BACK_PAUSE  <  COME_BACK  <  NEXT_OWNER  <  FIRST_OWNER  <  LINGER
//! spawn   NODE_ANSWER  <  SPAWN
//! relay   KNOWN + CLAIM  <  NODE_ANSWER
//! VNIs    RETIRE  <  RETIRE_ANSWER
//! ```
//! The clocks are monotonic ones, each of its own machine; none of the inequalities compares two of them.

use std::time::Duration;

/// How often an agent says that it is there.
pub const HEARTBEAT: Duration = Duration::from_secs(1);
/// How long the API server may take to answer that. One answer that is lost must not cost the node.
pub const HEARTBEAT_ANSWER: Duration = Duration::from_secs(1);
/// How long the API server may take to answer a registration.
pub const REGISTER_ANSWER: Duration = Duration::from_secs(3);
/// A node from which no heartbeat came for so long is lost, and launches that need it end.
pub const LOST_AFTER: Duration = Duration::from_millis(3500);
/// An agent none of whose heartbeats the API server has accepted for so long ends its ranks, unless `api.toml` says otherwise:
/// the launches that they belong to have been declared over.
pub const LEASE: Duration = Duration::from_secs(30);
/// The shortest lease that can be set.
pub const LEASE_MIN: Duration = Duration::from_secs(5);

/// How long CXI services may take to be made for a launch, what is undone of a failure included.
pub const CLAIM: Duration = Duration::from_secs(4);
/// How long a node may take to accept a launch.
pub const NODE_ANSWER: Duration = Duration::from_secs(10);
/// How much less time a relay gives to the nodes below than it was given itself, so that it is the relay that says who did
/// not answer.
pub const HOP: Duration = Duration::from_secs(2);
/// How long a client waits until its launch is accepted by all nodes, or refused.
pub const START_ANSWER: Duration = Duration::from_secs(120);

/// How long a session hunts what its ranks left behind, after the last of them has ended.
pub const SWEEP: Duration = Duration::from_secs(5);
/// The longest grace that counts when somebody else than its client ends a launch: an administrator, the release of its
/// allocation, an agent that cannot hear the API server. A longer one, which is the user's to choose, would hold the nodes.
pub const GRACE_OF_OTHERS: Duration = Duration::from_secs(30);
/// How long a session that was told to end may take, beyond the grace of its launch. Then it is killed.
pub const END: Duration = Duration::from_secs(15);
/// How long a session may take that was told to kill its ranks. Then it is killed as well.
pub const KILL: Duration = Duration::from_secs(2);
/// How long the fork server may take to tell how a session ended that was killed.
pub const EXIT: Duration = Duration::from_secs(10);
/// How long a node may take to report the end of its part after the agent was told to kill it. Then the node is given up; it
/// stays with its allocation until the agent says that nothing is left.
pub const LAST: Duration = Duration::from_secs(15);
/// How long an agent may take to hear that a launch has ended.
pub const ABORT_ANSWER: Duration = Duration::from_secs(5);
/// How long sessions may take to end when their agent is stopped; the unit's `TimeoutStopSec` is longer.
pub const STOP: Duration = Duration::from_secs(20);

/// From one attempt of an agent to open a stream of reports to the next, at most.
pub const REPORT_PAUSE: Duration = Duration::from_secs(1);
/// How long a stream of reports that broke may take to come back.
pub const REPORT_AGAIN: Duration = Duration::from_secs(3);
/// How long a node that accepted a launch may take to begin its reports.
pub const FIRST_REPORT: Duration = Duration::from_secs(10);
/// The same after the API server was started anew, for nodes that ran the launch meanwhile.
pub const REPORT_AFTER_RESTART: Duration = Duration::from_secs(30);
/// How long an agent keeps the report of a launch for an API server that does not answer.
pub const REPORT_KEPT: Duration = Duration::from_secs(600);
/// How long the API server may take to acknowledge a report before it is sent again. A store whose disk is full takes longer.
pub const REPORT_ACK: Duration = Duration::from_secs(10);

/// From one attempt of a client to attach again to the next, at most.
pub const COME_BACK_PAUSE: Duration = Duration::from_secs(1);
/// How long a client tries to attach again, beyond the lease: until then its launch may run, and wait for it.
pub const COME_BACK: Duration = Duration::from_secs(15);
/// How long a launch does without its owner whose connection broke. If the API server is there, it is back within [`COME_BACK`].
pub const NEXT_OWNER: Duration = Duration::from_secs(20);
/// How long a launch waits for its owner to come: when it was accepted, and when the API server was started anew.
pub const FIRST_OWNER: Duration = Duration::from_secs(30);
/// How long a launch that is over and has no owner at present is kept for all who want to see it.
pub const LINGER: Duration = Duration::from_secs(600);

/// How long nodes have to start their parts of a job that a rank spawns.
pub const SPAWN: Duration = Duration::from_secs(60);
/// How long a launch that another agent passes on waits for the agent to be registered; that is under way when others have
/// heard of the agent.
pub const KNOWN: Duration = Duration::from_secs(3);

/// How long the creation of an allocation waits for its fabric credentials, so that the launch behind it finds them. Whether or
/// not they are there by then, the allocation is; what a manager answers later, or refuses, is its launches' to hear.
pub const CREDENTIALS_AHEAD: Duration = Duration::from_secs(2);
/// How long an agent may take to end what is left of a VNI; it is asked again and again.
pub const RETIRE: Duration = Duration::from_secs(2);
/// How long the API server waits for that.
pub const RETIRE_ANSWER: Duration = Duration::from_secs(5);

/// How long the nodes of a launch may take to accept it, when the farthest of them is reached over `depth` relays. Of very long
/// chains the last relays are not waited for as they should be: a client would have gone.
pub fn start_answer(depth: u32) -> Duration {
    NODE_ANSWER.saturating_add(HOP.saturating_mul(depth)).min(START_ANSWER - NODE_ANSWER)
}

/// What a relay that was given `own` leaves to the nodes below it; the least that a node needs, if it was given no more.
pub fn below_relay(own: Duration) -> Duration {
    own.saturating_sub(HOP).max(HOP)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is listed first is over, and told, before what is listed next gives up.
    #[test]
    fn whoever_waits_for_a_waiter_waits_longer() {
        // As the sessions' own default, `settings::Timeouts::grace_after_interrupt`.
        let grace = Duration::from_secs(5);
        // 65,536 nodes behind relays of a fan-out of 2.
        let deepest = 16;
        let in_order: &[(&str, &[Duration])] = &[
            ("life", &[2 * HEARTBEAT + HEARTBEAT_ANSWER, LOST_AFTER, LEASE_MIN, LEASE]),
            (
                "start",
                &[CLAIM, NODE_ANSWER, start_answer(1), start_answer(deepest), start_answer(u32::MAX), START_ANSWER],
            ),
            ("order to end", &[SWEEP, END]),
            ("order to kill", &[KILL + EXIT, LAST]),
            ("order to kill that is heard late", &[ABORT_ANSWER, LAST]),
            ("stop", &[grace + SWEEP, STOP]),
            ("report", &[REPORT_PAUSE, REPORT_AGAIN, FIRST_REPORT, REPORT_AFTER_RESTART, REPORT_KEPT]),
            ("client", &[COME_BACK_PAUSE, COME_BACK, NEXT_OWNER, FIRST_OWNER, LINGER]),
            ("spawn", &[NODE_ANSWER, SPAWN]),
            ("relay", &[KNOWN + CLAIM, NODE_ANSWER]),
            ("retire", &[RETIRE, RETIRE_ANSWER]),
        ];
        for (what, limits) in in_order {
            assert!(limits.is_sorted_by(|one, next| one < next), "{what}: {limits:?}");
        }
    }

    #[test]
    fn every_relay_on_the_way_has_less_time_than_who_asked_it() {
        let mut given = start_answer(3);
        for _ in 0..3 {
            let below = below_relay(given);
            assert!(below < given);
            given = below;
        }
        assert_eq!(given, NODE_ANSWER);
        assert_eq!(below_relay(Duration::ZERO), HOP, "a request that does not say gets a little");
    }
}
