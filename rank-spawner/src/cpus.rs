//! CPUs that this process may use.

use std::num::NonZeroUsize;
use std::sync::OnceLock;
use std::thread::available_parallelism;

use lattice_inventory::CpuSet;
use nix::unistd::getpid;

use crate::syscalls;

/// Number of CPUs that this process can keep busy, by its affinity and its cgroup's quota; 1 if that cannot be found out.
///
/// Cached from the first call on, here or in the process that this one was forked from: it takes a dozen system calls.
pub fn usable_cpus() -> NonZeroUsize {
    static CPUS: OnceLock<NonZeroUsize> = OnceLock::new();
    *CPUS.get_or_init(|| available_parallelism().unwrap_or(NonZeroUsize::MIN))
}

/// The CPUs on which the kernel lets this process run now, its first thread that is. They change when somebody changes its affinity or the CPUs of
/// its control group.
///
/// # Errors
/// Fails if the kernel does not tell them.
pub fn allowed_cpus() -> nix::Result<CpuSet> {
    Ok(CpuSet::from_mask(&syscalls::affinity_of(getpid())?))
}
