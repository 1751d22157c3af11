//! Orphans of ranks. After the end of its parent, a process becomes a child of a session that has its process to itself. Orphans that end
//! while the session runs are reaped here, as they would otherwise fill the node's process table. The rest is ended with the session,
//! by `sweep`.

use std::time::Duration;

use rank_spawner::{Keeper, Orphans, SweepScope, reap_adopted};
use tokio::time::Instant;

use super::Runner;
use crate::session_io::HostProcess;

/// Interval at which ended orphans are reaped. Without ended orphans the cost is one system call.
const INTERVAL: Duration = Duration::from_secs(1);

/// Minimum ratio between a pause and the time of a reap. If the process table must be read, it is read less often.
const REST: u32 = 100;

/// Time at which ended orphans are reaped next.
pub(super) struct OrphanReaping {
    /// `None` in a process that has children outside of the launch.
    due: Option<Instant>,
}

impl OrphanReaping {
    pub(super) fn new(process: HostProcess) -> Self {
        Self { due: (process == HostProcess::Dedicated).then(|| Instant::now() + INTERVAL) }
    }

    /// Returns the time of the next reap, or `otherwise` if it is earlier.
    pub(super) fn wake(&self, otherwise: Instant) -> Instant {
        self.due.map_or(otherwise, |due| due.min(otherwise))
    }
}

impl Runner {
    /// Reaps the orphans that have ended, if a reap is due.
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
        // The process id of a rank is not known before its start is over. A debugger that inspects ranks is reaped by the code that started it.
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
