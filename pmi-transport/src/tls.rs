//! Certificates and keys of a process, and TLS 1.3 with them. Both ends have a certificate of the cluster's CA, with exactly one
//! URI that names a [`Caller`].
//!
//! Sessions are never resumed: every connection proves the identity of both ends again, with certificates that are valid then.

mod clients;
mod files;
mod looking;
mod material;
mod proven;
mod renewal;
mod revocation;
mod signed_list;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lattice_pki::{Caller, CallerError, PkiError, SCHEME};
use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem;
use rustls::server::VerifierBuilderError;
use rustls::{AlertDescription, CertificateError};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

pub(crate) use self::clients::Clients;
use self::files::Stamps;
pub use self::files::TlsFiles;
pub(crate) use self::looking::{Looking, What};
pub(crate) use self::material::{Material, read_roots};
pub(crate) use self::proven::Watched;
use self::proven::{CertificateId, Proven};
pub use self::renewal::{Renewal, Validity};
pub use self::revocation::RevocationList;
pub(crate) use self::signed_list::SignedList;
use crate::error_chain::chain;
use crate::limits::REVOCATIONS_MAX;

/// Failure to use certificate files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// All users can read the key.
    #[error("the key {} can be read by other users; run chmod 600", path.display())]
    OpenKey {
        /// The file.
        path: PathBuf,
    },
    /// A file lacks the expected content.
    #[error("{} holds no {wanted} in PEM", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// Expected content.
        wanted: &'static str,
        /// Error of the parser.
        source: pem::Error,
    },
    /// The certificate does not name its caller.
    #[error("cannot use the certificate {}", path.display())]
    Nameless {
        /// The file.
        path: PathBuf,
        /// Error of the name.
        source: CertificateNameError,
    },
    /// The key does not match the certificate, or is of an unknown kind.
    #[error("cannot use the key {} with the certificate {}", key.display(), certificate.display())]
    Key {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the key.
        key: PathBuf,
        /// Error of TLS.
        source: rustls::Error,
    },
    /// The CA's certificate is not usable.
    #[error("cannot use the CA's certificate {}", path.display())]
    Authority {
        /// The file.
        path: PathBuf,
        /// Error of TLS.
        source: rustls::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A key for a new certificate cannot be made.
    #[error("no certificate can be asked for")]
    Request(#[source] PkiError),
    /// A new certificate cannot replace the current one.
    #[error("{} is not a certificate of this process by the CA that certifies it", path.display())]
    Strange {
        /// The file.
        path: PathBuf,
    },
    /// A list of revoked certificates is not signed by a CA that we trust.
    #[error("the list of revoked certificates is not signed by the CA that we trust in")]
    StrangeList,
    /// The file of revoked certificates next to a CA's certificate is signed by another CA.
    #[error(
        "the list of revoked certificates in {} is not signed by the CA with a certificate in that directory; put that CA's list in its \
         place, or remove it",
        path.display()
    )]
    StrangeFile {
        /// The file.
        path: PathBuf,
    },
    /// A list of revoked certificates is older than the current one.
    #[error(
        "the list of revoked certificates lacks {missing} of those that are revoked here; copy the newer list to the API server"
    )]
    OlderList {
        /// Number of current entries that it lacks.
        missing: usize,
    },
    /// A list of revoked certificates exceeds the limit.
    #[error("{} has {bytes} bytes; lists of revoked certificates have {REVOCATIONS_MAX} at most", path.display())]
    LongList {
        /// The file.
        path: PathBuf,
        /// Length of the list.
        bytes: usize,
    },
    /// The certificate was replaced by that of another caller.
    #[error("{} is the certificate of {found} now; this process is {meant}", path.display())]
    Renamed {
        /// The file.
        path: PathBuf,
        /// Caller that it names.
        found: Caller,
        /// Caller of this process.
        meant: Caller,
    },
    /// Client certificates cannot be verified with the CA's certificate.
    #[error("cannot check others by the CA's certificate {}", path.display())]
    Verifier {
        /// The file.
        path: PathBuf,
        /// Error of TLS.
        source: VerifierBuilderError,
    },
}

/// A certificate that does not name exactly one caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CertificateNameError {
    /// Not an X.509 certificate.
    #[error("the certificate cannot be read")]
    Unreadable,
    /// It has no URI of ours, or several.
    #[error("the certificate has {count} names that begin with {SCHEME}; it must have one")]
    Count {
        /// Number of such URIs.
        count: usize,
    },
    /// The URI names no caller.
    #[error("the certificate is of no use here: {0}")]
    Unknown(#[from] CallerError),
}

/// Returns the caller that a certificate names.
///
/// # Errors
/// Fails unless exactly one of its subject alternative names is a URI of ours.
pub(crate) fn caller_in(certificate: &CertificateDer<'_>) -> Result<Caller, CertificateNameError> {
    let (_, certificate) = X509Certificate::from_der(certificate).map_err(|_| CertificateNameError::Unreadable)?;
    let names = certificate.subject_alternative_name().map_err(|_| CertificateNameError::Unreadable)?;
    let names = names.map_or(&[][..], |names| &names.value.general_names);
    let ours = names.iter().filter_map(|name| match name {
        GeneralName::URI(uri) if uri.starts_with(SCHEME) => Some(*uri),
        _ => None,
    });
    match ours.collect::<Vec<_>>().as_slice() {
        [uri] => Ok(uri.parse()?),
        several => Err(CertificateNameError::Count { count: several.len() }),
    }
}

/// A process's certificate and key, and its trusted CA, as read from its files. Clones share them.
///
/// Changed files are read again whenever a connection is made or a launch is signed. If a keeper exists
/// ([`Security::keep_current`](crate::identity::Security::keep_current)), only the keeper checks the files, so that no other
/// task waits for a file system. Existing connections continue, except connections of revoked certificates, which are closed.
/// Files that are not usable, or name another caller, are logged and otherwise ignored: they may be half written.
#[derive(Clone)]
pub struct TlsIdentity {
    inner: Arc<Inner>,
}

struct Inner {
    caller: Caller,
    files: TlsFiles,
    /// Contents that were read last. Locked only briefly.
    latest: Mutex<Arc<Material>>,
    /// Locked while files are checked, read or replaced.
    looked: Mutex<Looked>,
    /// Number of keepers.
    keepers: AtomicUsize,
    /// Connections in both directions with a certificate of the other end.
    proven: Arc<Proven>,
}

/// Result of the last check of the files.
struct Looked {
    /// State of the files that were read last, usable or not.
    stamps: Stamps,
    /// Their error, as it was logged; empty if there is none.
    complaint: String,
}

impl TlsIdentity {
    /// Reads the CA's certificate, our certificate, and its key.
    ///
    /// # Errors
    /// Fails if a file cannot be read or used, or if the key is readable by all users.
    pub fn from_files(files: TlsFiles) -> Result<Self, IdentityError> {
        renewal::complete(&files)?;
        // The stamps are taken first, so that files that change during the reading are read again.
        let stamps = files.stamps();
        let material = Arc::new(Material::read(&files)?);
        let caller = material.caller.clone();
        let looked = Mutex::new(Looked { stamps, complaint: String::new() });
        let (latest, keepers, proven) = (Mutex::new(material), AtomicUsize::new(0), Arc::default());
        Ok(Self { inner: Arc::new(Inner { caller, files, latest, looked, keepers, proven }) })
    }

    /// The caller that the certificate of `files` names; the key is not read.
    pub(crate) fn named_in(files: &TlsFiles) -> Result<Caller, IdentityError> {
        material::read_named(&files.cert).map(|(caller, _)| caller)
    }

    /// Returns the caller that our certificate names. It never changes.
    pub fn caller(&self) -> &Caller {
        &self.inner.caller
    }

    /// Reads the files again, changed or not.
    ///
    /// # Errors
    /// Fails if the files are not usable; the previous contents then stay in use.
    pub(crate) fn renew(&self) -> Result<(), IdentityError> {
        self.inner.renew(&mut self.inner.looked.lock(), self.inner.files.stamps())
    }

    /// Returns the current certificates and keys. Without a keeper, changed files are read again first.
    pub(crate) fn material(&self) -> Arc<Material> {
        if self.inner.keepers.load(Ordering::Relaxed) == 0 {
            self.look();
        }
        Arc::clone(&self.inner.latest.lock())
    }

    /// Reads the files again if they have changed. Blocks while their file system does.
    pub(crate) fn look(&self) {
        let Inner { files, looked, .. } = &*self.inner;
        let mut looked = looked.lock();
        let stamps = files.stamps();
        if stamps != looked.stamps
            && let Err(error) = self.inner.renew(&mut looked, stamps)
        {
            looked.complain(&error);
        }
    }

    /// Makes the caller the keeper until the result is dropped: only the keeper checks the files.
    pub(crate) fn keep(&self) -> KeeperRegistration {
        self.inner.keepers.fetch_add(1, Ordering::Relaxed);
        KeeperRegistration(Arc::clone(&self.inner))
    }
}

/// Registration of a keeper.
pub(crate) struct KeeperRegistration(Arc<Inner>);

impl Drop for KeeperRegistration {
    fn drop(&mut self) {
        self.0.keepers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl TlsIdentity {
    /// Registers a connection for closing when the `certificate` of its other end is revoked.
    pub(crate) fn watch(&self, certificate: &CertificateDer<'_>) -> Option<Watched> {
        let id = CertificateId::of(certificate)?;
        let watched = self.inner.proven.enter(id);
        // A list may have arrived during the handshake.
        self.inner.proven.close(&self.material().revocations.revoked);
        Some(watched)
    }
}

impl Looked {
    /// Logs the error of the files, once while it stays the same.
    fn complain(&mut self, error: &IdentityError) {
        let complaint = chain(error);
        if self.complaint != complaint {
            tracing::warn!(error = complaint, "the certificate is not renewed; the one before stays in use");
            self.complaint = complaint;
        }
    }
}

impl Inner {
    fn renew(&self, looked: &mut Looked, stamps: Stamps) -> Result<(), IdentityError> {
        let read = Material::read(&self.files);
        // An unreadable file may become readable without a change. An error in its content persists until the file changes.
        if !matches!(read, Err(IdentityError::Read { .. })) {
            looked.stamps = stamps;
        }
        let material = read?;
        if material.caller != self.caller {
            let (path, found, meant) = (self.files.cert.clone(), material.caller, self.caller.clone());
            return Err(IdentityError::Renamed { path, found, meant });
        }
        tracing::info!(certificate = %self.files.cert.display(), "the certificate was read again");
        let material = Arc::new(material);
        *self.latest.lock() = Arc::clone(&material);
        looked.complaint.clear();
        self.proven.close(&material.revocations.revoked);
        Ok(())
    }
}

impl fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TlsIdentity").field(&self.inner.caller).finish()
    }
}

/// Describes a TLS failure for the operator; "it" is the peer.
pub(crate) fn in_words(error: &io::Error) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(error) => explain(error),
        None if error.kind() == io::ErrorKind::UnexpectedEof => "it hung up".to_owned(),
        None => error.to_string(),
    }
}

/// Returns true for a TLS failure by which the peer refuses our certificate (RFC 8446, 6.2).
pub(crate) fn refuses_us(error: &io::Error) -> bool {
    use AlertDescription as A;
    matches!(
        error.get_ref().and_then(|inner| inner.downcast_ref()),
        Some(rustls::Error::AlertReceived(
            A::CertificateRequired
                | A::UnknownCA
                | A::DecryptError
                | A::CertificateRevoked
                | A::AccessDenied
                | A::CertificateExpired
                | A::BadCertificate
                | A::CertificateUnknown
        ))
    )
}

fn explain(error: &rustls::Error) -> String {
    use rustls::Error as E;
    let words = match error {
        E::InvalidCertificate(error) => return explain_certificate(error),
        E::NoCertificatesPresented => "it shows no certificate",
        E::InvalidMessage(_) => "it does not speak TLS; perhaps it runs without certificates",
        E::PeerIncompatible(_) => "it cannot speak TLS 1.3",
        E::AlertReceived(alert) => match alert {
            AlertDescription::CertificateRequired => "it wants a certificate, and we have none",
            AlertDescription::UnknownCA | AlertDescription::DecryptError => {
                "our certificate is not from the CA that it trusts in"
            }
            AlertDescription::CertificateRevoked => "our certificate was revoked",
            AlertDescription::AccessDenied => "it serves the API server, agents and administrators only",
            AlertDescription::CertificateExpired => {
                "our certificate has expired, or is not valid yet, by its clock; compare date on both machines"
            }
            AlertDescription::BadCertificate | AlertDescription::CertificateUnknown => {
                "it does not take our certificate"
            }
            AlertDescription::ProtocolVersion => "it cannot speak TLS 1.3",
            _ => return error.to_string(),
        },
        _ => return error.to_string(),
    };
    words.to_owned()
}

fn explain_certificate(error: &CertificateError) -> String {
    use CertificateError as E;
    match error {
        // Two CAs of `pki` never have the same name, but foreign CAs may. Then only the signature differs.
        E::UnknownIssuer | E::BadSignature => "its certificate is not from the CA that we trust in".to_owned(),
        E::Revoked => "its certificate was revoked".to_owned(),
        E::ApplicationVerificationFailure => {
            "its certificate is neither that of a daemon of the cluster nor an administrator's".to_owned()
        }
        E::Expired | E::ExpiredContext { .. } => "its certificate has expired, by the clock of this machine".to_owned(),
        E::NotValidYet | E::NotValidYetContext { .. } => {
            "its certificate is not valid yet by the clock of this machine; compare date on both machines".to_owned()
        }
        E::NotValidForNameContext { expected, presented } => {
            let presented: Vec<&str> = presented.iter().map(|name| bare(name)).collect();
            format!("its certificate is for {}, not for {}", presented.join(", "), expected.to_str())
        }
        E::InvalidPurpose | E::InvalidPurposeContext { .. } => {
            "its certificate is not meant for this end of a connection".to_owned()
        }
        _ => format!("its certificate cannot be used: {error}"),
    }
}

/// Returns `node4` for `DnsName("node4")`.
fn bare(name: &str) -> &str {
    let inside = name.split_once('(').and_then(|(_, inside)| inside.strip_suffix(')'));
    inside.map_or(name, |inside| inside.trim_matches('"'))
}

#[cfg(test)]
mod tests;
