//! Making of memory files, and what their maker asks of them: the session's side.

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{self, FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::{Errno, Result};
use rustix::process::{Resource, getrlimit};

use super::{NAME, WriterMapping, lock};

/// Size of the largest file that this process may make, in bytes. Beyond it a signal would end the process.
pub(crate) fn file_size_limit() -> usize {
    getrlimit(Resource::Fsize).current.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Makes a memory file that begins with `image` and can hold `capacity` bytes, of which only those take memory that were written.
///
/// # Errors
/// Fails where the system has no memory file with these seals (Linux 5.1), or no memory or descriptor left.
pub(crate) fn create(image: &[u8], capacity: usize) -> Result<(OwnedFd, WriterMapping)> {
    let file = memory_file(NAME)?;
    write_whole(&file, image)?;
    fs::ftruncate(&file, capacity as u64)?;
    // The map comes first: the seal lets the maps live that there are.
    let mapping = WriterMapping::of(&file, capacity)?;
    fs::fcntl_add_seals(&file, SealFlags::FUTURE_WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok((file, mapping))
}

/// Makes a memory file that whoever has it reads and writes, and whose size is for good.
pub(crate) fn create_shared(name: &str, bytes: u64) -> Result<OwnedFd> {
    let file = memory_file(name)?;
    fs::ftruncate(&file, bytes)?;
    fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

fn memory_file(name: &str) -> Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Linux 6.3; some systems warn of files without it.
    match fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => fs::memfd_create(name, flags),
        made => made,
    }
}

/// Writes to the beginning of a file that nobody has written to.
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

/// Has the system set memory aside for these bytes, so that writing to them cannot fail.
pub(crate) fn set_aside(file: &OwnedFd, from: usize, len: usize) -> Result<()> {
    fs::fallocate(file, FallocateFlags::empty(), from as u64, len as u64)
}

/// Returns true if a reader has asked for pairs.
pub(crate) fn are_pairs_wanted(file: &OwnedFd) -> bool {
    lock(file, libc::F_OFD_GETLK, libc::F_WRLCK).is_ok_and(|found| i32::from(found.l_type) != libc::F_UNLCK)
}
