//! Simulated clusters with new seeds: the first seed is derived from the commit's hash.

use std::process::Command;

use anyhow::Result;

use crate::commits;
use crate::ours::Build;
use crate::shell::{cargo, run, target_directory};

/// Number of seeds in a run, which takes about a minute on two processors.
const SEEDS: u64 = 100_000;

/// Builds the simulation, optimised. All packages are selected with a test, as for the tests: another selection would rebuild the external
/// crates with other features.
pub(crate) fn build() -> Result<()> {
    run(Build::Optimised.of(&mut cargo("build --workspace --bin lattice-simulation --test seeds"))?)
}

/// Runs the seeds of this commit.
pub(crate) fn run_fresh() -> Result<()> {
    let first = commits::number()?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut simulation = Command::new(target_directory()?.join("debug/lattice-simulation"));
    simulation.args(["--seeds".to_owned(), format!("{first}..{}", first + SEEDS)]);
    run(simulation.args(["--threads".to_owned(), threads.to_string()]))
}
