//! The list of revoked certificates. It is read from its file next to the CA's certificate, or received from the API server, which has it
//! from an administrator. A received list is accepted only if the CA has signed it and it contains all current entries: a list is never
//! replaced by an older one.

use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use ring::digest::{SHA256, digest};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};

use super::files::{Links, read_at_most, read_certificates, replace};
use super::proven::{CertificateId, Revoked};
use super::{IdentityError, TlsIdentity};
use crate::limits::REVOCATIONS_MAX;

/// A list, possibly empty.
#[derive(Clone, Debug, Default)]
pub struct RevocationList {
    text: Bytes,
    digest: Bytes,
    pub(super) revoked: Revoked,
    pub(super) lists: Vec<CertificateRevocationListDer<'static>>,
}

impl RevocationList {
    /// Reads the file at `path`, which may be missing. An unreadable file is an error, and so is a list that none of these CAs has signed.
    pub(super) fn read(path: &Path, authorities: &[CertificateDer<'_>]) -> Result<Self, IdentityError> {
        let text = match read_at_most(path, REVOCATIONS_MAX, Links::Followed) {
            Err(IdentityError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Ok(Self::default());
            }
            text => text?,
        };
        Self::of_file(text.into(), path, authorities)
    }

    /// Parses the list of the file at `path`, with this text. Refuses a list that none of these CAs has signed.
    pub(super) fn of_file(text: Bytes, path: &Path, authorities: &[CertificateDer<'_>]) -> Result<Self, IdentityError> {
        let list = Self::parse(text, path)?;
        if list.is_signed_by(authorities) {
            Ok(list)
        } else {
            Err(IdentityError::StrangeFile { path: path.to_owned() })
        }
    }

    /// Parses the list in `text`, the present or future content of the file at `path`.
    pub(super) fn parse(text: Bytes, path: &Path) -> Result<Self, IdentityError> {
        if text.len() > REVOCATIONS_MAX {
            return Err(IdentityError::LongList { path: path.to_owned(), bytes: text.len() });
        }
        let malformed =
            |source| IdentityError::Pem { path: path.to_owned(), wanted: "list of revoked certificates", source };
        let list = CertificateRevocationListDer::from_pem_slice(&text).map_err(malformed)?;
        let revoked = revoked_in(&list).ok_or_else(|| malformed(pem::Error::NoItemsFound))?;
        let digest = Self::digest_of(&text);
        Ok(Self { text, digest, revoked, lists: vec![list] })
    }

    /// SHA-256 of a list in PEM.
    pub fn digest_of(text: &[u8]) -> Bytes {
        Bytes::copy_from_slice(digest(&SHA256, text).as_ref())
    }

    /// The list in PEM; empty without a list.
    pub fn text(&self) -> &Bytes {
        &self.text
    }

    /// SHA-256 of [`text`](Self::text); empty without a list.
    pub fn digest(&self) -> &Bytes {
        &self.digest
    }

    /// Returns true if this certificate, in DER, is on the list. Returns false for malformed bytes, and for the empty bytes of a caller
    /// without a certificate.
    pub fn revokes(&self, certificate: &[u8]) -> bool {
        let id = || CertificateId::of(&CertificateDer::from(certificate));
        !self.revoked.is_empty() && id().is_some_and(|id| self.revoked.contains(&id))
    }

    /// Returns true if one of these CAs has signed it.
    fn is_signed_by(&self, authorities: &[CertificateDer<'_>]) -> bool {
        self.lists.iter().all(|list| {
            let Ok((_, list)) = CertificateRevocationList::from_der(list) else { return false };
            authorities.iter().any(|authority| {
                let authority = X509Certificate::from_der(authority).map(|(_, authority)| authority);
                authority.is_ok_and(|authority| {
                    authority.subject().as_raw() == list.issuer().as_raw()
                        && list.verify_signature(authority.public_key()).is_ok()
                })
            })
        })
    }
}

/// Certificates that a list revokes; `None` if it cannot be parsed.
fn revoked_in(list: &CertificateRevocationListDer<'_>) -> Option<Revoked> {
    let (_, list) = CertificateRevocationList::from_der(list).ok()?;
    let issuer = list.issuer().as_raw();
    Some(list.iter_revoked_certificates().map(|entry| CertificateId::new(issuer, entry.raw_serial())).collect())
}

impl TlsIdentity {
    /// The list that was read last. It is read again when the files are checked.
    pub(crate) fn revocations(&self) -> Arc<RevocationList> {
        Arc::clone(&self.inner.latest.lock().revocations)
    }

    /// Replaces the current list with `text` (in PEM), and closes the connections of the certificates on it.
    ///
    /// # Errors
    /// Refuses a list that no CA of ours has signed, and a list that lacks an entry of the current one. Fails if the file cannot
    /// be written.
    pub(crate) fn take_revocations(&self, text: Bytes) -> Result<(), IdentityError> {
        let files = &self.inner.files;
        let path = files.revoked();
        let list = RevocationList::parse(text, &path)?;
        if !list.is_signed_by(&read_certificates(&files.ca)?) {
            return Err(IdentityError::StrangeList);
        }
        // An administrator may have replaced the file meanwhile.
        self.look();
        let mut looked = self.inner.looked.lock();
        let before = self.revocations();
        if list.digest == before.digest {
            return Ok(());
        }
        if !list.revoked.is_superset(&before.revoked) {
            return Err(IdentityError::OlderList { missing: before.revoked.difference(&list.revoked).count() });
        }
        replace(&path, &list.text, 0o644)?;
        self.inner.renew(&mut looked, files.stamps())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use lattice_pki::{Authority, Caller, REVOKED_FILE, Validity};

    use super::*;
    use crate::tls::TlsFiles;

    struct Ca {
        directory: tempfile::TempDir,
        authority: Authority,
    }

    impl Ca {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            Self { authority: Authority::create(directory.path()).unwrap(), directory }
        }

        fn identity(&self, node: &str) -> TlsIdentity {
            let own = self.directory.path().join(node);
            let issued = self.authority.issue(&Caller::Agent(node.to_owned()), &[], Validity::days(1).unwrap());
            self.authority.write(&own, &issued.unwrap()).unwrap();
            TlsIdentity::from_files(TlsFiles::in_directory(&own)).unwrap()
        }

        fn certificate(&self, node: &str) -> CertificateDer<'static> {
            let file = self.directory.path().join(node).join("cert.pem");
            CertificateDer::from_pem_file(file).unwrap()
        }

        /// Revokes a node's certificate; returns the list.
        fn revoke(&self, node: &str) -> Bytes {
            let root = self.directory.path();
            self.authority.revoke(root, &[root.join(node).join("cert.pem")]).unwrap();
            fs::read(root.join(REVOKED_FILE)).unwrap().into()
        }
    }

    #[test]
    fn a_list_that_cannot_be_read_leaves_the_former_one_in_use() {
        let ca = Ca::new();
        let node0 = ca.identity("node0");
        ca.identity("node1");
        let file = ca.directory.path().join("node0").join(REVOKED_FILE);
        fs::write(&file, ca.revoke("node1")).unwrap();
        let is_revoked = || {
            node0.material();
            node0.revocations().revokes(&ca.certificate("node1"))
        };
        assert!(is_revoked());
        fs::remove_file(&file).unwrap();
        // Neither stat nor open succeeds on a link to itself.
        symlink(&file, &file).unwrap();
        assert!(is_revoked());
        assert!(matches!(TlsIdentity::from_files(node0.inner.files.clone()), Err(IdentityError::Read { .. })));
        fs::remove_file(&file).unwrap();
        assert!(!is_revoked(), "there is no list any more");
    }

    #[test]
    fn a_list_of_another_ca_is_no_list_and_says_so() {
        let (ca, other) = (Ca::new(), Ca::new());
        let node0 = ca.identity("node0");
        ca.identity("node1");
        other.identity("node1");
        let file = ca.directory.path().join("node0").join(REVOKED_FILE);
        let (ours, theirs) = (ca.revoke("node1"), other.revoke("node1"));
        fs::write(&file, &ours).unwrap();
        node0.material();
        fs::write(&file, theirs).unwrap();
        node0.material();
        assert!(node0.revocations().revokes(&ca.certificate("node1")), "the former one is in use");
        let refused = TlsIdentity::from_files(node0.inner.files.clone()).unwrap_err();
        assert!(matches!(&refused, IdentityError::StrangeFile { path } if *path == file), "{refused}");
        // The API server's list replaces the file.
        let newer = ca.revoke("node0");
        node0.take_revocations(newer.clone()).unwrap();
        assert_eq!(fs::read(&file).unwrap(), newer);
    }

    #[test]
    fn a_list_is_taken_from_others_if_the_ca_signed_it_and_it_forgets_nothing() {
        let (ca, other) = (Ca::new(), Ca::new());
        let [node0, ..] = ["node0", "node1", "node2"].map(|node| ca.identity(node));
        other.identity("node1");
        let (one, both, theirs) = (ca.revoke("node1"), ca.revoke("node2"), other.revoke("node1"));
        assert!(node0.revocations().digest().is_empty());
        node0.take_revocations(one.clone()).unwrap();
        assert_eq!((node0.revocations().text(), node0.revocations().revoked.len()), (&one, 1));
        node0.take_revocations(both.clone()).unwrap();
        node0.take_revocations(both.clone()).unwrap();
        assert_eq!(node0.revocations().revoked.len(), 2);
        let is_revoked = |node: &str| node0.revocations().revokes(&ca.certificate(node));
        assert_eq!(["node0", "node1", "node2"].map(is_revoked), [false, true, true]);
        assert!(!node0.revocations().revokes(&other.certificate("node1")) && !node0.revocations().revokes(b"none"));
        // The last line of a list is part of its signature.
        let mut tampered = both.to_vec();
        let end = tampered.windows(6).rposition(|window| window == b"\n-----").unwrap();
        let line = tampered[..end].iter().rposition(|&byte| byte == b'\n').unwrap() + 1;
        tampered[line] = if tampered[line] == b'A' { b'B' } else { b'A' };
        let long = Bytes::from([&both[..], &vec![b'\n'; REVOCATIONS_MAX]].concat());
        let refusal = |list| node0.take_revocations(list).unwrap_err();
        assert!(matches!(refusal(one), IdentityError::OlderList { missing: 1 }));
        assert!(matches!(refusal(theirs), IdentityError::StrangeList));
        assert!(matches!(refusal(tampered.into()), IdentityError::StrangeList));
        assert!(matches!(refusal(Bytes::from_static(b"nonsense")), IdentityError::Pem { .. }));
        assert!(matches!(refusal(long), IdentityError::LongList { .. }));
        assert_eq!(node0.revocations().text(), &both);
        let file = ca.directory.path().join("node0").join(REVOKED_FILE);
        assert_eq!(fs::read(file).unwrap(), both);
    }
}
