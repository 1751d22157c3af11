//! Commands of the chores: each is printed first, and a failure ends the chore.

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

/// The target directory, with any name: this program is in one of its profiles.
pub(crate) fn target_directory() -> Result<PathBuf> {
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    match program.ancestors().nth(2) {
        Some(directory) => Ok(directory.to_owned()),
        None => bail!("{} is not in a target directory", program.display()),
    }
}

/// Returns a cargo command. The words must not contain spaces.
///
/// It has none of the variables that `cargo run` sets for this program. The build script of `ring` reads them, so that each change between
/// `cargo` and `cargo xtask` would build `ring` and all that depends on it again.
pub(crate) fn cargo(words: &str) -> Command {
    let mut cargo = command("cargo", words);
    let is_of_package = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_of_package)) {
        cargo.env_remove(name);
    }
    cargo
}

/// Returns a command. The words must not contain spaces.
pub(crate) fn command(program: impl AsRef<OsStr>, words: &str) -> Command {
    let mut command = Command::new(program);
    command.args(words.split_whitespace());
    command
}

/// Prints the command and runs it. Fails if the command fails.
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

/// Runs test programs, and collects their reports. Failing tests are no error here.
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

/// Returns a program of the registry, which is installed below `target` if it is not there. `words` are further words for `cargo install`.
pub(crate) fn tool(name: &str, version: &str, words: &str) -> Result<PathBuf> {
    let root = target_directory()?.join(format!("{name}-{version}"));
    let program = root.join("bin").join(name);
    if !program.exists() {
        run(cargo(&format!("install {name} --locked --version {version} {words}")).arg("--root").arg(&root))?;
    }
    Ok(program)
}

/// Returns true if a command can be run and succeeds. Its output is dropped.
pub(crate) fn works(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// Formats the command as typed in the current directory: variables, program, arguments.
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
