//! Prolog and epilog of a launch: programs that run here, before it starts and after it has ended.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

use super::LaunchError;
use crate::args::LaunchArgs;
use crate::console::report;
use crate::exit;

/// Runs the prolog, if there is one, with the words of the first program.
///
/// # Errors
/// Fails if it cannot be run, or fails: then nothing is to be started.
pub(super) fn prolog(args: &LaunchArgs) -> Result<(), LaunchError> {
    args.scripts.prolog.as_deref().map_or(Ok(()), |path| run("--prolog", path, &args.first.command))
}

/// Runs the epilog, if there is one, in the same way. The launch has ended as it has: a failure is reported.
pub(super) fn epilog(args: &LaunchArgs) {
    if let Some(path) = args.scripts.epilog.as_deref()
        && let Err(error) = run("--epilog", path, &args.first.command)
    {
        report(&format!("warning: {error}"));
    }
}

fn run(flag: &'static str, path: &Path, words: &[OsString]) -> Result<(), LaunchError> {
    let refused = |reason| LaunchError::Script { flag, path: path.to_owned(), reason };
    let status = Command::new(path).args(words).stdin(Stdio::null()).status();
    match status.map_err(|error| refused(format!("cannot be run: {error}")))? {
        status if status.success() => Ok(()),
        status => Err(refused(format!("ended with code {}", exit::of_status(status)))),
    }
}
