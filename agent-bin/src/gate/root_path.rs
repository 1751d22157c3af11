//! Files that root trusts: only root may be able to replace them.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{env, fs};

use nix::errno::Errno;

/// Write permission of group and other users, and the sticky bit, which restricts a directory's entries to their owners.
const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Maximum number of symbolic links on one path, as in the kernel (`path_resolution(7)`).
const LINKS_MAX: u32 = 40;

/// Error of a file that root cannot trust.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PathError {
    /// Another user could change the file.
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
    /// A system call failed.
    #[error("cannot look at {}: {error}", path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// Error of the system call.
        error: io::Error,
    },
}

/// Checks that only root controls the content of `path`, because root would trust a replacement. Follows the path as the kernel does, from link
/// to link, and checks every directory and link on it.
///
/// # Errors
/// The error names the part of the path that another user could change.
pub(super) fn check(path: &Path) -> Result<(), PathError> {
    let system = |error| PathError::System { path: path.to_owned(), error };
    let mut links = 0;
    let mut left = components(&env::current_dir().map_err(system)?.join(path));
    let mut part = PathBuf::new();
    while let Some(next) = left.pop() {
        if next == ".." {
            // It was checked on the way down, like everything above it.
            part.pop();
            continue;
        }
        part.push(next);
        if !belongs_to_root(path, &part)?.is_symlink() {
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(system(Errno::ELOOP.into()));
        }
        left.extend(components(&fs::read_link(&part).map_err(system)?));
        part.pop();
    }
    Ok(())
}

/// Components of a path, the first one last. An absolute path starts with the root, which replaces all earlier components.
fn components(path: &Path) -> Vec<OsString> {
    let mut components: Vec<OsString> = path.iter().map(OsString::from).collect();
    components.reverse();
    components
}

/// Checks one directory, link or file on the way to `path`. Only its own entry counts.
fn belongs_to_root(path: &Path, part: &Path) -> Result<fs::Metadata, PathError> {
    let seen = fs::symlink_metadata(part).map_err(|error| PathError::System { path: path.to_owned(), error })?;
    let (owner, mode) = (seen.uid(), seen.mode() & 0o7777);
    let is_closed = mode & OTHERS_WRITE == 0 || (seen.is_dir() && mode & STICKY != 0);
    if owner != 0 || !(is_closed || seen.is_symlink()) {
        return Err(PathError::Foreign { path: path.to_owned(), part: part.to_owned(), owner, mode });
    }
    Ok(seen)
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
        // A link of another user, in a directory where all users may create one.
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
        // From link to link, through a directory of another user, to a file of root. Only root controls both ends.
        let (first, second) = (directory.path().join("first"), sub.join("second"));
        chown(&sub, Some(0), None).unwrap();
        symlink("/etc/hostname", &second).unwrap();
        symlink("sub/../sub/second", &first).unwrap();
        check(&first).unwrap();
        chown(&sub, Some(1), None).unwrap();
        let error = check(&first).unwrap_err().to_string();
        assert!(error.contains("/sub belongs to user 1 and has mode 755"), "{error}");
        symlink("circle", directory.path().join("circle")).unwrap();
        let circle = check(&directory.path().join("circle")).unwrap_err();
        assert!(matches!(circle, PathError::System { error, .. } if error.raw_os_error() == Some(Errno::ELOOP as i32)));
        assert!(matches!(check(Path::new("/no/such")), Err(PathError::System { .. })));
    }
}
