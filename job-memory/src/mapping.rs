//! Memory files: that of the ranks (`node_memory.rs`), and that of a job, made and sealed by the writer, mapped by both.
//!
//! The seals keep the promises that both ends build upon: the file never becomes shorter, so no page that is mapped goes away, and
//! nobody but the writer, who mapped it before, can write to it, whichever way the file is opened.
//!
//! A reader says that it wants pairs by a read lock on the file's first byte, for which the kernel can be asked at any time.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::slice;
use std::sync::atomic::{AtomicU8, AtomicU64};

use memmap2::{Advice, MmapOptions, MmapRaw};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::libc;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{Resource, getrlimit};

use crate::layout::WORD;
use crate::words::{Words, WritableWords};

/// Name of the file, which is of no directory.
pub(crate) const NAME: &str = "lattice-job-memory";

/// Size of the largest file that this process may make, in bytes. Beyond it a signal would end the process.
pub(crate) fn file_size_limit() -> usize {
    getrlimit(Resource::RLIMIT_FSIZE).map_or(0, |(limit, _)| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Makes a memory file that begins with `image` and can hold `capacity` bytes, of which only those take memory that were written.
///
/// # Errors
/// Fails where the system has no memory file with these seals (Linux 5.1), or no memory or descriptor left.
pub(crate) fn create(image: &[u8], capacity: usize) -> io::Result<(File, WriterMapping)> {
    let file = File::from(memory_file(NAME)?);
    file.write_all_at(image, 0)?;
    file.set_len(capacity as u64)?;
    // The map comes first: the seal lets the maps live that there are.
    let mapping = WriterMapping::of(&file, capacity)?;
    let seals = SealFlag::F_SEAL_FUTURE_WRITE | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok((file, mapping))
}

/// Makes a memory file that whoever has it reads and writes, and whose size is for good.
pub(crate) fn create_shared(name: &str, bytes: u64) -> io::Result<File> {
    let file = File::from(memory_file(name)?);
    file.set_len(bytes)?;
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(file)
}

fn memory_file(name: &str) -> nix::Result<OwnedFd> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    // Linux 6.3; some systems warn of files without it.
    let no_programs = MFdFlags::from_bits_retain(libc::MFD_NOEXEC_SEAL);
    match memfd_create(name, flags | no_programs) {
        Err(Errno::EINVAL) => memfd_create(name, flags),
        made => made,
    }
}

/// Opens a memory file anew, for reading alone.
///
/// # Errors
/// Fails without `/proc`.
pub(crate) fn open_for_reading(file: &impl AsRawFd) -> io::Result<File> {
    File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Returns true if the file can neither become shorter nor be written to by whoever maps it from now on.
pub(crate) fn is_sealed(file: &File) -> bool {
    let seals = seals(file);
    seals.contains(SealFlag::F_SEAL_SHRINK) && seals.intersects(SealFlag::F_SEAL_FUTURE_WRITE | SealFlag::F_SEAL_WRITE)
}

/// Returns true if the file can neither become shorter nor longer.
pub(crate) fn keeps_its_size(file: &File) -> bool {
    seals(file).contains(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW)
}

fn seals(file: &File) -> SealFlag {
    fcntl(file, FcntlArg::F_GET_SEALS).map(SealFlag::from_bits_retain).unwrap_or(SealFlag::empty())
}

/// Has the system set memory aside for these bytes, so that writing to them cannot fail.
pub(crate) fn set_aside(file: &File, from: usize, len: usize) -> io::Result<()> {
    let (from, len) = (offset(from)?, offset(len)?);
    Ok(fallocate(file, FallocateFlags::empty(), from, len)?)
}

fn offset(bytes: usize) -> io::Result<libc::off_t> {
    libc::off_t::try_from(bytes).map_err(io::Error::other)
}

/// Tells the writer that pairs are wanted, for as long as any copy of this descriptor is open.
pub(crate) fn ask_for_pairs(file: &File) -> io::Result<()> {
    Ok(fcntl(file, FcntlArg::F_OFD_SETLK(&first_byte(libc::F_RDLCK))).map(drop)?)
}

/// Returns true if a reader has asked for pairs.
pub(crate) fn are_pairs_wanted(file: &File) -> bool {
    let mut lock = first_byte(libc::F_WRLCK);
    let asked = fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock));
    asked.is_ok() && i32::from(lock.l_type) != libc::F_UNLCK
}

fn first_byte(kind: libc::c_int) -> libc::flock {
    libc::flock { l_type: kind as _, l_whence: libc::SEEK_SET as _, l_start: 0, l_len: 1, l_pid: 0 }
}

/// Map of the writer.
pub(crate) struct WriterMapping(MmapRaw);

impl WriterMapping {
    fn of(file: &File, len: usize) -> io::Result<Self> {
        let map = MmapOptions::new().len(len).map_raw(file)?;
        leave_out_of_core_files(&map);
        Ok(Self(map))
    }

    pub(crate) fn words(&self) -> WritableWords<'_> {
        // SAFETY: as in `ReaderMapping::words`; besides, the map is writable.
        #[expect(unsafe_code, reason = "mapped memory is a pointer and a length")]
        let words = unsafe { slice::from_raw_parts(self.0.as_ptr().cast::<AtomicU64>(), self.0.len() / WORD) };
        WritableWords::new(words)
    }
}

/// Map of a reader.
pub(crate) struct ReaderMapping(MmapRaw);

impl ReaderMapping {
    /// Maps the first `len` bytes of a file.
    ///
    /// # Errors
    /// Fails for a file that is not sealed, or is shorter, and where the system has no room for the map.
    pub(crate) fn of(file: &File, len: usize) -> io::Result<Self> {
        // The map must not be larger than what the seal keeps.
        if !is_sealed(file) || file.metadata()?.len() < len as u64 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let map = MmapOptions::new().len(len).map_raw_read_only(file)?;
        leave_out_of_core_files(&map);
        Ok(Self(map))
    }

    pub(crate) fn words(&self) -> Words<'_> {
        // SAFETY: The map has `len` readable bytes for as long as `self` lives: the file is at least as long, and a seal keeps it so. It
        // begins at a page, so words are aligned. Other processes write to it meanwhile, by atomic operations as the type has them, and
        // every value of a word is one of `AtomicU64`. Nothing is stored through a `Words`, and it loads with relaxed order only,
        // which is defined on memory that is mapped for reading alone.
        #[expect(unsafe_code, reason = "mapped memory is a pointer and a length")]
        let words = unsafe { slice::from_raw_parts(self.0.as_ptr().cast::<AtomicU64>(), self.0.len() / WORD) };
        Words::new(words)
    }
}

/// Map of memory that several processes write to.
pub(crate) struct SharedMapping(MmapRaw);

impl SharedMapping {
    /// Maps a whole file, which must keep its size.
    pub(crate) fn of(file: &File) -> io::Result<Self> {
        Ok(Self(MmapOptions::new().map_raw(file)?))
    }

    pub(crate) fn bytes(&self) -> &[AtomicU8] {
        // SAFETY: The map has as many bytes, readable and writable, for as long as `self` lives: seals keep the file's size. Others write
        // to it meanwhile; every value of a byte is one of `AtomicU8`, and this process does not write to it through a reference to anything else.
        #[expect(unsafe_code, reason = "mapped memory is a pointer and a length")]
        unsafe {
            slice::from_raw_parts(self.0.as_ptr().cast::<AtomicU8>(), self.0.len())
        }
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.0.as_mut_ptr()
    }
}

/// A core file would hold it in full, pages included that nobody wrote.
fn leave_out_of_core_files(map: &MmapRaw) {
    // The map works all the same.
    let _ = map.advise(Advice::DontDump);
}
