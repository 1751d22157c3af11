//! Commands as the chores run them: printed first, and a failure ends the chore.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::steps::TestRun;

/// The root of the repository.
pub(crate) fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The target directory, whatever it is called: this program is in one of its profiles.
pub(crate) fn target_directory() -> Result<PathBuf> {
    let program = std::env::current_exe().context("cannot tell where this program is")?;
    match program.ancestors().nth(2) {
        Some(directory) => Ok(directory.to_owned()),
        None => bail!("{} is not in a target directory", program.display()),
    }
}

/// A cargo command; the words hold no spaces.
pub(crate) fn cargo(words: &str) -> Command {
    command("cargo", words)
}

/// A command; the words hold no spaces.
pub(crate) fn command(program: impl AsRef<OsStr>, words: &str) -> Command {
    let mut command = Command::new(program);
    command.args(words.split_whitespace());
    command
}

/// Prints the command, runs it, and fails if it does.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let line = line(command);
    eprintln!("$ {line}");
    let status = command.status().with_context(|| format!("cannot run {line}"))?;
    ensure!(status.success(), "{line} ended with {status}");
    Ok(())
}

/// Prints the command and starts it.
pub(crate) fn started(command: &mut Command) -> Result<Child> {
    let line = line(command);
    eprintln!("$ {line}");
    command.spawn().with_context(|| format!("cannot run {line}"))
}

/// Runs test programs, and collects what they report. That tests fail is no error here.
pub(crate) fn run_tests(command: &mut Command) -> Result<TestRun> {
    let mut process = started(command.stdout(Stdio::piped()))?;
    let mut tests = TestRun::default();
    for line in BufReader::new(process.stdout.take().context("stdout is a pipe")?).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        println!("{line}");
        tests.add_line(&line);
    }
    tests.succeeded = process.wait()?.success();
    Ok(tests)
}

/// Reports a command that can be run and succeeds; its output is dropped.
pub(crate) fn works(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// The command as one would type it here: variables, program, arguments.
fn line(command: &Command) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    let short = |path: &OsStr| {
        let path = Path::new(path);
        path.strip_prefix(&here).unwrap_or(path).display().to_string()
    };
    let variables =
        command.get_envs().filter_map(|(name, value)| Some(format!("{}={} ", name.display(), value?.display())));
    let words = std::iter::once(command.get_program()).chain(command.get_args()).map(short);
    format!("{}{}", variables.collect::<String>(), words.collect::<Vec<_>>().join(" "))
}
