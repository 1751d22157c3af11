//! Orphans of ranks: processes whose parents have ended fall to a session that has its process to itself. Those that end while the session
//! runs are reaped here, as they would fill the node's table of processes otherwise; those that live on are ended with the session, by
//! `sweep`.

use std::time::Duration;

use rank_spawner::{Keeper, Orphans, SweepScope, reap_adopted};
use tokio::time::Instant;

use super::Runner;
use crate::session_io::HostProcess;

/// Interval at which ended orphans are reaped. One that finds none is a system call.
const INTERVAL: Duration = Duration::from_secs(1);

/// Smallest part of the time that is spent with something else: where the table of processes must be read, it is read less often.
const REST: u32 = 100;

/// Time at which ended orphans are reaped next.
pub(super) struct OrphanReaping {
    /// `None` in a process that has children of others.
    due: Option<Instant>,
}

impl OrphanReaping {
    pub(super) fn new(process: HostProcess) -> Self {
        Self { due: (process == HostProcess::Dedicated).then(|| Instant::now() + INTERVAL) }
    }

    /// Returns the time at which orphans are reaped, or `otherwise` where that is earlier.
    pub(super) fn wake(&self, otherwise: Instant) -> Instant {
        self.due.map_or(otherwise, |due| due.min(otherwise))
    }
}

impl Runner {
    /// Reaps the orphans that have ended, if it is time.
    pub(super) fn reap_orphans(&mut self) {
        let began = Instant::now();
        if self.orphans.due.is_none_or(|due| began < due) {
            return;
        }
        self.reap_ended_orphans();
        self.orphans.due = Some(Instant::now() + INTERVAL.max(began.elapsed() * REST));
    }

    fn reap_ended_orphans(&self) {
        let Some(processes) = &self.processes else { return };
        // A rank whose start is not over is not known by its number yet, and a debugger that looks at ranks is reaped by who started it.
        if self.machine.ranks().starting() > 0 || !self.looks.is_empty() {
            return;
        }
        let (keeper, ranks) = (processes.keeper().map(Keeper::pid), processes.unreaped_pids());
        let orphans = Orphans::Claim { except: keeper.as_slice() };
        let reaped = reap_adopted(&SweepScope { tag: &self.io.tag, ranks: &ranks, orphans });
        if let Err(error) = reaped {
            let launch = &self.spec.launch_id;
            tracing::warn!(
                launch,
                "processes that ranks have left, and that have ended, stay until the session ends: {error}"
            );
        }
    }
}
