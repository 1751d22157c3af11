//! Memory that all ranks of a job on a node share from the start, made before the first rank: `lattice launch --node-memory`.
//!
//! The session makes it and does not access it. Ranks map it for reading and writing. Its size is fixed, so no mapped page disappears.

use core::fmt;
use core::num::NonZeroU64;
use core::sync::atomic::AtomicU8;

use rustix::fd::{OwnedFd, RawFd};
use rustix::fs::OFlags;

use crate::mapping::{self, SharedMapping, making};
use crate::reader::{NotReadable, check_name};
use crate::system_error::SystemError;

/// Name of the file, which is in no directory.
const NAME: &str = "lattice-node-memory";

/// Error of a session that cannot make memory for its ranks.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotMade {
    /// The request exceeds the memory of the node.
    #[error("--node-memory asks for {asked} bytes, and this node has {has} bytes of memory\ntry: less")]
    MoreThanTheNode {
        /// Requested bytes.
        asked: u64,
        /// Memory of the node, in bytes.
        has: u64,
    },
    /// The request exceeds the limit on file sizes.
    #[error("--node-memory asks for {asked} bytes, and files may have {limit} here\ntry: ulimit -f unlimited")]
    MoreThanAFile {
        /// Requested bytes.
        asked: u64,
        /// Limit on the size of a file, in bytes.
        limit: usize,
    },
    /// A system call failed.
    #[error("cannot make {asked} bytes of memory for the ranks of this node (--node-memory): {source}")]
    System {
        /// Requested bytes.
        asked: u64,
        /// Error of the system.
        source: SystemError,
    },
}

/// Memory that this rank shares with the other ranks of its job on its node. Initially all zero.
pub struct NodeMemory(SharedMapping);

impl NodeMemory {
    /// Environment variable with the number of the descriptor in a rank.
    pub const VARIABLE: &str = "LATTICE_NODE_MEMORY";

    /// Makes memory of this size. It uses pages of the node as ranks write to it; a page counts for the control group of the rank that
    /// first writes it.
    ///
    /// # Errors
    /// Fails for a size above the node's memory or the limit of `ulimit -f`, and if the system cannot make another memory file.
    pub fn make(bytes: NonZeroU64) -> Result<OwnedFd, NotMade> {
        let asked = bytes.get();
        let node = rustix::system::sysinfo();
        let has = node.totalram * u64::from(node.mem_unit);
        if asked > has {
            return Err(NotMade::MoreThanTheNode { asked, has });
        }
        let limit = making::file_size_limit();
        if usize::try_from(asked).is_ok_and(|asked| asked > limit) {
            return Err(NotMade::MoreThanAFile { asked, limit });
        }
        making::create_shared(NAME, asked).map_err(|error| NotMade::System { asked, source: error.into() })
    }

    /// Maps the memory of descriptor `fd`. The descriptor stays open, and the caller keeps it. The number may belong to any file: the
    /// launcher's descriptor may have been closed and another file opened.
    ///
    /// # Errors
    /// Fails for a descriptor of anything else, and if the system has no space for the map.
    pub fn inherited(fd: RawFd) -> Result<Self, NotReadable> {
        check_name(fd, NAME, "node memory")?;
        let file = mapping::open_anew(fd, OFlags::RDWR).map_err(NotReadable::system)?;
        if !mapping::keeps_its_size(&file) {
            return Err(NotReadable::NotSealed);
        }
        SharedMapping::of(&file).map(Self).map_err(NotReadable::system)
    }

    /// Bytes of the memory. Other ranks read and write them at the same time.
    pub fn bytes(&self) -> &[AtomicU8] {
        self.0.bytes()
    }

    /// Address of the first byte, for programs with their own layout of the memory.
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.as_ptr()
    }
}

impl fmt::Debug for NodeMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeMemory").field("bytes", &self.bytes().len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io;
    use std::os::fd::AsRawFd;
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn all_who_map_it_see_what_one_writes_and_nobody_resizes_it() {
        let made = NodeMemory::make(NonZeroU64::new(10_000).unwrap()).unwrap();
        let [one, other] = [(); 2].map(|()| NodeMemory::inherited(made.as_raw_fd()).unwrap());
        assert_eq!(one.bytes().len(), 10_000);
        assert!(other.bytes().iter().all(|byte| byte.load(Ordering::Relaxed) == 0));
        one.bytes()[9_999].store(7, Ordering::Relaxed);
        assert_eq!(other.bytes()[9_999].load(Ordering::Relaxed), 7);
        let file = File::from(made);
        for size in [0, 9_999, 10_001] {
            assert_eq!(file.set_len(size).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        }
    }

    #[test]
    fn what_no_node_has_and_what_is_no_such_memory_is_refused() {
        let text = NodeMemory::make(NonZeroU64::MAX).unwrap_err().to_string();
        assert!(text.starts_with("--node-memory asks for 18446744073709551615 bytes, and this node has "), "{text}");
        let other = File::open("/dev/zero").unwrap();
        let text = NodeMemory::inherited(other.as_raw_fd()).unwrap_err().to_string();
        assert!(text.ends_with("is no node memory: /dev/zero"), "{text}");
    }
}
