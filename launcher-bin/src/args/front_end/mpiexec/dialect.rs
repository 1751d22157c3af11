//! The dialect of an `mpiexec` line.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use lattice_session::event::MpiFamily;
use lattice_session::library::needed_by;

use super::is_flag;

/// Variable that names the dialect.
pub(super) const VARIABLE: &str = "LATTICE_MPIEXEC";

/// Launcher whose words a line has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Hydra,
    Intel,
    OpenMpi,
}

/// Flags that only one dialect has.
const OF_DIALECTS: &[(Dialect, &[&str])] = &[
    (
        Dialect::Hydra,
        &[
            "hosts",
            "f",
            "ppn",
            "l",
            "prepend-rank",
            "usize",
            "genv",
            "genvlist",
            "genvall",
            "genvnone",
            "env",
            "bootstrap",
            "launcher",
            "iface",
            "rmk",
            "outfile-pattern",
            "errfile-pattern",
        ],
    ),
    (Dialect::Intel, &["perhost"]),
    (
        Dialect::OpenMpi,
        &[
            "H",
            "x",
            "c",
            "npernode",
            "pernode",
            "tag-output",
            "timestamp-output",
            "mca",
            "gmca",
            "omca",
            "prtemca",
            "pmixmca",
            "allow-run-as-root",
            "oversubscribe",
            "report-bindings",
            "display",
            "display-map",
        ],
    ),
];

/// The dialect of a program with its flags.
pub(super) fn dialect(program: &[OsString]) -> Option<Dialect> {
    let named = std::env::var(VARIABLE).ok().and_then(|name| match name.as_str() {
        "hydra" | "mpich" => Some(Dialect::Hydra),
        "intel" => Some(Dialect::Intel),
        "ompi" | "openmpi" => Some(Dialect::OpenMpi),
        _ => None,
    });
    named.or_else(|| by_flags(program)).or_else(|| by_library(program))
}

fn by_flags(program: &[OsString]) -> Option<Dialect> {
    let names = program.iter().filter_map(|word| word.to_str()).filter(|word| word.starts_with('-'));
    let mut names = names.map(|word| word.trim_start_matches('-').split('=').next().unwrap_or_default());
    names.find_map(|name| OF_DIALECTS.iter().find(|(_, own)| own.contains(&name)).map(|&(dialect, _)| dialect))
}

/// The dialect of the launcher that belongs to the first word that is a program with an MPI library.
fn by_library(program: &[OsString]) -> Option<Dialect> {
    let directories: Vec<_> = std::env::split_paths(&std::env::var_os("PATH")?).collect();
    program.iter().filter(|word| !is_flag(word)).find_map(|word| {
        let has_path = word.as_bytes().contains(&b'/');
        let files = directories.iter().filter(|_| !has_path).map(|directory| directory.join(word));
        let file = files.chain(has_path.then(|| word.into())).find(|file| file.is_file())?;
        match needed_by(&file)?.family {
            MpiFamily::Pmix => Some(Dialect::OpenMpi),
            MpiFamily::Pmi | MpiFamily::Vendor => Some(Dialect::Hydra),
            _ => None,
        }
    })
}

/// Answer to `--version`, with the word by which scripts tell the dialect.
pub(super) fn version(program: &[OsString]) -> String {
    let own = env!("CARGO_PKG_VERSION");
    match dialect(program) {
        Some(Dialect::Hydra) => format!("HYDRA build details: Lattice {own}, with the flags of MPICH's mpiexec\n"),
        Some(Dialect::Intel) => format!("Intel(R) MPI Library: Lattice {own}, with the flags of its mpiexec\n"),
        Some(Dialect::OpenMpi) => format!("mpirun (Open MPI) 4.1: Lattice {own}, with the flags of its mpirun\n"),
        None => format!(
            "mpiexec of Lattice {own}, with the flags of MPICH, Intel MPI and Open MPI; {VARIABLE}=hydra|intel|ompi chooses one\n"
        ),
    }
}
