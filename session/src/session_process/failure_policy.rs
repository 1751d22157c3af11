//! Failure policy of a launch while the API server may not receive failures. The session of node 0, the root, selects the first cause and
//! ends the launch on all nodes. Pure: its inputs are messages and the time, its outputs are [`Decision`]s.
//!
//! ```text
//! session with a cause of its own ──not received by the API server──> root: FirstCause ──counts──> Take: the root's own cause
//!                                                                                                    │ not received by the API server
//!                      every other session: Take, in place of its own <────────tree of links─────── TellBelow
//! ```
//! While the API server receives failures, sessions send each other none: the API server selects the cause. After an outage, the API
//! server, or its successor, receives the same cause from all sessions. If the root is lost or has ended, the lease ends the launch.

use std::collections::VecDeque;
use std::time::Duration;

use pmi_core::ids::NodeIndex;
use tokio::time::Instant;

use crate::cause::{Cause, CauseKind, FirstCause, HOLD_GIVEN_UP, Reported, Subject};
use crate::timeouts;
use crate::wire::failure::LaunchFailure;

/// State of the path from a session to the API server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Way {
    /// Events are assumed to arrive.
    #[default]
    Open,
    /// The agent is gone, or has no stream to the API server.
    Broken,
    /// The agent is gone permanently, and the session is ending its ranks for that reason.
    Ended,
}

/// Cause that the session has sent to the API server, and its state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SentCause {
    pub(super) cause: Option<Cause>,
    /// The API server has acknowledged it.
    pub(super) is_heard: bool,
    pub(super) way: Way,
}

/// Stage of a failure, as far as this session must notify other nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    /// No failure is known.
    #[default]
    NoFailure,
    /// Other nodes may need a notification.
    Open,
    /// The API server has received the failure, or other nodes were notified, or no notification will be sent.
    Settled,
}

/// Decision of the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Send this session's cause to the root.
    TellRoot(LaunchFailure),
    /// Use this first cause of the launch. Report it in place of this session's own cause, and end the ranks on this node.
    Take(Cause),
    /// Send the first cause to the next `below` nodes after this one.
    TellBelow(LaunchFailure),
}

/// Failure policy of one session.
#[derive(Debug)]
pub(super) struct FailurePolicy {
    role: Role,
    told: SentCause,
    /// Earliest time at which the API server could have received the failure.
    since: Option<Instant>,
    /// Another session has waited for the API server without success.
    api_is_silent: bool,
    /// The first cause is selected, and this session uses it.
    has_taken: bool,
    /// The failure was passed on.
    passed_on: bool,
    decisions: VecDeque<Decision>,
}

/// Role of a session in the policy.
#[derive(Debug)]
enum Role {
    Root {
        first: FirstCause,
        /// Number of the other nodes.
        others: u32,
    },
    Other,
}

/// Node of the session that selects the first cause.
const ROOT: NodeIndex = NodeIndex(0);

impl FailurePolicy {
    /// Policy of the session of node `me`, in a launch on `nodes` nodes.
    pub(super) fn new(me: NodeIndex, nodes: u32) -> Self {
        let root = Role::Root { first: FirstCause::default(), others: nodes.saturating_sub(1) };
        let role = if me == ROOT { root } else { Role::Other };
        let (told, decisions) = (SentCause::default(), VecDeque::new());
        Self { role, told, since: None, api_is_silent: false, has_taken: false, passed_on: false, decisions }
    }

    /// Returns the next decision to carry out.
    pub(super) fn poll_decision(&mut self) -> Option<Decision> {
        self.decisions.pop_front()
    }

    /// Time at which [`Self::on_time`] must be called; `None` if only messages can change the state.
    pub(super) fn next_wake(&self) -> Option<Instant> {
        let hold_ends = self.held().map(|(_, ends)| ends);
        let waits = !self.passed_on && !self.told.is_heard && self.told.way == Way::Open;
        let unheard = self.since.filter(|_| waits).map(|since| since + timeouts::UNHEARD);
        [hold_ends, unheard].into_iter().flatten().min()
    }

    /// Times at which the held cause of the root was reported, and starts to count. Other sessions report their causes to the root only
    /// after they have waited for the API server.
    fn held(&self) -> Option<(Instant, Instant)> {
        let Role::Root { first, .. } = &self.role else { return None };
        let (node, since) = first.held()?;
        let others_wait = node == ROOT && self.told.way == Way::Open && !self.api_is_silent;
        let wait = if others_wait { timeouts::UNHEARD } else { Duration::ZERO };
        Some((since, since + wait + HOLD_GIVEN_UP))
    }

    /// Stage of the known failure.
    pub(super) fn stage(&self) -> Stage {
        let has_failed = match &self.role {
            Role::Root { first, .. } => !matches!(first, FirstCause::None),
            Role::Other => self.since.is_some() || self.has_taken,
        };
        let is_known = self.passed_on || self.told.is_heard || self.told.way == Way::Ended;
        match (has_failed, is_known) {
            (false, _) => Stage::NoFailure,
            (true, false) => Stage::Open,
            (true, true) => Stage::Settled,
        }
    }

    /// Handles a change of the cause that was sent to the API server, or of its state.
    pub(super) fn on_told(&mut self, told: SentCause, now: Instant) {
        let is_new = told.cause != self.told.cause;
        self.told = told;
        let own = self.told.cause.clone().filter(|cause| is_new && concerns_others(cause));
        match (&mut self.role, own) {
            (_, None) => {}
            (Role::Root { first, .. }, Some(cause)) => drop(report(first, ROOT, cause, now)),
            (Role::Other, Some(_)) => self.since = self.since.or(Some(now)),
        }
        self.proceed(now);
    }

    /// Handles a failure that the session of node `from` reports.
    pub(super) fn on_failure(&mut self, from: NodeIndex, failure: LaunchFailure, now: Instant) {
        let LaunchFailure { cause, below, api_is_silent } = failure;
        match &mut self.role {
            Role::Root { first, .. } => {
                self.api_is_silent |= api_is_silent;
                let _ = report(first, from, cause, now);
            }
            // A node that did not receive the acknowledgement in time sends the failure again.
            Role::Other if self.has_taken => {}
            Role::Other => {
                (self.has_taken, self.passed_on) = (true, true);
                self.decisions.push_back(Decision::Take(cause.clone()));
                if below > 0 {
                    self.decisions.push_back(Decision::TellBelow(LaunchFailure { cause, below, api_is_silent: false }));
                }
            }
        }
        self.proceed(now);
    }

    /// Handles the time of [`Self::next_wake`].
    pub(super) fn on_time(&mut self, now: Instant) {
        self.proceed(now);
    }

    fn proceed(&mut self, now: Instant) {
        let settled = self.held().filter(|(_, ends)| *ends <= now);
        if let Role::Root { first, .. } = &mut self.role {
            if settled.is_some() {
                first.settle();
            }
            if let Some(cause) = first.get().filter(|_| !self.has_taken) {
                (self.has_taken, self.since) = (true, Some(settled.map_or(now, |(since, _)| since)));
                if self.told.cause.as_ref() != Some(cause) {
                    self.told.is_heard = false;
                    self.decisions.push_back(Decision::Take(cause.clone()));
                }
            }
        }
        let is_unheard = match self.told.way {
            Way::Broken => self.since.is_some(),
            Way::Open => {
                let is_late = |since| self.api_is_silent || since + timeouts::UNHEARD <= now;
                !self.told.is_heard && self.since.is_some_and(is_late)
            }
            Way::Ended => false,
        };
        if is_unheard && !self.passed_on {
            self.pass_on();
        }
    }

    fn pass_on(&mut self) {
        let decision = match &self.role {
            Role::Root { first, others } => first.get().cloned().map(|cause| {
                let failure = LaunchFailure { cause, below: *others, api_is_silent: false };
                Decision::TellBelow(failure)
            }),
            Role::Other => self.told.cause.clone().map(|cause| {
                let failure = LaunchFailure { cause, below: 0, api_is_silent: self.told.way == Way::Open };
                Decision::TellRoot(failure)
            }),
        };
        self.passed_on = decision.is_some();
        self.decisions.extend(decision);
    }
}

/// A session reports a lost node only if that is another node.
fn report(first: &mut FirstCause, node: NodeIndex, cause: Cause, now: Instant) -> Reported {
    let subject = match cause.kind {
        CauseKind::NodeLost { .. } => Subject::Another,
        _ => Subject::Itself,
    };
    first.report(node, cause, subject, now)
}

/// Returns false for a cause that came from the API server or the agent, that each session detects by itself, or that ends no ranks.
/// Failures that the launch tolerates are only in the report.
pub(super) fn concerns_others(cause: &Cause) -> bool {
    use CauseKind::{FailedRanks, Interrupted, TimedOut};
    !matches!(cause.kind, Interrupted { .. } | TimedOut { .. } | FailedRanks { .. })
}

#[cfg(test)]
mod tests;
