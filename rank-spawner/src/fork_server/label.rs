//! Label of a child: what its daemon must know to take it up again, in memory that outlives the daemon and that nobody can change.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

/// Longest label, in bytes.
const LEN_MAX: u64 = 256 << 20;

/// A label. Its memory is gone with the last process that has it, and no child has it.
#[derive(Debug)]
pub struct Label(File);

impl Label {
    /// A label of these bytes.
    ///
    /// # Errors
    /// Fails when the system has no memory or descriptor left.
    pub fn new(bytes: &[u8]) -> io::Result<Self> {
        let mut memory =
            File::from(memfd_create(c"lattice-label", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?);
        memory.write_all(bytes)?;
        fcntl(&memory, FcntlArg::F_ADD_SEALS(SealFlag::all()))?;
        Ok(Self(memory))
    }

    /// Its bytes.
    ///
    /// # Errors
    /// Fails with `InvalidData` for a label of more than 256 MiB.
    pub fn read(&self) -> io::Result<Vec<u8>> {
        let len = self.0.metadata()?.len();
        if len > LEN_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // Not by the descriptor's own position, which it shares with those of other processes.
        let mut bytes = vec![0; len as usize];
        self.0.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }
}

impl From<OwnedFd> for Label {
    fn from(memory: OwnedFd) -> Self {
        Self(memory.into())
    }
}

impl AsFd for Label {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_read_as_often_as_wanted_and_never_changed() {
        let label = Label::new(b"launch 7").unwrap();
        assert_eq!((label.read().unwrap(), label.read().unwrap()), (b"launch 7".to_vec(), b"launch 7".to_vec()));
        let mut again = label.0.try_clone().unwrap();
        assert!(again.write_all(b"x").is_err() && again.set_len(0).is_err());
        assert_eq!(Label::new(b"").unwrap().read().unwrap(), b"");
    }
}
