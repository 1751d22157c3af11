//! Finds the program of the ranks, and detects early why it cannot run.
//!
//! `execve` reports several causes with one error number. This module distinguishes them, once per launch instead of once
//! per rank.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::libc;
use nix::unistd::{AccessFlags, eaccess};
use object::ReadCache;

use crate::elf;

/// Directories to search without `PATH`, as in `execvp(3)`.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Number of bytes that the kernel uses to recognise a format (`BINPRM_BUF_SIZE`).
const HEAD_LEN: usize = 256;

/// Executable file, checked when it was resolved: it existed and had a format that this machine can run. Clones share the
/// path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    path: Arc<CStr>,
}

/// Error of [`Program::resolve`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// The file does not exist.
    #[error("cannot find program {}", Sought { name, searched })]
    NotFound {
        /// The requested program.
        name: OsString,
        /// Directories of `PATH` that were searched; empty for a name with a `/`.
        searched: Vec<PathBuf>,
    },
    /// A directory on the path does not allow search.
    #[error("cannot reach program {}: {source}", path.display())]
    Unreachable {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The file's mode or its mount does not allow this user to execute it.
    #[error("no permission to execute {}", path.display())]
    NotExecutable {
        /// The file.
        path: PathBuf,
    },
    /// The name is a directory.
    #[error("{} is a directory, not a program", path.display())]
    IsDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// The ELF program is for another machine. Emulators registered with `binfmt_misc` are not considered.
    #[error("{} is a program for {found}; this machine is {ours}", path.display())]
    WrongArchitecture {
        /// The file.
        path: PathBuf,
        /// Architecture of the program, such as `aarch64`.
        found: String,
        /// The architecture of this machine.
        ours: &'static str,
    },
    /// The interpreter in the `#!` line of a script, or the dynamic loader of a program, does not exist or is not
    /// executable.
    #[error("{} needs {interpreter:?}, which does not exist or cannot be executed", path.display())]
    MissingInterpreter {
        /// The script or program.
        path: PathBuf,
        /// Path of the interpreter.
        interpreter: PathBuf,
    },
    /// The file is neither a program nor a script.
    #[error("{} is {found}, neither an ELF program nor a script that begins with `#!`", path.display())]
    UnknownFormat {
        /// The file.
        path: PathBuf,
        /// Description of the content.
        found: &'static str,
    },
}

/// Class of a [`ProgramError`], as in the two exit codes of a shell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProgramFailure {
    /// The program does not exist: a shell exits with 127.
    NotFound,
    /// The program exists but cannot run: a shell exits with 126.
    CannotExecute,
}

impl ProgramError {
    /// Class of the error: the program does not exist, or cannot run.
    pub fn failure(&self) -> ProgramFailure {
        match self {
            Self::NotFound { .. } => ProgramFailure::NotFound,
            _ => ProgramFailure::CannotExecute,
        }
    }
}

impl Program {
    /// Finds the program `name`: a path relative to `cwd` if it has a `/`, otherwise the first executable file of that
    /// name in the directories of `path_var`. `cwd` should be absolute.
    ///
    /// # Errors
    /// See the variants of [`ProgramError`]. A file that is not executable does not hide a later file in `path_var`. A
    /// file of a wrong format does, so that the user gets its error.
    pub fn resolve(name: &OsStr, path_var: Option<&OsStr>, cwd: &Path) -> Result<Self, ProgramError> {
        let path = if name.as_bytes().contains(&b'/') {
            let path = cwd.join(name);
            check_file(&path, name)?;
            path
        } else {
            search(name, path_var.unwrap_or(OsStr::new(DEFAULT_PATH)), cwd)?
        };
        check_format(&path, cwd)?;
        match CString::new(path.into_os_string().into_vec()) {
            Ok(path) => Ok(Self { path: path.into() }),
            Err(_) => Err(ProgramError::NotFound { name: name.to_owned(), searched: Vec::new() }),
        }
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(self.path.to_bytes()))
    }

    /// Path of the file, for `execve`.
    pub(crate) fn as_c_str(&self) -> &CStr {
        &self.path
    }
}

/// First executable file with the name `name` in `path_var`.
fn search(name: &OsStr, path_var: &OsStr, cwd: &Path) -> Result<PathBuf, ProgramError> {
    let mut refused = None;
    let mut searched = Vec::new();
    if !name.is_empty() {
        for directory in std::env::split_paths(path_var) {
            // An empty entry means the working directory; joining it gives the same.
            let path = cwd.join(&directory).join(name);
            match check_file(&path, name) {
                Ok(()) => return Ok(path),
                Err(ProgramError::NotFound { .. } | ProgramError::IsDirectory { .. }) => {}
                Err(error) => refused = refused.or(Some(error)),
            }
            searched.push(directory);
        }
    }
    Err(refused.unwrap_or(ProgramError::NotFound { name: name.to_owned(), searched }))
}

/// Checks that `path` is a regular file that this process may execute.
fn check_file(path: &Path, name: &OsStr) -> Result<(), ProgramError> {
    let path_buf = || path.to_owned();
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Err(ProgramError::NotFound { name: name.to_owned(), searched: Vec::new() });
        }
        Err(source) => return Err(ProgramError::Unreachable { path: path_buf(), source }),
    };
    if metadata.is_dir() {
        return Err(ProgramError::IsDirectory { path: path_buf() });
    }
    if !metadata.is_file() {
        return Err(ProgramError::UnknownFormat { path: path_buf(), found: "not a regular file" });
    }
    eaccess(path, AccessFlags::X_OK).map_err(|_| ProgramError::NotExecutable { path: path_buf() })
}

/// Checks that this machine can run the file's format. A file that is executable but not readable passes.
fn check_format(path: &Path, cwd: &Path) -> Result<(), ProgramError> {
    // Nonblocking, in case the file has become a FIFO meanwhile.
    let Ok(file) = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path) else {
        return Ok(());
    };
    let mut buffer = [0; HEAD_LEN];
    let Ok(len) = file.read_at(&mut buffer, 0) else {
        return Ok(());
    };
    let head = &buffer[..len];
    let unknown = |found| Err(ProgramError::UnknownFormat { path: path.to_owned(), found });
    if let Some(line) = head.strip_prefix(b"#!") {
        return match interpreter_of_script(line) {
            Some(interpreter) => check_interpreter(path, cwd.join(interpreter)),
            None => unknown("a script with a `#!` line that names no interpreter"),
        };
    }
    if head.is_empty() {
        return unknown("an empty file");
    }
    let content = ReadCache::new(file);
    match elf::Header::parse(&content) {
        Some(header) => check_elf(path, &header, cwd),
        None => unknown("a file of unknown format"),
    }
}

fn check_elf(path: &Path, header: &elf::Header<'_>, cwd: &Path) -> Result<(), ProgramError> {
    if !header.is_ours() {
        let found = header.architecture().into_owned();
        return Err(ProgramError::WrongArchitecture { path: path.to_owned(), found, ours: std::env::consts::ARCH });
    }
    if let Some(found) = header.not_a_program() {
        return Err(ProgramError::UnknownFormat { path: path.to_owned(), found });
    }
    match header.interpreter() {
        Some(loader) => check_interpreter(path, cwd.join(loader)),
        None => Ok(()),
    }
}

/// Interpreter in the text after `#!`; the kernel reads it up to the first blank or the end of the line.
fn interpreter_of_script(line: &[u8]) -> Option<&Path> {
    let line = line.split(|&byte| byte == b'\n' || byte == 0).next()?;
    let name = line.split(|&byte| byte == b' ' || byte == b'\t').find(|word| !word.is_empty())?;
    Some(Path::new(OsStr::from_bytes(name)))
}

fn check_interpreter(path: &Path, interpreter: PathBuf) -> Result<(), ProgramError> {
    match check_file(&interpreter, interpreter.as_os_str()) {
        Ok(()) => Ok(()),
        Err(_) => Err(ProgramError::MissingInterpreter { path: path.to_owned(), interpreter }),
    }
}

/// Text for a program that was not found, with the searched directories. It reports an empty name or an empty `PATH`.
struct Sought<'a> {
    name: &'a OsStr,
    searched: &'a [PathBuf],
}

impl std::fmt::Display for Sought<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.name.is_empty() {
            return f.write_str("\"\": its name is empty, as that of a variable that is not set");
        }
        write!(f, "{}", self.name.display())?;
        if let [only] = self.searched
            && only.as_os_str().is_empty()
        {
            return f.write_str(" in the working directory: PATH is empty");
        }
        for (index, directory) in self.searched.iter().enumerate() {
            write!(f, "{}{}", if index == 0 { " in " } else { ":" }, directory.display())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn write(directory: &Path, name: &str, mode: u32, content: &[u8]) {
        let path = directory.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn foreign_elf() -> Vec<u8> {
        let mut bytes = fs::read("/proc/self/exe").unwrap()[..64].to_vec();
        bytes[18] = if cfg!(target_arch = "aarch64") { 62 } else { 183 };
        bytes
    }

    #[test]
    fn the_first_executable_file_in_path_wins() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "a/tool", 0o644, b"#!/bin/sh\n");
        write(root.path(), "b/tool", 0o755, b"#!/bin/sh\n");
        fs::create_dir(root.path().join("tool")).unwrap();
        let resolve = |name: &str, path: &str| Program::resolve(name.as_ref(), Some(path.as_ref()), root.path());
        // Skips a directory, a file without permission and a missing directory; relative entries start at cwd.
        assert_eq!(resolve("tool", ":none:a:b").unwrap().path(), root.path().join("b/tool"));
        assert_eq!(resolve("b/tool", "").unwrap().path(), root.path().join("b/tool"));
        assert!(matches!(resolve("tool", "a"), Err(ProgramError::NotExecutable { .. })));
        let error = resolve("tool", "none:").unwrap_err();
        assert_eq!(error.to_string(), "cannot find program tool in none:");
        assert_eq!(error.failure(), ProgramFailure::NotFound);
        let unnamed = resolve("", "b").unwrap_err().to_string();
        assert_eq!(unnamed, "cannot find program \"\": its name is empty, as that of a variable that is not set");
        let nowhere = resolve("none", "").unwrap_err().to_string();
        assert_eq!(nowhere, "cannot find program none in the working directory: PATH is empty");
        assert!(Program::resolve("sh".as_ref(), None, root.path()).is_ok());
    }

    #[test]
    fn each_obstacle_has_its_own_words() {
        let root = tempfile::tempdir().unwrap();
        let check = |name: &str, mode: u32, content: &[u8], expected: &str, failure: ProgramFailure| {
            write(root.path(), name, mode, content);
            let name = format!("./{name}");
            let error = Program::resolve(name.as_ref(), None, root.path()).unwrap_err();
            let text = error.to_string().replace(&format!("{}/", root.path().display()), "");
            assert_eq!(text, expected);
            assert_eq!(error.failure(), failure);
        };
        let cannot = ProgramFailure::CannotExecute;
        let kinds = "neither an ELF program nor a script that begins with `#!`";
        let ours = std::env::consts::ARCH;
        let theirs = if ours == "aarch64" { "x86_64" } else { "aarch64" };
        check("plain", 0o644, b"#!/bin/sh", "no permission to execute ./plain", cannot);
        check("text", 0o755, b"echo hi", &format!("./text is a file of unknown format, {kinds}"), cannot);
        check("empty", 0o755, b"", &format!("./empty is an empty file, {kinds}"), cannot);
        let crlf = r#"./crlf needs "/bin/sh\r", which does not exist or cannot be executed"#;
        check("crlf", 0o755, b"#! /bin/sh\r\n", crlf, cannot);
        let blank = format!("./blank is a script with a `#!` line that names no interpreter, {kinds}");
        check("blank", 0o755, b"#! \n/bin/sh", &blank, cannot);
        let foreign = format!("./foreign is a program for {theirs}; this machine is {ours}");
        check("foreign", 0o755, &foreign_elf(), &foreign, cannot);
        let missing = Program::resolve("./no/such".as_ref(), None, root.path()).unwrap_err();
        assert_eq!(missing.to_string(), "cannot find program ./no/such");
        let directory = Program::resolve("./".as_ref(), None, root.path()).unwrap_err();
        assert!(matches!(directory, ProgramError::IsDirectory { .. }));
    }

    #[test]
    fn a_name_with_a_nul_byte_is_an_error_like_any_other() {
        assert!(Program::resolve("a\0b".as_ref(), None, Path::new("/")).is_err());
        assert!(Program::resolve("/bin/sh\0".as_ref(), None, Path::new("/")).is_err());
    }
}
