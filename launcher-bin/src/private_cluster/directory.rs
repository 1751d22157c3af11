//! The files of a private cluster on the machine of who makes it, all in one temporary directory.
//!
//! ```text
//! api.sock                        the API server's socket, the one thing that other users may use where they are let in
//! api.toml, node0.toml, ...       configurations          api.log, node0.log, ...   what the daemons say
//! api.pid, node0.pid, ...         process numbers         api.redb                  the API server's state
//! pki/                            certificates and keys, ours alone
//! ready                           socket on which the API server says where it listens
//! fabric.log, fabric.secret       the fabric manager's calls, and who may make some
//! nics/node0/cxi0/, ...           NICs, with a file for each CXI service
//! runtime/node0/, ...             sockets of fork servers, where sessions wait for the next agent
//! mpirun/                         for launchers of other MPIs, which the command may start
//! hosts, empty/                   for the nodes' own view of files
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

/// Beginning of the name of the directory, behind which is a random part of ten characters.
const PREFIX: &str = "lattice-";
/// Name of such a length, and of the socket in it whose path is the longest.
const LONGEST: &str = "lattice-0123456789";
const API_SOCKET: &str = "api.sock";
/// Most bytes of the path of a socket (`unix(7)`: 108, with a zero at the end).
const SOCKET_PATH_MAX: usize = 107;
/// Directory that stays empty.
const EMPTY: &str = "empty";
/// Place of the directory where the one for temporary files has too long a path, as batch systems have it.
const SHORT: &str = "/tmp";

/// Use of a cluster by other users of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// They may pass through to the socket, and see nothing on the way.
    Everybody,
    /// None.
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

/// The directory. It is there until [`Directory::remove`].
#[derive(Debug)]
pub(crate) struct Directory {
    made: OwnDirectory,
}

impl Directory {
    /// Makes one below [`Directory::parent`].
    pub(crate) fn create(access: Access) -> io::Result<Self> {
        let path = Self::parent().join(format!("{PREFIX}{}", random::id()?));
        let made = OwnDirectory::make(path, access.mode())?;
        made.make_directory(EMPTY, 0o755)?;
        Ok(Self { made })
    }

    /// The directory as the keeper knows it.
    pub(crate) fn made(&self) -> &OwnDirectory {
        &self.made
    }

    /// The directory for temporary files (`TMPDIR`), or /tmp where sockets below that would have too long a path.
    pub(crate) fn parent() -> PathBuf {
        room_for_sockets(std::env::temp_dir())
    }

    pub(crate) fn path(&self) -> &Path {
        self.made.path()
    }

    /// A name that no other cluster on this machine has.
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

    /// Files of other launchers' `mpirun`.
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

    /// Opens the log of a daemon, to which it adds.
    pub(crate) fn open_log(&self, daemon: &str) -> io::Result<File> {
        OpenOptions::new().append(true).create(true).mode(PRIVATE).open(self.log(daemon))
    }

    pub(crate) fn pid(&self, daemon: &str) -> PathBuf {
        self.path().join(format!("{daemon}.pid"))
    }

    /// Writes a new file that is nobody else's business.
    pub(crate) fn write_private(path: &Path, text: &str) -> io::Result<()> {
        let file = OpenOptions::new().write(true).create_new(true).mode(PRIVATE).open(path);
        file?.write_all(text.as_bytes())
    }

    /// Removes it, with all that is in it.
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
        // Whoever has it open already would read what is written to it.
        fs::write(&taken, "").unwrap();
        assert_eq!(Directory::write_private(&taken, "key").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&taken).unwrap(), "");
        directory.open_log("api").unwrap().write_all(b"one\n").unwrap();
        directory.open_log("api").unwrap().write_all(b"two\n").unwrap();
        assert_eq!(fs::read_to_string(directory.log("api")).unwrap(), "one\ntwo\n");
        directory.remove().unwrap();
    }
}
