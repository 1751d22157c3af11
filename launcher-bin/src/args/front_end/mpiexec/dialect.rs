//! The dialect of an `mpiexec` line.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use lattice_session::event::MpiFamily;
use lattice_session::library::needed_by;

use super::super::{Refusal, Takes, find, variables};
use super::{FLAGS, is_flag, is_reader};
use crate::args::SEPARATOR;

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
            "output",
            "output-filename",
        ],
    ),
];

/// The dialect of a program with its flags.
pub(super) fn dialect(program: &[OsString]) -> Option<Dialect> {
    by_name().or_else(|| by_flags(program)).or_else(|| by_library(program))
}

/// The dialect that the variable names.
pub(super) fn by_name() -> Option<Dialect> {
    std::env::var(VARIABLE).ok().and_then(|name| called(&name))
}

/// The dialect of this name.
fn called(name: &str) -> Option<Dialect> {
    match name {
        "hydra" | "mpich" => Some(Dialect::Hydra),
        "intel" | "impi" => Some(Dialect::Intel),
        "ompi" | "openmpi" => Some(Dialect::OpenMpi),
        _ => None,
    }
}

/// Refuses a name in the variable that no dialect has; an empty one counts as not set.
pub(super) fn check_variable() -> Result<(), Refusal> {
    let value = variables::set(|name| std::env::var_os(name), VARIABLE).unwrap_or_default();
    check_name(&value.to_string_lossy())
}

fn check_name(name: &str) -> Result<(), Refusal> {
    if name.is_empty() || called(name).is_some() {
        return Ok(());
    }
    let reason = "hydra (or mpich), intel (or impi) and ompi (or openmpi) are".to_owned();
    Err(Refusal::Value { flag: VARIABLE, value: name.to_owned(), reason })
}

fn by_flags(words: &[OsString]) -> Option<Dialect> {
    let of = |name: &str| OF_DIALECTS.iter().find(|(_, own)| own.contains(&name)).map(|&(dialect, _)| dialect);
    words.split(|word| word == SEPARATOR).flat_map(names).find_map(of)
}

/// Names of the flags before a program; those behind it are its own.
fn names(mut rest: &[OsString]) -> Vec<&str> {
    let mut names = Vec::new();
    while let Some((word, behind)) = rest.split_first().filter(|(word, _)| is_flag(word) && *word != "--") {
        rest = behind;
        let Some(word) = word.to_str() else { continue };
        let (name, is_glued) = match word.trim_start_matches('-').split_once('=') {
            Some((name, _)) => (name, true),
            None => (word.trim_start_matches('-'), false),
        };
        let values = match name {
            _ if is_glued => 0,
            "configfile" | "app" | "appfile" | "N" | "c" => 1,
            "s" => usize::from(rest.first().is_some_and(|word| is_reader(word))),
            _ => match find(FLAGS, name).map(|flag| flag.takes) {
                Some(Takes::Value) => 1,
                Some(Takes::Pair) if rest.first().is_some_and(|pair| !pair.as_bytes().contains(&b'=')) => 2,
                Some(Takes::Pair) => 1,
                Some(Takes::Nothing | Takes::Optional) | None => 0,
            },
        };
        rest = rest.get(values..).unwrap_or_default();
        names.push(name);
    }
    names
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_no_dialect_has_is_refused() {
        for name in ["", "hydra", "mpich", "intel", "impi", "ompi", "openmpi"] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        let refusal = check_name("openMPI5").unwrap_err().to_string();
        assert!(
            refusal.starts_with("'LATTICE_MPIEXEC openMPI5' is not possible here: hydra (or mpich), "),
            "{refusal}"
        );
    }

    #[test]
    fn flags_of_the_program_are_none_of_the_line() {
        for (line, expected) in [
            ("-np 4 python -c -x -l", None),
            ("-np 4 -x A=1 python -ppn 2", Some(Dialect::OpenMpi)),
            ("--mca btl self -np 4 ./a", Some(Dialect::OpenMpi)),
            ("-wdir -x -np 4 ./a", None),
            ("-host -l ./a : -genv A 1 ./b -x", Some(Dialect::Hydra)),
            ("-n 1 ./a -x : -n 1 ./b", None),
            ("--perhost=2 ./a", Some(Dialect::Intel)),
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert_eq!(by_flags(&words), expected, "{line}");
        }
    }
}
