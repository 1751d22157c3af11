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

#[cfg(test)]
mod tests {
    use super::*;

    /// More than ranks have when somebody else ends their launch.
    const GRACE: Duration = Duration::from_secs(100);

    #[test]
    fn a_launch_that_is_to_end_while_nodes_are_asked_ends_when_they_have_accepted() {
        let now = Instant::now();
        let mut phase = Phase::Starting { ending: None };
        assert_eq!(phase.activity(), Some(Activity::Starting));
        phase.begin_ending(now);
        assert_eq!((phase.activity(), phase.nodes_by()), (Some(Activity::Ending), None));
        let later = now + GRACE;
        assert!(phase.on_accepted(later));
        assert_eq!(phase.nodes_by(), Some(later + timeouts::FIRST_REPORT));
        assert_eq!(phase.ending().map(|ending| ending.since), Some(now), "it has been ending since then");
        assert!(!phase.on_accepted(later), "it is no news");
    }

    #[test]
    fn an_end_begins_once() {
        let now = Instant::now();
        let mut phase = Phase::Active { nodes_by: now };
        assert_eq!(phase.activity(), Some(Activity::Active));
        for time in [now, now + GRACE] {
            phase.begin_ending(time);
            assert_eq!(phase.ending().map(|ending| ending.since), Some(now));
        }
    }

    #[test]
    fn a_launch_that_is_over_neither_ends_nor_expects_anybody() {
        let now = Instant::now();
        let mut phase = Phase::Over(Over { until: now, change: 1, conclusion: None });
        phase.begin_ending(now);
        phase.overrule();
        assert!(phase.is_over() && !phase.on_accepted(now));
        assert!(phase.ending().is_none() && phase.nodes_by().is_none() && phase.activity().is_none());
    }

    #[test]
    fn ranks_have_the_whole_grace_unless_somebody_else_ends_the_launch() {
        let now = Instant::now();
        let mut phase = Phase::Active { nodes_by: now };
        phase.overrule();
        phase.begin_ending(now);
        let own = phase.ending().unwrap();
        assert!(!own.is_overruled(), "it was not ending then");
        assert_eq!(own.grace(GRACE), GRACE);
        phase.overrule();
        let overruled = phase.ending().unwrap();
        assert!(overruled.is_overruled());
        let short = Duration::from_secs(1);
        assert_eq!([GRACE, short].map(|grace| overruled.grace(grace)), [timeouts::GRACE_OF_OTHERS, short]);
    }
}
