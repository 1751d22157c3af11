//! The phases of a launch, each with what belongs to it alone.

use std::sync::Arc;
use std::time::Duration;

use lattice_session::timeouts;
use tokio::time::Instant;

use super::event::{Activity, Completion};
use crate::launch::fan_out::NotStarted;

/// Phase of a launch.
#[derive(Debug)]
pub(crate) enum Phase {
    /// Nodes are being asked; who ordered it waits. It may be coming to its end already.
    Starting { ending: Option<Ending> },
    /// Every node has accepted; or the server was started anew. Nodes are expected to report until then.
    Active { nodes_by: Instant },
    /// The launch is coming to its end: nodes end their parts.
    Ending { ending: Ending, nodes_by: Instant },
    /// Nothing more happens.
    Over(Over),
}

/// The end that a launch is coming to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ending {
    pub since: Instant,
    pub authority: Authority,
}

/// Party that wants a launch to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Authority {
    /// Its owner, or its own first cause: output waits for the owner.
    Own,
    /// Somebody else: it ends whether the owner reads on or not.
    Others,
}

/// The time after the end.
#[derive(Debug)]
pub(crate) struct Over {
    /// Until then a client may still fetch what happened.
    pub until: Instant,
    /// The change that is durable when the end is.
    pub change: u64,
    /// Consequences of the end for others, once the first attempt to make it durable has ended.
    pub conclusion: Option<Conclusion>,
}

/// Consequences of a launch's end for others.
#[derive(Debug)]
pub(crate) struct Conclusion {
    pub completion: Arc<Completion>,
    /// The reason for which it was not started, if it was not.
    pub refusal: Option<NotStarted>,
}

impl Phase {
    pub(crate) fn is_over(&self) -> bool {
        matches!(self, Self::Over(_))
    }

    /// The end that it is coming to, if it is.
    pub(crate) fn ending(&self) -> Option<Ending> {
        match self {
            Self::Starting { ending } => *ending,
            Self::Ending { ending, .. } => Some(*ending),
            Self::Active { .. } | Self::Over(_) => None,
        }
    }

    /// Until when nodes are expected to report; `None` before they have accepted, and when it is over.
    pub(crate) fn nodes_by(&self) -> Option<Instant> {
        match self {
            Self::Active { nodes_by } | Self::Ending { nodes_by, .. } => Some(*nodes_by),
            Self::Starting { .. } | Self::Over(_) => None,
        }
    }

    /// The launch is coming to its end from now on, if it was not before.
    pub(crate) fn begin_ending(&mut self, now: Instant) {
        let begun = Ending { since: now, authority: Authority::Own };
        match self {
            Self::Starting { ending } => drop(ending.get_or_insert(begun)),
            Self::Active { nodes_by } => *self = Self::Ending { ending: begun, nodes_by: *nodes_by },
            Self::Ending { .. } | Self::Over(_) => {}
        }
    }

    /// Somebody else than its owner wants it to end.
    pub(crate) fn overrule(&mut self) {
        match self {
            Self::Starting { ending: Some(ending) } | Self::Ending { ending, .. } => {
                ending.authority = Authority::Others;
            }
            _ => {}
        }
    }

    /// All nodes have accepted the launch. False if that is no news.
    pub(crate) fn on_accepted(&mut self, now: Instant) -> bool {
        let Self::Starting { ending } = self else { return false };
        let nodes_by = now + timeouts::FIRST_REPORT;
        *self = match *ending {
            None => Self::Active { nodes_by },
            Some(ending) => Self::Ending { ending, nodes_by },
        };
        true
    }

    /// As users are told; `None` when it is over.
    pub(crate) fn activity(&self) -> Option<Activity> {
        match self {
            Self::Over(_) => None,
            _ if self.ending().is_some() => Some(Activity::Ending),
            Self::Starting { .. } => Some(Activity::Starting),
            _ => Some(Activity::Active),
        }
    }
}

impl Ending {
    /// Returns true if the launch ends whether its owner reads on or not.
    pub(crate) fn is_overruled(&self) -> bool {
        self.authority == Authority::Others
    }

    /// Time that ranks have to end, when the launch gives them `grace`.
    pub(crate) fn grace(&self, grace: Duration) -> Duration {
        match self.authority {
            Authority::Own => grace,
            Authority::Others => grace.min(timeouts::GRACE_OF_OTHERS),
        }
    }
}
