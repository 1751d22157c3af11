//! What the kernel lets this process use now: by system calls, which take less than a microsecond where `/proc/self/status` takes ten.

#![expect(
    unsafe_code,
    reason = "system calls without a safe wrapper that has room for all CPUs; each says what makes it sound"
)]

use std::ffi::c_ulong;

use nix::errno::Errno;
use nix::libc;

use crate::cpus::{CpuSet, NodeSet};
use crate::root::Root;

/// Room for the numbers of CPUs and of nodes, in words: as many as any kernel counts.
const WORDS: usize = 8192 / c_ulong::BITS as usize;

/// Flag of `get_mempolicy` that asks for the nodes which control groups leave a process (`linux/mempolicy.h`).
const MEMS_ALLOWED: c_ulong = 1 << 2;

/// What the kernel lets a process use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    /// CPUs: its affinity.
    pub(crate) cpus: CpuSet,
    /// NUMA nodes of which it may have memory.
    pub(crate) nodes: NodeSet,
}

impl Limits {
    /// Those of this process; `None` where the kernel does not tell them.
    pub(crate) fn of_this_process(root: &Root) -> Option<Self> {
        if root.is_this_machine()
            && let (Ok(cpus), Ok(nodes)) = (affinity(), nodes())
        {
            return Some(Self { cpus, nodes });
        }
        let status = root.word("proc/self/status")?;
        let list = |name: &str| status.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok();
        Some(Self { cpus: list("Cpus_allowed_list:")?, nodes: list("Mems_allowed_list:")? })
    }
}

/// The CPUs that this process may run on, without those that are offline.
fn affinity() -> nix::Result<CpuSet> {
    let mut mask: [c_ulong; WORDS] = [0; WORDS];
    // SAFETY: the kernel writes no more bytes than it is told there are, and any bits are a number.
    let written = unsafe { libc::syscall(libc::SYS_sched_getaffinity, 0, size_of_val(&mask), mask.as_mut_ptr()) };
    Errno::result(written)?;
    Ok(CpuSet::from_mask(&mask))
}

/// The NUMA nodes of which this process may have memory. Kernels without NUMA do not know the call, and some containers refuse it.
fn nodes() -> nix::Result<NodeSet> {
    let mut mask: [c_ulong; WORDS] = [0; WORDS];
    let (no_mode, no_address) = (std::ptr::null_mut::<i32>(), std::ptr::null::<u8>());
    let bits = size_of_val(&mask) * 8;
    // SAFETY: the kernel writes no more bits than it is told there are, any bits are a number, and with this flag it takes null for the rest.
    let done =
        unsafe { libc::syscall(libc::SYS_get_mempolicy, no_mode, mask.as_mut_ptr(), bits, no_address, MEMS_ALLOWED) };
    Errno::result(done)?;
    Ok(NodeSet::from_mask(&mask))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_calls_say_what_the_kernel_writes() {
        let asked = Limits { cpus: affinity().unwrap(), nodes: nodes().unwrap() };
        // The same files, as a tree of somebody else.
        let written = Limits::of_this_process(&Root::at("/proc/..")).unwrap();
        assert_eq!((asked.cpus.is_subset(&written.cpus), &asked.nodes), (true, &written.nodes));
    }
}
