//! Resources that the ranks of a session used, as the kernel counts them for a process whose children they were.

use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

use crate::event::Usage;
use crate::session_io::HostProcess;

/// Resources of all processes that were reaped here. `None` in a process with children that belong to others.
pub(super) fn of_ranks(process: HostProcess) -> Option<Usage> {
    if process == HostProcess::Shared {
        return None;
    }
    let used = getrusage(UsageWho::RUSAGE_CHILDREN).ok()?;
    // Linux counts memory in KiB (getrusage(2)).
    let peak_memory = u64::try_from(used.max_rss()).unwrap_or(0).saturating_mul(1024);
    Some(Usage { user: time(used.user_time()), system: time(used.system_time()), peak_memory })
}

fn time(time: TimeVal) -> Duration {
    let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
    let microseconds = u64::try_from(time.tv_usec()).unwrap_or(0);
    Duration::from_secs(seconds).saturating_add(Duration::from_micros(microseconds))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn what_children_used_is_counted_where_all_of_them_are_ranks() {
        let busy = "i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done";
        assert!(Command::new("sh").args(["-c", busy]).status().unwrap().success());
        let usage = of_ranks(HostProcess::Dedicated).unwrap();
        assert!(usage.user + usage.system > Duration::ZERO && usage.peak_memory > 0, "{usage:?}");
        assert_eq!(of_ranks(HostProcess::Shared), None);
    }
}
