//! Files on whose content root relies: nobody but root may be able to put another one in their place.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// Permission bits of group and others to write, and the bit by which a directory's entries are their owners' alone.
const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Error of a file on which root cannot rely.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PathError {
    /// Somebody else could change what is there.
    #[error(
        "{} belongs to user {owner} and has mode {mode:o}, so that not only root could change {}; a directory that others write to must \
         belong to root and be sticky (chmod 1770)",
        part.display(), path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The file, or a directory on its path.
        part: PathBuf,
        /// Its owner.
        owner: u32,
        /// Its permissions.
        mode: u32,
    },
    /// The system refused something.
    #[error("cannot look at {}: {error}", path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
}

/// Checks that root alone decides what is at `path`: whoever else could exchange it would be believed by root.
///
/// # Errors
/// Names the part of the path that somebody else could change.
pub(super) fn check(path: &Path) -> Result<(), PathError> {
    let system = |error| PathError::System { path: path.to_owned(), error };
    let named = env::current_dir().map_err(system)?.join(path);
    // Where a symbolic link leads, and the link itself.
    let real = fs::canonicalize(path).map_err(system)?;
    for part in named.ancestors().chain(real.ancestors()) {
        let metadata = fs::symlink_metadata(part).map_err(system)?;
        let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
        let is_closed = mode & OTHERS_WRITE == 0 || (metadata.is_dir() && mode & STICKY != 0);
        if owner != 0 || !(is_closed || metadata.is_symlink()) {
            return Err(PathError::Foreign { path: path.to_owned(), part: part.to_owned(), owner, mode });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use nix::unistd::Uid;

    use super::*;

    #[test]
    fn only_root_can_change_what_root_relies_on() {
        if !Uid::effective().is_root() {
            return println!("not tried: who is not root owns nothing on which root could rely");
        }
        let directory = tempfile::tempdir().unwrap();
        let (sub, file) = (directory.path().join("sub"), directory.path().join("sub/file"));
        fs::create_dir(&sub).unwrap();
        fs::write(&file, "").unwrap();
        let set = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        let check_all = |expected: bool| assert_eq!(check(&file).is_ok(), expected, "{:?}", check(&file));
        check_all(true);
        set(&sub, 0o1770);
        check_all(true);
        set(&sub, 0o0770);
        check_all(false);
        set(&sub, 0o0755);
        set(&file, 0o0664);
        check_all(false);
        set(&file, 0o0644);
        chown(&file, Some(1), None).unwrap();
        let error = check(&file).unwrap_err().to_string();
        assert!(error.contains("sub/file belongs to user 1 and has mode 644"), "{error}");
        chown(&file, Some(0), None).unwrap();
        chown(&sub, Some(1), None).unwrap();
        check_all(false);
        // A link of somebody else's, in a directory where all may make one.
        let link = directory.path().join("link");
        symlink("/etc/hostname", &link).unwrap();
        check(&link).unwrap();
        nix::unistd::fchownat(
            nix::fcntl::AT_FDCWD,
            &link,
            Some(Uid::from_raw(1)),
            None,
            nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW,
        )
        .unwrap();
        assert!(check(&link).is_err());
        assert!(matches!(check(Path::new("/no/such")), Err(PathError::System { .. })));
    }
}
