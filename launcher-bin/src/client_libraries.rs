//! `libpmi.so.0` and `libpmi2.so.0` of this Lattice: their paths, their contents, and the variables by which programs find them.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use object::elf::FileHeader64;
use object::read::elf::ElfFile;
use object::{Endianness, Object, ObjectSection, ObjectSymbol};

/// PMI-1 as a C library.
const LIBPMI: Name = Name { installed: "libpmi.so.0", built: "liblattice_pmi.so" };
/// PMI-2 as a C library.
const LIBPMI2: Name = Name { installed: "libpmi2.so.0", built: "liblattice_pmi2.so" };

/// File names of a client library.
#[derive(Clone, Copy, Debug)]
struct Name {
    /// Name for programs, in `lib/lattice` next to the directory of this program.
    installed: &'static str,
    /// Name in the build directory of this program.
    built: &'static str,
}

/// Failure to find a client library, or to read it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientLibraryError {
    /// The library is not installed.
    #[error("there is no {}\ntry: cargo xtask client-libraries PREFIX in a clone of the source, which installs it", installed.display())]
    Missing {
        /// Path of the missing library.
        installed: PathBuf,
    },
    /// The path of this program cannot be determined.
    #[error("cannot find the path of this program")]
    OwnPlace(#[source] io::Error),
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The file is not a client library of Lattice.
    #[error("{} is no library of Lattice: {reason}", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Reason, as text.
        reason: String,
    },
}

/// A client library on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientLibrary {
    pub(crate) path: PathBuf,
    pub(crate) version: String,
    /// Functions, in alphabetical order.
    pub(crate) functions: Vec<String>,
}

/// Both client libraries.
///
/// # Errors
/// Fails if a library is missing, or is not a library of Lattice.
pub(crate) fn both() -> Result<[ClientLibrary; 2], ClientLibraryError> {
    let executable = env::current_exe().map_err(ClientLibraryError::OwnPlace)?;
    Ok([read(find(LIBPMI, &executable)?)?, read(find(LIBPMI2, &executable)?)?])
}

/// Variables by which programs find the client libraries. A preloaded library satisfies all later requests for `libpmi.so.0` or `libpmi2.so.0`.
/// Some MPI libraries take a path. `preloaded` is the current list of preloaded libraries.
///
/// # Errors
/// Fails if a library is missing.
pub(crate) fn variables(preloaded: Option<OsString>) -> Result<Vec<(OsString, OsString)>, ClientLibraryError> {
    let executable = env::current_exe().map_err(ClientLibraryError::OwnPlace)?;
    let (pmi, pmi2) = (find(LIBPMI, &executable)?, find(LIBPMI2, &executable)?);
    let mut preload = pmi.clone().into_os_string();
    for path in [Some(pmi2.clone().into_os_string()), preloaded.filter(|other| !other.is_empty())].into_iter().flatten()
    {
        preload.push(":");
        preload.push(path);
    }
    Ok(vec![
        ("LD_PRELOAD".into(), preload),
        ("I_MPI_PMI_LIBRARY".into(), pmi2.into()),
        ("I_MPI_PMI".into(), "pmi2".into()),
        ("FLUX_PMI_LIBRARY_PATH".into(), pmi.into()),
    ])
}

/// Path of a library: installed with the program `executable`, or built with it.
fn find(name: Name, executable: &Path) -> Result<PathBuf, ClientLibraryError> {
    let directory = executable.parent().unwrap_or(Path::new("/"));
    let installed = directory.parent().unwrap_or(directory).join("lib/lattice").join(name.installed);
    let built = directory.join(name.built);
    let found = [&installed, &built].into_iter().find(|path| path.is_file()).cloned();
    found.ok_or(ClientLibraryError::Missing { installed })
}

fn read(path: PathBuf) -> Result<ClientLibrary, ClientLibraryError> {
    let data = fs::read(&path).map_err(|source| ClientLibraryError::Read { path: path.clone(), source })?;
    let foreign = |reason: String| ClientLibraryError::Foreign { path: path.clone(), reason };
    let file = ElfFile::<FileHeader64<Endianness>>::parse(&*data).map_err(|error| foreign(error.to_string()))?;
    let version = file.section_by_name(".lattice.version").and_then(|section| section.data().ok());
    let version = version.and_then(|version| str::from_utf8(version).ok());
    let version = version.ok_or_else(|| foreign("it has no version".to_owned()))?.to_owned();
    let exported = file.dynamic_symbols().filter(|symbol| symbol.is_definition() && symbol.is_global());
    let mut functions: Vec<_> = exported.filter_map(|symbol| symbol.name().ok().map(str::to_owned)).collect();
    functions.sort_unstable();
    Ok(ClientLibrary { path, version, functions })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installed_library_goes_before_one_that_was_built() {
        let prefix = tempfile::tempdir().unwrap();
        let (program, installed) = (prefix.path().join("bin/lattice"), prefix.path().join("lib/lattice/libpmi.so.0"));
        let built = prefix.path().join("bin/liblattice_pmi.so");
        let error = find(LIBPMI, &program).unwrap_err().to_string();
        assert_eq!(
            error,
            format!(
                "there is no {}\ntry: cargo xtask client-libraries PREFIX in a clone of the source, which installs it",
                installed.display()
            )
        );
        for path in [&built, &installed] {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
            assert_eq!(&find(LIBPMI, &program).unwrap(), path);
        }
        let error = read(installed).unwrap_err();
        assert!(matches!(error, ClientLibraryError::Foreign { .. }), "{error:?}");
    }
}
