//! The PMI server's socket in the file system, for ranks in containers that share neither the descriptors nor the network of this
//! process. It is in the session's directory, which no other user can enter, and is removed with it.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use crate::machine::jobs::JobNumber;

/// Makes the socket of a job in this directory.
///
/// # Errors
/// Fails if the socket cannot be made.
pub(super) fn bind(directory: &Path, job: JobNumber) -> io::Result<(PathBuf, UnixListener)> {
    let path = directory.join(format!("pmi-{}.sock", job.0));
    let listener = UnixListener::bind(&path)?;
    fs::set_permissions(&path, Permissions::from_mode(0o600))?;
    Ok((path, listener))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_socket_is_the_users_alone() {
        let directory = tempfile::tempdir().unwrap();
        for job in [JobNumber(0), JobNumber(1)] {
            let (path, _listener) = bind(directory.path(), job).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        }
    }
}
