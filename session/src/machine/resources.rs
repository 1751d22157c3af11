//! Releases of resources that exceed the time limits of their ranks.

use std::time::Duration;

use pmi_core::ids::Rank;

use super::{Phase, SessionMachine};
use crate::event::{Event, Notice};

/// Maximum number of releases that are reported to the user. A program may have the same problem with each of its resources.
const TOLD_MAX: u32 = 16;

impl SessionMachine {
    /// Reports a rank, by its displayed number, that has not released a resource in time. A launch in its end reports another cause
    /// instead.
    pub(crate) fn on_overdue(&mut self, rank: Rank, resource: String, within: Duration, killed: bool) {
        // A rank that is killed for it is always reported: it is the reason for a failure.
        let may_tell = killed || self.overdue_told < TOLD_MAX;
        if self.is_over() || matches!(self.phase, Phase::Ending(_)) || !may_tell {
            return;
        }
        self.overdue_told += 1;
        self.report_event(Event::Notice(Notice::ReleaseOverdue { rank, resource, within, killed }));
    }
}
