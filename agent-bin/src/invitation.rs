//! Invitations: start of an agent on a node where no program can be started remotely, such as a pod of Kubernetes.
//!
//! ```text
//! launcher ──membership──> lattice-agent invite HOST ══ sealed stream ══> lattice-agent listen, on HOST
//!                             │ "HOST\n", then its standard input            └─ starts: lattice-agent join --node HOST
//!                             └ output of the agent, to standard error
//! ```
//!
//! Both ends read the same key from a file. The stream replaces the agent's standard input: it carries the membership, and its end makes the
//! agent leave.

mod invite;
mod listen;

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bytes::BytesMut;
use clap::Args;
use pmi_transport::sealed_stream::{SealedError, SealedReader, SharedKey, ShortKeyError};

pub(crate) use self::invite::InviteArgs;
pub(crate) use self::listen::ListenArgs;

/// Port of invitations. It is fixed, because each listening node has its own network.
const PORT: u16 = 50_053;
/// Maximum size of a key file, in bytes.
const KEY_MAX: u64 = 4096;
/// Maximum length of the first line of a stream, in bytes.
const LINE_MAX: usize = 1024;
/// Answer of a node that starts an agent.
const WELCOME: &str = "welcome";
/// Permissions of users that are neither the owner of a file nor in its group.
const OTHERS: u32 = 0o007;

/// File with the key of invitations.
#[derive(Clone, Debug, Args)]
pub(crate) struct KeyArgs {
    /// File with the key that both ends share, at least 32 bytes; only its owner and group may have access
    #[arg(long, value_name = "FILE", env = "LATTICE_JOIN_KEY_FILE", default_value = "/etc/lattice/join/key")]
    key: PathBuf,
}

/// Reason why a key is not usable.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyError {
    #[error("cannot read the key of invitations {}: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error("{}: {error}", path.display())]
    Short { path: PathBuf, error: ShortKeyError },
    #[error(
        "{} can be used by others (mode {mode:03o}), so that it is no secret\ntry: chmod o= on it, or defaultMode: 0440 where a pod mounts it",
        path.display()
    )]
    Open { path: PathBuf, mode: u32 },
}

impl KeyArgs {
    /// Reads the key.
    ///
    /// # Errors
    /// Fails if the file cannot be read, has no key, or is accessible to other users.
    fn read(&self) -> Result<SharedKey, KeyError> {
        let path = || self.key.clone();
        let (mode, text) = contents(&self.key).map_err(|error| KeyError::Read { path: path(), error })?;
        if mode & OTHERS != 0 {
            return Err(KeyError::Open { path: path(), mode: mode & 0o777 });
        }
        SharedKey::of_text(&text).map_err(|error| KeyError::Short { path: path(), error })
    }
}

fn contents(path: &Path) -> io::Result<(u32, Vec<u8>)> {
    let file = File::open(path)?;
    let mode = file.metadata()?.mode();
    let mut text = Vec::new();
    file.take(KEY_MAX).read_to_end(&mut text)?;
    Ok((mode, text))
}

/// The first line without its end, and the bytes that arrived with it. `None` if the line is too long, not text, or cut off.
async fn first_line(reader: &mut SealedReader) -> Result<Option<(String, BytesMut)>, SealedError> {
    let mut bytes = BytesMut::new();
    loop {
        let piece = reader.next().await?;
        bytes.extend_from_slice(&piece);
        if let Some(end) = bytes.iter().take(LINE_MAX).position(|&byte| byte == b'\n') {
            let line = bytes.split_to(end + 1);
            return Ok(String::from_utf8(line[..end].to_vec()).ok().map(|line| (line, bytes)));
        }
        if piece.is_empty() || bytes.len() >= LINE_MAX {
            return Ok(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_is_read_from_a_file_that_others_cannot_use() {
        let directory = tempfile::tempdir().unwrap();
        let key = directory.path().join("key");
        let read = || KeyArgs { key: key.clone() }.read().map_err(|error| error.to_string());
        assert!(read().unwrap_err().starts_with("cannot read the key of invitations "));
        fs::write(&key, "0123456789abcdef0123456789abcdef\n").unwrap();
        for (mode, is_good) in [(0o600, true), (0o440, true), (0o644, false), (0o602, false)] {
            fs::set_permissions(&key, Permissions::from_mode(mode)).unwrap();
            assert_eq!(read().is_ok(), is_good, "{mode:o}");
        }
        fs::set_permissions(&key, Permissions::from_mode(0o644)).unwrap();
        assert!(read().unwrap_err().contains("can be used by others (mode 644)"));
        fs::write(&key, "short").unwrap();
        fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
        assert!(read().unwrap_err().contains("the key has 5 bytes; it takes 32 at least"));
    }
}
