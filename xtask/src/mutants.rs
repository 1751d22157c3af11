//! Mutation tests: cargo-mutants changes functions of the state machines one by one, and reports the changes that no test detects.

use anyhow::Result;

use crate::shell::{command, repository, run, target_directory, tool};

/// Release of cargo-mutants.
const VERSION: &str = "27.1.0";

/// Packages whose own tests decide within seconds.
const PACKAGES: [&str; 5] = ["pmi-core", "pmix-core", "lattice-overlay", "lattice-session", "lattice-api-server"];

/// Changes functions of `packages`, or of [`PACKAGES`] without any. `shard` selects a share of all changes, such as `3/30`.
///
/// # Errors
/// Fails if cargo-mutants cannot be installed, or if a change is not detected. `target/mutants.out` has the changes.
pub(crate) fn run_all(packages: &[String], shard: Option<&str>) -> Result<()> {
    let mut mutants = command(tool("cargo-mutants", VERSION, "")?, "mutants --no-shuffle --minimum-test-timeout 60");
    mutants.arg("--dir").arg(repository()).arg("--output").arg(target_directory()?);
    let defaults = PACKAGES.map(str::to_owned);
    let packages = if packages.is_empty() { &defaults[..] } else { packages };
    mutants.args(packages.iter().flat_map(|package| ["--package", package]));
    mutants.args(shard.into_iter().flat_map(|shard| ["--shard", shard]));
    // cargo-mutants runs the tests of the changed package: those of the whole program take minutes for each change.
    run(&mut mutants)
}
