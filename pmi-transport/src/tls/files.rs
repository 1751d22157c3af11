//! Files of an identity: their names in settings and as written by `pki`, and detection of changes.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use lattice_pki::{CA_CERTIFICATE_FILE, CERTIFICATE_FILE, KEY_FILE, REVOKED_FILE};
use nix::libc::{O_NOFOLLOW, O_NONBLOCK, c_int};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject};
use serde::{Deserialize, Serialize};

use super::IdentityError;

/// The files of an identity, in PEM, as in the section `[tls]` of each settings file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TlsFiles {
    /// Certificates of the trusted CAs. A file `crl.pem` in the same directory lists the certificates that they have
    /// revoked.
    pub ca: PathBuf,
    /// Certificate of this process, with any intermediate certificates up to the CA.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// State of each file: inode, size, and time of change. `None` for a missing file.
pub(super) type Stamps = [Option<(u64, u64, i64, i64)>; 4];

impl TlsFiles {
    /// Files of a directory that [`Authority::write`](lattice_pki::Authority::write) made.
    pub fn in_directory(directory: &Path) -> Self {
        let file = |name| directory.join(name);
        Self { ca: file(CA_CERTIFICATE_FILE), cert: file(CERTIFICATE_FILE), key: file(KEY_FILE) }
    }

    /// The same files, with relative names resolved from `directory`.
    pub fn seen_from(self, directory: &Path) -> Self {
        let Self { ca, cert, key } = self;
        Self { ca: directory.join(ca), cert: directory.join(cert), key: directory.join(key) }
    }

    /// File with the list of revoked certificates. It may be missing.
    pub(super) fn revoked(&self) -> PathBuf {
        self.ca.with_file_name(REVOKED_FILE)
    }

    pub(super) fn stamps(&self) -> Stamps {
        let stamp = |file: &PathBuf| {
            let metadata = fs::metadata(file).ok()?;
            Some((metadata.ino(), metadata.size(), metadata.ctime(), metadata.ctime_nsec()))
        };
        [&self.ca, &self.cert, &self.key, &self.revoked()].map(stamp)
    }
}

/// Name of the file that is to replace `path`.
pub(super) fn next(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".next");
    PathBuf::from(name)
}

/// Reads all certificates of a file, at least one.
pub(super) fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let malformed = |source| IdentityError::Pem { path: path.to_owned(), wanted: "certificate", source };
    let bytes = read(path)?;
    let certificates = CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>().map_err(malformed)?;
    if certificates.is_empty() { Err(malformed(pem::Error::NoItemsFound)) } else { Ok(certificates) }
}

/// Reads a whole file.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, IdentityError> {
    fs::read(path).map_err(|source| IdentityError::Read { path: path.to_owned(), source })
}

/// Treatment of a symbolic link in the place of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Links {
    /// Its target is read.
    Followed,
    /// It is an error.
    Refused,
}

/// Reads a whole list of revoked certificates: a regular file of at most `max` bytes. Opening it never blocks.
pub(super) fn read_at_most(path: &Path, max: usize, links: Links) -> Result<Vec<u8>, IdentityError> {
    let failed = |source| IdentityError::Read { path: path.to_owned(), source };
    let no_follow: c_int = if links == Links::Refused { O_NOFOLLOW } else { 0 };
    let file = OpenOptions::new().read(true).custom_flags(O_NONBLOCK | no_follow).open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(failed(io::Error::other("it is no regular file")));
    }
    let long = |bytes| IdentityError::LongList { path: path.to_owned(), bytes };
    let bytes = usize::try_from(metadata.len()).unwrap_or(usize::MAX);
    if bytes > max {
        return Err(long(bytes));
    }
    // It may grow meanwhile.
    let mut text = Vec::with_capacity(bytes);
    file.take(max as u64 + 1).read_to_end(&mut text).map_err(failed)?;
    if text.len() > max { Err(long(text.len())) } else { Ok(text) }
}

/// Writes a file to the disk. Until it is complete, only its owner can read it.
pub(super) fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<(), IdentityError> {
    let written = || {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        file.write_all(bytes)?;
        file.set_permissions(Permissions::from_mode(mode))?;
        file.sync_all()
    };
    written().map_err(|source| IdentityError::Write { path: path.to_owned(), source })
}

/// Renames a file over another one, and syncs the directory.
pub(super) fn rename(from: &Path, to: &Path) -> Result<(), IdentityError> {
    let renamed = || {
        fs::rename(from, to)?;
        to.parent().map_or(Ok(()), |directory| File::open(directory).and_then(|directory| directory.sync_all()))
    };
    renamed().map_err(|source: io::Error| IdentityError::Write { path: to.to_owned(), source })
}

/// Replaces a file atomically: a reader gets the old content or the new one.
pub(super) fn replace(path: &Path, bytes: &[u8], mode: u32) -> Result<(), IdentityError> {
    write(&next(path), bytes, mode)?;
    rename(&next(path), path)
}
