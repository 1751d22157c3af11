//! Memory that all ranks of a job on a node share from the start, made before the first of them: `lattice launch --node-memory`.
//!
//! The session makes it and never looks at it. Ranks map it for reading and writing; nobody makes it larger or smaller, so no page
//! that is mapped goes away.

use core::fmt;
use core::num::NonZeroU64;
use core::sync::atomic::AtomicU8;

use rustix::fd::{OwnedFd, RawFd};
use rustix::fs::OFlags;

use crate::mapping::{self, SharedMapping, making};
use crate::reader::{NotReadable, check_name};
use crate::system_error::SystemError;

/// Name of the file, which is of no directory.
const NAME: &str = "lattice-node-memory";

/// Reason why a session cannot make memory for its ranks.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotMade {
    /// More than the node has.
    #[error("--node-memory asks for {asked} bytes, and this node has {has} bytes of memory\ntry: less")]
    MoreThanTheNode {
        /// Bytes asked for.
        asked: u64,
        /// Bytes of memory of the node.
        has: u64,
    },
    /// More than a file may have.
    #[error("--node-memory asks for {asked} bytes, and files may have {limit} here\ntry: ulimit -f unlimited")]
    MoreThanAFile {
        /// Bytes asked for.
        asked: u64,
        /// Bytes of the longest file.
        limit: usize,
    },
    /// An error of the system.
    #[error("cannot make {asked} bytes of memory for the ranks of this node (--node-memory): {source}")]
    System {
        /// Bytes asked for.
        asked: u64,
        /// The error.
        source: SystemError,
    },
}

/// Memory that this rank shares with the other ranks of its job on its node. All of it was zero at the start.
pub struct NodeMemory(SharedMapping);

impl NodeMemory {
    /// Name of the variable that tells a rank the number of the descriptor.
    pub const VARIABLE: &str = "LATTICE_NODE_MEMORY";

    /// Makes memory of a size, which takes pages of the node as ranks write to it; they count for the control group of the rank that does.
    ///
    /// # Errors
    /// Refuses more than the node has, and than `ulimit -f` allows; fails where the system has no memory file left.
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

    /// Maps the memory behind the descriptor `fd`, which stays open and is not taken over. Anything may be behind the number, as the
    /// launcher's descriptor may have been closed and another one opened since.
    ///
    /// # Errors
    /// Refuses a descriptor that is no such memory; fails where the system has no room for the map.
    pub fn inherited(fd: RawFd) -> Result<Self, NotReadable> {
        check_name(fd, NAME, "node memory")?;
        let file = mapping::open_anew(fd, OFlags::RDWR).map_err(NotReadable::system)?;
        if !mapping::keeps_its_size(&file) {
            return Err(NotReadable::NotSealed);
        }
        SharedMapping::of(&file).map(Self).map_err(NotReadable::system)
    }

    /// The bytes, which other ranks read and write at the same time.
    pub fn bytes(&self) -> &[AtomicU8] {
        self.0.bytes()
    }

    /// The first byte, for those who lay out the memory by themselves.
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
