//! Files that a user names on the command line, read whole and never beyond a bound: a device has no end.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Reads the text of a file of at most `max` bytes.
///
/// # Errors
/// Returns the system's error; one of [`io::ErrorKind::FileTooLarge`] for a longer file, and of [`io::ErrorKind::InvalidData`] for bytes
/// that are no text.
pub(crate) fn text(path: &Path, max: u64) -> io::Result<String> {
    let bytes = bytes(path, max)?;
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Reads a file of at most `max` bytes.
///
/// # Errors
/// As [`text`].
pub(crate) fn bytes(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {max} bytes")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

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
