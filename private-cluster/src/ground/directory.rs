//! Files of a private cluster on the machine of its user, all in one temporary directory.
//!
//! ```text
//! api.sock                        the API server's socket, the only file that other users may use, if they have access
//! api.toml, node0.toml, ...       configurations          api.log, node0.log, ...   logs of the daemons
//! api.pid, node0.pid, ...         process numbers         api.redb                  the API server's state
//! pki/                            certificates and keys, private to this user
//! ready                           socket on which the API server reports its address
//! fabric.log, fabric.secret       calls to the fabric manager, and the secret that authorizes some
//! nics/node0/cxi0/, ...           NICs, with a file for each CXI service
//! runtime/node0/, ...             sockets of fork servers, where sessions wait for the next agent
//! mpirun/                         files for launchers of other MPIs, which the command may start
//! hosts, empty/                   files for the nodes' own view of the file system
//! ```

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use lattice_pki::directory_name;
use lattice_session::random;
use pmi_transport::identity::{Caller, TlsFiles};
use rank_spawner::OwnDirectory;

const PRIVATE: u32 = 0o600;

/// Prefix of the directory's name. A random part of ten characters follows.
const PREFIX: &str = "lattice-";
/// A name of that length, and the socket in the directory that has the longest path.
const LONGEST: &str = "lattice-0123456789";
const API_SOCKET: &str = "api.sock";
/// Maximum size of a socket path in bytes (`unix(7)`: 108, including a final zero).
const SOCKET_PATH_MAX: usize = 107;
/// Directory that stays empty.
const EMPTY: &str = "empty";
/// Parent of the directory if the path of the directory for temporary files is too long, as on batch systems.
const SHORT: &str = "/tmp";

/// Access of other users of this machine to a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Other users can traverse the directory to the socket, and can list nothing.
    Everybody,
    /// No access.
    Owner,
}

impl Access {
    fn mode(self) -> u32 {
        match self {
            Self::Everybody => 0o711,
            Self::Owner => 0o700,
        }
    }
}

/// The directory. It exists until [`Directory::remove`].
#[derive(Debug)]
pub(crate) struct Directory {
    made: OwnDirectory,
}

impl Directory {
    /// Creates a directory below [`Directory::parent`].
    pub(crate) fn create(access: Access) -> io::Result<Self> {
        let path = Self::parent().join(format!("{PREFIX}{}", random::id()?));
        let made = OwnDirectory::make(path, access.mode())?;
        made.make_directory(EMPTY, 0o755)?;
        Ok(Self { made })
    }

    /// The directory, for the keeper.
    pub(crate) fn made(&self) -> &OwnDirectory {
        &self.made
    }

    /// Directory for temporary files (`TMPDIR`), or /tmp if the paths of sockets in it would be too long.
    pub(crate) fn parent() -> PathBuf {
        room_for_sockets(std::env::temp_dir())
    }

    pub(crate) fn path(&self) -> &Path {
        self.made.path()
    }

    /// Name that no other cluster on this machine has.
    pub(crate) fn name(&self) -> String {
        self.path().file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    pub(crate) fn api_socket(&self) -> PathBuf {
        self.path().join(API_SOCKET)
    }

    pub(crate) fn api_state(&self) -> PathBuf {
        self.path().join("api.redb")
    }

    pub(crate) fn ready(&self) -> PathBuf {
        self.path().join("ready")
    }

    pub(crate) fn pki(&self) -> PathBuf {
        self.path().join("pki")
    }

    /// Certificate files of a daemon.
    pub(crate) fn certificates(&self, subject: &Caller) -> TlsFiles {
        TlsFiles::in_directory(&self.pki().join(directory_name(subject)))
    }

    pub(crate) fn hosts(&self) -> PathBuf {
        self.path().join("hosts")
    }

    /// Files for `mpirun` of other launchers.
    pub(crate) fn mpirun(&self) -> PathBuf {
        self.path().join("mpirun")
    }

    pub(crate) fn empty(&self) -> PathBuf {
        self.path().join(EMPTY)
    }

    pub(crate) fn runtime(&self) -> PathBuf {
        self.path().join("runtime")
    }

    pub(crate) fn fabric_secret(&self) -> PathBuf {
        self.path().join("fabric.secret")
    }

    pub(crate) fn nics(&self, node: &str) -> PathBuf {
        self.path().join("nics").join(node)
    }

    pub(crate) fn config(&self, daemon: &str) -> PathBuf {
        self.path().join(format!("{daemon}.toml"))
    }

    pub(crate) fn log(&self, daemon: &str) -> PathBuf {
        self.path().join(format!("{daemon}.log"))
    }

    /// Opens the log of a daemon in append mode.
    pub(crate) fn open_log(&self, daemon: &str) -> io::Result<File> {
        OpenOptions::new().append(true).create(true).mode(PRIVATE).open(self.log(daemon))
    }

    pub(crate) fn pid(&self, daemon: &str) -> PathBuf {
        self.path().join(format!("{daemon}.pid"))
    }

    /// Writes a new file that only this user can read.
    pub(crate) fn write_private(path: &Path, text: &str) -> io::Result<()> {
        let file = OpenOptions::new().write(true).create_new(true).mode(PRIVATE).open(path);
        file?.write_all(text.as_bytes())
    }

    /// Removes the directory and its contents.
    pub(crate) fn remove(self) -> io::Result<()> {
        self.made.remove()
    }
}

fn room_for_sockets(temporary: PathBuf) -> PathBuf {
    let socket = temporary.join(LONGEST).join(API_SOCKET);
    if socket.as_os_str().len() <= SOCKET_PATH_MAX { temporary } else { SHORT.into() }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn sockets_have_room_whatever_directory_for_temporary_files_there_is() {
        let root = tempfile::tempdir().unwrap();
        let of_length = |length: usize| {
            let path = root.path().join("x".repeat(length - root.path().as_os_str().len() - 1));
            fs::create_dir(&path).unwrap();
            path
        };
        let (longest, too_long) = (of_length(79), of_length(80));
        assert_eq!(room_for_sockets(longest.clone()), longest);
        assert_eq!(room_for_sockets(too_long), Path::new(SHORT));
        fs::create_dir(longest.join(LONGEST)).unwrap();
        UnixListener::bind(longest.join(LONGEST).join(API_SOCKET)).unwrap();
    }

    #[test]
    fn a_private_file_is_nobody_elses_from_its_beginning_and_takes_the_place_of_none() {
        let directory = Directory::create(Access::Owner).unwrap();
        let (secret, taken) = (directory.fabric_secret(), directory.config("taken"));
        Directory::write_private(&secret, "key\n").unwrap();
        assert_eq!(fs::metadata(&secret).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_to_string(&secret).unwrap(), "key\n");
        // A process that already has the file open could read the new content.
        fs::write(&taken, "").unwrap();
        assert_eq!(Directory::write_private(&taken, "key").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&taken).unwrap(), "");
        directory.open_log("api").unwrap().write_all(b"one\n").unwrap();
        directory.open_log("api").unwrap().write_all(b"two\n").unwrap();
        assert_eq!(fs::read_to_string(directory.log("api")).unwrap(), "one\ntwo\n");
        directory.remove().unwrap();
    }
}
