//! Number of CPUs that this process can keep busy.

use std::num::NonZeroUsize;
use std::sync::OnceLock;
use std::thread::available_parallelism;

/// Number of CPUs that this process can keep busy, by its affinity and its cgroup's quota; 1 if that cannot be found out.
///
/// Cached from the first call on, here or in the process that this one was forked from: it takes a dozen system calls.
pub fn usable_cpus() -> NonZeroUsize {
    static CPUS: OnceLock<NonZeroUsize> = OnceLock::new();
    *CPUS.get_or_init(|| available_parallelism().unwrap_or(NonZeroUsize::MIN))
}
