//! Credentials from a pipe, as the files of a TLS identity: files without a name, only in this process's memory.

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use lattice_daemon::membership::Credentials;
use nix::sys::memfd::{MFdFlags, memfd_create};
use pmi_transport::identity::TlsFiles;

/// The files; they exist as long as this value.
#[derive(Debug)]
pub(super) struct Held {
    ca: File,
    certificate: File,
    key: File,
}

impl Held {
    /// Puts the credentials into memory files, which session processes and ranks do not inherit.
    ///
    /// # Errors
    /// Fails if the system has no free memory or descriptor.
    pub(super) fn new(ca: &str, Credentials { certificate, key }: &Credentials) -> io::Result<Self> {
        Ok(Self { ca: memory_file(ca)?, certificate: memory_file(certificate)?, key: memory_file(key)? })
    }

    /// The paths of the files in this process.
    pub(super) fn files(&self) -> TlsFiles {
        let [ca, cert, key] = [&self.ca, &self.certificate, &self.key]
            .map(|file| PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())));
        TlsFiles { ca, cert, key }
    }
}

fn memory_file(text: &str) -> io::Result<File> {
    let mut file = File::from(memfd_create(c"lattice-credentials", MFdFlags::MFD_CLOEXEC)?);
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.write_all(text.as_bytes())?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use lattice_pki::{Authority, Validity};
    use pmi_transport::identity::{Caller, Security};

    use super::*;

    #[test]
    fn an_identity_is_read_from_memory() {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::create(directory.path()).unwrap();
        let node3 = Caller::Agent("node3".to_owned());
        let issued = authority.issue(&node3, &[], Validity::days(1).unwrap()).unwrap();
        let ca = std::fs::read_to_string(directory.path().join("ca.pem")).unwrap();
        let held = Held::new(&ca, &Credentials { certificate: issued.certificate, key: issued.key }).unwrap();
        drop(directory);
        let security = Security::from_files(&held.files()).unwrap();
        assert_eq!(security.caller(), &node3);
        // Reads the files again, as before each connection.
        security.renew().unwrap();
    }
}
