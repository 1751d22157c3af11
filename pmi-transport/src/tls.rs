//! Certificates and keys of a process, and the TLS that is spoken with them: version 1.3, both ends with a certificate of the
//! cluster's CA, each with exactly one URI that names a [`Caller`].
//!
//! Sessions are never resumed: every connection proves anew who is at its ends, with certificates that are valid then.

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
    /// Others can read the key.
    #[error("the key {} can be read by everybody; run chmod 600", path.display())]
    OpenKey {
        /// The file.
        path: PathBuf,
    },
    /// A file does not hold what it should.
    #[error("{} holds no {wanted} in PEM", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// Content that it should hold.
        wanted: &'static str,
        /// Fault that was found.
        source: pem::Error,
    },
    /// The certificate does not say whose it is.
    #[error("cannot use the certificate {}", path.display())]
    Nameless {
        /// The file.
        path: PathBuf,
        /// Fault of the name.
        source: CertificateNameError,
    },
    /// The key is not that of the certificate, or of an unknown kind.
    #[error("cannot use the key {} with the certificate {}", key.display(), certificate.display())]
    Key {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the key.
        key: PathBuf,
        /// Fault that was found.
        source: rustls::Error,
    },
    /// The CA's certificate cannot be trusted in.
    #[error("cannot use the CA's certificate {}", path.display())]
    Authority {
        /// The file.
        path: PathBuf,
        /// Fault that was found.
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
    /// A new certificate cannot take the place of the one before.
    #[error("{} is not a certificate of this process by the CA that certifies it", path.display())]
    Strange {
        /// The file.
        path: PathBuf,
    },
    /// A list of revoked certificates is nobody's whom we trust.
    #[error("the list of revoked certificates is not signed by the CA that we trust in")]
    StrangeList,
    /// The file of revoked certificates beside a CA's is another CA's.
    #[error(
        "the list of revoked certificates in {} is not signed by the CA whose certificate is beside it; put that CA's list in its \
         place, or remove it",
        path.display()
    )]
    StrangeFile {
        /// The file.
        path: PathBuf,
    },
    /// A list of revoked certificates is older than the one in use.
    #[error(
        "the list of revoked certificates lacks {missing} of those that are revoked here; copy the newer list to the API server"
    )]
    OlderList {
        /// Number of certificates that are not on it.
        missing: usize,
    },
    /// A list of revoked certificates is longer than any that is used.
    #[error("{} has {bytes} bytes; lists of revoked certificates have {REVOCATIONS_MAX} at most", path.display())]
    LongList {
        /// The file.
        path: PathBuf,
        /// Length of the list.
        bytes: usize,
    },
    /// The certificate was replaced by somebody else's.
    #[error("{} is the certificate of {found} now; this process is {meant}", path.display())]
    Renamed {
        /// The file.
        path: PathBuf,
        /// Caller that it names.
        found: Caller,
        /// Caller that it named before.
        meant: Caller,
    },
    /// Clients cannot be checked against the CA's certificate.
    #[error("cannot check others by the CA's certificate {}", path.display())]
    Verifier {
        /// The file.
        path: PathBuf,
        /// Fault that was found.
        source: VerifierBuilderError,
    },
}

/// A certificate that does not name one caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CertificateNameError {
    /// Not an X.509 certificate.
    #[error("the certificate cannot be read")]
    Unreadable,
    /// None of our URIs, or several.
    #[error("the certificate has {count} names that begin with {SCHEME}; it must have one")]
    Count {
        /// Number of such URIs.
        count: usize,
    },
    /// URI that names no caller.
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

/// A process's certificate and key, and the CA that it trusts in, as its files have them. Clones share them.
///
/// Whenever a connection is made or a launch is signed, files that have changed are read again, unless somebody keeps it
/// current: then he alone looks, and nobody else waits for a file system. Connections that were made before go
/// on, but for those of certificates that are revoked, which are closed. Files that cannot be used, or name somebody else, change
/// nothing but the log: they may be half written.
#[derive(Clone)]
pub struct TlsIdentity {
    inner: Arc<Inner>,
}

struct Inner {
    caller: Caller,
    files: TlsFiles,
    /// Contents that were read last. Held for a moment only.
    latest: Mutex<Arc<Material>>,
    /// Held while files are looked at, read or replaced.
    looked: Mutex<Looked>,
    /// Number of those who keep it current.
    keepers: AtomicUsize,
    /// Connections that others have proven themselves on, made by either end.
    proven: Arc<Proven>,
}

/// Result of the last look at the files.
struct Looked {
    /// State of the files that were read last, usable or not.
    stamps: Stamps,
    /// What is wrong with them, as the log has it; empty if nothing is.
    complaint: String,
}

impl TlsIdentity {
    /// Reads the CA's certificate, our certificate, and its key.
    ///
    /// # Errors
    /// Fails if a file cannot be read or used, and for a key that everybody can read.
    pub fn from_files(files: TlsFiles) -> Result<Self, IdentityError> {
        renewal::complete(&files)?;
        // First the stamps: what changes while it is read is read again.
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

    /// Returns the caller that our certificate names; never another one later.
    pub fn caller(&self) -> &Caller {
        &self.inner.caller
    }

    /// Reads the files again, changed or not.
    ///
    /// # Errors
    /// Fails for files that cannot be used; what was read before stays in use.
    pub(crate) fn renew(&self) -> Result<(), IdentityError> {
        self.inner.renew(&mut self.inner.looked.lock(), self.inner.files.stamps())
    }

    /// Returns the certificates and keys in use, read again if the files have changed and nobody looks at them anyway.
    pub(crate) fn material(&self) -> Arc<Material> {
        if self.inner.keepers.load(Ordering::Relaxed) == 0 {
            self.look();
        }
        Arc::clone(&self.inner.latest.lock())
    }

    /// Reads the files again if they have changed. Blocks for as long as their file system does.
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

    /// From now on the caller looks at the files, and nobody else, until the result is dropped.
    pub(crate) fn keep(&self) -> Kept {
        self.inner.keepers.fetch_add(1, Ordering::Relaxed);
        Kept(Arc::clone(&self.inner))
    }
}

/// Promise to look at the files of an identity.
pub(crate) struct Kept(Arc<Inner>);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.keepers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl TlsIdentity {
    /// Watches a connection whose other end has shown `certificate`.
    pub(crate) fn watch(&self, certificate: &CertificateDer<'_>) -> Option<Watched> {
        let id = CertificateId::of(certificate)?;
        let watched = self.inner.proven.enter(id);
        // A list may have come while hands were shaken.
        self.inner.proven.close(&self.material().revocations.revoked);
        Some(watched)
    }
}

impl Looked {
    /// Logs what is wrong with the files, once as long as it stays the same.
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
        // A file that could not be read may be readable later as it is. What is wrong in a file stays wrong until it changes.
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

/// Says a failure of TLS in words for whoever has to mend it; "it" is the peer.
pub(crate) fn in_words(error: &io::Error) -> String {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(error) => explain(error),
        None if error.kind() == io::ErrorKind::UnexpectedEof => "it hung up".to_owned(),
        None => error.to_string(),
    }
}

/// True for a failure of TLS by which the peer says that it does not take our certificate (RFC 8446, 6.2).
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
        // Two CAs never have one name (see `pki`), but others' may: then the signature tells.
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

/// `node4` out of `DnsName("node4")`.
fn bare(name: &str) -> &str {
    let inside = name.split_once('(').and_then(|(_, inside)| inside.strip_suffix(')'));
    inside.map_or(name, |inside| inside.trim_matches('"'))
}

#[cfg(test)]
mod tests;
