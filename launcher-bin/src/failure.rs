//! Error of a command, as shown to the user: a message and an exit code. [`exit`] defines the codes. This module maps each error to a rule of
//! [`exit`].

use std::io;

use lattice_commands::CommandError;
use lattice_console::exit;
use lattice_pki::{CA_KEY_FILE, PkiError};
use lattice_private_cluster::dev_cluster::DevClusterError;
use lattice_private_cluster::via::ViaError;
use pmi_transport::error_chain::chain;

use crate::documents::ManPageError;
use crate::launch::LaunchError;
use crate::pmi_command::PmiCommandError;
use crate::remote_shell::{self, RemoteShellRefusal};

/// A command that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Message for standard error.
    pub(crate) text: String,
    /// Exit code of the process.
    pub(crate) code: u8,
}

impl Failure {
    /// A failure of Lattice itself. The message contains the causes of `error`.
    pub(crate) fn ours(error: &dyn std::error::Error) -> Self {
        Self { text: chain(error), code: exit::OURS }
    }
}

impl From<LaunchError> for Failure {
    fn from(error: LaunchError) -> Self {
        let code = match &error {
            LaunchError::Interrupted { signal } => exit::by_signal(*signal as i32),
            _ => error.program_failure().map_or(exit::OURS, exit::of_program),
        };
        Self { text: error.to_string(), code }
    }
}

impl From<RemoteShellRefusal> for Failure {
    fn from(error: RemoteShellRefusal) -> Self {
        Self { text: error.to_string(), code: remote_shell::NOT_STARTED }
    }
}

impl From<CommandError> for Failure {
    fn from(error: CommandError) -> Self {
        let code = match &error {
            CommandError::Shell { error, .. } | CommandError::NoDebugger { error } => exit::of_exec(error),
            CommandError::Interrupted { signal, .. } => exit::by_signal(*signal as i32),
            _ => exit::OURS,
        };
        Self { text: error.to_string(), code }
    }
}

impl From<ManPageError> for Failure {
    fn from(error: ManPageError) -> Self {
        Self { text: error.to_string(), code: exit::OURS }
    }
}

impl From<PkiError> for Failure {
    fn from(error: PkiError) -> Self {
        let text = chain(&error) + pki_remedy(&error).as_str();
        Self { text, code: exit::OURS }
    }
}

/// Remedy for a failed command of `lattice pki`; empty if the error contains it.
fn pki_remedy(error: &PkiError) -> String {
    match error {
        PkiError::Io { path, source, .. }
            if path.ends_with(CA_KEY_FILE) && source.kind() == io::ErrorKind::NotFound =>
        {
            let directory = path.parent().unwrap_or(path);
            format!("\ntry: lattice pki init {}, which makes a CA; or the directory of one", directory.display())
        }
        PkiError::Io { action: "make", .. } => {
            "\ntry: another directory, below one that exists and that you can write to".to_owned()
        }
        PkiError::Io { .. } | PkiError::Unreadable { .. } => {
            "\ntry: the path of another file or directory, or a mode with which you can use it".to_owned()
        }
        PkiError::Foreign { .. } => "\ntry: a cert.pem that lattice pki issue made here, or its directory".to_owned(),
        PkiError::TooLong { .. } => "\ntry: --days 90, for example".to_owned(),
        _ => String::new(),
    }
}

impl From<PmiCommandError> for Failure {
    fn from(error: PmiCommandError) -> Self {
        let code = match &error {
            // No probe has run.
            PmiCommandError::Library(_) => exit::OURS,
            _ => exit::PROBE_FAILED,
        };
        Self { text: chain(&error), code }
    }
}

impl From<DevClusterError> for Failure {
    fn from(error: DevClusterError) -> Self {
        let code = match &error {
            DevClusterError::Cluster(error) => error.exit_code(),
            _ => exit::OURS,
        };
        Self { text: error.to_string(), code }
    }
}

impl From<ViaError> for Failure {
    fn from(error: ViaError) -> Self {
        let code = match &error {
            ViaError::Cluster(error) => error.exit_code(),
            _ => exit::OURS,
        };
        Self { text: chain(&error), code }
    }
}

#[cfg(test)]
mod tests {
    use lattice_private_cluster::PrivateClusterError;

    use super::*;
    use crate::client_libraries::ClientLibraryError;

    #[test]
    fn a_command_of_a_dev_cluster_fails_as_in_a_shell() {
        let check = |kind: io::ErrorKind, expected: u8| {
            let error = PrivateClusterError::Command { command: "x".to_owned(), error: kind.into() };
            assert_eq!(Failure::from(DevClusterError::Cluster(error)).code, expected, "{kind}");
        };
        check(io::ErrorKind::NotFound, 127);
        check(io::ErrorKind::PermissionDenied, 126);
        assert_eq!(Failure::from(DevClusterError::Addresses(io::ErrorKind::AddrInUse.into())).code, 125);
    }

    #[test]
    fn a_command_that_is_refused_fails_with_125_and_its_own_words() {
        let failure = Failure::from(CommandError::NoAllocation);
        assert_eq!(failure.code, 125);
        assert!(failure.text.starts_with("no allocation is named\ntry: "), "{}", failure.text);
        let failure = Failure::from(LaunchError::Setup(io::ErrorKind::OutOfMemory.into()));
        assert_eq!((failure.code, failure.text.as_str()), (125, "cannot set up the launch: out of memory"));
    }

    #[test]
    fn a_probe_that_fails_has_a_code_of_its_own() {
        assert_eq!(Failure::from(PmiCommandError::Unknown { keys: vec!["k".to_owned()] }).code, 1);
        let missing = ClientLibraryError::Missing { installed: "/lib/libpmi.so.0".into() };
        assert_eq!(Failure::from(PmiCommandError::Library(missing)).code, exit::OURS);
    }

    #[test]
    fn a_program_that_cannot_be_started_has_the_code_of_a_shell() {
        for (line, code, beginning) in [
            (
                "no-such-program",
                127,
                "cannot find program no-such-program in /usr/bin:/bin\ntry: its path, such as ./NAME",
            ),
            ("./no-such-program", 127, "cannot find program ./no-such-program\ntry: its whole path"),
            ("A_1=b true", 127, "cannot find program A_1=b in /usr/bin:/bin\ntry: env A_1=b PROGRAM, as a shell"),
            ("=b true", 127, "cannot find program =b in /usr/bin:/bin\ntry: its path, such as ./NAME"),
            // A file in the directory of this test.
            ("Cargo.toml", 127, "cannot find program Cargo.toml in /usr/bin:/bin\ntry: ./Cargo.toml"),
            ("list", 127, "cannot find program list in /usr/bin:/bin\ntry: lattice list"),
            ("/etc/passwd", 126, ""),
            (
                "--chdir /nonexistent true",
                125,
                "cannot start ranks in /nonexistent: No such file or directory (os error 2)\ntry: --chdir with a directory that you may enter, or mkdir",
            ),
            (
                "--chdir /etc/passwd true",
                125,
                "cannot start ranks in /etc/passwd: not a directory\ntry: --chdir with a directory that you may enter",
            ),
            ("-n 1001 true", 125, "1001 ranks do not fit on this machine"),
        ] {
            let failure = Failure::from(LaunchError::from(crate::prepared::tests::prepared(line).unwrap_err()));
            assert_eq!(failure.code, code, "{line}");
            assert!(failure.text.starts_with(beginning), "{line}: {}", failure.text);
            // No remedy for a directory that exists.
            assert_eq!(failure.text.contains("or mkdir -p"), line.contains("/nonexistent"), "{line}: {}", failure.text);
        }
    }

    #[test]
    fn a_failure_of_ours_tells_the_whole_chain_of_causes() {
        let directory = tempfile::tempdir().unwrap();
        let error = lattice_pki::Authority::open(directory.path()).err().unwrap();
        let failure = Failure::ours(&error);
        let path = directory.path().join("ca.key.pem");
        let expected = format!("cannot read {}: No such file or directory (os error 2)", path.display());
        let told = format!("{expected}\ntry: lattice pki init {}, which makes", directory.path().display());
        assert_eq!((failure.text, failure.code), (expected, 125));
        let failure = Failure::from(error);
        assert!(failure.text.starts_with(&told), "{}", failure.text);
    }
}
