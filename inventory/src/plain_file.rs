//! Files that somebody names, which are read only if they are plain and not too large: nobody waits for a FIFO that nobody writes, or
//! reads a device for ever.

use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

/// A file that is not read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlainFileError {
    /// The system does not let it be read, or it is no text.
    #[error("cannot read {}: {source}", path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// It is no file with a content of its own.
    #[error("{} is {kind}; only regular files are read", path.display())]
    Kind {
        /// The file.
        path: PathBuf,
        /// What it is, in words.
        kind: &'static str,
    },
    /// There is more in it than is read.
    #[error("{} has {bytes} bytes; at most {bytes_max} are read", path.display())]
    Large {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
        /// The most that is read.
        bytes_max: u64,
    },
}

/// Reads the text of a regular file, or of one that a symbolic link names, with at most so many bytes.
///
/// # Errors
/// Fails at once for what is no regular file, and for one that is larger.
pub fn read_text(path: &Path, bytes_max: u64) -> Result<String, PlainFileError> {
    let failed = |source| PlainFileError::System { path: path.to_owned(), source };
    // A device may do something when it is opened, and a socket cannot be.
    check_kind(path, &fs::metadata(path).map_err(failed)?)?;
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    check_kind(path, &metadata)?;
    let content = read(path, file, &metadata, bytes_max)?;
    String::from_utf8(content).map_err(|error| failed(io::Error::new(io::ErrorKind::InvalidData, error)))
}

/// Reads what is in an opened file, of at most so many bytes.
pub(crate) fn read(path: &Path, file: File, metadata: &Metadata, bytes_max: u64) -> Result<Vec<u8>, PlainFileError> {
    let large = |bytes| PlainFileError::Large { path: path.to_owned(), bytes, bytes_max };
    if metadata.len() > bytes_max {
        return Err(large(metadata.len()));
    }
    // One byte more, so that the end is seen without more room.
    let mut content = Vec::with_capacity(metadata.len() as usize + 1);
    let read = file.take(bytes_max + 1).read_to_end(&mut content);
    read.map_err(|source| PlainFileError::System { path: path.to_owned(), source })?;
    // It may have grown, and a file of the kernel does not say how long it is.
    if content.len() as u64 > bytes_max { Err(large(content.len() as u64)) } else { Ok(content) }
}

/// Refuses what is no regular file.
pub(crate) fn check_kind(path: &Path, metadata: &Metadata) -> Result<(), PlainFileError> {
    let kind = metadata.file_type();
    if kind.is_file() { Ok(()) } else { Err(PlainFileError::Kind { path: path.to_owned(), kind: words(kind) }) }
}

/// What a file is, as a sentence says it.
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
        // Its length is 0, as the kernel says.
        says(Path::new("/proc/self/status"), " has 17 bytes; at most 16 are read");
        fs::write(at("bytes"), b"\xff").unwrap();
        let error = read_text(&at("bytes"), 16).unwrap_err().to_string();
        assert!(error.starts_with("cannot read ") && error.contains("utf-8"), "{error}");
        assert!(matches!(read_text(&at("absent"), 16), Err(PlainFileError::System { .. })));
    }
}
