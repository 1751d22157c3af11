//! The MPI libraries that programs of this machine find, each with the PMI protocol that it uses, and the MPI commands in `PATH`.
//!
//! A library is looked for next to each MPI command in `PATH`, in `LD_LIBRARY_PATH`, and in the directories of the system.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use lattice_console::environment::{self, Environment};
use lattice_session::event::{MpiFamily, MpiLibrary};
use lattice_session::library;

use super::check::{Check, Subject};
use super::programs::in_path;

/// MPI commands.
const COMMANDS: [&str; 2] = ["mpiexec", "mpicc"];
/// Directories of libraries, relative to the parent of the directory of a command.
const NEXT_TO_COMMANDS: [&str; 3] = ["lib", "lib64", "lib/release"];
/// Directories of libraries of the system. Debian has those of an architecture in directories below `/usr/lib`.
const OF_SYSTEM: [&str; 4] = ["/usr/lib64", "/usr/lib", "/usr/local/lib", "/usr/local/lib64"];

pub(super) fn checks(subject: &Subject) -> Vec<Check> {
    let environment = subject.environment();
    let found = libraries(directories(environment));
    let mut checks: Vec<Check> = found.into_iter().map(|(file, library)| of_library(&file, &library)).collect();
    if checks.is_empty() {
        let action = "load the module of an MPI library, if programs need one: module load; \
                      a library that a program names by path is found without";
        checks.push(Check::warning(
            "MPI library",
            "none in PATH, LD_LIBRARY_PATH and the directories of the system",
            action,
        ));
    }
    checks.extend(COMMANDS.map(|name| of_command(name, environment)));
    checks
}

fn of_library(file: &Path, library: &MpiLibrary) -> Check {
    let (file, name) = (file.display(), &library.name);
    let detail = |protocol: &str| format!("{name}: {file} uses {protocol}");
    match library.family {
        MpiFamily::Vendor => {
            let action = "start its programs by the launcher of the vendor, or build them with an MPICH";
            Check::warning("MPI library", detail("a protocol of its vendor"), action)
        }
        MpiFamily::Pmix => Check::ok("MPI library", detail("PMIx")),
        _ => Check::ok("MPI library", detail(pmi_of(Path::new(&library.file)))),
    }
}

/// Protocol of a library that has PMI itself, or needs a library of PMI.
fn pmi_of(file: &Path) -> &'static str {
    match library::needed_by(file) {
        Some(needed) if needed.file.starts_with("libpmi2.so") => "PMI-2, by libpmi2.so.0",
        Some(needed) if needed.file.starts_with("libpmi.so") => "PMI-1, by libpmi.so.0",
        _ => "PMI-1, or PMI-2 if its variables select it",
    }
}

fn of_command(name: &str, environment: &Environment) -> Check {
    match in_path(name, environment).first() {
        Some(file) => match file.canonicalize() {
            Ok(target) if target != *file => Check::ok(name, format!("{} -> {}", file.display(), target.display())),
            _ => Check::ok(name, file.display().to_string()),
        },
        None => Check::ok(name, "none in PATH; programs start without it"),
    }
}

/// Directories that can have MPI libraries, in order of preference.
fn directories(environment: &Environment) -> Vec<PathBuf> {
    let mut directories = Vec::new();
    for command in COMMANDS.iter().flat_map(|name| in_path(name, environment)) {
        let target = command.canonicalize().ok();
        for file in [Some(command), target].into_iter().flatten() {
            let prefix = file.parent().and_then(Path::parent).map(Path::to_owned).unwrap_or_default();
            directories.extend(NEXT_TO_COMMANDS.map(|directory| prefix.join(directory)));
        }
    }
    if let Some(path) = environment::non_empty(environment, "LD_LIBRARY_PATH") {
        directories.extend(std::env::split_paths(path));
    }
    directories.extend(OF_SYSTEM.map(PathBuf::from));
    let of_architectures = entries(Path::new("/usr/lib")).filter(|path| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.ends_with("-linux-gnu"))
    });
    directories.extend(of_architectures);
    directories
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// MPI libraries in the directories, each once: the key is the path of the file behind all links.
fn libraries(directories: Vec<PathBuf>) -> BTreeMap<PathBuf, MpiLibrary> {
    let mut found: BTreeMap<PathBuf, MpiLibrary> = BTreeMap::new();
    for directory in directories {
        let mut files: Vec<PathBuf> = entries(&directory).filter(|file| is_mpi(file)).collect();
        files.sort();
        for file in files.into_iter().filter_map(|file| file.canonicalize().ok()) {
            let Some(library) = library::of_file(&file) else { continue };
            // MPICH has one more library for each language, with a name that begins in the same way.
            let is_known =
                |(other, known): (&PathBuf, &MpiLibrary)| other.parent() == file.parent() && known.name == library.name;
            if !found.iter().any(is_known) {
                found.insert(file, library);
            }
        }
    }
    found
}

/// True for a file that is an MPI library by its name. Libraries of PMI alone are none.
fn is_mpi(file: &Path) -> bool {
    file.file_name()
        .and_then(|name| name.to_str())
        .is_some_and(|name| name.starts_with("libmpi") && name.contains(".so"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::super::check::State;
    use super::*;

    /// A directory `lib` with these files, next to a directory `bin` with `mpicc`.
    fn installed(files: &[&str]) -> tempfile::TempDir {
        let prefix = tempfile::tempdir().unwrap();
        for directory in ["bin", "lib"] {
            fs::create_dir(prefix.path().join(directory)).unwrap();
        }
        let command = prefix.path().join("bin/mpicc");
        fs::write(&command, "").unwrap();
        fs::set_permissions(&command, PermissionsExt::from_mode(0o700)).unwrap();
        files.iter().for_each(|file| fs::write(prefix.path().join("lib").join(file), "").unwrap());
        prefix
    }

    fn found(prefix: &Path) -> Vec<Check> {
        let found = libraries(NEXT_TO_COMMANDS.map(|directory| prefix.join(directory)).into());
        found.into_iter().map(|(file, library)| of_library(&file, &library)).collect()
    }

    #[test]
    fn a_library_is_found_next_to_a_command_once_and_with_its_protocol() {
        let check = |files: &[&str], expected: State, text: &str| {
            let prefix = installed(files);
            symlink(files[0], prefix.path().join("lib/libmpi.so")).unwrap();
            let [check] = found(prefix.path()).try_into().unwrap();
            assert_eq!(check.state, expected, "{check:?}");
            assert!(check.detail.contains(text), "{check:?}");
            let path = [("PATH".into(), prefix.path().join("bin").into_os_string())];
            assert!(directories(&path).contains(&prefix.path().join("lib")));
        };
        check(&["libmpi.so.40.30.4", "libmpi_mpifh.so.40"], State::Ok, "libmpi.so.40.30.4 uses PMIx");
        check(&["libmpich.so.12.2.0", "libmpichcxx.so.12.2.0"], State::Ok, "uses PMI-1");
        check(&["libmpi_cray.so.12"], State::Warning, "of its vendor");
    }

    #[test]
    fn a_library_of_pmi_alone_is_no_mpi_library() {
        let prefix = installed(&["libpmi2.so.0", "libpmix.so.2", "libmpicxx.so"]);
        assert_eq!(found(prefix.path()), []);
    }

    #[test]
    fn a_command_is_shown_with_its_target() {
        let prefix = installed(&[]);
        let bin = prefix.path().join("bin");
        symlink("mpicc", bin.join("mpiexec")).unwrap();
        let environment = [("PATH".into(), bin.clone().into_os_string())];
        let expected = format!("{} -> {}", bin.join("mpiexec").display(), bin.join("mpicc").display());
        assert_eq!(of_command("mpiexec", &environment), Check::ok("mpiexec", expected));
        assert_eq!(of_command("mpicc", &[]).detail, "none in PATH; programs start without it");
    }
}
