//! Memory files: that of the ranks (`node_memory.rs`), and that of a job, made and sealed by the writer, mapped by both.
//!
//! The seals keep the promises that both ends build upon: the file never becomes shorter, so no page that is mapped goes away, and
//! nobody but the writer, who mapped it before, can write to it, whichever way the file is opened.
//!
//! A reader says that it wants pairs by a read lock on the file's first byte, for which the kernel can be asked at any time.

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

/// Name of the file, which is of no directory.
pub(crate) const NAME: &str = "lattice-job-memory";

/// Opens a memory file anew, for reading alone or with other flags.
///
/// # Errors
/// Fails without `/proc`.
pub(crate) fn open_anew(fd: RawFd, flags: OFlags) -> Result<OwnedFd> {
    fs::open(format!("/proc/self/fd/{fd}"), flags | OFlags::CLOEXEC, Mode::empty())
}

/// Number of bytes of a file.
pub(crate) fn length(file: &OwnedFd) -> Result<usize> {
    usize::try_from(fs::fstat(file)?.st_size).map_err(|_| Errno::OVERFLOW)
}

/// Returns true if the file can neither become shorter nor be written to by whoever maps it from now on.
pub(crate) fn is_sealed(file: &OwnedFd) -> bool {
    let seals = seals(file);
    seals.contains(SealFlags::SHRINK) && seals.intersects(SealFlags::FUTURE_WRITE | SealFlags::WRITE)
}

/// Returns true if the file can neither become shorter nor longer.
pub(crate) fn keeps_its_size(file: &OwnedFd) -> bool {
    seals(file).contains(SealFlags::SHRINK | SealFlags::GROW)
}

fn seals(file: &OwnedFd) -> SealFlags {
    fs::fcntl_get_seals(file).unwrap_or(SealFlags::empty())
}

/// Tells the writer that pairs are wanted, for as long as any copy of this descriptor is open.
pub(crate) fn ask_for_pairs(file: &OwnedFd) -> Result<()> {
    lock(file, libc::F_OFD_SETLK, libc::F_RDLCK).map(drop)
}

/// Sets a lock of the first byte, or asks for one in its way. It belongs to the open file, which no other wrapper has.
fn lock(file: &OwnedFd, command: libc::c_int, kind: libc::c_int) -> Result<libc::flock> {
    let mut lock = libc::flock { l_type: kind as _, l_whence: libc::SEEK_SET as _, l_start: 0, l_len: 1, l_pid: 0 };
    #[expect(unsafe_code, reason = "locks that belong to an open file have no safe wrapper")]
    // SAFETY: the descriptor is open, and both commands take a lock, which the second one writes to.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) };
    if result == 0 { Ok(lock) } else { Err(Errno::NOLCK) }
}

/// Mapped memory.
struct Map {
    start: NonNull<u8>,
    /// Bytes, at least one.
    len: usize,
}

impl Map {
    /// Maps the first `len` bytes of a file, shared with all others that map it.
    fn new(file: &OwnedFd, len: usize, access: ProtFlags) -> Result<Self> {
        #[expect(unsafe_code, reason = "mapped memory is a pointer and a length")]
        // SAFETY: the system chooses a place where nothing is.
        let start = unsafe { mm::mmap(ptr::null_mut(), len, access, MapFlags::SHARED, file, 0)? };
        Ok(Self { start: NonNull::new(start.cast()).ok_or(Errno::NOMEM)?, len })
    }

    /// A core file would hold it in full, pages included that nobody wrote.
    fn leave_out_of_core_files(self) -> Self {
        #[expect(unsafe_code, reason = "some advice changes what memory holds")]
        // SAFETY: this one does not, and the memory is all of this map. It works all the same where that fails.
        let _ = unsafe { mm::madvise(self.start.as_ptr().cast(), self.len, Advice::LinuxDontDump) };
        self
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        #[expect(unsafe_code, reason = "mapped memory is a pointer and a length")]
        // SAFETY: the memory is all of this map, and what borrows from it has ended.
        let _ = unsafe { mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[expect(unsafe_code, reason = "mapped memory is a pointer and a length")]
// SAFETY: the memory belongs to no thread, and is looked at by atomic operations alone.
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
        // SAFETY: as in `ReaderMapping::words`; besides, the map is writable.
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
    /// Fails for a file that is not sealed, or is shorter, and where the system has no room for the map.
    pub(crate) fn of(file: &OwnedFd, len: usize) -> Result<Self> {
        // The map must not be larger than what the seal keeps.
        if !is_sealed(file) || length(file)? < len {
            return Err(Errno::INVAL);
        }
        Map::new(file, len, ProtFlags::READ).map(|map| Self(map.leave_out_of_core_files()))
    }

    pub(crate) fn words(&self) -> Words<'_> {
        // SAFETY: The map has `len` readable bytes for as long as `self` lives: the file is at least as long, and a seal keeps it so. It
        // begins at a page, so words are aligned. Other processes write to it meanwhile, by atomic operations as the type has them, and
        // every value of a word is one of `AtomicU64`. Nothing is stored through a `Words`, and it loads with relaxed order only,
        // which is defined on memory that is mapped for reading alone.
        #[expect(unsafe_code, reason = "mapped memory is a pointer and a length")]
        let words = unsafe { slice::from_raw_parts(self.0.start.as_ptr().cast::<AtomicU64>(), self.0.len / WORD) };
        Words::new(words)
    }
}

/// Map of memory that several processes write to.
pub(crate) struct SharedMapping(Map);

impl SharedMapping {
    /// Maps a whole file, which must keep its size.
    pub(crate) fn of(file: &OwnedFd) -> Result<Self> {
        Map::new(file, length(file)?, ProtFlags::READ | ProtFlags::WRITE).map(Self)
    }

    pub(crate) fn bytes(&self) -> &[AtomicU8] {
        // SAFETY: The map has as many bytes, readable and writable, for as long as `self` lives: seals keep the file's size. Others write
        // to it meanwhile; every value of a byte is one of `AtomicU8`, and this process does not write to it through a reference to anything else.
        #[expect(unsafe_code, reason = "mapped memory is a pointer and a length")]
        unsafe {
            slice::from_raw_parts(self.0.start.as_ptr().cast::<AtomicU8>(), self.0.len)
        }
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.0.start.as_ptr()
    }
}
