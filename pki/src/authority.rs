//! A certificate authority in a directory, for clusters that have none: the implementation of `lattice pki`.
//!
//! ```text
//! DIR/ca.pem            the CA's certificate; every process has a copy
//! DIR/ca.key.pem        its key; stays here
//! DIR/agent-node3/      cert.pem, key.pem, ca.pem: the files of one process
//! ```

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::ErrorKind::NotFound;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use zeroize::Zeroizing;

use crate::caller::Caller;

/// The CA's certificate, in its own directory and in the directories that [`Authority::write`] makes.
pub const CA_CERTIFICATE_FILE: &str = "ca.pem";
/// A process's certificate, in the directory that [`Authority::write`] makes.
pub const CERTIFICATE_FILE: &str = "cert.pem";
/// The private key of that certificate, in the same directory.
pub const KEY_FILE: &str = "key.pem";
/// The private key of the CA, in its own directory.
pub const CA_KEY_FILE: &str = "ca.key.pem";
/// Validity of a CA, in days.
const CA_DAYS: u32 = 3650;
/// Tolerance for wrong clocks: a certificate is valid from this time before its creation.
pub const CLOCK_SKEW: Duration = Duration::from_secs(300);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Error of the authority.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PkiError {
    /// A file or a directory cannot be read or written.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// Verb for the call that failed, such as `read`.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// The path exists, and is never overwritten.
    #[error("{} exists, and is not overwritten; remove it to have it made anew", path.display())]
    Exists {
        /// The existing file or directory.
        path: PathBuf,
    },
    /// The directory contains no CA.
    #[error("{} holds no CA that can be used; make one with: lattice pki init DIR", directory.display())]
    NoAuthority {
        /// The directory.
        directory: PathBuf,
        /// Fault of the CA's key or certificate.
        source: rcgen::Error,
    },
    /// All users can use the key of a CA.
    #[error("the key {} can be read by other users; run chmod 600", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
    },
    /// The content of a file is not valid.
    #[error("{} cannot be read", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Fault in the content.
        source: rustls::pki_types::pem::Error,
    },
    /// The certificate to revoke was not issued by this CA.
    #[error("{} holds no certificate that this CA has issued", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// No certificate can contain the name.
    #[error("no certificate can have the name {name:?}")]
    BadName {
        /// The name.
        name: String,
    },
    /// The validity exceeds the dates that a certificate can contain.
    #[error("{days} days are longer than certificates can last")]
    TooLong {
        /// Requested number of days.
        days: u32,
    },
    /// The text to renew is not a certificate.
    #[error("no certificate was shown that could be renewed")]
    NoCertificate,
    /// The certificate to renew is revoked.
    #[error("the certificate was revoked")]
    Revoked,
    /// The certificate to renew has expired.
    #[error("the certificate has expired; issue a new one with `lattice pki issue`")]
    Expired,
    /// Keys or certificates cannot be made.
    #[error("cannot make a certificate")]
    Make(#[from] rcgen::Error),
}

/// Period in which a certificate is valid.
#[derive(Clone, Copy, Debug)]
pub struct Validity {
    /// Start of the period.
    pub from: SystemTime,
    /// End of the period.
    pub until: SystemTime,
}

impl Validity {
    /// From now on for this many days. The start is earlier to allow for slow clocks: by a day for a validity of a month or more, else by five
    /// minutes.
    ///
    /// # Errors
    /// Fails if the end is after the year 9999, the last one that a certificate can contain.
    pub fn days(days: u32) -> Result<Self, PkiError> {
        // 7900 years from now end before the year 9999, for the whole lifetime of this program.
        if days <= 7900 * 365 { Ok(Self::lasting(DAY * days)) } else { Err(PkiError::TooLong { days }) }
    }

    /// Like [`Validity::days`], for this many hours.
    ///
    /// # Errors
    /// Returns the errors of [`Validity::days`].
    pub fn hours(hours: u32) -> Result<Self, PkiError> {
        Self::days(hours.div_ceil(24)).map(|_| Self::lasting(HOUR * hours))
    }

    fn lasting(length: Duration) -> Self {
        let now = SystemTime::now();
        let before = if length >= 30 * DAY { DAY } else { CLOCK_SKEW };
        Self { from: now - before, until: now + length }
    }
}

/// A CA, with its key.
pub struct Authority {
    pub(crate) certificate: String,
    pub(crate) issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, in PEM.
#[derive(Clone)]
pub struct Issued {
    /// The certificate.
    pub certificate: String,
    /// Its private key.
    pub key: String,
}

impl Authority {
    /// Creates a new CA in `directory`, which is created too if it is missing.
    ///
    /// # Errors
    /// Fails if a CA exists there, or if it cannot be written.
    pub fn create(directory: &Path) -> Result<Self, PkiError> {
        let key = KeyPair::generate()?;
        let mut params = parameters(Validity::days(CA_DAYS)?);
        // Two CAs must have different names: a verifier selects the signer of a certificate by name first.
        let id = params.key_identifier(&key);
        let id: String = id.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        params.distinguished_name = common_name(&format!("lattice CA {id}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key)?.pem();
        let secret = Zeroizing::new(key.serialize_pem());

        refuse_existing(&directory.join(CA_KEY_FILE))?;
        refuse_existing(&directory.join(CA_CERTIFICATE_FILE))?;
        make_directory(directory, Parents::Make)?;
        write_new(&directory.join(CA_KEY_FILE), &secret, 0o600)?;
        let written = write_new(&directory.join(CA_CERTIFICATE_FILE), &certificate, 0o644);
        // Half an authority would block the next attempt.
        written.inspect_err(|_| drop(fs::remove_file(directory.join(CA_KEY_FILE))))?;
        Ok(Self { certificate, issuer: Issuer::new(params, key) })
    }

    /// Opens the CA that [`Authority::create`] made in `directory`.
    ///
    /// # Errors
    /// Fails if there is no CA, or if it cannot be read.
    pub fn open(directory: &Path) -> Result<Self, PkiError> {
        let unusable = |source| PkiError::NoAuthority { directory: directory.to_owned(), source };
        let read = |name| {
            let path = directory.join(name);
            fs::read_to_string(&path).map_err(|source| PkiError::Io { action: "read", path, source })
        };
        let (secret, certificate) = (Zeroizing::new(read(CA_KEY_FILE)?), read(CA_CERTIFICATE_FILE)?);
        let key = key_pair(&secret).map_err(unusable)?;
        let issuer = Issuer::from_ca_cert_pem(&certificate, key).map_err(unusable)?;
        Ok(Self { certificate, issuer })
    }

    /// Like [`Authority::open`], for a daemon. No other user may have access to its CA.
    ///
    /// # Errors
    /// Returns the errors of [`Authority::open`], and fails if all users can use its key.
    pub fn open_private(directory: &Path) -> Result<Self, PkiError> {
        let path = directory.join(CA_KEY_FILE);
        match fs::metadata(&path) {
            Ok(key) if key.mode() & 0o007 != 0 => Err(PkiError::Exposed { path }),
            // `open` reports a key that cannot be read.
            Ok(_) | Err(_) => Self::open(directory),
        }
    }

    /// Issues a certificate to `subject`. `hosts` are further names or IP addresses of its host.
    ///
    /// An agent's certificate always contains its node's name as well.
    ///
    /// # Errors
    /// Fails for names that no certificate can contain.
    pub fn issue(&self, subject: &Caller, hosts: &[String], validity: Validity) -> Result<Issued, PkiError> {
        let key = KeyPair::generate()?;
        let certificate = Self::parameters_of(subject, hosts, validity)?.signed_by(&key, &self.issuer)?.pem();
        Ok(Issued { certificate, key: key.serialize_pem() })
    }

    /// Content of a certificate of `subject`.
    pub(crate) fn parameters_of(
        subject: &Caller,
        hosts: &[String],
        validity: Validity,
    ) -> Result<CertificateParams, PkiError> {
        let bad = |name: &str| PkiError::BadName { name: name.to_owned() };
        let mut params = parameters(validity);
        params.distinguished_name = common_name("lattice");
        let uri = subject.uri();
        params.subject_alt_names.push(SanType::URI(uri.as_str().try_into().map_err(|_| bad(&uri))?));
        let node = if let Caller::Agent(node) = subject { Some(node) } else { None };
        for host in node.into_iter().chain(hosts) {
            params.subject_alt_names.push(match host.parse::<IpAddr>() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName(host.as_str().try_into().map_err(|_| bad(host))?),
            });
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = match subject {
            // Agents and the API server call each other.
            Caller::Agent(_) | Caller::Api => {
                vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth]
            }
            Caller::User(_) | Caller::UserIn { .. } | Caller::Admin(_) => vec![ExtendedKeyUsagePurpose::ClientAuth],
        };
        params.use_authority_key_identifier_extension = true;
        Ok(params)
    }

    /// Writes the files of a process into a new directory: `cert.pem`, `key.pem`, `ca.pem`.
    ///
    /// # Errors
    /// Fails if the directory exists, or if it cannot be written.
    pub fn write(&self, directory: &Path, issued: &Issued) -> Result<(), PkiError> {
        refuse_existing(directory)?;
        make_directory(directory, Parents::Expect)?;
        write_new(&directory.join(KEY_FILE), &issued.key, 0o600)?;
        write_new(&directory.join(CERTIFICATE_FILE), &issued.certificate, 0o644)?;
        write_new(&directory.join(CA_CERTIFICATE_FILE), &self.certificate, 0o644)
    }
}

/// The directory name to use with [`Authority::write`] for `subject`: `agent-node3`, `api`, `user-1000`, `admin`.
pub fn directory_name(subject: &Caller) -> String {
    match subject {
        Caller::Agent(node) => format!("agent-{node}"),
        Caller::Api => "api".to_owned(),
        Caller::User(uid) | Caller::UserIn { uid, .. } => format!("user-{uid}"),
        Caller::Admin(_) => "admin".to_owned(),
    }
}

/// Fails if `path` exists.
///
/// # Errors
/// The error names the path.
pub fn refuse_existing(path: &Path) -> Result<(), PkiError> {
    match path.symlink_metadata() {
        Ok(_) => Err(PkiError::Exists { path: path.to_owned() }),
        Err(_) => Ok(()),
    }
}

/// The key in this PEM text; its DER is wiped.
fn key_pair(secret: &str) -> Result<KeyPair, rcgen::Error> {
    let der =
        PrivateKeyDer::from_pem_slice(secret.as_bytes()).map_err(|error| rcgen::Error::PemError(error.to_string()))?;
    KeyPair::try_from(&*Zeroizing::new(der))
}

fn parameters(validity: Validity) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.not_before = validity.from.into();
    params.not_after = validity.until.into();
    params
}

fn common_name(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

/// Treatment of the parents of a new directory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Parents {
    /// Missing parents are created, and the directory may exist.
    Make,
    /// All parents must exist, and the directory must not.
    Expect,
}

fn make_directory(path: &Path, parents: Parents) -> Result<(), PkiError> {
    let made = DirBuilder::new().recursive(parents == Parents::Make).mode(0o755).create(path);
    made.map_err(|source| PkiError::Io { action: "make", path: path.to_owned(), source })
}

/// Writes a new file, which has its final mode from the start. It must not exist.
fn write_new(path: &Path, text: &str, mode: u32) -> Result<(), PkiError> {
    let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|source| PkiError::Io { action: "write", path: path.to_owned(), source })
}

/// Replaces a file atomically: readers see the old content or the new content, also after a loss of power. The file keeps its mode. It keeps its
/// owner if root replaces the file of another user.
pub(crate) fn write_over(path: &Path, text: &str) -> Result<(), PkiError> {
    let former = fs::metadata(path).ok();
    let mode = former.as_ref().map_or(0o644, |former| former.mode() & 0o777);
    let new = path.with_extension("pem.new");
    let replace = || {
        // A leftover file may belong to any user with write access to the directory, and may be a link.
        fs::remove_file(&new).or_else(|error| if error.kind() == NotFound { Ok(()) } else { Err(error) })?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
        if let Some(former) = &former {
            keep_owner(&file, former)?;
        }
        // The umask of the process reduces the mode of a new file.
        file.set_permissions(Permissions::from_mode(mode))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
    };
    replace().map_err(|source| PkiError::Io { action: "write", path: path.to_owned(), source })
}

/// Gives a file the owner and the group of the file that it replaces. Only root can change the owner.
fn keep_owner(file: &File, former: &fs::Metadata) -> io::Result<()> {
    let own = file.metadata()?;
    if own.uid() != former.uid() {
        return fchown(file, Some(former.uid()), Some(former.gid()));
    }
    if own.gid() != former.gid() {
        // Fails for a process outside of that group; the directory may already have set the group.
        let _ = fchown(file, None, Some(former.gid()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_replaced_keeps_its_mode() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("list.pem");
        for mode in [0o600, 0o640] {
            fs::write(&path, "old").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            write_over(&path, "new").unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), "new");
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, mode);
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left behind");
    }

    /// Root revokes in a directory of the API server's user. Without root, the test can only use its own file.
    #[test]
    fn a_file_that_root_replaces_keeps_its_owner() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("list.pem");
        fs::write(&path, "old").unwrap();
        let own = fs::metadata(&path).unwrap();
        let (uid, gid) = if own.uid() == 0 { (65534, 65533) } else { (own.uid(), own.gid()) };
        std::os::unix::fs::chown(&path, Some(uid), Some(gid)).unwrap();
        write_over(&path, "new").unwrap();
        let new = fs::metadata(&path).unwrap();
        assert_eq!((new.uid(), new.gid()), (uid, gid));
    }

    #[test]
    fn a_link_in_the_place_of_a_new_file_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let [path, planted, other] = ["list.pem", "list.pem.new", "other"].map(|name| directory.path().join(name));
        fs::write(&other, "somebody's").unwrap();
        std::os::unix::fs::symlink(&other, planted).unwrap();
        write_over(&path, "new").unwrap();
        assert_eq!(fs::read_to_string(&other).unwrap(), "somebody's");
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    }

    #[test]
    fn a_directory_holds_a_ca_and_what_it_issued() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("pki");
        Authority::create(&root).unwrap();
        let authority = Authority::open(&root).unwrap();
        let node = Caller::Agent("node3".to_owned());
        let target = root.join(directory_name(&node));
        let issued = authority.issue(&node, &["10.0.0.3".to_owned()], Validity::days(90).unwrap()).unwrap();
        authority.write(&target, &issued).unwrap();

        let mode = |path: &str| fs::metadata(root.join(path)).unwrap().mode() & 0o777;
        assert_eq!(mode("ca.key.pem"), 0o600);
        assert_eq!(mode("agent-node3/key.pem"), 0o600);
        assert_eq!(mode("agent-node3/cert.pem"), 0o644);
        assert_eq!(fs::read(root.join("ca.pem")).unwrap(), fs::read(target.join("ca.pem")).unwrap());
    }

    #[test]
    fn nothing_is_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::create(directory.path()).unwrap();
        let before = fs::read(directory.path().join(CA_KEY_FILE)).unwrap();
        let error = Authority::create(directory.path()).err().unwrap().to_string();
        assert!(
            error.ends_with("ca.key.pem exists, and is not overwritten; remove it to have it made anew"),
            "{error}"
        );
        assert_eq!(fs::read(directory.path().join(CA_KEY_FILE)).unwrap(), before);
        let issued = authority.issue(&Caller::Api, &[], Validity::days(1).unwrap()).unwrap();
        authority.write(&directory.path().join("api"), &issued).unwrap();
        assert!(matches!(authority.write(&directory.path().join("api"), &issued), Err(PkiError::Exists { .. })));
    }

    #[test]
    fn what_cannot_be_issued_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let error = Authority::open(directory.path()).err().unwrap().to_string();
        assert!(error.starts_with("cannot read"), "{error}");
        let authority = Authority::create(directory.path()).unwrap();
        let error =
            authority.issue(&Caller::Api, &["kn\u{f6}ten".to_owned()], Validity::days(1).unwrap()).err().unwrap();
        assert_eq!(error.to_string(), "no certificate can have the name \"kn\u{f6}ten\"");
        assert!(matches!(Validity::days(u32::MAX), Err(PkiError::TooLong { .. })));
    }
}
