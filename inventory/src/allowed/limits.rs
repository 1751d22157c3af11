//! Present limits of this process, from system calls, which take less than a microsecond; `/proc/self/status` takes ten.

#![expect(
    unsafe_code,
    reason = "system calls without a safe wrapper that has room for all CPUs; each has a safety comment"
)]

use std::ffi::c_ulong;

use nix::errno::Errno;
use nix::libc;

use crate::cpus::{CpuSet, NodeSet};
use crate::root::Root;

/// Length of masks of CPUs and NUMA nodes, in words: the maximum of any kernel.
const WORDS: usize = 8192 / c_ulong::BITS as usize;

/// Flag of `get_mempolicy` that requests the nodes which control groups allow a process (`linux/mempolicy.h`).
const MEMS_ALLOWED: c_ulong = 1 << 2;

/// CPUs and NUMA nodes that the kernel allows a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    /// CPUs of its affinity.
    pub(crate) cpus: CpuSet,
    /// NUMA nodes that can provide its memory.
    pub(crate) nodes: NodeSet,
}

impl Limits {
    /// Limits of this process; `None` if the kernel does not report them.
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

/// CPUs that this process may run on, without offline CPUs.
fn affinity() -> nix::Result<CpuSet> {
    let mut mask: [c_ulong; WORDS] = [0; WORDS];
    // SAFETY: the kernel writes at most as many bytes as the length argument, and any bits are a valid number.
    let written = unsafe { libc::syscall(libc::SYS_sched_getaffinity, 0, size_of_val(&mask), mask.as_mut_ptr()) };
    Errno::result(written)?;
    Ok(CpuSet::from_mask(&mask))
}

/// NUMA nodes that can provide memory of this process. Fails on kernels without NUMA, and in some containers.
fn nodes() -> nix::Result<NodeSet> {
    let mut mask: [c_ulong; WORDS] = [0; WORDS];
    let (no_mode, no_address) = (std::ptr::null_mut::<i32>(), std::ptr::null::<u8>());
    let bits = size_of_val(&mask) * 8;
    // SAFETY: the kernel writes at most as many bits as the length argument, and any bits are a valid number. With this flag it accepts null
    // for the other arguments.
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
        // The same files, read as a captured tree.
        let written = Limits::of_this_process(&Root::at("/proc/..")).unwrap();
        assert_eq!((asked.cpus.is_subset(&written.cpus), &asked.nodes), (true, &written.nodes));
    }
}
