//! Prolog and epilog of a launch: programs that run here, before it starts and after it has ended.
//!
//! Lines that the prolog prints change all ranks, as lines of a task prolog change one rank (`request::task_scripts`): `export NAME=VALUE`,
//! `unset NAME` and `print TEXT`. All other lines are printed unchanged, after the prolog has ended.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

use lattice_console::{exit, print, report};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::LaunchError;
use crate::args::LaunchArgs;

/// Runs the prolog, if there is one, with the words of the first program. Its output changes `variables`, with which the ranks start.
///
/// # Errors
/// Fails if the prolog cannot be run, or fails. The launch must not start then.
pub(super) fn prolog(args: &LaunchArgs, variables: &mut Vec<(OsString, OsString)>) -> Result<(), LaunchError> {
    let Some(path) = args.scripts.prolog.as_deref() else { return Ok(()) };
    // Not a pipe: a process that the prolog leaves running may hold its standard output open indefinitely.
    let mut said = File::from(memfd_create(c"lattice-prolog", MFdFlags::MFD_CLOEXEC).map_err(io::Error::from)?);
    let outcome = run("--prolog", path, &args.first.command, said.try_clone()?.into());
    let mut text = Vec::new();
    said.rewind()?;
    said.read_to_end(&mut text)?;
    let shown: Vec<u8> =
        text.split_inclusive(|&byte| byte == b'\n').flat_map(|line| obey(line, variables)).copied().collect();
    print(&shown)?;
    outcome
}

/// Runs the epilog, if there is one, in the same way. It does not change the result of the launch: a failure is only reported.
pub(super) fn epilog(args: &LaunchArgs) {
    if let Some(path) = args.scripts.epilog.as_deref()
        && let Err(error) = run("--epilog", path, &args.first.command, Stdio::inherit())
    {
        report(&format!("warning: {error}"));
    }
}

fn run(flag: &'static str, path: &Path, words: &[OsString], stdout: Stdio) -> Result<(), LaunchError> {
    let refused = |reason, remedy| LaunchError::Script { flag, path: path.to_owned(), reason, remedy };
    let status = Command::new(path).args(words).stdin(Stdio::null()).stdout(stdout).status();
    match status.map_err(|error| refused(format!("cannot be run: {error}"), other_program(flag, path, &error)))? {
        status if status.success() => Ok(()),
        status => {
            let reason = format!("ended with code {}", exit::of_status(status));
            Err(refused(reason, format!("sh -x {}, if it is a script of sh; or leave {flag} out", path.display())))
        }
    }
}

/// Suggested command if a program cannot be run.
fn other_program(flag: &str, path: &Path, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied if path.is_file() => format!("chmod +x {}", path.display()),
        _ if path.components().count() == 1 && path.is_file() => format!("{flag} ./{}", path.display()),
        _ => format!("{flag} with the path of a program, such as ./NAME, or of a script that begins with #!/bin/sh"),
    }
}

/// Executes a line of the prolog; returns the part of the line to print.
fn obey<'line>(line: &'line [u8], variables: &mut Vec<(OsString, OsString)>) -> &'line [u8] {
    let words = line.strip_suffix(b"\n").unwrap_or(line);
    let os = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
    if let Some(setting) = words.strip_prefix(b"export ")
        && let Some(equals) = setting.iter().position(|&byte| byte == b'=')
        && is_name(&setting[..equals])
        && !setting.contains(&0)
    {
        let name = os(&setting[..equals]);
        variables.retain(|(known, _)| *known != name);
        variables.push((name, os(&setting[equals + 1..])));
        return b"";
    }
    if let Some(name) = words.strip_prefix(b"unset ")
        && is_name(name)
    {
        let name = os(name);
        variables.retain(|(known, _)| *known != name);
        return b"";
    }
    line.strip_prefix(b"print ").unwrap_or(line)
}

/// True for a valid name of a shell variable.
fn is_name(bytes: &[u8]) -> bool {
    let is_letter = |byte: &u8| byte.is_ascii_alphabetic() || *byte == b'_';
    bytes.first().is_some_and(is_letter) && bytes.iter().all(|byte| is_letter(byte) || byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_prolog_change_variables_and_all_others_are_printed() {
        let mut variables =
            [("KEPT", "1"), ("GONE", "2"), ("OLD", "3")].map(|(name, value)| (name.into(), value.into())).to_vec();
        for (line, shown) in [
            ("export OLD=4\n", ""),
            ("export WORDS=two \"words\" $HOME=x\n", ""),
            ("unset GONE\n", ""),
            ("unset NEVER\n", ""),
            ("export EMPTY=", ""),
            ("print a line\n", "a line\n"),
            ("staged 3 files\n", "staged 3 files\n"),
            // Not valid names of variables.
            ("export A-B=1\n", "export A-B=1\n"),
            ("export 1A=1\n", "export 1A=1\n"),
            ("export\n", "export\n"),
            ("unset B%%\n", "unset B%%\n"),
            ("KEPT=5\n", "KEPT=5\n"),
            ("the end", "the end"),
        ] {
            assert_eq!(obey(line.as_bytes(), &mut variables), shown.as_bytes(), "{line}");
        }
        let seen: Vec<String> =
            variables.iter().map(|(name, value)| format!("{}={}", name.display(), value.display())).collect();
        assert_eq!(seen, ["KEPT=1", "OLD=4", "WORDS=two \"words\" $HOME=x", "EMPTY="]);
    }
}
