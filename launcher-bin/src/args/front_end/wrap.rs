//! `lattice mpiexec --wrap MPIEXEC [FLAGS] ...`: calls another `mpiexec`, which prints the commands to start on each node. Its words are passed
//! on unchanged; only the hosts in them are read.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::{Takes, find, mpiexec};
use crate::args::SEPARATOR;

/// The flag.
const WRAP: &str = "--wrap";

/// A line of `lattice mpiexec --wrap`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrapArgs {
    /// The other launcher, and its words.
    pub command: Vec<OsString>,
    /// Hosts that the words name, if any.
    pub hosts: Option<NamedHosts>,
}

/// Hosts as a line of Hydra names them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamedHosts {
    /// In the line itself.
    List(String),
    /// In a file.
    File(PathBuf),
}

impl WrapArgs {
    /// Parses the words after `mpiexec`, if the first one is `--wrap`.
    pub(in crate::args) fn of(words: &[OsString]) -> Option<Self> {
        let (first, command) = words.split_first()?;
        (first == WRAP).then(|| Self { command: command.to_vec(), hosts: hosts(command.get(1..).unwrap_or_default()) })
    }
}

/// The hosts that flags of Hydra name. Flags have any number of dashes, and upper or lower case. Arguments of the programs are not read.
fn hosts(words: &[OsString]) -> Option<NamedHosts> {
    let mut named = None;
    for program in words.split(|word| word == SEPARATOR) {
        let mut rest = program.iter();
        while let Some(word) = rest.next().filter(|word| word.as_bytes().starts_with(b"-")) {
            let text = word.to_string_lossy();
            let (name, glued) = text.split_once('=').map_or((&*text, None), |(name, value)| (name, Some(value)));
            let name = name.trim_start_matches('-').to_ascii_lowercase();
            let takes = find(mpiexec::FLAGS, if name == "s" { "stdin" } else { &name })
                .map_or(Takes::Nothing, |flag| flag.takes);
            let value = match (takes, glued) {
                (Takes::Value | Takes::Pair, None) => rest.next().map(OsString::as_os_str),
                (_, glued) => glued.map(OsStr::new),
            };
            if takes == Takes::Pair && glued.is_none() && value.is_some_and(|value| !value.as_bytes().contains(&b'=')) {
                rest.next();
            }
            named = match (name.as_str(), value) {
                ("hosts" | "host", Some(list)) => Some(NamedHosts::List(list.to_string_lossy().into_owned())),
                ("f" | "hostfile" | "machinefile", Some(file)) => Some(NamedHosts::File(file.into())),
                _ => named,
            };
        }
    }
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_found_among_the_flags_and_not_among_a_programs_words() {
        let check = |line: &str, expected: Option<NamedHosts>| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert_eq!(WrapArgs::of(&words).unwrap().hosts, expected, "{line}");
        };
        let list = |text: &str| Some(NamedHosts::List(text.to_owned()));
        let file = |text: &str| Some(NamedHosts::File(text.into()));
        check("--wrap mpiexec -n 4 ./a.out -f input", None);
        check("--wrap mpiexec -hosts a,b -n 4 ./a.out", list("a,b"));
        check("--wrap mpiexec --HOSTS=a,b:2 -n 4 ./a.out", list("a,b:2"));
        check("--wrap mpiexec -genv K V -env K=V -f hosts -n 4 ./a.out : -n 1 ./b -hosts c", file("hosts"));
        check("--wrap mpiexec -n 1 ./a : -host c ./b", list("c"));
        assert_eq!(WrapArgs::of(&["-n".into()]), None);
    }
}
