//! Capabilities of root's processes: a fork server and its children have only the capabilities in force that they need
//! (capabilities(7)). Capability sets belong to threads; the process has one thread at each call in this module.

#![expect(unsafe_code, reason = "capabilities have no safe wrapper here")]

use std::ops::BitOr;

use nix::errno::Errno;
use nix::libc::{self, c_int};

/// A set of capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities(u64);

impl Capabilities {
    /// The empty set.
    pub const NONE: Self = Self(0);
    /// All capabilities.
    pub const ALL: Self = Self(u64::MAX);
    /// CAP_SYS_ADMIN, which CXI services need.
    pub const SYS_ADMIN: Self = Self(1 << 21);

    /// Capabilities of a fork server. It inspects processes and files of all users, kills leftover processes, and makes processes of
    /// users, with their limits and without a bounding set.
    pub(crate) const OF_FORK_SERVER: Self = Self(
        1 << 2          // CAP_DAC_READ_SEARCH: /proc/PID/fd, the list of revoked certificates in a daemon's directory
        | 1 << 5        // CAP_KILL
        | 1 << 6        // CAP_SETGID
        | 1 << 7        // CAP_SETUID
        | 1 << 8        // CAP_SETPCAP: the bounding set of users' processes
        | 1 << 19       // CAP_SYS_PTRACE: /proc/PID/environ
        | 1 << 24, // CAP_SYS_RESOURCE: hard limits
    );

    fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl BitOr for Capabilities {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Version of the call, `_LINUX_CAPABILITY_VERSION_3` of `linux/capability.h`: 64 capabilities in two words per set.
const VERSION_3: u32 = 0x2008_0522;
const THIS_THREAD: c_int = 0;

#[repr(C)]
struct Header {
    version: u32,
    pid: c_int,
}

static HEADER: Header = Header { version: VERSION_3, pid: THIS_THREAD };

/// The lower or upper half of each set.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Half {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Keeps `kept` in force, and `raisable` available to [`raise_capabilities`]; drops all other capabilities permanently.
///
/// # Errors
/// Returns the error of capset(2).
pub(crate) fn confine(kept: Capabilities, raisable: Capabilities) -> nix::Result<()> {
    let permitted = permitted()?;
    set(permitted.and(kept), permitted.and(kept | raisable))
}

/// Puts capabilities in force that this process is permitted to have.
///
/// # Errors
/// Returns the error of capset(2).
pub fn raise_capabilities(wanted: Capabilities) -> nix::Result<()> {
    let permitted = permitted()?;
    set(permitted.and(wanted | Capabilities::OF_FORK_SERVER), permitted)
}

/// Clears this thread's effective, permitted and inheritable sets, and thereby its ambient set.
pub(crate) fn drop_capabilities() -> nix::Result<()> {
    set(Capabilities::NONE, Capabilities::NONE)
}

fn permitted() -> nix::Result<Capabilities> {
    let mut halves = [Half::default(); 2];
    // SAFETY: both pointers have the types that the call expects for this version.
    let result = unsafe { libc::syscall(libc::SYS_capget, &raw const HEADER, halves.as_mut_ptr()) };
    Errno::result(result)?;
    Ok(Capabilities(u64::from(halves[0].permitted) | u64::from(halves[1].permitted) << 32))
}

fn set(effective: Capabilities, permitted: Capabilities) -> nix::Result<()> {
    let half = |shift: u32| Half {
        effective: (effective.0 >> shift) as u32,
        permitted: (permitted.0 >> shift) as u32,
        inheritable: 0,
    };
    let halves = [half(0), half(32)];
    // SAFETY: both pointers have the types that the call expects for this version. The call writes only to a header of an unknown
    // version; every Linux since 2.6.26 has this version.
    let result = unsafe { libc::syscall(libc::SYS_capset, &raw const HEADER, halves.as_ptr()) };
    Errno::result(result).map(drop)
}
