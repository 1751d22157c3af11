//! Detection of the dialect of a line. It depends on, in this order: the variable, flags of one launcher only, a name of one launcher only, the
//! MPI library of the program, and the default of the name. For a program without an MPI library, such as an interpreter or a script, the
//! default applies.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use lattice_session::event::MpiFamily;
use lattice_session::library::needed_by;

use super::super::flag::{Takes, find};
use super::dialect::{Dialect, Name, VARIABLE, by_variable};
use super::flags::FLAGS;
use crate::line::SEPARATOR;

/// Flags of one dialect only. Intel MPI also has the flags of Hydra, so its own flags take precedence.
const OF_DIALECTS: &[(Dialect, &[&str])] = &[
    (
        Dialect::Intel,
        &[
            "perhost",
            "grr",
            "hosts-group",
            "gtool",
            "gtoolfile",
            "aps",
            "mps",
            "silent-abort",
            "prepend-timestamp",
            "prot",
        ],
    ),
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
            "envlist",
            "envall",
            "envnone",
            "bootstrap",
            "launcher",
            "iface",
            "rmk",
            "membind",
            "rankmap",
            "pmi-port",
            "print-all-exitcodes",
            "outfile-pattern",
            "errfile-pattern",
        ],
    ),
    (
        Dialect::OpenMpi,
        &[
            "H",
            "x",
            "c",
            "npernode",
            "pernode",
            "npersocket",
            "ppr",
            "rank-by",
            "rankfile",
            "rf",
            "cpu-set",
            "cpu-list",
            "cpus-per-proc",
            "cpus-per-rank",
            "use-hwthread-cpus",
            "bind-to-core",
            "bind-to-socket",
            "bind-to-none",
            "bynode",
            "byslot",
            "bycore",
            "bysocket",
            "tag-output",
            "timestamp-output",
            "mca",
            "gmca",
            "omca",
            "prtemca",
            "pmixmca",
            "gpmixmca",
            "allow-run-as-root",
            "oversubscribe",
            "nooversubscribe",
            "report-bindings",
            "display",
            "display-map",
            "display-allocation",
            "output",
            "output-filename",
            "runtime-options",
            "set-env",
            "with-ft",
        ],
    ),
];

/// First words of `--map-by` that only Open MPI has. Hydra's words are objects of a node.
const MAPPED_BY_OPEN_MPI: [&str; 9] = ["", "slot", "node", "ppr", "seq", "dist", "rankfile", "board", "package"];

/// The dialect of a flag with its value, if only one dialect has it.
fn of_flag(name: &str, value: &str) -> Option<Dialect> {
    let value = value.to_ascii_lowercase();
    let mut words = value.split([':', ',']);
    let first = words.next().unwrap_or_default();
    match name {
        "map-by" if MAPPED_BY_OPEN_MPI.contains(&first) || first.starts_with("pe-list=") => Some(Dialect::OpenMpi),
        "map-by" => words.any(|word| word.parse::<u32>().is_err()).then_some(Dialect::OpenMpi),
        "bind-to" if ["cpu-list", "package"].contains(&first) => Some(Dialect::OpenMpi),
        "bind-to" if ["user", "rr", "machine"].contains(&first) => Some(Dialect::Hydra),
        "bind-to" if words.any(|word| ["overload-allowed", "if-supported"].contains(&word)) => Some(Dialect::OpenMpi),
        "genv" | "env" if value.starts_with("i_mpi_") => Some(Dialect::Intel),
        _ => OF_DIALECTS.iter().find(|(_, own)| own.contains(&name)).map(|&(dialect, _)| dialect),
    }
}

/// The dialect of a line that was called by this name.
pub(super) fn dialect(words: &[OsString], name: Name) -> Dialect {
    chosen(words, name).unwrap_or_else(|| name.usual())
}

/// The dialect of a line; `None` if only the default of the name applies.
fn chosen(words: &[OsString], name: Name) -> Option<Dialect> {
    by_variable().or_else(|| by_flags(words)).or(name.own()).or_else(|| by_library(words))
}

fn by_flags(words: &[OsString]) -> Option<Dialect> {
    let flags = words.split(|word| word == SEPARATOR).flat_map(flags);
    let dialects: Vec<Dialect> = flags.filter_map(|(name, value)| of_flag(name, value)).collect();
    match dialects.first() {
        Some(Dialect::Hydra) if dialects.contains(&Dialect::Intel) => Some(Dialect::Intel),
        first => first.copied(),
    }
}

/// Flags before a program with their values. Words after the program are its arguments.
fn flags(mut rest: &[OsString]) -> Vec<(&str, &str)> {
    let mut flags = Vec::new();
    while let Some((word, behind)) = rest.split_first().filter(|(word, _)| is_flag(word) && *word != "--") {
        rest = behind;
        let Some(word) = word.to_str() else { continue };
        let (name, glued) = match word.trim_start_matches('-').split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word.trim_start_matches('-'), None),
        };
        let values = match name {
            _ if glued.is_some() => 0,
            "configfile" | "app" | "appfile" | "N" | "c" => 1,
            "s" => usize::from(rest.first().is_some_and(|word| is_reader(word))),
            _ => match find(FLAGS, name).map(|flag| flag.takes) {
                Some(Takes::Value) => 1,
                Some(Takes::Pair) if rest.first().is_some_and(|pair| !pair.as_bytes().contains(&b'=')) => 2,
                Some(Takes::Pair) => 1,
                Some(Takes::Nothing | Takes::Optional) | None => 0,
            },
        };
        let next = rest.first().filter(|_| values > 0).and_then(|value| value.to_str());
        flags.push((name, glued.or(next).unwrap_or_default()));
        rest = rest.get(values..).unwrap_or_default();
    }
    flags
}

/// The dialect for the MPI library of the first word that is a program with such a library.
fn by_library(program: &[OsString]) -> Option<Dialect> {
    let directories: Vec<_> = std::env::split_paths(&search_path()?).collect();
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

#[cfg(not(test))]
fn search_path() -> Option<OsString> {
    std::env::var_os("PATH")
}

/// No directories: programs in tables of tests may be installed, with any MPI library.
/// True for a word that is a flag.
pub(super) fn is_flag(word: &OsStr) -> bool {
    word.as_bytes().len() > 1 && word.as_bytes()[0] == b'-'
}

/// True for a value of Intel MPI's `-s`: the ranks that read standard input.
pub(super) fn is_reader(word: &OsStr) -> bool {
    let is_rank = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b',' | b'-');
    word == "all" || word == "none" || !word.is_empty() && word.as_bytes().iter().all(is_rank)
}

#[cfg(test)]
fn search_path() -> Option<OsString> {
    Some(OsString::new())
}

/// Output of `--version`, with the word by which scripts detect the dialect.
pub(super) fn version(words: &[OsString], name: Name) -> String {
    let own = env!("CARGO_PKG_VERSION");
    match chosen(words, name) {
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
    fn flags_of_the_program_are_none_of_the_line() {
        for (line, expected) in [
            ("-np 4 python -c -x -l", None),
            ("-np 4 -x A=1 python -ppn 2", Some(Dialect::OpenMpi)),
            ("--mca btl self -np 4 ./a", Some(Dialect::OpenMpi)),
            ("-wdir -x -np 4 ./a", None),
            ("-host -l ./a : -genv A 1 ./b -x", Some(Dialect::Hydra)),
            ("-n 1 ./a -x : -n 1 ./b", None),
            ("--perhost=2 ./a", Some(Dialect::Intel)),
            ("-hosts a,b -perhost 2 ./a", Some(Dialect::Intel)),
            ("-genv I_MPI_DEBUG 4 ./a", Some(Dialect::Intel)),
            ("-genv=I_MPI_DEBUG=4 -hosts a ./a", Some(Dialect::Intel)),
            ("-n 2 -map-by socket ./a", None),
            ("-n 2 -map-by core:2 ./a", None),
            ("-n 2 -bind-to core:2 ./a", None),
            ("-n 2 -bind-to user:0 ./a", Some(Dialect::Hydra)),
            ("--map-by slot ./a", Some(Dialect::OpenMpi)),
            ("--map-by=ppr:2:node ./a", Some(Dialect::OpenMpi)),
            ("--map-by :OVERSUBSCRIBE ./a", Some(Dialect::OpenMpi)),
            ("--map-by numa:PE=4 ./a", Some(Dialect::OpenMpi)),
            ("--rank-by slot ./a", Some(Dialect::OpenMpi)),
            ("--bind-to core:overload-allowed ./a", Some(Dialect::OpenMpi)),
            ("--bind-to core ./a --map-by slot", None),
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert_eq!(by_flags(&words), expected, "{line}");
        }
    }
}
