//! File systems that other machines may share.

use std::path::Path;

use nix::errno::Errno;
use nix::sys::statfs::{self, FsType, statfs};

/// File systems of a single machine: on its own disks and in its memory.
const LOCAL: [FsType; 7] = [
    statfs::BTRFS_SUPER_MAGIC,
    statfs::EXT4_SUPER_MAGIC,
    F2FS,
    statfs::OVERLAYFS_SUPER_MAGIC,
    statfs::TMPFS_MAGIC,
    statfs::XFS_SUPER_MAGIC,
    ZFS,
];
/// Magic number of F2FS (`linux/magic.h`).
const F2FS: FsType = FsType(0xf2f5_2010);
/// Magic number of OpenZFS (its `sys/fs/zfs.h`).
const ZFS: FsType = FsType(0x2fc1_2fc1);

/// Returns true if other machines may access the files of a directory: its present or future file system is not known
/// to belong to one machine. Blocks while the file system blocks.
pub fn is_shared(directory: &Path) -> bool {
    let types = directory.ancestors().map(statfs);
    let existing = types.into_iter().find(|found| !matches!(found, Err(Errno::ENOENT)));
    existing.is_none_or(|found| found.map_or(true, |found| !LOCAL.contains(&found.filesystem_type())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_in_memory_is_of_this_machine_alone() {
        assert!(!is_shared(Path::new("/dev/shm")));
        assert!(!is_shared(Path::new("/dev/shm/not-there/below")));
    }

    /// These file systems may be visible to other machines.
    #[test]
    fn what_is_not_known_is_shared() {
        assert!(is_shared(Path::new("/proc")));
        assert!(is_shared(Path::new("/proc/version/below")));
    }
}
