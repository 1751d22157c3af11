//! First steps of a process that the fork server has forked, before it runs the function of its role.

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
use crate::last_resort::SESSION;
use crate::limits::Limit;

/// Main function of a child.
pub(super) fn run(
    door: DescriptorSocket,
    cgroup: Option<&Path>,
    open_files: Option<Limit>,
    main: &ChildMain,
) -> io::Result<()> {
    // SAFETY: this is a child of the server, and no code of the server runs in it again.
    let door = unsafe { detached(door.into(), open_files) }?;
    prctl::set_name(SESSION)?;
    main(door.into(), cgroup.map(OwnCgroup::open).transpose()?);
    Ok(())
}

/// Detaches the process from the server. It gets its own session, default signal actions, and the daemon's original limit on open files. It
/// keeps only `kept` and standard error. Orphans among its descendants become its children.
///
/// # Safety
/// The server must just have forked this process. No code of the server, which owns the other descriptors, may run in it again.
pub(super) unsafe fn detached(kept: OwnedFd, open_files: Option<Limit>) -> io::Result<OwnedFd> {
    // SAFETY: the caller guarantees it.
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

/// Drops the protection from the OOM killer that a daemon has from its unit (`OOMScoreAdjust`): processes of users must not outlive the daemon
/// because of it.
fn give_up_protection_from_oom() -> io::Result<()> {
    const FILE: &str = "/proc/self/oom_score_adj";
    match fs::read_to_string(FILE)?.trim().parse::<i32>() {
        Ok(score) if score < 0 => fs::write(FILE, "0"),
        _ => Ok(()),
    }
}
