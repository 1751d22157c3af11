//! The machine of a measurement.

use std::fs::read_to_string;
use std::num::NonZeroUsize;
use std::thread::available_parallelism;

/// Returns the number of cores that this process may use: within its affinity and the quota of its control group.
pub fn cores() -> usize {
    available_parallelism().map_or(1, NonZeroUsize::get)
}

/// Returns the processor, number of usable cores, kernel and load, in one line.
pub fn line() -> String {
    let cpuinfo = read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown processor", |(_, name)| name);
    let kernel = read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let load = read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
    format!("{model}, {} usable cores, Linux {}, load {load} before the first round", cores(), kernel.trim_end())
}
