//! The time that ranks are given after the first one of the launched job has ended, wherever that was. A session ends the launch for
//! its own ranks, also while there is no API server; here it is ended for those that have no rank left, or saw none end.
//!
//! ```text
//! Unlimited      Ahead ──a rank has ended──> Running ──its time is over──> Unlimited
//! ```

use std::time::Duration;

use lattice_session::cause::CauseKind;
use pmi_core::ids::Rank;
use tokio::time::Instant;

/// State of that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FirstExit {
    /// There is no limit, or it was reached.
    Unlimited,
    /// No rank is known to have ended.
    Ahead { wait: Duration },
    /// This one has.
    Running { until: Instant, rank: Rank, wait: Duration },
}

impl FirstExit {
    pub(crate) fn new(wait: Option<Duration>) -> Self {
        wait.map_or(Self::Unlimited, |wait| Self::Ahead { wait })
    }

    /// Takes in the time and the first rank that is known to have ended. Returns the rank and the cause once its time is over.
    pub(crate) fn on_tick(&mut self, ended: impl FnOnce() -> Option<Rank>, now: Instant) -> Option<(Rank, CauseKind)> {
        match *self {
            Self::Ahead { wait } => {
                let rank = ended()?;
                *self = Self::Running { until: now + wait, rank, wait };
                None
            }
            Self::Running { until, rank, wait } if until <= now => {
                *self = Self::Unlimited;
                Some((rank, CauseKind::FirstExit { rank, wait }))
            }
            Self::Unlimited | Self::Running { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_the_others_begins_with_the_first_end_and_is_over_once() {
        let (start, wait) = (Instant::now(), Duration::from_secs(3));
        let mut first = FirstExit::new(Some(wait));
        let mut at = |second, ended: Option<u32>| {
            first.on_tick(|| ended.map(Rank), start + Duration::from_secs(second)).map(|(rank, _)| rank)
        };
        assert_eq!([at(0, None), at(1, Some(5)), at(3, Some(2))], [None; 3]);
        assert_eq!([at(4, Some(2)), at(9, Some(2))], [Some(Rank(5)), None]);
        assert_eq!(FirstExit::new(None).on_tick(|| Some(Rank(0)), start + wait), None);
    }
}
