//! Instrumentation of our crates only: this program as the compiler that cargo calls.
//!
//! With flags in the environment, cargo would instrument and sanitize two hundred crates of others, which takes four times as long
//! and leads libFuzzer astray: what counts is where our code was not before.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::shell::repository;

/// Tells this program that it is called in the compiler's place.
const MARK: &str = "LATTICE_FUZZ_INSTRUMENT";

/// Instrumentation that libFuzzer needs, and the address sanitizer, as `cargo fuzz` sets them with `--strip-dead-code`.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Zsanitizer=address --cfg fuzzing";

/// Lets a build of cargo instrument our crates.
pub(super) fn ours(build: &mut Command) -> Result<&mut Command> {
    let this = std::env::current_exe().context("cannot tell where this program is")?;
    // The sanitizer's flag is unstable; the last variable makes the one toolchain take it.
    Ok(build.env("RUSTC_WRAPPER", this).env(MARK, "1").env("RUSTC_BOOTSTRAP", "1"))
}

/// Becomes the compiler, if cargo called this program in its place: `xtask RUSTC ARGUMENTS...`.
///
/// # Errors
/// Fails if the compiler cannot be run.
pub(crate) fn become_compiler() -> Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(_), Some(compiler)) = (std::env::var_os(MARK), arguments.next()) else { return Ok(()) };
    let arguments: Vec<OsString> = arguments.collect();
    let crate_directory = std::env::var_os("CARGO_MANIFEST_DIR");
    let flags = if is_ours(crate_directory.as_deref(), &arguments) { FLAGS } else { "" };
    let error = Command::new(&compiler).args(&arguments).args(flags.split_whitespace()).exec();
    Err(error).with_context(|| format!("cannot run {}", compiler.display()))
}

/// Returns true for a crate of this repository that is built for the target, not for the build itself.
fn is_ours(directory: Option<&OsStr>, arguments: &[OsString]) -> bool {
    let Ok(repository) = repository().canonicalize() else { return false };
    let is_here = directory.is_some_and(|directory| Path::new(directory).starts_with(&repository));
    is_here && arguments.iter().any(|argument| argument == "--target")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_crates_are_instrumented_and_only_for_the_target() {
        let words = |text: &str| -> Vec<OsString> { text.split_whitespace().map(OsString::from).collect() };
        let (ours, theirs) =
            (repository().canonicalize().unwrap().join("pmi-core"), "/home/me/.cargo/registry/src/x/tokio-1.0.0");
        assert!(is_ours(Some(ours.as_os_str()), &words("--crate-name pmi_core --target x86_64-unknown-linux-gnu")));
        assert!(!is_ours(Some(ours.as_os_str()), &words("--crate-name build_script_build")));
        assert!(!is_ours(Some(OsStr::new(theirs)), &words("--crate-name tokio --target x86_64-unknown-linux-gnu")));
        assert!(!is_ours(None, &words("-vV")));
    }
}
