//! Root directory of the `/sys` and `/proc` to read: of this machine, or of a captured tree.
//!
//! The files are short lines of text. A missing file is a valid result; any other failure is an error.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::cpus::{CpuSet, CpuSetParseError};

/// Limit on the bytes read from one file.
const FILE_MAX: u64 = 64 * 1024;

/// Limit on the entries read from one directory.
const ENTRIES_MAX: usize = 65_536;

/// Directory that contains `sys` and `proc`.
#[derive(Clone, Debug)]
pub struct Root(PathBuf);

impl Default for Root {
    /// Root of this machine.
    fn default() -> Self {
        Self("/".into())
    }
}

/// Error of reading a file of the kernel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file exists, or must exist, and is not readable.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The file has no valid list of CPUs.
    #[error("cannot read {}: {source}", path.display())]
    List {
        /// The file.
        path: PathBuf,
        /// Error in the list.
        source: CpuSetParseError,
    },
}

impl Root {
    /// Root of a tree in another directory.
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self(directory.into())
    }

    /// True if this is the root of the machine on which this process runs.
    pub(crate) fn is_this_machine(&self) -> bool {
        self.0 == Path::new("/")
    }

    /// Path of a file below the root.
    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.0.join(file)
    }

    /// Text of a file without surrounding white space; `None` if there is no such file, or its device does not respond.
    ///
    /// # Errors
    /// Fails if the file is not readable.
    pub(crate) fn text(&self, file: &str) -> Result<Option<String>, ReadError> {
        let path = self.path(file);
        let text = if file.starts_with("sys/") { read_at_once(&path) } else { read(&path, FILE_MAX) };
        match text {
            Ok(text) => Ok(Some(text.trim().to_owned())),
            Err(error) if says_nothing(&error) => Ok(None),
            Err(source) => Err(ReadError::Read { path, source }),
        }
    }

    /// Text of a file; `None` if the file is empty or not readable.
    pub(crate) fn word(&self, file: &str) -> Option<String> {
        self.text(file).ok().flatten().filter(|text| !text.is_empty())
    }

    /// First 4 KiB of a file that the kernel generates on each read; empty if it is not readable.
    pub(crate) fn head(&self, file: &str) -> String {
        read(&self.path(file), 4096).unwrap_or_default()
    }

    /// Number at the start of a file, such as 64 in `64K`; `None` if there is none.
    pub(crate) fn number<T: FromStr>(&self, file: &str) -> Option<T> {
        let text = self.word(file)?;
        let end = text.char_indices().find(|&(at, c)| !(c.is_ascii_digit() || (at == 0 && c == '-')));
        text[..end.map_or(text.len(), |(at, _)| at)].parse().ok()
    }

    /// Number in a file with a text such as `0x10de`.
    pub(crate) fn hex(&self, file: &str) -> Option<u32> {
        let text = self.word(file)?;
        u32::from_str_radix(text.strip_prefix("0x").unwrap_or(&text), 16).ok()
    }

    /// List in a file; `None` if there is no such file.
    ///
    /// # Errors
    /// Fails if the file is not readable, or has no valid list.
    pub(crate) fn list(&self, file: &str) -> Result<Option<CpuSet>, ReadError> {
        let Some(text) = self.text(file)? else { return Ok(None) };
        text.parse().map(Some).map_err(|source| ReadError::List { path: self.path(file), source })
    }

    /// List in a file that every kernel has.
    ///
    /// # Errors
    /// Fails if there is no such file, or it is not readable, or it has no valid list.
    pub(crate) fn required_list(&self, file: &str) -> Result<CpuSet, ReadError> {
        let missing = || ReadError::Read { path: self.path(file), source: io::ErrorKind::NotFound.into() };
        self.list(file)?.ok_or_else(missing)
    }

    /// Names in a directory, sorted; empty if there is no such directory.
    ///
    /// # Errors
    /// Fails if the directory is not readable.
    pub(crate) fn names(&self, directory: &str) -> Result<Vec<String>, ReadError> {
        let path = self.path(directory);
        let failed = |source| ReadError::Read { path: path.clone(), source };
        let entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if says_nothing(&error) => return Ok(Vec::new()),
            Err(source) => return Err(failed(source)),
        };
        let mut names = Vec::new();
        for entry in entries.take(ENTRIES_MAX) {
            names.extend(entry.map_err(failed)?.file_name().into_string());
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Numbers of the directory entries with a name of `prefix` and a number, in ascending order.
    ///
    /// # Errors
    /// Fails if the directory is not readable.
    pub(crate) fn numbered<T: FromStr + Ord>(&self, directory: &str, prefix: &str) -> Result<Vec<T>, ReadError> {
        let names = self.names(directory)?;
        let mut numbers: Vec<T> = names.iter().filter_map(|name| name.strip_prefix(prefix)?.parse().ok()).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Target of a symbolic link, unresolved; `None` if there is no such link.
    pub(crate) fn link(&self, file: &str) -> Option<String> {
        fs::read_link(self.path(file)).ok()?.into_os_string().into_string().ok()
    }
}

/// Buffer size in bytes, larger than most files of `/sys`. Otherwise the reads would have 32 bytes, 32, 64, ...
const ROOM: usize = 4096;

fn read(path: &Path, max: u64) -> io::Result<String> {
    let mut bytes = Vec::with_capacity(ROOM);
    File::open(path)?.take(max).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads a file of `/sys`. The first call returns the whole file if the buffer is large enough (Linux, `fs/sysfs/file.c`).
fn read_at_once(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut bytes = vec![0; ROOM];
    let length = file.read(&mut bytes)?;
    bytes.truncate(length);
    if length == ROOM {
        file.take(FILE_MAX - ROOM as u64).read_to_end(&mut bytes)?;
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// True for errors of drivers for a device that is absent, asleep or unplugged.
fn says_nothing(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, NotADirectory, NotFound};
    const ENXIO: i32 = 6;
    const ENODEV: i32 = 19;
    matches!(error.kind(), NotFound | NotADirectory | InvalidInput)
        || matches!(error.raw_os_error(), Some(ENXIO | ENODEV))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_as_drivers_write_them() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
        write("size", "49152K\n");
        write("node", "-1\n");
        write("vendor", "0x10de\n");
        write("none", "\n");
        write("cpu10", "");
        write("cpu9", "");
        write("cpufreq", "");
        let root = Root::at(directory.path());
        assert_eq!(root.number::<u64>("size"), Some(49152));
        assert_eq!(root.number::<i32>("node"), Some(-1));
        assert_eq!(root.number::<u32>("node"), None);
        assert_eq!(root.hex("vendor"), Some(0x10de));
        assert_eq!((root.word("none"), root.word("absent")), (None, None));
        assert_eq!(root.numbered::<u16>("", "cpu").unwrap(), [9, 10]);
        assert!(root.required_list("absent").unwrap_err().to_string().contains("absent: "));
        let error = root.list("size").unwrap_err().to_string();
        assert!(error.ends_with(r#"size: "49152K" is not a CPU number or a range such as 4-7"#), "{error}");
    }
}
