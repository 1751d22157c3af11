//! Executable files that tests write.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

/// Creates an executable file with this content. A process of its own writes it. A child process that another test forks could otherwise
/// inherit the descriptor, and until it has called exec the file is busy (ETXTBSY).
///
/// # Panics
/// Panics if the file cannot be written.
pub fn executable(directory: &Path, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let (path, source) = (directory.join(name), directory.join(format!("{name}.source")));
    fs::write(&source, content).unwrap_or_else(|error| panic!("{}: {error}", source.display()));
    let status = Command::new("install").args(["-m", "755"]).args([&source, &path]).status();
    assert!(status.as_ref().is_ok_and(ExitStatus::success), "cannot install {}: {status:?}", path.display());
    fs::remove_file(source).expect("it was just written");
    path
}
