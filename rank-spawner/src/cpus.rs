//! CPUs that this process may use.

use std::num::NonZeroUsize;
use std::sync::OnceLock;
use std::thread::available_parallelism;

use lattice_inventory::CpuSet;
use nix::unistd::getpid;

use crate::syscalls;

/// Number of CPUs that this process can keep busy, from its affinity and its cgroup's quota; 1 if the system does not report them.
///
/// The first call caches the number, in this process or in the one that forked it: it takes a dozen system calls.
pub fn usable_cpus() -> NonZeroUsize {
    static CPUS: OnceLock<NonZeroUsize> = OnceLock::new();
    *CPUS.get_or_init(|| available_parallelism().unwrap_or(NonZeroUsize::MIN))
}

/// CPUs on which the kernel now lets this process (its first thread) run. A change of its affinity or of its control group's CPUs changes them.
///
/// # Errors
/// Fails if the kernel does not report them.
pub fn allowed_cpus() -> nix::Result<CpuSet> {
    Ok(CpuSet::from_mask(&syscalls::affinity_of(getpid())?))
}
