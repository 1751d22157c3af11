//! Creation of memory files, and operations of their creator: the session's side.

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{self, FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::{Errno, Result};
use rustix::process::{Resource, getrlimit};

use super::{NAME, WriterMapping, lock};

/// Limit on the size of files of this process, in bytes. Exceeding it would raise a signal that ends the process.
pub(crate) fn file_size_limit() -> usize {
    getrlimit(Resource::Fsize).current.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Makes a memory file with `image` at its start and a size of `capacity` bytes. Only written bytes use memory.
///
/// # Errors
/// Fails if the system does not support memory files with these seals (Linux 5.1), or has no memory or descriptor left.
pub(crate) fn create(image: &[u8], capacity: usize) -> Result<(OwnedFd, WriterMapping)> {
    let file = memory_file(NAME)?;
    write_whole(&file, image)?;
    fs::ftruncate(&file, capacity as u64)?;
    // The map precedes the seal, which preserves existing maps.
    let mapping = WriterMapping::of(&file, capacity)?;
    fs::fcntl_add_seals(&file, SealFlags::FUTURE_WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok((file, mapping))
}

/// Makes a memory file of fixed size. Any process with its descriptor can read and write it.
pub(crate) fn create_shared(name: &str, bytes: u64) -> Result<OwnedFd> {
    let file = memory_file(name)?;
    fs::ftruncate(&file, bytes)?;
    fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

fn memory_file(name: &str) -> Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Linux 6.3; some systems warn about files without it.
    match fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => fs::memfd_create(name, flags),
        made => made,
    }
}

/// Writes the start of a new file.
fn write_whole(file: impl AsFd, bytes: &[u8]) -> Result<()> {
    let mut written = 0;
    while written < bytes.len() {
        match rustix::io::pwrite(&file, &bytes[written..], written as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(more) => written += more,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Makes the system allocate these bytes, so that writing to them cannot fail.
pub(crate) fn set_aside(file: &OwnedFd, from: usize, len: usize) -> Result<()> {
    fs::fallocate(file, FallocateFlags::empty(), from as u64, len as u64)
}

/// Returns true if a reader has requested pairs.
pub(crate) fn are_pairs_wanted(file: &OwnedFd) -> bool {
    lock(file, libc::F_OFD_GETLK, libc::F_WRLCK).is_ok_and(|found| i32::from(found.l_type) != libc::F_UNLCK)
}
