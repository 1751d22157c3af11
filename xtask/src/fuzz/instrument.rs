//! Instrumentation of our crates only: this program as the compiler that cargo calls for them.
//!
//! With flags in the environment, cargo would instrument and sanitize three hundred crates of others, which takes four times as long
//! and leads libFuzzer astray: what counts is where our code was not before. So they are those that the tests are built with.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};

/// Tells this program that it is called in the compiler's place.
const MARK: &str = "LATTICE_FUZZ_INSTRUMENT";

/// Instrumentation that libFuzzer needs, and the address sanitizer, as `cargo fuzz` sets them with `--strip-dead-code`.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Zsanitizer=address --cfg fuzzing";

/// Lets a build of cargo instrument our crates.
pub(super) fn ours(build: &mut Command) -> Result<&mut Command> {
    let this = std::env::current_exe().context("cannot tell where this program is")?;
    Ok(build.env("RUSTC_WORKSPACE_WRAPPER", this).env(MARK, "1"))
}

/// Becomes the compiler, if cargo called this program in its place: `xtask RUSTC ARGUMENTS...`.
///
/// # Errors
/// Fails if the compiler cannot be run.
pub(crate) fn become_compiler() -> Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(_), Some(compiler)) = (std::env::var_os(MARK), arguments.next()) else { return Ok(()) };
    let arguments: Vec<OsString> = arguments.collect();
    let mut command = Command::new(&compiler);
    if is_for_targets(&arguments) {
        // The sanitizer's flag is unstable; the variable makes the one toolchain take it.
        command.env("RUSTC_BOOTSTRAP", "1").args(FLAGS.split_whitespace());
    }
    let error = command.args(&arguments).exec();
    Err(error).with_context(|| format!("cannot run {}", compiler.display()))
}

/// Returns true for a crate that becomes part of the targets: neither of the build itself, nor a question of cargo to the compiler.
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
