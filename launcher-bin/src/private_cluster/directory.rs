//! The files of a cluster on this machine, all in one temporary directory.
//!
//! ```text
//! api.sock                        the API server's socket, the one thing that other users may use
//! api.toml, node0.toml, ...       configurations          api.log, node0.log, ...   what the daemons say
//! api.pid, node0.pid, ...         process numbers         api.redb                  the API server's state
//! pki/                            certificates and keys, ours alone
//! fabric.log, fabric.secret       the fabric manager's calls, and who may make some
//! nics/node0/cxi0/, ...           NICs, with a file for each CXI service
//! runtime/node0/, ...             sockets of fork servers, where sessions wait for the next agent
//! hosts, empty/                   for the nodes' own view of files
//! ```

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::unistd::mkdtemp;

/// Others may pass through to the socket, and see nothing on the way.
const PASSABLE: u32 = 0o711;
const PRIVATE: u32 = 0o600;

/// The directory. It is there until [`Directory::remove`].
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
}

impl Directory {
    pub(super) fn create() -> io::Result<Self> {
        let path = mkdtemp(&std::env::temp_dir().join("lattice-dev-XXXXXX"))?;
        let directory = Self { path };
        fs::set_permissions(&directory.path, Permissions::from_mode(PASSABLE))?;
        fs::create_dir(directory.empty())?;
        Ok(directory)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A name that no other cluster on this machine has.
    pub(super) fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    pub(super) fn api_socket(&self) -> PathBuf {
        self.path.join("api.sock")
    }

    pub(super) fn api_state(&self) -> PathBuf {
        self.path.join("api.redb")
    }

    pub(super) fn pki(&self) -> PathBuf {
        self.path.join("pki")
    }

    pub(super) fn hosts(&self) -> PathBuf {
        self.path.join("hosts")
    }

    pub(super) fn empty(&self) -> PathBuf {
        self.path.join("empty")
    }

    pub(super) fn runtime(&self) -> PathBuf {
        self.path.join("runtime")
    }

    pub(super) fn fabric_secret(&self) -> PathBuf {
        self.path.join("fabric.secret")
    }

    pub(super) fn nics(&self, node: &str) -> PathBuf {
        self.path.join("nics").join(node)
    }

    pub(super) fn config(&self, daemon: &str) -> PathBuf {
        self.path.join(format!("{daemon}.toml"))
    }

    pub(super) fn log(&self, daemon: &str) -> PathBuf {
        self.path.join(format!("{daemon}.log"))
    }

    pub(super) fn pid(&self, daemon: &str) -> PathBuf {
        self.path.join(format!("{daemon}.pid"))
    }

    /// Writes a file that is nobody else's business.
    pub(super) fn write_private(path: &Path, text: &str) -> io::Result<()> {
        File::create(path)?.set_permissions(Permissions::from_mode(PRIVATE))?;
        fs::write(path, text)
    }

    /// Removes it, with all that is in it.
    pub(super) fn remove(self) -> io::Result<()> {
        fs::remove_dir_all(&self.path)
    }
}
