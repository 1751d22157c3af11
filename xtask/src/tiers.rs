//! Tests in two tiers. The first tier is all that a change must pass before it lands. The second tier has the tests of real programs with the
//! attribute `#[ignore = "second tier"]`: further MPI libraries for a feature, fault matrices, floods, long runs. A landing runs a share of
//! the second tier. The commit's hash selects the share.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::failed_once::FailedOnce;
use crate::shell::{cargo, run_tests};
use crate::steps::{Steps, TestRun};
use crate::{client_libraries, commits};

/// Tests of the second tier that run after the first tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Second {
    None,
    /// One of [`SHARES`] shares.
    Share,
    All,
}

/// Number of shares of the second tier.
const SHARES: usize = 6;

/// The programs of the second tier. Ignored tests of all other programs are parts of a test.
const PROGRAMS: &str = "--test cluster --test e2e";

/// Runs the first tier, and tests of the second one.
pub(crate) fn run_all(steps: &mut Steps, second: Second) -> Result<()> {
    let tests = Tests { libraries: client_libraries::build()? };
    let failed_once = FailedOnce::read()?;
    steps.take_tests("tests", || tests.run("", "", &[]), &failed_once, |names| tests.repeat("", names))?;
    let names = match second {
        Second::None => return Ok(()),
        Second::Share => share(tests.second()?, commits::number()?),
        Second::All => tests.second()?,
    };
    let repeat = |names: &[String]| tests.repeat(PROGRAMS, names);
    steps.take_tests("second tier", || tests.run(PROGRAMS, "--ignored --exact", &names), &failed_once, repeat)
}

/// Commands of the tests.
struct Tests {
    /// Variable with the C libraries that are installed. Programs in C are tested with them, and not with those of the test build.
    libraries: std::path::PathBuf,
}

impl Tests {
    /// Runs tests, several at once: many mostly wait, for limits to expire, or for MPI libraries to search for networks.
    fn run(&self, programs: &str, words: &str, names: &[String]) -> Result<TestRun> {
        let threads = 4 * std::thread::available_parallelism().map_or(1, usize::from);
        run_tests(&mut self.command(programs, words, names, threads))
    }

    /// Runs the named tests again, one after the other.
    fn repeat(&self, programs: &str, names: &[String]) -> Result<TestRun> {
        run_tests(&mut self.command(programs, "--include-ignored --exact", names, 1))
    }

    fn command(&self, programs: &str, words: &str, names: &[String], threads: usize) -> Command {
        // The selection of packages is always the same: another one would rebuild the external crates with other features.
        let mut tests = cargo("test --workspace --no-fail-fast");
        tests.args(programs.split_whitespace());
        tests.env("LATTICE_TEST_CLIENT_LIBRARIES", &self.libraries).env("RUST_TEST_THREADS", threads.to_string());
        tests.arg("--").args(words.split_whitespace()).args(names);
        tests
    }

    /// Names of the tests of the second tier, sorted.
    fn second(&self) -> Result<Vec<String>> {
        let mut list = self.command(PROGRAMS, "--ignored --list", &[], 1);
        let output = list.output().context("cannot list the tests of the second tier")?;
        ensure!(output.status.success(), "the tests of the second tier cannot be listed: {output:?}");
        let text = String::from_utf8_lossy(&output.stdout);
        let mut names: Vec<String> =
            text.lines().filter_map(|line| Some(line.strip_suffix(": test")?.into())).collect();
        names.sort();
        Ok(names)
    }
}

/// Returns every [`SHARES`]th name, beginning with the one that `number` selects. Neighbours are similar tests, so a share has some of each kind.
fn share(names: Vec<String>, number: u64) -> Vec<String> {
    names.into_iter().skip((number % SHARES as u64) as usize).step_by(SHARES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_test_of_the_second_tier_is_in_one_share() {
        let names: Vec<String> = (0..40).map(|number| format!("test {number:02}")).collect();
        let mut found: Vec<String> = (0..SHARES as u64).flat_map(|number| share(names.clone(), number)).collect();
        found.sort();
        assert_eq!(found, names);
        assert_eq!(share(names.clone(), SHARES as u64 + 1), share(names, 1));
    }
}
