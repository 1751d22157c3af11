//! System V IPC objects: their creators and their removal. nix has no wrappers for these calls.

#![expect(unsafe_code, reason = "raw system calls; each has a safety comment")]

use std::fs;
use std::mem;
use std::ptr;

use nix::errno::Errno;
use nix::libc;
use nix::unistd::{Pid, Uid};
use pmi_core::resources::SystemV;

/// Attributes of an object, from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    owner: Uid,
    creator: Uid,
    /// Process that made the object; only known for shared memory.
    pub(crate) maker: Option<Pid>,
    /// Time of creation or of a later change, in seconds since 1970.
    pub(crate) changed: i64,
}

impl Object {
    /// Reads the attributes of an object.
    ///
    /// # Errors
    /// `EINVAL` or `EIDRM` if no object has this number, `EACCES` if this user may not read it.
    pub(crate) fn read(kind: SystemV, id: i32) -> nix::Result<Self> {
        let (permissions, maker, changed) = match kind {
            SystemV::Memory => {
                // SAFETY: the structure consists of integers, for which zero is valid.
                let mut status: libc::shmid_ds = unsafe { mem::zeroed() };
                // SAFETY: the kernel writes to `status`, which this function owns and which has the type that it fills.
                Errno::result(unsafe { libc::shmctl(id, libc::IPC_STAT, &raw mut status) })?;
                (status.shm_perm, Some(Pid::from_raw(status.shm_cpid)), status.shm_ctime)
            }
            SystemV::Semaphores => {
                // SAFETY: as above.
                let mut status: libc::semid_ds = unsafe { mem::zeroed() };
                // SAFETY: as above; the fourth argument of this command is a pointer to such a structure.
                Errno::result(unsafe { libc::semctl(id, 0, libc::IPC_STAT, &raw mut status) })?;
                (status.sem_perm, None, status.sem_ctime)
            }
            SystemV::Messages => {
                // SAFETY: as above.
                let mut status: libc::msqid_ds = unsafe { mem::zeroed() };
                // SAFETY: as above.
                Errno::result(unsafe { libc::msgctl(id, libc::IPC_STAT, &raw mut status) })?;
                (status.msg_perm, None, status.msg_ctime)
            }
        };
        let (owner, creator) = (Uid::from_raw(permissions.uid), Uid::from_raw(permissions.cuid));
        Ok(Self { owner, creator, maker, changed })
    }

    /// True if this process's user owns and has made the object.
    pub(crate) fn is_own(&self) -> bool {
        let own = Uid::effective();
        self.owner == own && self.creator == own
    }
}

/// Removes an object; shared memory remains while a process is attached.
pub(crate) fn remove(kind: SystemV, id: i32) -> nix::Result<()> {
    // SAFETY: the commands take no structure, and touch no memory of this process.
    let result = unsafe {
        match kind {
            SystemV::Memory => libc::shmctl(id, libc::IPC_RMID, ptr::null_mut()),
            SystemV::Semaphores => libc::semctl(id, 0, libc::IPC_RMID),
            SystemV::Messages => libc::msgctl(id, libc::IPC_RMID, ptr::null_mut()),
        }
    };
    Errno::result(result).map(drop)
}

/// Numbers of this user's segments that the process has made since then, and that no process is attached to. The kernel lists no
/// creators of semaphores and message queues.
pub(crate) fn segments_made_by(maker: Pid, since: i64) -> Vec<i32> {
    let list = fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    list.lines().skip(1).filter_map(|line| segment(line, maker, since, Uid::effective())).collect()
}

/// Number of the segment in a line, if it meets these conditions.
fn segment(line: &str, maker: Pid, since: i64, own: Uid) -> Option<i32> {
    let fields: Vec<i64> = line.split_ascii_whitespace().map(|field| field.parse().unwrap_or(-1)).collect();
    let [_, id, _, _, cpid, _, attached, uid, _, cuid, _, _, _, changed, ..] = fields[..] else { return None };
    let is_own = uid == i64::from(own.as_raw()) && cuid == uid;
    let is_left = cpid == i64::from(maker.as_raw()) && attached == 0 && changed >= since;
    (is_own && is_left).then(|| i32::try_from(id).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_this_process_of_the_user_has_left_is_found() {
        let line = |uid, cpid, attached, changed| {
            format!("  0  98306  600  4096 {cpid} 0 {attached} {uid} 1000 {uid} 1000 0 0 {changed} 0 0")
        };
        let found = |line: &str| segment(line, Pid::from_raw(77), 1000, Uid::from_raw(500));
        assert_eq!(found(&line(500, 77, 0, 1000)), Some(98306));
        for other in [line(501, 77, 0, 1000), line(500, 78, 0, 1000), line(500, 77, 1, 1000), line(500, 77, 0, 999)] {
            assert_eq!(found(&other), None, "{other}");
        }
        for nonsense in ["", "0 1 2", "key shmid perms size cpid lpid nattch uid gid cuid cgid atime dtime ctime"] {
            assert_eq!(found(nonsense), None);
        }
    }
}
