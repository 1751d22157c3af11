//! Time limits of API server, agents and sessions when they wait for each other. They are in one place because each is right only
//! beside others: a daemon that waits for one which waits itself must wait longer, or the wrong one is blamed, and nodes or VNIs are
//! given out twice. Limits that a launch chooses are in [`crate::settings::Timeouts`].
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
//! The clocks are monotonic ones, each of its own machine; none of the inequalities compares two of them.

use std::time::Duration;

/// Interval of an agent's heartbeats.
pub const HEARTBEAT: Duration = Duration::from_secs(1);
/// Time for the API server to answer a heartbeat. One answer that is lost must not cost the node.
pub const HEARTBEAT_ANSWER: Duration = Duration::from_secs(1);
/// Time for the API server to answer a registration.
pub const REGISTER_ANSWER: Duration = Duration::from_secs(3);
/// Time without a heartbeat after which a node is lost, and launches that need it end.
pub const LOST_AFTER: Duration = Duration::from_millis(3500);
/// Time for the port of an agent that was not heard to answer: whether its machine lives is known then.
pub const PORT_ANSWER: Duration = Duration::from_secs(1);
/// Pause before the port of an agent that was not heard, but accepts connections, is asked again: one that has just been started in the
/// place of another registers within it.
pub const PORT_AGAIN: Duration = Duration::from_millis(500);
/// Time from [`LOST_AFTER`] to the judgement of a node, the pause between two looks included.
pub const JUDGE: Duration = Duration::from_millis(1250);
/// Lease, unless `api.toml` sets another: time without an accepted heartbeat after which an agent ends its ranks. By then the API
/// server has declared their launches over.
pub const LEASE: Duration = Duration::from_secs(30);
/// The shortest lease that can be set.
pub const LEASE_MIN: Duration = Duration::from_secs(5);
/// Time that sessions live without an agent, unless `agent.toml` sets another.
pub const AGENT_LEASE: Duration = Duration::from_secs(30);

/// Time to make the CXI services of a launch, or to undo them after a failure.
pub const CLAIM: Duration = Duration::from_secs(4);
/// Time for a node to accept a launch.
pub const NODE_ANSWER: Duration = Duration::from_secs(10);
/// Time for an agent to be replaced, or to find the API server anew, in which launches on its node are tried again, as others: with a new id
/// and a new number. As long is waited for the next agent where the one that was asked to start a launch has died before it answered.
pub const AGENT_RESTART: Duration = Duration::from_secs(8);
/// Time by which a relay's nodes have less than the relay itself, so that it is the relay that reports who did not answer.
pub const HOP: Duration = Duration::from_secs(2);
/// Time that a node holds its first events for the agent that is to relay its reports; then it reports to the API server itself.
pub const FETCHED: Duration = Duration::from_secs(2);
/// Time that a client waits until its launch is accepted by all nodes, or refused.
pub const START_ANSWER: Duration = Duration::from_secs(120);

/// Time that a session kills processes which its ranks left behind, after the last of them has ended.
pub const SWEEP: Duration = Duration::from_secs(5);
/// The longest grace that counts when somebody else than its client ends a launch: an administrator, the release of its
/// allocation, an agent that cannot hear the API server. A longer one, which is the user's to choose, would hold the nodes.
pub const GRACE_OF_OTHERS: Duration = Duration::from_secs(30);
/// Time for a session to end that was ordered to, beyond the grace of its launch. Then its ranks are killed.
pub const END: Duration = Duration::from_secs(20);
/// Time for a session to end that was ordered to kill its ranks. Then it is killed as well.
pub const KILL: Duration = Duration::from_secs(2);
/// Time for files of ranks to be removed at the end of a session. Then the end is told, and the keeper removes what is left.
pub const REMOVAL: Duration = Duration::from_secs(5);
/// Time for the fork server to report the exit of a session process that was killed.
pub const EXIT: Duration = Duration::from_secs(10);
/// Interval in which an agent looks whether its sessions are stopped, which a signal of their user's can do to them.
pub const STOPPED_LOOK: Duration = Duration::from_secs(5);
/// Number of looks in a row after which a session that is stopped is killed: time limits are its own to keep, and it keeps none.
pub const STOPPED_LOOKS: u32 = 3;
/// Time beyond a launch's time limit for its sessions, which keep it, to end it. Then the API server does.
pub const OVERTIME: Duration = Duration::from_secs(30);
/// Time for a node to report the end of its part after its agent was ordered to kill it. Then the node is given up, and unclean: it
/// stays with its allocation until the agent says that nothing is left.
pub const LAST: Duration = Duration::from_secs(15);
/// Time for an agent to answer that it has heard of a launch's end.
pub const ABORT_ANSWER: Duration = Duration::from_secs(5);
/// Time for sessions to end when their agent is stopped; the unit's `TimeoutStopSec` is longer.
pub const STOP: Duration = Duration::from_secs(20);

/// Pause between attempts of an agent to open a stream of reports, at most.
pub const REPORT_PAUSE: Duration = Duration::from_secs(1);
/// Time for a stream of reports that broke to come back, of an agent that is there: by then it is known of one that is not.
pub const REPORT_AGAIN: Duration = Duration::from_secs(5);
/// Time for a node that accepted a launch to begin its reports.
pub const FIRST_REPORT: Duration = Duration::from_secs(10);
/// The same after the API server was started anew, for nodes that ran the launch meanwhile.
pub const REPORT_AFTER_RESTART: Duration = Duration::from_secs(30);
/// Time that an agent waits with the report of a launch for an API server that does not answer, before it lets the session go.
pub const REPORT_KEPT: Duration = Duration::from_secs(600);
/// Time for the API server to acknowledge a report before it is asked again. A store whose disk is full takes longer.
pub const REPORT_ACK: Duration = Duration::from_secs(10);

/// Pause between attempts of a client to attach again, at most.
pub const COME_BACK_PAUSE: Duration = Duration::from_secs(1);
/// Time that a client tries to attach again, beyond the lease: until then its launch may run, and wait for it.
pub const COME_BACK: Duration = Duration::from_secs(15);
/// Time that commands of an allocation wait for an API server that is away, as long as a client that follows a launch by the usual lease.
pub const AWAY: Duration = LEASE.saturating_add(COME_BACK);
/// Time that a launch runs on after the connection of its owner was closed at the other end, as the kernel does for a process that was killed. A live
/// owner whose connection was closed on the way attaches again within [`COME_BACK_PAUSE`].
pub const CLOSED_OWNER: Duration = Duration::from_secs(2);
/// Time that a launch runs on without its owner, from which nothing comes any more. An owner that can reach the API server attaches again within
/// [`COME_BACK`].
pub const NEXT_OWNER: Duration = Duration::from_secs(20);
/// Time that a launch waits for its owner to attach: after it was accepted, and after the API server was started anew.
pub const FIRST_OWNER: Duration = Duration::from_secs(30);
/// Time that a launch which is over and has no owner attached is kept for clients.
pub const LINGER: Duration = Duration::from_secs(600);

/// Time for sessions to be told that a node is dead whose link they have lost, in a launch that bears that.
pub const LOSS_TOLD: Duration = Duration::from_secs(30);
/// Time to read the call stacks of a node's ranks, which run on.
pub const CALL_STACKS: Duration = Duration::from_secs(8);
/// Time to read the call stacks of a node's ranks at the time limit of the launch: SIGTERM is late by so much at most.
pub const STACKS_AT_LIMIT: Duration = Duration::from_secs(3);
/// Time by which the sessions of a launch reach its time limit later than others.
pub const LIMIT_SKEW: Duration = Duration::from_secs(2);
/// Time for the API server to take the cause that a session reports, before sessions end the launch by themselves.
pub const UNHEARD: Duration = Duration::from_secs(2);
/// Time for the session of another node to hear of a failure, its link included.
pub const TELL: Duration = Duration::from_secs(2);

/// Time for the session of another node to answer when a link to it is opened; see [`link_answer`].
pub const LINK_ANSWER: Duration = Duration::from_secs(30);

/// Time for all nodes to start their parts of a spawned job.
pub const SPAWN: Duration = Duration::from_secs(60);
/// Time that a relayed launch waits for the receiving agent to be registered, which is under way when other agents know of it.
pub const KNOWN: Duration = Duration::from_secs(3);

/// Time that the creation of an allocation waits for its fabric credentials, so that the launch behind it finds them. The allocation
/// is created with or without them; a later answer or refusal of the manager is reported to its launches.
pub const CREDENTIALS_AHEAD: Duration = Duration::from_secs(2);
/// Time for an agent to end the CXI services that are left of a VNI; it is asked again until it has.
pub const RETIRE: Duration = Duration::from_secs(2);
/// Time that the API server waits for that.
pub const RETIRE_ANSWER: Duration = Duration::from_secs(5);

/// Time for the nodes of a launch to accept it when the farthest of them is reached over `depth` relays, bounded so that the client
/// still waits at its end.
pub fn start_answer(depth: u32) -> Duration {
    NODE_ANSWER.saturating_add(HOP.saturating_mul(depth)).min(START_ANSWER - NODE_ANSWER)
}

/// Time for the session of another node to answer when a link to it is opened, where PAM may take so long to let its user in: links reach
/// the session's process before that, and ranks of other nodes may be in their first fence. Nodes of a cluster have one `pam_timeout`.
pub fn link_answer(pam_timeout: Option<Duration>) -> Duration {
    LINK_ANSWER.max(pam_timeout.unwrap_or_default().saturating_add(NODE_ANSWER))
}

/// Time that a relay which has `own` leaves to the nodes below it; at least [`HOP`].
pub fn below_relay(own: Duration) -> Duration {
    own.saturating_sub(HOP).max(HOP)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cause::{HOLD, HOLD_GIVEN_UP};
    use crate::settings::Timeouts;

    /// Each list is in the order in which its limits must run out.
    #[test]
    fn whoever_waits_for_a_waiter_waits_longer() {
        // As the sessions' own default, `settings::Timeouts::grace_after_interrupt`.
        let grace = Duration::from_secs(5);
        let output_end = Timeouts::default().output_end;
        // 65,536 nodes behind relays of a fan-out of 2.
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
