//! Sealed bytes in memory that outlives the process that wrote them. Used for labels of children, which a daemon needs to adopt them.
//! Also used for messages between a daemon and its fork server that are longer than a few numbers.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

/// Limit on the length of a label, in bytes.
const LEN_MAX: u64 = 256 << 20;
/// Limit on the length of a message from a daemon to its fork server, in bytes.
const WORD_MAX: u64 = 16 << 20;

/// Sealed bytes. Their memory is freed when the last process closes them.
#[derive(Debug)]
pub struct Label(File);

impl Label {
    /// Makes a label with these bytes.
    ///
    /// # Errors
    /// Fails if the system has no memory or descriptor left.
    pub fn new(bytes: &[u8]) -> io::Result<Self> {
        let mut memory =
            File::from(memfd_create(c"lattice-label", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?);
        memory.write_all(bytes)?;
        fcntl(&memory, FcntlArg::F_ADD_SEALS(SealFlag::all()))?;
        Ok(Self(memory))
    }

    /// Returns the bytes.
    ///
    /// # Errors
    /// Fails with `InvalidData` for a label of more than 256 MiB.
    pub fn read(&self) -> io::Result<Vec<u8>> {
        self.read_at_most(LEN_MAX)
    }

    /// Returns the bytes of a message from an untrusted process. The memory must be sealed, so that it cannot change meanwhile and the
    /// read cannot block.
    ///
    /// # Errors
    /// Fails with `InvalidData` for a file that is not sealed memory, and for more than 16 MiB.
    pub(super) fn read_word(&self) -> io::Result<Vec<u8>> {
        let sealed = SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
        let seals = fcntl(&self.0, FcntlArg::F_GET_SEALS).map(SealFlag::from_bits_retain);
        if !seals.is_ok_and(|seals| seals.contains(sealed)) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.read_at_most(WORD_MAX)
    }

    fn read_at_most(&self, max: u64) -> io::Result<Vec<u8>> {
        let len = self.0.metadata()?.len();
        if len > max {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // Reads at an offset: other processes share the descriptor's file position.
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

    #[test]
    fn a_word_that_can_change_or_is_no_memory_is_not_read() {
        assert_eq!(Label::new(b"word").unwrap().read_word().unwrap(), b"word");
        let refusal = |label: Label| label.read_word().unwrap_err().kind();
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let open = memfd_create(c"open", flags).unwrap();
        assert_eq!(refusal(open.into()), io::ErrorKind::InvalidData);
        let (pipe, _writer) = nix::unistd::pipe().unwrap();
        assert_eq!(refusal(pipe.into()), io::ErrorKind::InvalidData);
        let long = File::from(memfd_create(c"long", flags).unwrap());
        long.set_len(WORD_MAX + 1).unwrap();
        fcntl(&long, FcntlArg::F_ADD_SEALS(SealFlag::all())).unwrap();
        assert_eq!(refusal(Label(long)), io::ErrorKind::InvalidData);
    }
}
