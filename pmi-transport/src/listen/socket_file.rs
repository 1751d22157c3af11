//! The file of a Unix socket: made for everybody, replaced if it was left over, removed at the end.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Everybody may talk to it: the kernel tells who they are.
const MODE: u32 = 0o666;

/// The file of a socket that we listen to; removed when dropped, unless it is another's by then.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    device_and_inode: (u64, u64),
}

impl SocketFile {
    /// Makes the socket, ready for tokio.
    ///
    /// # Errors
    /// `AddrInUse` if somebody listens there, `AlreadyExists` if what is there is no socket.
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
            // What cannot be removed is replaced by the next one who listens here.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Returns true if this is a socket that nobody listens to.
///
/// # Errors
/// `AlreadyExists` if it is no socket.
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
        // Another's file is not ours to remove.
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
