//! Lattice's crates, built in another way than the external crates. This program replaces the compiler that cargo calls for them.
//!
//! With flags in the environment or a separate profile, cargo would rebuild three hundred external crates, which takes four times as
//! long. Instrumented external crates would also mislead libFuzzer, which must find new paths in Lattice's code. Therefore the external
//! crates are those of the test build. Cargo distinguishes builds by the path of the compiler, so that each kind of build calls this
//! program by another name.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::shell::target_directory;

/// A way to build Lattice's crates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Build {
    /// Optimised, with debug assertions.
    Optimised,
    /// The same, with libFuzzer's instrumentation and the address sanitizer, with the flags of `cargo fuzz --strip-dead-code`.
    Fuzzed,
}

impl Build {
    const ALL: [Self; 2] = [Self::Optimised, Self::Fuzzed];

    /// Name by which cargo calls this program.
    fn name(self) -> &'static str {
        match self {
            Self::Optimised => "rustc-optimised",
            Self::Fuzzed => "rustc-fuzzed",
        }
    }

    fn flags(self) -> &'static str {
        match self {
            Self::Optimised => "-Copt-level=3 -Cdebug-assertions",
            Self::Fuzzed => {
                "-Copt-level=3 -Cdebug-assertions -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
                 -Cllvm-args=-sanitizer-coverage-trace-compares -Zsanitizer=address --cfg fuzzing"
            }
        }
    }

    /// Makes a cargo command build Lattice's crates in this way.
    pub(crate) fn of(self, build: &mut Command) -> Result<&mut Command> {
        let this = std::env::current_exe().context("cannot find the path of this program")?;
        let compiler = target_directory()?.join(self.name());
        if fs::read_link(&compiler).ok().as_ref() != Some(&this) {
            // A link to another path may exist.
            let _ = fs::remove_file(&compiler);
            symlink(&this, &compiler).with_context(|| format!("cannot make {}", compiler.display()))?;
        }
        Ok(build.env("RUSTC_WORKSPACE_WRAPPER", compiler))
    }
}

/// Executes the compiler, if cargo called this program in its place: `NAME RUSTC ARGUMENTS...`.
///
/// # Errors
/// Fails if the compiler cannot be executed.
pub(crate) fn become_compiler() -> Result<()> {
    let mut arguments = std::env::args_os();
    let name = arguments.next().and_then(|name| Some(Path::new(&name).file_name()?.to_owned()));
    let build = Build::ALL.into_iter().find(|build| name.as_ref().is_some_and(|name| name == build.name()));
    let (Some(build), Some(compiler)) = (build, arguments.next()) else { return Ok(()) };
    let arguments: Vec<OsString> = arguments.collect();
    let mut command = Command::new(&compiler);
    let flags = if is_for_targets(&arguments) { build.flags() } else { "" };
    if flags.contains("-Z") {
        // The sanitizer's flag is unstable; the variable makes a stable toolchain accept it.
        command.env("RUSTC_BOOTSTRAP", "1");
    }
    let error = command.args(&arguments).args(flags.split_whitespace()).exec();
    Err(error).with_context(|| format!("cannot run {}", compiler.display()))
}

/// Returns true for a crate that becomes part of the targets. Returns false for a build dependency, and for a query of cargo to the
/// compiler.
fn is_for_targets(arguments: &[OsString]) -> bool {
    let value_of = |flag: &str| -> Option<&OsString> {
        let at = arguments.iter().position(|argument| argument == flag)?;
        arguments.get(at + 1)
    };
    let is_build_script = |name: &OsString| name.to_string_lossy().starts_with("build_script_");
    let is_macro = value_of("--crate-type").is_some_and(|kind| kind == "proc-macro");
    value_of("--crate-name").is_some_and(|name| name != "___" && !is_build_script(name)) && !is_macro
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_during_the_build_is_not_instrumented() {
        let is_for_targets = |text: &str| {
            let words: Vec<OsString> = text.split_whitespace().map(OsString::from).collect();
            is_for_targets(&words)
        };
        assert!(is_for_targets("--crate-name pmi_core --edition=2024 lib.rs --crate-type lib"));
        assert!(is_for_targets("--crate-name server --edition=2024 server.rs --crate-type bin"));
        assert!(!is_for_targets("--crate-name build_script_build build.rs --crate-type bin"));
        assert!(!is_for_targets("--crate-name derive --crate-type proc-macro"));
        assert!(!is_for_targets("- --crate-name ___ --print=file-names --crate-type bin"));
        assert!(!is_for_targets("-vV"));
    }
}
