//! Files of an identity: their names in settings and where `pki` writes them, and detection of changes.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use lattice_pki::{CA_CERTIFICATE_FILE, CERTIFICATE_FILE, KEY_FILE, REVOKED_FILE};
use serde::{Deserialize, Serialize};

/// The files of an identity, in PEM, as every settings file has them in `[tls]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TlsFiles {
    /// Certificates of the CAs that are trusted. A file `crl.pem` beside it lists certificates that they have revoked.
    pub ca: PathBuf,
    /// Certificate of this process, and the chain to the CA, if there is one in between.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// State of each file: inode, size, and time of change. `None` for one that is not there.
pub(super) type Stamps = [Option<(u64, u64, i64, i64)>; 4];

impl TlsFiles {
    /// Files of a directory that [`Authority::write`](lattice_pki::Authority::write) made.
    pub fn in_directory(directory: &Path) -> Self {
        let file = |name| directory.join(name);
        Self { ca: file(CA_CERTIFICATE_FILE), cert: file(CERTIFICATE_FILE), key: file(KEY_FILE) }
    }

    /// The same with names that begin at `directory`, unless they are absolute.
    pub fn seen_from(self, directory: &Path) -> Self {
        let Self { ca, cert, key } = self;
        Self { ca: directory.join(ca), cert: directory.join(cert), key: directory.join(key) }
    }

    /// File with the list of revoked certificates, which need not be there.
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
