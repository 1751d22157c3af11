//! Lines by which MPI launchers start a command on a node: this program under the names `ssh`, `rsh` and `lattice-mpi-launcher`.
//!
//! ```text
//! [OPTIONS] [USER@]HOST [WORDS...]      the words are joined by blanks, and the user's shell on HOST reads them
//! ```
//!
//! The grammar is that of OpenSSH (ssh(1)). Options may also follow the host. The value of a letter is the rest of its word, or the next word.
//! Hydra, Intel MPI and Open MPI use few options (measured: `-x`, `-X`, `-q`, and the host).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use clap::error::ErrorKind;

/// Options without a value that have no effect here: a command has no terminal of its own, and nothing is forwarded.
const IDLE: &[u8] = b"46AaCgKkqTtvXxYy";
/// Options with a value that have no effect here. All other options request functions of `ssh` only, such as tunnels, or no command.
const IDLE_WITH_VALUE: &[u8] = b"oiFecmbBEIPSp";

/// Name of a remote shell that this program was called by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemoteShellName {
    /// `ssh` or `rsh`. For hosts outside of the allocation and unsupported lines, the next program of that name in `PATH` is called.
    Standard(OsString),
    /// `lattice-mpi-launcher`. Unsupported lines are refused.
    Own,
}

/// A line of a remote shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteShellArgs {
    /// Name that this program was called by.
    pub name: RemoteShellName,
    /// All words after the name.
    pub words: Vec<OsString>,
    /// Meaning of the words, or the reason why they are not supported.
    pub line: Result<RemoteLine, RemoteShellError>,
}

/// Meaning of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteLine {
    /// Host, as typed.
    pub host: String,
    /// User on that host, if one was named.
    pub user: Option<String>,
    /// Command line for the user's shell; `None` for a shell that reads its standard input.
    pub command: Option<OsString>,
    /// True if standard input of the command is empty (`-n`).
    pub reads_nothing: bool,
}

/// Reason why a line is not supported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteShellError {
    /// The option is unknown, or requests a function of `ssh` only.
    #[error(
        "lattice-mpi-launcher has no option {option}; it was called with: {line}\nusage: lattice-mpi-launcher [-x -X -q -n -l USER ...] HOST [COMMAND...]"
    )]
    Option {
        /// The option, such as `-L` or `--forward`.
        option: String,
        /// The words.
        line: String,
    },
    /// The line has no host.
    #[error(
        "lattice-mpi-launcher was called without a host: {line}\nusage: lattice-mpi-launcher [-x -X -q -n -l USER ...] HOST [COMMAND...]"
    )]
    NoHost {
        /// The words.
        line: String,
    },
}

impl RemoteShellName {
    /// The remote shell that the first word of a command line names, if any, and the remaining words.
    pub fn of(words: &[OsString]) -> Option<(Self, &[OsString])> {
        let (called, rest) = words.split_first()?;
        let name = Path::new(called).file_name()?;
        match name.to_str()? {
            "ssh" | "rsh" => Some((Self::Standard(name.to_owned()), rest)),
            "lattice-mpi-launcher" => Some((Self::Own, rest)),
            _ => None,
        }
    }

    /// Parses a line.
    ///
    /// # Errors
    /// Returns the help of `lattice-mpi-launcher`, as clap does.
    pub fn read(self, words: &[OsString]) -> Result<RemoteShellArgs, clap::Error> {
        if self == Self::Own && matches!(words, [only] if only == "--help" || only == "-h") {
            return Err(clap::Error::raw(ErrorKind::DisplayHelp, HELP));
        }
        Ok(RemoteShellArgs { name: self, words: words.to_vec(), line: read(words) })
    }
}

const HELP: &str = "Runs a command on a node of the allocation in LATTICE_ALLOC_ID, as ssh would.\n\
    mpirun and mpiexec of other MPIs call it: see `lattice alloc shell`.\n\n\
    Usage: lattice-mpi-launcher [-x -X -q -n -l USER ...] HOST [COMMAND...]\n";

fn read(words: &[OsString]) -> Result<RemoteLine, RemoteShellError> {
    let line = || words.join(OsStr::new(" ")).to_string_lossy().into_owned();
    let mut reading = Reading::default();
    let mut rest = words;
    while let Some((word, behind)) = rest.split_first() {
        let bytes = word.as_bytes();
        match bytes {
            b"--" if reading.host.is_none() => rest = behind,
            [b'-', letters @ ..] if !letters.is_empty() && bytes != b"--" => {
                rest = reading.options(letters, behind).map_err(|letter| {
                    let option = if letter == '-' { word.to_string_lossy().into_owned() } else { format!("-{letter}") };
                    RemoteShellError::Option { option, line: line() }
                })?;
            }
            _ if reading.host.is_none() => {
                reading.destination(&word.to_string_lossy());
                rest = behind;
            }
            _ => break,
        }
    }
    let rest = if rest.first().is_some_and(|word| word == "--") { &rest[1..] } else { rest };
    let host = reading.host.ok_or_else(|| RemoteShellError::NoHost { line: line() })?;
    let command = (!rest.is_empty()).then(|| rest.join(OsStr::new(" ")));
    Ok(RemoteLine { host, user: reading.user, command, reads_nothing: reading.reads_nothing })
}

/// State of a line during parsing.
#[derive(Debug, Default)]
struct Reading {
    host: Option<String>,
    user: Option<String>,
    reads_nothing: bool,
}

impl Reading {
    /// Reads the letters after a dash, and the value of the last letter if it takes one. Returns the remaining words.
    ///
    /// # Errors
    /// Returns the letter that is not supported.
    fn options<'a>(&mut self, letters: &[u8], behind: &'a [OsString]) -> Result<&'a [OsString], char> {
        for (index, &letter) in letters.iter().enumerate() {
            if letter == b'n' {
                self.reads_nothing = true;
                continue;
            }
            if IDLE.contains(&letter) {
                continue;
            }
            if letter != b'l' && !IDLE_WITH_VALUE.contains(&letter) {
                return Err(char::from(letter));
            }
            let glued = &letters[index + 1..];
            let (value, behind) = match (glued, behind.split_first()) {
                ([], Some((next, behind))) => (next.as_bytes(), behind),
                ([], None) => return Err(char::from(letter)),
                (glued, _) => (glued, behind),
            };
            if letter == b'l' {
                self.user = Some(String::from_utf8_lossy(value).into_owned());
            }
            return Ok(behind);
        }
        Ok(behind)
    }

    /// `HOST`, `USER@HOST` or `ssh://[USER@]HOST[:PORT]`.
    fn destination(&mut self, word: &str) {
        let (is_url, word) = word.strip_prefix("ssh://").map_or((false, word), |rest| (true, rest));
        let (user, host) = word.rsplit_once('@').map_or((None, word), |(user, host)| (Some(user), host));
        if let Some(user) = user {
            self.user = Some(user.to_owned());
        }
        let host = if is_url { host.split(':').next().unwrap_or(host) } else { host };
        self.host = Some(host.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    fn understood(line: &str) -> RemoteLine {
        read(&words(line)).unwrap()
    }

    /// The lines of Hydra, Intel MPI and Open MPI are recorded, and shortened.
    #[test]
    fn lines_of_launchers_are_a_host_and_a_command() {
        for (line, host, command) in [
            (
                r#"node1 "/p/hydra_pmi_proxy" --control-port head:1"#,
                "node1",
                r#""/p/hydra_pmi_proxy" --control-port head:1"#,
            ),
            (r#"-x node1 "/p/hydra_pmi_proxy" --pgid 0"#, "node1", r#""/p/hydra_pmi_proxy" --pgid 0"#),
            ("-q -x node1 /p//hydra_bstrap_proxy -n 4", "node1", "/p//hydra_bstrap_proxy -n 4"),
            (r#"node1 orted -mca ess "env" -mca plm "rsh""#, "node1", r#"orted -mca ess "env" -mca plm "rsh""#),
            ("-x -oBatchMode=yes node1 PRTE_PREFIX=/p;/p/bin/prted", "node1", "PRTE_PREFIX=/p;/p/bin/prted"),
            ("-o BatchMode=yes -p 22 node1 -p22 -q hostname -f", "node1", "hostname -f"),
            ("ssh://u@node1:22 -- -x", "node1", "-x"),
            ("u@node1.cluster a -l b", "node1.cluster", "a -l b"),
        ] {
            let read = understood(line);
            assert_eq!((read.host.as_str(), read.command.as_deref()), (host, Some(OsStr::new(command))), "{line}");
        }
    }

    #[test]
    fn users_empty_input_and_shells_are_told_apart() {
        assert_eq!(understood("u@node1 x").user.as_deref(), Some("u"));
        assert_eq!(understood("-l u node1 x").user.as_deref(), Some("u"));
        assert_eq!(understood("-lu node1 x").user.as_deref(), Some("u"));
        assert_eq!(understood("node1 x").user, None);
        assert!(understood("-xn node1 x").reads_nothing && !understood("-x node1 -- -n").reads_nothing);
        assert_eq!(understood("-t node1").command, None);
    }

    #[test]
    fn what_only_ssh_can_do_is_refused_with_the_line() {
        let refusal = |line: &str| read(&words(line)).unwrap_err().to_string();
        assert!(
            refusal("-N -L 1:a:2 node1")
                .starts_with("lattice-mpi-launcher has no option -N; it was called with: -N -L 1:a:2 node1")
        );
        assert!(refusal("-L 1:a:2 node1").contains("no option -L;"));
        assert!(
            refusal("--forward=1 node1 x").contains("no option --forward=1; it was called with: --forward=1 node1")
        );
        assert!(refusal("node1 --weird").contains("no option --weird;"));
        assert!(refusal("-x").starts_with("lattice-mpi-launcher was called without a host: -x"));
        assert!(refusal("node1 -o").contains("no option -o"), "its value is missing");
        assert!(refusal("").contains("without a host"));
    }

    #[test]
    fn names_are_those_of_remote_shells() {
        let name =
            |called: &str| RemoteShellName::of(&words(&format!("{called} a"))).map(|(name, rest)| (name, rest.len()));
        assert_eq!(name("/x/ssh"), Some((RemoteShellName::Standard("ssh".into()), 1)));
        assert_eq!(name("rsh"), Some((RemoteShellName::Standard("rsh".into()), 1)));
        assert_eq!(name("/x/lattice-mpi-launcher"), Some((RemoteShellName::Own, 1)));
        assert_eq!(name("lattice"), None);
    }
}
