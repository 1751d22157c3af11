//! What must hold before a change lands.

use std::path::Path;

use anyhow::{Context, Result};

use crate::setup;
use crate::shell::{cargo, command, run, works};

/// How long each fuzz target runs, in seconds: long enough to find what broke since the last change, not more.
const FUZZ_SECONDS: u32 = 20;
/// The longest input that is tried: room for a spawn of several programs, and for messages beyond their limits.
const FUZZ_INPUT_BYTES: u32 = 8192;
const FUZZ_DIRECTORIES: &[&str] = &["pmi-core/fuzz", "pmix-core/fuzz"];

/// Every test.
pub(crate) fn test() -> Result<()> {
    setup::run()?;
    // Cargo builds no binary for the tests of another package.
    run(&mut cargo("build --workspace --bins"))?;
    run(&mut cargo("test --workspace"))?;
    // A server without tokio is a promise to those who embed it.
    run(&mut cargo("build --package pmi-core --package pmix-core --no-default-features"))
}

/// Everything.
pub(crate) fn ci() -> Result<()> {
    // A minimal Rust has neither.
    if !works(&mut cargo("clippy --version")) || !works(&mut cargo("fmt --version")) {
        run(&mut command("rustup", "component add clippy rustfmt"))?;
    }
    run(&mut cargo("fmt --all --check"))?;
    run(&mut cargo("clippy --workspace --all-targets -- -D warnings"))?;
    run(cargo("doc --workspace --no-deps").env("RUSTDOCFLAGS", "-D warnings"))?;
    test()?;
    // Without `--bench` each bench only shows that it works.
    run(cargo("test --workspace --bench").arg("*"))?;
    fuzz()
}

/// A short run of each fuzz target.
fn fuzz() -> Result<()> {
    setup::fuzzer()?;
    if !works(&mut cargo("fuzz --version")) {
        run(&mut cargo("install --locked cargo-fuzz"))?;
    }
    // The recorded conversations become seeds.
    run(&mut cargo("test --package pmi-core --test fuzz_seeds -- --ignored"))?;
    let limits = format!("-max_total_time={FUZZ_SECONDS} -max_len={FUZZ_INPUT_BYTES}");
    for directory in FUZZ_DIRECTORIES {
        for target in fuzz_targets(directory)? {
            let words = format!("fuzz run --fuzz-dir {directory} {target} -- {limits}");
            // The sanitizer's flags are unstable; this makes the one toolchain take them.
            run(cargo(&words).env("RUSTC_BOOTSTRAP", "1"))?;
        }
    }
    Ok(())
}

/// The names of the fuzz targets, sorted.
fn fuzz_targets(directory: &str) -> Result<Vec<String>> {
    let directory = Path::new(directory).join("fuzz_targets");
    let entries = directory.read_dir().with_context(|| format!("cannot read {}", directory.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
        }
    }
    names.sort_unstable();
    Ok(names)
}
