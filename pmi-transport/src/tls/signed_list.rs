//! The list of revoked certificates as a process of root reads it. The file belongs to a less privileged user, the agent's. That user
//! may replace it with any content. A list is accepted only if the CA has signed it. All entries of earlier lists stay in effect, even
//! if the file is removed or replaced by an older one.

use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use lattice_pki::REVOKED_FILE;
use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;

use super::IdentityError;
use super::files::{Links, read_at_most, read_certificates};
use super::proven::{CertificateId, Revoked};
use super::revocation::RevocationList;
use crate::limits::REVOCATIONS_MAX;

/// The list next to a CA's certificate, and all certificates that it has revoked since this value was made.
#[derive(Debug)]
pub(crate) struct SignedList {
    path: PathBuf,
    authorities: Vec<CertificateDer<'static>>,
    seen: Mutex<Seen>,
}

#[derive(Clone, Debug, Default)]
struct Seen {
    /// SHA-256 of the list that was accepted last.
    digest: Bytes,
    /// All certificates that were on any list of the CA.
    revoked: Revoked,
}

impl SignedList {
    /// The list next to this file of CA certificates; it may be missing. It is read later.
    ///
    /// # Errors
    /// Fails if the CAs' certificates cannot be read.
    pub(crate) fn beside(ca: &Path) -> Result<Self, IdentityError> {
        let (path, authorities) = (ca.with_file_name(REVOKED_FILE), read_certificates(ca)?);
        Ok(Self { path, authorities, seen: Mutex::default() })
    }

    /// The same, with the entries that `former` has seen. The CAs of `former` may differ.
    pub(crate) fn after(mut self, former: &Self) -> Self {
        self.seen.get_mut().revoked.clone_from(&former.seen.lock().revoked);
        self
    }

    /// Returns true if a list of the CA has this certificate, in DER.
    ///
    /// # Errors
    /// Fails if the file exists and is not a list of the CA: the entries of a newer list are unknown then.
    pub(crate) fn revokes(&self, certificate: &CertificateDer<'_>) -> Result<bool, IdentityError> {
        let mut seen = self.seen.lock();
        match read_at_most(&self.path, REVOCATIONS_MAX, Links::Refused) {
            Err(IdentityError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            text => seen.take(text?.into(), &self.path, &self.authorities)?,
        }
        Ok(CertificateId::of(certificate).is_some_and(|id| seen.revoked.contains(&id)))
    }
}

impl Seen {
    fn take(&mut self, text: Bytes, path: &Path, authorities: &[CertificateDer<'_>]) -> Result<(), IdentityError> {
        if RevocationList::digest_of(&text) == self.digest {
            return Ok(());
        }
        let list = RevocationList::of_file(text, path, authorities)?;
        self.digest = list.digest().clone();
        self.revoked.extend(list.revoked);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use lattice_pki::{Authority, Caller, Validity};
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;
    use rustls::pki_types::pem::PemObject;

    use super::*;

    struct World {
        directory: tempfile::TempDir,
        authority: Authority,
        list: SignedList,
    }

    impl World {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let authority = Authority::create(directory.path()).unwrap();
            let list = SignedList::beside(&directory.path().join("ca.pem")).unwrap();
            Self { directory, authority, list }
        }

        /// Issues a certificate, revokes it, and returns it with the list.
        fn revoke(&self, node: &str) -> (CertificateDer<'static>, Vec<u8>) {
            let (root, own) = (self.directory.path(), self.directory.path().join(node));
            let issued = self.authority.issue(&Caller::Agent(node.to_owned()), &[], Validity::days(1).unwrap());
            self.authority.write(&own, &issued.unwrap()).unwrap();
            self.authority.revoke(root, &[own.join("cert.pem")]).unwrap();
            (CertificateDer::from_pem_file(own.join("cert.pem")).unwrap(), fs::read(&self.list.path).unwrap())
        }
    }

    #[test]
    fn what_was_revoked_once_stays_revoked_whatever_becomes_of_the_file() {
        let (world, other) = (World::new(), World::new());
        let (first, older) = world.revoke("node0");
        let (second, _) = world.revoke("node1");
        let are_revoked = |list: &SignedList| [&first, &second].map(|certificate| list.revokes(certificate).unwrap());
        assert_eq!(are_revoked(&world.list), [true, true]);
        fs::write(&world.list.path, older).unwrap();
        assert_eq!(are_revoked(&world.list), [true, true]);
        fs::remove_file(&world.list.path).unwrap();
        assert_eq!(are_revoked(&world.list), [true, true]);
        // Entries are also kept when the CAs' certificates are read again.
        let ca = world.directory.path().join("ca.pem");
        assert_eq!(are_revoked(&SignedList::beside(&ca).unwrap()), [false, false]);
        assert_eq!(are_revoked(&SignedList::beside(&ca).unwrap().after(&world.list)), [true, true]);
        // A list of another CA is refused, regardless of its entries.
        fs::write(&world.list.path, other.revoke("node0").1).unwrap();
        assert!(matches!(world.list.revokes(&first), Err(IdentityError::StrangeFile { .. })));
    }

    #[test]
    fn a_file_that_is_none_holds_nobody_up_and_takes_no_memory() {
        let world = World::new();
        let (certificate, list) = world.revoke("node0");
        let path = &world.list.path;
        let refusal = || {
            let refused = world.list.revokes(&certificate).unwrap_err();
            fs::remove_file(path).unwrap();
            refused
        };
        fs::remove_file(path).unwrap();
        mkfifo(path, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        let fifo = refusal();
        assert!(matches!(&fifo, IdentityError::Read { source, .. } if source.to_string() == "it is no regular file"));
        symlink("/dev/zero", path).unwrap();
        assert!(matches!(refusal(), IdentityError::Read { .. }));
        // A symbolic link is refused even if it leads to a valid list.
        fs::write(world.directory.path().join("elsewhere"), &list).unwrap();
        symlink("elsewhere", path).unwrap();
        assert!(matches!(refusal(), IdentityError::Read { .. }));
        fs::File::create(path).unwrap().set_len(1 << 40).unwrap();
        assert!(matches!(refusal(), IdentityError::LongList { bytes, .. } if bytes == 1 << 40));
        fs::write(path, list).unwrap();
        assert!(world.list.revokes(&certificate).unwrap());
    }
}
