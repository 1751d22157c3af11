//! The file of a Unix socket: accessible to all users, replaced if it has no listener, removed at the end.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// All users may connect: the kernel identifies them.
const MODE: u32 = 0o666;

/// The file of our listening socket. Dropping removes it, unless another process has replaced it.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    device_and_inode: (u64, u64),
}

impl SocketFile {
    /// Makes a non-blocking socket, ready for tokio.
    ///
    /// # Errors
    /// `AddrInUse` if another process listens there, `AlreadyExists` if the path is not a socket.
    pub(super) fn bind(path: &Path) -> io::Result<(Self, UnixListener)> {
        let listener = UnixListener::bind(path).or_else(|error| match error.kind() {
            io::ErrorKind::AddrInUse if is_left_over(path)? => {
                fs::remove_file(path)?;
                UnixListener::bind(path)
            }
            _ => Err(error),
        })?;
        let file = Self { path: path.to_owned(), device_and_inode: device_and_inode(path)? };
        fs::set_permissions(path, Permissions::from_mode(MODE))?;
        listener.set_nonblocking(true)?;
        Ok((file, listener))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if device_and_inode(&self.path).is_ok_and(|found| found == self.device_and_inode) {
            // If the removal fails, the next listener at this path replaces the file.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Returns true if this is a socket without a listener.
///
/// # Errors
/// `AlreadyExists` if it is not a socket.
fn is_left_over(path: &Path) -> io::Result<bool> {
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    Ok(UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused))
}

fn device_and_inode(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_for_everybody_and_goes_with_its_listener() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("api.sock");
        let bound = SocketFile::bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o666);
        assert_eq!(SocketFile::bind(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(bound);
        assert!(!path.exists());
    }

    #[test]
    fn a_left_over_socket_is_replaced_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("api.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let (file, listener) = SocketFile::bind(&path).unwrap();
        // The file of another process must not be removed.
        fs::remove_file(&path).unwrap();
        let _other = UnixListener::bind(&path).unwrap();
        drop((file, listener));
        assert!(path.exists());

        let plain = directory.path().join("notes.txt");
        fs::write(&plain, "keep").unwrap();
        assert_eq!(SocketFile::bind(&plain).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&plain).unwrap(), b"keep");
    }
}
