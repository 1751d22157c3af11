//! Files that a user names on the command line. They are read completely, up to a size limit, because a device has no end.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::OFlag;
use nix::unistd::geteuid;

/// Reads the text of a file of at most `max` bytes.
///
/// # Errors
/// Returns the error of the system, [`io::ErrorKind::FileTooLarge`] for a longer file, or [`io::ErrorKind::InvalidData`] for bytes that are no
/// text.
pub fn text(path: &Path, max: u64) -> io::Result<String> {
    let bytes = bytes(path, max)?;
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Reads a file of at most `max` bytes.
///
/// # Errors
/// As [`text`].
pub fn bytes(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    bounded(File::open(path)?, max)
}

fn bounded(file: File, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {max} bytes")));
    }
    Ok(bytes)
}

/// Reads the text of a settings file with commands and addresses for this process. It must belong to root or this user, and must not be
/// world-writable.
///
/// # Errors
/// As [`text`]. Also fails with [`io::ErrorKind::PermissionDenied`] for a file of another user, and for a world-writable file.
pub fn trusted_text(path: &Path, max: u64) -> io::Result<String> {
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    let (status, me) = (file.metadata()?, geteuid());
    if ![0, me.as_raw()].contains(&status.uid()) || status.mode() & 0o002 != 0 {
        let (owner, mode) = (status.uid(), status.mode() & 0o7777);
        let reason = format!(
            "it belongs to user {owner} and has mode {mode:o}; only files of root and of user {me} that others cannot write to are obeyed"
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
    }
    if !status.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    let bytes = bounded(file, max)?;
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::{PermissionsExt, chown};

    use super::*;

    #[test]
    fn settings_of_other_users_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.toml");
        std::fs::write(&path, "abc").unwrap();
        let refused = |expected: &str| {
            let error = trusted_text(&path, 9).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        assert_eq!(trusted_text(&path, 3).unwrap(), "abc");
        set_permissions(&path, Permissions::from_mode(0o646)).unwrap();
        refused("has mode 646; only files of root");
        set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        if geteuid().is_root() {
            chown(&path, Some(65534), None).unwrap();
            refused("it belongs to user 65534");
        }
        std::fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        refused("no regular file");
    }

    #[test]
    fn a_file_is_read_whole_or_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "abc").unwrap();
        assert_eq!(text(file.path(), 3).unwrap(), "abc");
        assert_eq!(text(file.path(), 2).unwrap_err().to_string(), "it has more than 2 bytes");
        assert_eq!(bytes(Path::new("/dev/zero"), 9).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        std::fs::write(file.path(), b"a\xff").unwrap();
        assert_eq!(text(file.path(), 9).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
