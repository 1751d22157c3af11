//! Shared libraries of a program, as its own loader finds them on this machine: `ld.so --list PROGRAM` (ld.so(8)), with the same result as
//! ldd(1).

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, ReadCache};

/// The shared libraries of a program cannot be determined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SharedLibrariesError {
    /// The loader cannot be run.
    #[error("--send-libs: cannot run {}, the loader of {}: {source}", loader.display(), program.display())]
    Loader {
        /// The loader.
        loader: PathBuf,
        /// The program.
        program: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The loader does not list the libraries.
    #[error("--send-libs: {} does not list the libraries of {}: {said}", loader.display(), program.display())]
    Refused {
        /// The loader.
        loader: PathBuf,
        /// The program.
        program: PathBuf,
        /// Its message.
        said: String,
    },
}

/// A library that a program needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SharedLibrary {
    /// Name in the search of the loader.
    pub(super) name: String,
    /// Path of the file; `None` if the loader does not find it.
    pub(super) path: Option<PathBuf>,
}

/// Libraries that `program` needs, also indirectly. The loader searches `library_path` first. A program without a loader, such as a script,
/// needs none.
pub(super) fn needed_by(
    program: &Path,
    library_path: Option<&OsStr>,
) -> Result<Vec<SharedLibrary>, SharedLibrariesError> {
    let Some(loader) = loader_of(program) else { return Ok(Vec::new()) };
    let mut list = Command::new(&loader);
    list.arg("--list").arg(program).env("LC_ALL", "C").env_remove("LD_LIBRARY_PATH").stdin(Stdio::null());
    list.envs(library_path.map(|path| ("LD_LIBRARY_PATH", path)));
    let said = match list.output() {
        Ok(said) => said,
        Err(source) => return Err(SharedLibrariesError::Loader { loader, program: program.to_owned(), source }),
    };
    let lines = String::from_utf8_lossy(&said.stdout);
    if lines.is_empty() {
        let said = String::from_utf8_lossy(&said.stderr).trim().to_owned();
        return Err(SharedLibrariesError::Refused { loader, program: program.to_owned(), said });
    }
    Ok(lines.lines().filter_map(library).collect())
}

/// Path of the loader in the header of a program.
fn loader_of(program: &Path) -> Option<PathBuf> {
    let file = ReadCache::new(File::open(program).ok()?);
    let header = object::elf::FileHeader64::<Endianness>::parse(&file).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, &file).ok()?;
    let path = segments.iter().find_map(|segment| segment.interpreter(endian, &file).ok()?)?;
    Some(OsString::from_vec(path.to_vec()).into())
}

/// Parses a line such as `libm.so.6 => /lib/libm.so.6 (0x00007f0000000000)`. A line without an arrow is the loader, the library of the kernel,
/// or a library that the program names by its path. Files in a directory cannot replace these.
fn library(line: &str) -> Option<SharedLibrary> {
    let (name, found) = line.trim().split_once(" => ").filter(|(name, _)| !name.contains('/'))?;
    let path = found.rsplit_once(" (0x").map(|(path, _)| path.into());
    Some(SharedLibrary { name: name.to_owned(), path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_loader_names_a_library_and_its_file() {
        let check = |line: &str, expected: Option<(&str, Option<&str>)>| {
            let expected =
                expected.map(|(name, path)| SharedLibrary { name: name.to_owned(), path: path.map(PathBuf::from) });
            assert_eq!(library(line), expected, "{line}");
        };
        check("\tlibm.so.6 => /lib/x/libm.so.6 (0x00007f1)", Some(("libm.so.6", Some("/lib/x/libm.so.6"))));
        check("\tlibx.so => /a dir/(b)/libx.so (0x7f)", Some(("libx.so", Some("/a dir/(b)/libx.so"))));
        check("\tlibx.so => not found", Some(("libx.so", None)));
        check("\tlinux-vdso.so.1 (0x00007ffd)", None);
        check("\t/lib64/ld-linux-x86-64.so.2 (0x00007f1)", None);
        check("\t/opt/liby.so => /opt/liby.so (0x00007f1)", None);
    }

    #[test]
    fn a_program_needs_what_its_loader_says_and_a_script_needs_nothing() {
        let own = std::env::current_exe().unwrap();
        let needed = needed_by(&own, None).unwrap();
        let libc = needed.iter().find(|library| library.name.starts_with("libc.so")).unwrap();
        assert!(libc.path.as_ref().unwrap().is_file(), "{needed:?}");
        let script = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(script.path(), "#!/bin/sh\n").unwrap();
        assert_eq!(needed_by(script.path(), None).unwrap(), []);
    }
}
