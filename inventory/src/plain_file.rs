//! Files that a user names. They are read only if they are regular and not too large. A read therefore never blocks on a FIFO without
//! a writer, and never reads a device indefinitely.

use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

/// Error for a file that is not read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlainFileError {
    /// The file is not readable, or its content is not text.
    #[error("cannot read {}: {source}", path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The file is not a regular file.
    #[error("{} is {kind}; only regular files are read", path.display())]
    Kind {
        /// The file.
        path: PathBuf,
        /// Kind of the file, as text.
        kind: &'static str,
    },
    /// The file is larger than the limit.
    #[error("{} has {bytes} bytes; at most {bytes_max} are read", path.display())]
    Large {
        /// The file.
        path: PathBuf,
        /// Length of the file, or of the part that was read.
        bytes: u64,
        /// The limit.
        bytes_max: u64,
    },
}

/// Reads the text of a regular file, or of the target of a symbolic link, of at most `bytes_max` bytes.
///
/// # Errors
/// Fails at once for a file that is not regular or is too large.
pub fn read_text(path: &Path, bytes_max: u64) -> Result<String, PlainFileError> {
    let failed = |source| PlainFileError::System { path: path.to_owned(), source };
    // Checked before the open: opening a device may have an effect, and a socket cannot be opened.
    check_kind(path, &fs::metadata(path).map_err(failed)?)?;
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    check_kind(path, &metadata)?;
    let content = read(path, file, &metadata, bytes_max)?;
    String::from_utf8(content).map_err(|error| failed(io::Error::new(io::ErrorKind::InvalidData, error)))
}

/// Reads the content of an open file, of at most `bytes_max` bytes.
pub(crate) fn read(path: &Path, file: File, metadata: &Metadata, bytes_max: u64) -> Result<Vec<u8>, PlainFileError> {
    let large = |bytes| PlainFileError::Large { path: path.to_owned(), bytes, bytes_max };
    if metadata.len() > bytes_max {
        return Err(large(metadata.len()));
    }
    // The additional byte detects the end without a reallocation.
    let mut content = Vec::with_capacity(metadata.len() as usize + 1);
    let read = file.take(bytes_max + 1).read_to_end(&mut content);
    read.map_err(|source| PlainFileError::System { path: path.to_owned(), source })?;
    // The file may have grown, and files of the kernel report no length.
    if content.len() as u64 > bytes_max { Err(large(content.len() as u64)) } else { Ok(content) }
}

/// Fails for a file that is not regular.
pub(crate) fn check_kind(path: &Path, metadata: &Metadata) -> Result<(), PlainFileError> {
    let kind = metadata.file_type();
    if kind.is_file() { Ok(()) } else { Err(PlainFileError::Kind { path: path.to_owned(), kind: words(kind) }) }
}

/// Kind of a file, for a sentence.
pub(crate) fn words(kind: FileType) -> &'static str {
    match kind {
        _ if kind.is_file() => "a regular file",
        _ if kind.is_dir() => "a directory",
        _ if kind.is_symlink() => "a symbolic link",
        _ if kind.is_fifo() => "a FIFO",
        _ if kind.is_socket() => "a socket",
        _ => "a device",
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn only_regular_files_of_some_size_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let says = |path: &Path, expected: &str| {
            let error = read_text(path, 16).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{}{expected}", path.display())), "{error}");
        };
        fs::write(at("text"), "0123456789abcdef").unwrap();
        std::os::unix::fs::symlink("text", at("link")).unwrap();
        assert_eq!(read_text(&at("link"), 16).unwrap(), "0123456789abcdef");
        says(directory.path(), " is a directory; only regular files are read");
        mkfifo(&at("fifo"), Mode::S_IRWXU).unwrap();
        says(&at("fifo"), " is a FIFO; only regular files are read");
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        says(&at("socket"), " is a socket; ");
        says(Path::new("/dev/zero"), " is a device; ");
        File::create(at("large")).unwrap().set_len(1 << 31).unwrap();
        says(&at("large"), " has 2147483648 bytes; at most 16 are read");
        // The kernel reports the length 0 for this file.
        says(Path::new("/proc/self/status"), " has 17 bytes; at most 16 are read");
        fs::write(at("bytes"), b"\xff").unwrap();
        let error = read_text(&at("bytes"), 16).unwrap_err().to_string();
        assert!(error.starts_with("cannot read ") && error.contains("utf-8"), "{error}");
        assert!(matches!(read_text(&at("absent"), 16), Err(PlainFileError::System { .. })));
    }
}
