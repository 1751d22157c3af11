//! The first steps of a process that the fork server has forked, before it runs what its role is.

#![expect(unsafe_code, reason = "descriptors by number, after a fork")]

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::setsid;

use super::super::ChildMain;
use crate::cgroup::OwnCgroup;
use crate::descriptor_socket::DescriptorSocket;
use crate::detach::{Stderr, close_all_but, default_signals};
use crate::limits::Limit;

/// Main function of a child.
pub(super) fn run(
    door: DescriptorSocket,
    cgroup: Option<&Path>,
    open_files: Option<Limit>,
    main: &ChildMain,
) -> io::Result<()> {
    // SAFETY: this is a child of the server, in which nothing of the server's runs again.
    let door = unsafe { detached(door.into(), open_files) }?;
    main(door.into(), cgroup.map(OwnCgroup::open).transpose()?);
    Ok(())
}

/// Leaves the server: the process is a session of its own, with that descriptor and standard error only, default signal actions, and the limit
/// of open files that the daemon had. What becomes an orphan below it falls to it.
///
/// # Safety
/// This process was just forked by the server, and no code of the server, which owns the other descriptors, runs in it again.
pub(super) unsafe fn detached(kept: OwnedFd, open_files: Option<Limit>) -> io::Result<OwnedFd> {
    // SAFETY: as the caller guarantees.
    let kept = unsafe { close_all_but(kept, Stderr::Inherit) }?;
    setsid()?;
    if let Some(Limit { soft, hard, .. }) = open_files {
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard)?;
    }
    give_up_protection_from_oom()?;
    default_signals()?;
    prctl::set_child_subreaper(true)?;
    Ok(kept)
}

/// Takes back the protection from the kernel's search for memory that a daemon has by its unit (`OOMScoreAdjust`): what users start is not
/// to outlive the daemon for it.
fn give_up_protection_from_oom() -> io::Result<()> {
    const FILE: &str = "/proc/self/oom_score_adj";
    match fs::read_to_string(FILE)?.trim().parse::<i32>() {
        Ok(score) if score < 0 => fs::write(FILE, "0"),
        _ => Ok(()),
    }
}
