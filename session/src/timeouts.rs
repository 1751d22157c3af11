//! Time limits of API server, agents and sessions when they wait for each other. They are in one place because they depend on each other. If a
//! daemon waits for a daemon that waits itself, it must wait longer. Otherwise the wrong daemon is blamed, and nodes or VNIs are assigned twice.
//! Limits that a launch sets are in [`crate::settings::Timeouts`].
//!
//! ```text
//! life    2 HEARTBEAT + HEARTBEAT_ANSWER  <  LOST_AFTER  <  LOST_AFTER + JUDGE  <  LEASE_MIN  <=  lease
//! start   CLAIM  <  NODE_ANSWER  <=  start_answer(depth) - HOP for each relay on the way  <  START_ANSWER
//! end     STACKS_AT_LIMIT + grace + output_end + SWEEP + REMOVAL  <  grace + END          then KILL is ordered, which cuts output_end short
//!         STOPPED_LOOK * STOPPED_LOOKS + EXIT  <  OVERTIME
//!         KILL + EXIT    <  LAST                 then the node is given up
//!         grace + output_end + SWEEP + REMOVAL  <  STOP    of an agent that is stopped, by the defaults of a launch
//! report  REPORT_PAUSE  <  LOST_AFTER + JUDGE  <  REPORT_AGAIN  <  FIRST_REPORT  <  REPORT_AFTER_RESTART  <  REPORT_KEPT
//! client  COME_BACK_PAUSE  <  CLOSED_OWNER  <  COME_BACK  <  NEXT_OWNER  <  FIRST_OWNER  <  LINGER
//! failure HOLD  <  HOLD_GIVEN_UP  <  TELL  <=  UNHEARD  <  UNHEARD + TELL  <  LEASE_MIN
//! spawn   NODE_ANSWER  <  SPAWN
//! relay   KNOWN + CLAIM  <  NODE_ANSWER
//! restart AGENT_RESTART  <  NODE_ANSWER
//! link    pam_timeout of the other node  <  link_answer(pam_timeout)
//! VNIs    RETIRE  <  RETIRE_ANSWER
//! ```
//! All clocks are monotonic, each one of its own machine. No inequality compares two clocks.

use std::time::Duration;

/// Interval of an agent's heartbeats.
pub const HEARTBEAT: Duration = Duration::from_secs(1);
/// Time for the API server to answer a heartbeat. One lost answer must not cost the node.
pub const HEARTBEAT_ANSWER: Duration = Duration::from_secs(1);
/// Time for the API server to answer a registration.
pub const REGISTER_ANSWER: Duration = Duration::from_secs(3);
/// Time without a heartbeat after which a node is lost, and launches that need it end.
pub const LOST_AFTER: Duration = Duration::from_millis(3500);
/// Time for the port of a silent agent to answer. After it, the state of the agent's machine is known.
pub const PORT_ANSWER: Duration = Duration::from_secs(1);
/// Pause before the next check of a silent agent's port that accepts connections. An agent that has just replaced another agent registers within
/// this time.
pub const PORT_AGAIN: Duration = Duration::from_millis(500);
/// Time from [`LOST_AFTER`] to the decision about a node, including the pause between two checks.
pub const JUDGE: Duration = Duration::from_millis(1250);
/// Lease, unless `api.toml` sets another one: time without an accepted heartbeat after which an agent ends its ranks. By then the API server has
/// declared their launches over.
pub const LEASE: Duration = Duration::from_secs(30);
/// The shortest lease that can be set.
pub const LEASE_MIN: Duration = Duration::from_secs(5);
/// Time that sessions live without an agent, unless `agent.toml` sets another one.
pub const AGENT_LEASE: Duration = Duration::from_secs(30);

/// Time to make the CXI services of a launch, or to undo them after a failure.
pub const CLAIM: Duration = Duration::from_secs(4);
/// Time for a node to accept a launch.
pub const NODE_ANSWER: Duration = Duration::from_secs(10);
/// Time for an agent to be replaced, or to find the API server again. Meanwhile, launches on its node are retried as new launches: with a new id
/// and a new number. If an agent dies before it answers a request to start a launch, the wait for the next agent is as long.
pub const AGENT_RESTART: Duration = Duration::from_secs(8);
/// Difference between the time of a relay and the time of its nodes. The relay then reports the nodes that did not answer.
pub const HOP: Duration = Duration::from_secs(2);
/// Time that a node holds its first events for the agent that relays its reports. Then it reports to the API server itself.
pub const FETCHED: Duration = Duration::from_secs(2);
/// Time that a client waits until its launch is accepted by all nodes, or refused.
pub const START_ANSWER: Duration = Duration::from_secs(120);

/// Time that a session kills processes that its ranks left running, after the end of the last rank.
pub const SWEEP: Duration = Duration::from_secs(5);
/// Maximum grace if a caller other than the client ends a launch: an administrator, the release of its allocation, or an agent that cannot
/// reach the API server. The user can set a longer grace, which would hold the nodes.
pub const GRACE_OF_OTHERS: Duration = Duration::from_secs(30);
/// Time for a session to end after an order to end, in addition to the grace of its launch. Then its ranks are killed.
pub const END: Duration = Duration::from_secs(20);
/// Time for a session to end after an order to kill its ranks. Then the session is killed as well.
pub const KILL: Duration = Duration::from_secs(2);
/// Time to remove files of ranks at the end of a session. Then the end is reported, and the keeper removes the remaining files.
pub const REMOVAL: Duration = Duration::from_secs(5);
/// Time for the fork server to report the exit of a session process that was killed.
pub const EXIT: Duration = Duration::from_secs(10);
/// Interval at which an agent checks whether its sessions are stopped. A signal of their user can stop them.
pub const STOPPED_LOOK: Duration = Duration::from_secs(5);
/// Number of consecutive checks after which a stopped session is killed: a stopped session does not apply its time limits.
pub const STOPPED_LOOKS: u32 = 3;
/// Time beyond a launch's time limit for its sessions to end it. Then the API server ends it.
pub const OVERTIME: Duration = Duration::from_secs(30);
/// Time for a node to report the end of its part after its agent received the order to kill it. Then the node is given up as unclean: it stays
/// with its allocation until the agent reports that nothing is left.
pub const LAST: Duration = Duration::from_secs(15);
/// Time for an agent to acknowledge the end of a launch.
pub const ABORT_ANSWER: Duration = Duration::from_secs(5);
/// Time for sessions to end when their agent is stopped; the unit's `TimeoutStopSec` is longer.
pub const STOP: Duration = Duration::from_secs(20);

/// Maximum pause between attempts of an agent to open a stream of reports.
pub const REPORT_PAUSE: Duration = Duration::from_secs(1);
/// Time for a broken stream of reports of a live agent to return. By then a lost agent is known to be lost.
pub const REPORT_AGAIN: Duration = Duration::from_secs(5);
/// Time for a node that accepted a launch to begin its reports.
pub const FIRST_REPORT: Duration = Duration::from_secs(10);
/// The same after a restart of the API server, for nodes that ran the launch meanwhile.
pub const REPORT_AFTER_RESTART: Duration = Duration::from_secs(30);
/// Time that an agent holds the report of a launch for an API server that does not answer. Then the agent releases the session.
pub const REPORT_KEPT: Duration = Duration::from_secs(600);
/// Time for the API server to acknowledge a report before the agent asks again. A store with a full disk takes longer.
pub const REPORT_ACK: Duration = Duration::from_secs(10);

/// Maximum pause between attempts of a client to attach again.
pub const COME_BACK_PAUSE: Duration = Duration::from_secs(1);
/// Time that a client tries to attach again, in addition to the lease: until then its launch may run, and wait for it.
pub const COME_BACK: Duration = Duration::from_secs(15);
/// Time that commands of an allocation wait for an unavailable API server: as long as a client that follows a launch with the default lease.
pub const AWAY: Duration = LEASE.saturating_add(COME_BACK);
/// Time that a launch continues after the other end has closed the connection of its owner, as the kernel does for a killed process. If the
/// connection of a live owner was closed on the way, the owner attaches again within [`COME_BACK_PAUSE`].
pub const CLOSED_OWNER: Duration = Duration::from_secs(2);
/// Time that a launch continues without any message from its owner. An owner that can reach the API server attaches again within [`COME_BACK`].
pub const NEXT_OWNER: Duration = Duration::from_secs(20);
/// Time that a launch waits for its owner to attach, after its acceptance and after a restart of the API server.
pub const FIRST_OWNER: Duration = Duration::from_secs(30);
/// Time that a finished launch without an attached owner is stored for clients.
pub const LINGER: Duration = Duration::from_secs(600);

/// Time to notify sessions that a node is dead, after they have lost the link to it, in a launch that tolerates lost nodes.
pub const LOSS_TOLD: Duration = Duration::from_secs(30);
/// Time to read the call stacks of a node's ranks, which continue to run.
pub const CALL_STACKS: Duration = Duration::from_secs(8);
/// The same for ranks for which other ranks wait in `MPI_Finalize`. No request waits for the answer. Without the stacks the notice is less exact,
/// and gdb took more than 8 s to read a Python program on a loaded machine.
pub const CALL_STACKS_OF_A_WAIT: Duration = Duration::from_secs(30);
/// Time to read the call stacks of a node's ranks at the time limit of the launch. It is the maximum delay of SIGTERM.
pub const STACKS_AT_LIMIT: Duration = Duration::from_secs(3);
/// Maximum difference between the times at which the sessions of a launch reach its time limit.
pub const LIMIT_SKEW: Duration = Duration::from_secs(2);
/// Time for the API server to accept the cause that a session reports, before sessions end the launch themselves.
pub const UNHEARD: Duration = Duration::from_secs(2);
/// Time to notify the session of another node of a failure, including the time for its link.
pub const TELL: Duration = Duration::from_secs(2);

/// Time for the session of another node to answer when a link to it is opened; see [`link_answer`].
pub const LINK_ANSWER: Duration = Duration::from_secs(30);

/// Time for all nodes to start their parts of a spawned job.
pub const SPAWN: Duration = Duration::from_secs(60);
/// Time that a relayed launch waits for the registration of the receiving agent, which is in progress if other agents know of this agent.
pub const KNOWN: Duration = Duration::from_secs(3);

/// Time that the creation of an allocation waits for its fabric credentials, so that the next launch finds them. The allocation is created with
/// or without them. A later answer or refusal of the manager is reported to its launches.
pub const CREDENTIALS_AHEAD: Duration = Duration::from_secs(2);
/// Time for an agent to end the remaining CXI services of a VNI. The API server repeats the request until it succeeds.
pub const RETIRE: Duration = Duration::from_secs(2);
/// Time that the API server waits for that answer.
pub const RETIRE_ANSWER: Duration = Duration::from_secs(5);

/// Returns the time for the nodes of a launch to accept it, if the farthest node is reached over `depth` relays. It is bounded so that the
/// client still waits at its end.
pub fn start_answer(depth: u32) -> Duration {
    NODE_ANSWER.saturating_add(HOP.saturating_mul(depth)).min(START_ANSWER - NODE_ANSWER)
}

/// Returns the time for the session of another node to answer when a link to it is opened. PAM may take `pam_timeout` to admit its user. Links
/// reach the session's process before that, and ranks of other nodes may be in their first fence. All nodes of a cluster have the same
/// `pam_timeout`.
pub fn link_answer(pam_timeout: Option<Duration>) -> Duration {
    LINK_ANSWER.max(pam_timeout.unwrap_or_default().saturating_add(NODE_ANSWER))
}

/// Returns the time that a relay with time `own` leaves to the nodes below it; at least [`HOP`].
pub fn below_relay(own: Duration) -> Duration {
    own.saturating_sub(HOP).max(HOP)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cause::{HOLD, HOLD_GIVEN_UP};
    use crate::settings::Timeouts;

    /// Each list is in the order in which its limits must expire.
    #[test]
    fn whoever_waits_for_a_waiter_waits_longer() {
        // Equal to the default of `settings::Timeouts::grace_after_interrupt`.
        let grace = Duration::from_secs(5);
        let output_end = Timeouts::default().output_end;
        // 65,536 nodes below relays with a fan-out of 2.
        let deepest = 16;
        let in_order: &[(&str, &[Duration])] = &[
            ("life", &[2 * HEARTBEAT + HEARTBEAT_ANSWER, LOST_AFTER, LOST_AFTER + JUDGE, LEASE_MIN, LEASE]),
            ("judgement", &[PORT_AGAIN, PORT_ANSWER, JUDGE]),
            (
                "start",
                &[CLAIM, NODE_ANSWER, start_answer(1), start_answer(deepest), start_answer(u32::MAX), START_ANSWER],
            ),
            ("order to end", &[STACKS_AT_LIMIT + output_end + SWEEP + REMOVAL, END]),
            ("order to kill", &[KILL + EXIT, LAST]),
            ("order to kill that is heard late", &[ABORT_ANSWER, LAST]),
            ("time limit that no session keeps", &[STOPPED_LOOK * STOPPED_LOOKS + EXIT, OVERTIME]),
            ("stop", &[grace + output_end + SWEEP + REMOVAL, STOP]),
            (
                "report",
                &[
                    REPORT_PAUSE,
                    FETCHED,
                    LOST_AFTER + JUDGE,
                    REPORT_AGAIN,
                    FIRST_REPORT,
                    REPORT_AFTER_RESTART,
                    REPORT_KEPT,
                ],
            ),
            ("client", &[COME_BACK_PAUSE, CLOSED_OWNER, COME_BACK, NEXT_OWNER, FIRST_OWNER, LINGER]),
            ("failure", &[HOLD, HOLD_GIVEN_UP, UNHEARD, UNHEARD + TELL, LEASE_MIN]),
            ("spawn", &[NODE_ANSWER, SPAWN]),
            ("relay", &[KNOWN + CLAIM, NODE_ANSWER]),
            ("restart", &[AGENT_RESTART, NODE_ANSWER]),
            ("retire", &[RETIRE, RETIRE_ANSWER]),
        ];
        for (what, limits) in in_order {
            assert!(limits.is_sorted_by(|one, next| one < next), "{what}: {limits:?}");
        }
    }

    #[test]
    fn a_link_waits_longer_than_pam_on_the_other_node() {
        assert_eq!(link_answer(None), LINK_ANSWER);
        for seconds in [1, 30, 300] {
            let pam = Duration::from_secs(seconds);
            assert!(link_answer(Some(pam)) >= LINK_ANSWER.max(pam + NODE_ANSWER), "{seconds} s");
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
