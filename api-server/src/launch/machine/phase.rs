//! The phases of a launch, each with its own data.

use std::sync::Arc;
use std::time::Duration;

use lattice_session::timeouts;
use tokio::time::Instant;

use super::event::{Activity, Completion};
use crate::launch::fan_out::NotStarted;

/// Phase of a launch.
#[derive(Debug)]
pub(crate) enum Phase {
    /// Nodes are being asked, and the caller that ordered the launch waits. The end of the launch may have begun already.
    Starting { ending: Option<Ending> },
    /// Every node has accepted, or the server was restarted. Nodes must report by `nodes_by`.
    Active { nodes_by: Instant },
    /// The launch is ending: nodes end their parts.
    Ending { ending: Ending, nodes_by: Instant },
    /// The launch is over.
    Over(Over),
}

/// The end of a launch in progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ending {
    pub since: Instant,
    pub authority: Authority,
}

/// Party that ends a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Authority {
    /// Its owner, or its own first cause: output waits for the owner.
    Own,
    /// Another party: the launch ends even if the owner does not read.
    Others,
}

/// State of a launch after its end.
#[derive(Debug)]
pub(crate) struct Over {
    /// Until this time, a client may fetch the events.
    pub until: Instant,
    /// The number of the change that is durable when the end is.
    pub change: u64,
    /// Consequences of the end, to be carried out after the first attempt to store it.
    pub conclusion: Option<Conclusion>,
}

/// Consequences of a launch's end for the rest of the server.
#[derive(Debug)]
pub(crate) struct Conclusion {
    pub completion: Arc<Completion>,
    /// The reason why the launch was not started, if it was not.
    pub refusal: Option<NotStarted>,
}

impl Phase {
    pub(crate) fn is_over(&self) -> bool {
        matches!(self, Self::Over(_))
    }

    /// The end in progress, if there is one.
    pub(crate) fn ending(&self) -> Option<Ending> {
        match self {
            Self::Starting { ending } => *ending,
            Self::Ending { ending, .. } => Some(*ending),
            Self::Active { .. } | Self::Over(_) => None,
        }
    }

    /// The time by which nodes must report; `None` before they have accepted, and when the launch is over.
    pub(crate) fn nodes_by(&self) -> Option<Instant> {
        match self {
            Self::Active { nodes_by } | Self::Ending { nodes_by, .. } => Some(*nodes_by),
            Self::Starting { .. } | Self::Over(_) => None,
        }
    }

    /// Starts the end of the launch, unless it has begun.
    pub(crate) fn begin_ending(&mut self, now: Instant) {
        let begun = Ending { since: now, authority: Authority::Own };
        match self {
            Self::Starting { ending } => drop(ending.get_or_insert(begun)),
            Self::Active { nodes_by } => *self = Self::Ending { ending: begun, nodes_by: *nodes_by },
            Self::Ending { .. } | Self::Over(_) => {}
        }
    }

    /// A party other than the owner ends the launch.
    pub(crate) fn overrule(&mut self) {
        match self {
            Self::Starting { ending: Some(ending) } | Self::Ending { ending, .. } => {
                ending.authority = Authority::Others;
            }
            _ => {}
        }
    }

    /// All nodes have accepted the launch. Returns false if the launch is not in the start phase.
    pub(crate) fn on_accepted(&mut self, now: Instant) -> bool {
        let Self::Starting { ending } = self else { return false };
        let nodes_by = now + timeouts::FIRST_REPORT;
        *self = match *ending {
            None => Self::Active { nodes_by },
            Some(ending) => Self::Ending { ending, nodes_by },
        };
        true
    }

    /// The activity that users see; `None` when the launch is over.
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
    /// Returns true if the launch ends even if its owner does not read.
    pub(crate) fn is_overruled(&self) -> bool {
        self.authority == Authority::Others
    }

    /// Time that ranks have to end, with a grace period of `grace` for the launch.
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

    /// Longer than the grace period if another party ends the launch.
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
