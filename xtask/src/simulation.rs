//! Simulated clusters with new seeds: the first seed is derived from the commit's hash.

use std::process::Command;

use anyhow::{Context, Result};

use crate::ours::Build;
use crate::shell::{cargo, command, run, target_directory};

/// Number of seeds in a run, which takes about a minute on two processors.
const SEEDS: u64 = 100_000;

/// Number of digits of the hash in a seed. [`SEEDS`] more seeds fit after the highest one.
const DIGITS: usize = 15;

/// Builds the simulation, optimised. All packages are selected with a test, as for the tests: another selection would rebuild the external
/// crates with other features.
pub(crate) fn build() -> Result<()> {
    run(Build::Optimised.of(&mut cargo("build --workspace --bin lattice-simulation --test seeds"))?)
}

/// Runs the seeds of this commit.
pub(crate) fn run_fresh() -> Result<()> {
    let head = command("git", "rev-parse HEAD").output().context("cannot ask git for the commit")?;
    let first = first_seed(&String::from_utf8_lossy(&head.stdout))?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut simulation = Command::new(target_directory()?.join("debug/lattice-simulation"));
    simulation.args(["--seeds".to_owned(), format!("{first}..{}", first + SEEDS)]);
    run(simulation.args(["--threads".to_owned(), threads.to_string()]))
}

/// Returns the first seed of a commit, from its hash in hexadecimal.
fn first_seed(hash: &str) -> Result<u64> {
    let digits = hash.get(..DIGITS).with_context(|| format!("{hash:?} is no commit"))?;
    u64::from_str_radix(digits, 16).with_context(|| format!("{hash:?} is no commit"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_commit_has_seeds_of_its_own() {
        let first = |hash: &str| first_seed(hash).ok();
        assert_eq!(first("00000000000000a7b2c6cc70000000000000000f\n"), Some(0xa));
        assert_eq!(first("ffffffffffffffffffffffffffffffffffffffff"), Some((1 << 60) - 1));
        assert!(first("fatal: no repository").is_none() && first("").is_none());
    }
}
