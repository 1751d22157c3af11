//! The PMI server's socket in the file system, for ranks in containers that see neither our descriptors nor our network: in a directory that
//! nobody else can enter, which is removed with the other files of ranks.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;

use crate::machine::jobs::JobNumber;

/// Makes the socket of a job in this directory, which is made unless it is ours already.
///
/// # Errors
/// Fails if it cannot be made, and if the directory is somebody else's or open to others.
pub(super) fn bind(directory: &Path, job: JobNumber) -> io::Result<(PathBuf, UnixListener)> {
    make_directory(directory)?;
    let path = directory.join(format!("pmi-{}.sock", job.0));
    let listener = UnixListener::bind(&path)?;
    fs::set_permissions(&path, Permissions::from_mode(0o600))?;
    Ok((path, listener))
}

/// Makes a directory that nobody else can enter, unless it is there already.
///
/// # Errors
/// As [`bind`].
fn make_directory(directory: &Path) -> io::Result<()> {
    match make_private(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let found = fs::symlink_metadata(directory)?;
            if !found.is_dir() || found.uid() != geteuid().as_raw() || found.mode() & 0o077 != 0 {
                return Err(io::Error::new(error.kind(), "it is there, and is not a directory of this user alone"));
            }
            Ok(())
        }
        made => made,
    }
}

/// Makes a directory with all rights for its owner and none for others, whatever the umask takes away.
///
/// # Errors
/// Fails if it is there, or cannot be made.
pub(super) fn make_private(directory: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(directory)?;
    fs::set_permissions(directory, Permissions::from_mode(0o700))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_in_a_directory_of_the_user_alone() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("launch");
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        let (first, _listener) = bind(&directory, JobNumber(0)).unwrap();
        let (second, _listener) = bind(&directory, JobNumber(1)).unwrap();
        assert_eq!((mode(&directory), mode(&first), mode(&second)), (0o700, 0o600, 0o600));
    }

    #[test]
    fn a_directory_that_others_can_enter_is_not_used() {
        let parent = tempfile::tempdir().unwrap();
        let refused = |path: &Path| bind(path, JobNumber(0)).unwrap_err().to_string();
        let (open, link) = (parent.path().join("open"), parent.path().join("link"));
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, Permissions::from_mode(0o755)).unwrap();
        assert!(refused(&open).contains("not a directory of this user alone"));
        std::os::unix::fs::symlink("/root", &link).unwrap();
        assert!(refused(&link).contains("not a directory of this user alone"));
        assert!(refused(Path::new("/nonexistent/launch")).contains("No such file"));
    }
}
