//! Failure policy of a launch while the API server may not hear of a failure: the session of node 0, the root, chooses the first cause
//! and has the launch ended on all nodes. Pure: news and the time go in, [`Decision`]s come out.
//!
//! ```text
//! session with a cause of its own ──not heard by the API server──> root: FirstCause ──counts──> Take: the root's own cause
//!                                                                                                │ not heard by the API server
//!                      every other session: Take, in place of its own <──tree of links────── TellBelow
//! ```
//! While the API server hears of failures nobody tells anybody anything: it judges. Once it is back, or another one, it hears one and
//! the same cause from all sessions. Where the root is lost, or has ended, the lease ends the launch.

use std::collections::VecDeque;

use pmi_core::ids::NodeIndex;
use tokio::time::Instant;

use crate::cause::{Cause, CauseKind, FirstCause, Reported, Subject};
use crate::timeouts;
use crate::wire::failure::LaunchFailure;

/// Way of a session's events to the API server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Way {
    /// They are thought to arrive.
    #[default]
    Open,
    /// The agent is gone, or has no stream to the API server.
    Broken,
    /// The agent is gone for good: the ranks here are being ended for that.
    Ended,
}

/// Cause that the session has told the API server, and what became of that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) cause: Option<Cause>,
    /// The API server has taken it.
    pub(super) is_heard: bool,
    pub(super) way: Way,
}

/// Stage of a failure, as far as this session's part in telling others goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    /// None is known.
    #[default]
    NoFailure,
    /// Others may have to be told.
    Open,
    /// The API server has heard of it, or others were told, or nobody will be.
    Settled,
}

/// Decision of the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Tell the root of this session's cause.
    TellRoot(LaunchFailure),
    /// This is the first cause of the launch: report it in place of a cause of this session's own, and end the ranks here.
    Take(Cause),
    /// Tell the nodes after this one, so many as the failure says, what the first cause is.
    TellBelow(LaunchFailure),
}

/// Failure policy of one session.
#[derive(Debug)]
pub(super) struct FailurePolicy {
    role: Role,
    told: Told,
    /// Time from which the API server could have heard of the failure.
    since: Option<Instant>,
    /// Another session has waited for the API server in vain.
    api_is_silent: bool,
    /// The first cause was chosen, and is this session's.
    has_taken: bool,
    /// The others were told.
    passed_on: bool,
    decisions: VecDeque<Decision>,
}

/// Part of a session in the policy.
#[derive(Debug)]
enum Role {
    Root {
        first: FirstCause,
        /// Number of the other nodes.
        others: u32,
    },
    Other,
}

impl FailurePolicy {
    /// Policy of the session of node `me` of a launch on `nodes` nodes.
    pub(super) fn new(me: NodeIndex, nodes: u32) -> Self {
        let root = Role::Root { first: FirstCause::default(), others: nodes.saturating_sub(1) };
        let role = if me == NodeIndex(0) { root } else { Role::Other };
        let (told, decisions) = (Told::default(), VecDeque::new());
        Self { role, told, since: None, api_is_silent: false, has_taken: false, passed_on: false, decisions }
    }

    /// The next decision to carry out.
    pub(super) fn poll_decision(&mut self) -> Option<Decision> {
        self.decisions.pop_front()
    }

    /// Time at which [`Self::on_time`] is to be called; `None` if only news can change anything.
    pub(super) fn next_wake(&self) -> Option<Instant> {
        let hold_ends = match &self.role {
            Role::Root { first, .. } => first.hold_ends(),
            Role::Other => None,
        };
        let waits = !self.passed_on && !self.told.is_heard && self.told.way == Way::Open;
        let unheard = self.since.filter(|_| waits).map(|since| since + timeouts::UNHEARD);
        [hold_ends, unheard].into_iter().flatten().min()
    }

    /// Stage of what is known of a failure.
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

    /// The session has told the API server something else, or it is known what became of it.
    pub(super) fn on_told(&mut self, told: Told, now: Instant) {
        let is_new = told.cause != self.told.cause;
        self.told = told;
        let own = self.told.cause.clone().filter(|cause| is_new && concerns_others(cause));
        match (&mut self.role, own) {
            (_, None) => {}
            (Role::Root { first, .. }, Some(cause)) => drop(report(first, 0, cause, now)),
            (Role::Other, Some(_)) => self.since = self.since.or(Some(now)),
        }
        self.proceed(now);
    }

    /// The session of node `from` says that the launch has failed.
    pub(super) fn on_failure(&mut self, from: NodeIndex, failure: LaunchFailure, now: Instant) {
        let LaunchFailure { cause, below, api_is_silent } = failure;
        match &mut self.role {
            Role::Root { first, .. } => {
                self.api_is_silent |= api_is_silent;
                let _ = report(first, from.0, cause, now);
            }
            // It comes again from a node that was not told in time that it had come.
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

    /// The time of [`Self::next_wake`] has come.
    pub(super) fn on_time(&mut self, now: Instant) {
        self.proceed(now);
    }

    fn proceed(&mut self, now: Instant) {
        if let Role::Root { first, .. } = &mut self.role {
            if first.hold_ends().is_some_and(|ends| ends <= now) {
                first.settle();
            }
            if let Some(cause) = first.get().filter(|_| !self.has_taken) {
                (self.has_taken, self.since) = (true, Some(now));
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

/// A session tells of the loss of nodes only where it is another one's.
fn report(first: &mut FirstCause, node: u32, cause: Cause, now: Instant) -> Reported {
    let subject = match cause.kind {
        CauseKind::NodeLost { .. } => Subject::Another,
        _ => Subject::Itself,
    };
    first.report(node, cause, subject, now)
}

/// Returns false for a cause that the API server or the agent gave, that each session finds by itself, or that ends nobody's ranks: failures
/// that the launch bore are told with the report alone.
pub(super) fn concerns_others(cause: &Cause) -> bool {
    use CauseKind::{FailedRanks, Interrupted, TimedOut};
    !matches!(cause.kind, Interrupted { .. } | TimedOut { .. } | FailedRanks { .. })
}

#[cfg(test)]
mod tests;
