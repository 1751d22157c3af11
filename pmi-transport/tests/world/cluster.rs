//! A CA in a temporary directory, and identities that it issues.

use std::time::{Duration, SystemTime};

use lattice_pki::{Authority, Validity, directory_name};
use pmi_transport::identity::{Caller, Security, TlsFiles};
use tempfile::TempDir;

/// A CA with all identities that it issued.
pub(crate) struct Pki {
    authority: Authority,
    directory: TempDir,
}

impl Pki {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self { authority: Authority::create(directory.path()).unwrap(), directory }
    }

    /// An identity that is valid now. That of the API server is also valid for the host 127.0.0.1.
    pub(crate) fn identity(&self, caller: &Caller) -> Security {
        let host = if *caller == Caller::Api { Some(HOST) } else { None };
        self.load(caller, host, Validity::days(1).unwrap(), self)
    }

    /// An identity that is also valid for the host 127.0.0.1.
    pub(crate) fn identity_with_host(&self, caller: &Caller) -> Security {
        self.load(caller, Some(HOST), Validity::days(1).unwrap(), self)
    }

    /// An identity that was valid until an hour ago.
    pub(crate) fn expired(&self, caller: &Caller) -> Security {
        let now = SystemTime::now();
        self.load(caller, None, Validity { from: now - 24 * HOUR, until: now - HOUR }, self)
    }

    /// An identity of this CA with `other` as its trusted CA.
    pub(crate) fn trusting_in(&self, other: &Self, caller: &Caller) -> Security {
        self.load(caller, None, Validity::days(1).unwrap(), other)
    }

    /// Replaces another CA, and its identity for `caller`, by this CA and its identity.
    pub(crate) fn replace(&self, other: &Self, caller: &Caller) {
        self.identity(caller);
        let own = directory_name(caller);
        for file in ["ca.pem".to_owned(), format!("{own}/cert.pem"), format!("{own}/key.pem")] {
            std::fs::copy(self.directory.path().join(&file), other.directory.path().join(&file)).unwrap();
        }
    }

    /// Revokes the certificate of `caller` for all identities that trust this CA.
    pub(crate) fn revoke(&self, caller: &Caller) {
        let root = self.directory.path();
        let certificate = root.join(directory_name(caller)).join("cert.pem");
        self.authority.revoke(root, &[certificate]).unwrap();
    }

    fn load(&self, caller: &Caller, host: Option<&str>, validity: Validity, trusted: &Self) -> Security {
        let directory = self.directory.path().join(directory_name(caller));
        let hosts: Vec<String> = host.into_iter().map(str::to_owned).collect();
        let issued = self.authority.issue(caller, &hosts, validity).unwrap();
        self.authority.write(&directory, &issued).unwrap();
        let ca = trusted.directory.path().join("ca.pem");
        Security::from_files(&TlsFiles { ca, ..TlsFiles::in_directory(&directory) }).unwrap()
    }
}

const HOST: &str = "127.0.0.1";
const HOUR: Duration = Duration::from_secs(3600);
