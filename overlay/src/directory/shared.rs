//! File systems that other machines may share.

use std::path::Path;

use nix::errno::Errno;
use nix::sys::statfs::{self, FsType, statfs};

/// File systems of one machine alone: on its own disks and in its memory.
const LOCAL: [FsType; 7] = [
    statfs::BTRFS_SUPER_MAGIC,
    statfs::EXT4_SUPER_MAGIC,
    F2FS,
    statfs::OVERLAYFS_SUPER_MAGIC,
    statfs::TMPFS_MAGIC,
    statfs::XFS_SUPER_MAGIC,
    ZFS,
];
/// Number of F2FS (`linux/magic.h`).
const F2FS: FsType = FsType(0xf2f5_2010);
/// Number of OpenZFS (its `sys/fs/zfs.h`).
const ZFS: FsType = FsType(0x2fc1_2fc1);

/// Tells whether other machines may see the files of a directory: it is, or would be made, on no file system that is known to belong to one machine.
/// Blocks for as long as the file system does.
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

    /// Nothing says that others do not see it, too.
    #[test]
    fn what_is_not_known_is_shared() {
        assert!(is_shared(Path::new("/proc")));
        assert!(is_shared(Path::new("/proc/version/below")));
    }
}
