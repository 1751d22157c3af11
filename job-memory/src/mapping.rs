//! Memory files: the file of the ranks (`node_memory.rs`), and the file of a job, which the writer makes and seals, and both ends map.
//!
//! Both ends rely on the seals. The file never becomes shorter, so no mapped page disappears. Only the writer, which mapped the file before it
//! was sealed, can write to it, regardless of how the file is opened.
//!
//! A reader requests pairs by a read lock on the file's first byte. The writer can query the kernel for this lock at any time.

pub(crate) mod making;

use alloc::format;
use core::ptr::{self, NonNull};
use core::slice;
use core::sync::atomic::{AtomicU8, AtomicU64};

use rustix::fd::{AsRawFd, OwnedFd, RawFd};
use rustix::fs::{self, Mode, OFlags, SealFlags};
use rustix::io::{Errno, Result};
use rustix::mm::{self, Advice, MapFlags, ProtFlags};

use crate::layout::WORD;
use crate::words::{Words, WritableWords};

/// Name of the file, which is in no directory.
pub(crate) const NAME: &str = "lattice-job-memory";

/// Reopens a memory file, read-only or with other flags.
///
/// # Errors
/// Fails if `/proc` is not mounted.
pub(crate) fn open_anew(fd: RawFd, flags: OFlags) -> Result<OwnedFd> {
    fs::open(format!("/proc/self/fd/{fd}"), flags | OFlags::CLOEXEC, Mode::empty())
}

/// Length of a file in bytes.
pub(crate) fn length(file: &OwnedFd) -> Result<usize> {
    usize::try_from(fs::fstat(file)?.st_size).map_err(|_| Errno::OVERFLOW)
}

/// Returns true if the file can neither become shorter nor be written through a new map.
pub(crate) fn is_sealed(file: &OwnedFd) -> bool {
    let seals = seals(file);
    seals.contains(SealFlags::SHRINK) && seals.intersects(SealFlags::FUTURE_WRITE | SealFlags::WRITE)
}

/// Returns true if the size of the file is fixed.
pub(crate) fn keeps_its_size(file: &OwnedFd) -> bool {
    seals(file).contains(SealFlags::SHRINK | SealFlags::GROW)
}

fn seals(file: &OwnedFd) -> SealFlags {
    fs::fcntl_get_seals(file).unwrap_or(SealFlags::empty())
}

/// Requests pairs from the writer, as long as any copy of this descriptor is open.
pub(crate) fn ask_for_pairs(file: &OwnedFd) -> Result<()> {
    lock(file, libc::F_OFD_SETLK, libc::F_RDLCK).map(drop)
}

/// Sets a lock on the first byte, or queries for a conflicting lock. The lock belongs to the open file description; no safe wrapper supports
/// such locks.
fn lock(file: &OwnedFd, command: libc::c_int, kind: libc::c_int) -> Result<libc::flock> {
    let mut lock = libc::flock { l_type: kind as _, l_whence: libc::SEEK_SET as _, l_start: 0, l_len: 1, l_pid: 0 };
    #[expect(unsafe_code, reason = "locks that belong to an open file have no safe wrapper")]
    // SAFETY: the descriptor is open, and both commands take a lock; the second one writes to it.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) };
    if result == 0 { Ok(lock) } else { Err(Errno::NOLCK) }
}

/// Mapped memory.
struct Map {
    start: NonNull<u8>,
    /// Length in bytes, at least one.
    len: usize,
}

impl Map {
    /// Maps the first `len` bytes of a file, shared with all other maps of it.
    fn new(file: &OwnedFd, len: usize, access: ProtFlags) -> Result<Self> {
        #[expect(unsafe_code, reason = "mapped memory is a pointer and a length")]
        // SAFETY: the system selects an unused place.
        let start = unsafe { mm::mmap(ptr::null_mut(), len, access, MapFlags::SHARED, file, 0)? };
        Ok(Self { start: NonNull::new(start.cast()).ok_or(Errno::NOMEM)?, len })
    }

    /// Excludes the map from core files, which would have all of it, unwritten pages included.
    fn leave_out_of_core_files(self) -> Self {
        #[expect(unsafe_code, reason = "some advice changes what memory holds")]
        // SAFETY: this advice does not, and the range is exactly this map. A failure has no effect on the map's use.
        let _ = unsafe { mm::madvise(self.start.as_ptr().cast(), self.len, Advice::LinuxDontDump) };
        self
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        #[expect(unsafe_code, reason = "mapped memory is a pointer and a length")]
        // SAFETY: the range is exactly this map, and no borrow of it is left.
        let _ = unsafe { mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[expect(unsafe_code, reason = "mapped memory is a pointer and a length")]
// SAFETY: the memory belongs to no thread, and all accesses are atomic operations.
unsafe impl Send for Map {}

#[expect(unsafe_code, reason = "mapped memory is a pointer and a length")]
// SAFETY: as for `Send`.
unsafe impl Sync for Map {}

/// Map of the writer.
pub(crate) struct WriterMapping(Map);

impl WriterMapping {
    fn of(file: &OwnedFd, len: usize) -> Result<Self> {
        Map::new(file, len, ProtFlags::READ | ProtFlags::WRITE).map(|map| Self(map.leave_out_of_core_files()))
    }

    pub(crate) fn words(&self) -> WritableWords<'_> {
        // SAFETY: as in `ReaderMapping::words`; in addition, the map is writable.
        #[expect(unsafe_code, reason = "mapped memory is a pointer and a length")]
        let words = unsafe { slice::from_raw_parts(self.0.start.as_ptr().cast::<AtomicU64>(), self.0.len / WORD) };
        WritableWords::new(words)
    }
}

/// Map of a reader.
pub(crate) struct ReaderMapping(Map);

impl ReaderMapping {
    /// Maps the first `len` bytes of a file.
    ///
    /// # Errors
    /// Fails for a file that is unsealed or shorter, and if the system has no space for the map.
    pub(crate) fn of(file: &OwnedFd, len: usize) -> Result<Self> {
        // The map must not exceed the size that the seal guarantees.
        if !is_sealed(file) || length(file)? < len {
            return Err(Errno::INVAL);
        }
        Map::new(file, len, ProtFlags::READ).map(|map| Self(map.leave_out_of_core_files()))
    }

    pub(crate) fn words(&self) -> Words<'_> {
        // SAFETY: The map has `len` readable bytes while `self` lives: the file is at least that long, and a seal keeps it so. The map starts at
        // a page, so words are aligned. Other processes write to it meanwhile, by atomic operations of this type, and every value of a word is a
        // valid `AtomicU64`. A `Words` stores nothing, and loads only with relaxed order, which is defined on read-only mapped memory.
        #[expect(unsafe_code, reason = "mapped memory is a pointer and a length")]
        let words = unsafe { slice::from_raw_parts(self.0.start.as_ptr().cast::<AtomicU64>(), self.0.len / WORD) };
        Words::new(words)
    }
}

/// Map of memory that several processes write to.
pub(crate) struct SharedMapping(Map);

impl SharedMapping {
    /// Maps a whole file. Its size must be fixed.
    pub(crate) fn of(file: &OwnedFd) -> Result<Self> {
        Map::new(file, length(file)?, ProtFlags::READ | ProtFlags::WRITE).map(Self)
    }

    pub(crate) fn bytes(&self) -> &[AtomicU8] {
        // SAFETY: The map has as many readable and writable bytes while `self` lives: seals fix the file's size. Other processes write to it
        // meanwhile. Every value of a byte is a valid `AtomicU8`, and this process does not write to it through a reference of another type.
        #[expect(unsafe_code, reason = "mapped memory is a pointer and a length")]
        unsafe {
            slice::from_raw_parts(self.0.start.as_ptr().cast::<AtomicU8>(), self.0.len)
        }
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.0.start.as_ptr()
    }
}
