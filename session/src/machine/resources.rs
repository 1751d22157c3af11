//! Releases of resources that take longer than their ranks have said.

use std::time::Duration;

use pmi_core::ids::Rank;

use super::{Phase, SessionMachine};
use crate::event::{Event, Notice};

/// Releases of which the user is told; a program may have the same trouble with each of its resources.
const TOLD_MAX: u32 = 16;

impl SessionMachine {
    /// A rank, by the number under which it is shown, has not released a resource in time. A launch that ends has another story to tell.
    pub(crate) fn on_overdue(&mut self, rank: Rank, resource: String, within: Duration, killed: bool) {
        // One that is killed for it is always told: it is the reason for a failure.
        let may_tell = killed || self.overdue_told < TOLD_MAX;
        if self.is_over() || matches!(self.phase, Phase::Ending(_)) || !may_tell {
            return;
        }
        self.overdue_told += 1;
        self.report_event(Event::Notice(Notice::ReleaseOverdue { rank, resource, within, killed }));
    }
}
