//! The bug ledger: restores each bug of `bugs.toml` in a copy of the repository, and checks that its test fails.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::shell::{cargo, command, run, target_directory, works};
use crate::steps::TestRun;

/// The text of the ledger.
const LEDGER: &str = include_str!("../bugs.toml");

#[derive(Debug, Deserialize)]
struct Ledger {
    #[serde(rename = "bug")]
    bugs: Vec<Bug>,
}

impl Ledger {
    /// Returns the bugs with `only` in their name or test, from the bug `from` on.
    fn chosen(self, only: Option<&str>, from: Option<&str>) -> Result<Vec<Bug>> {
        let names: Vec<&str> = self.bugs.iter().map(|bug| bug.name.as_str()).collect();
        let first = match from {
            None => 0,
            Some(from) => {
                names.iter().position(|name| *name == from).with_context(|| format!("no bug has the name {from:?}"))?
            }
        };
        let is_chosen = |bug: &Bug| only.is_none_or(|only| bug.name.contains(only) || bug.test.contains(only));
        Ok(self.bugs.into_iter().skip(first).filter(is_chosen).collect())
    }
}

/// One bug.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Bug {
    name: String,
    /// Source of the bug: a trap of the design, or an observation of users.
    source: String,
    file: String,
    /// A text that occurs exactly once in the file.
    find: String,
    /// Replacement text that restores the bug.
    replace: String,
    /// Arguments of `cargo test` that find the bug.
    test: String,
}

/// Result for a restored bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Yes,
    /// The test passes.
    No,
    /// The changed code does not compile.
    NotBuilt,
    /// The test fails without the bug as well, or no test has this name.
    Unsound,
}

impl Found {
    fn word(self) -> &'static str {
        match self {
            Self::Yes => "found",
            Self::No => "NOT FOUND",
            Self::NotBuilt => "NOT BUILT",
            Self::Unsound => "UNSOUND",
        }
    }
}

/// Restores bugs, and prints for each whether its test fails. First runs all tests without a bug, before anything must be rebuilt.
pub(crate) fn run_all(only: Option<&str>, from: Option<&str>) -> Result<()> {
    let bugs = read()?.chosen(only, from)?;
    let bench =
        Bench { copy: target_directory()?.join("bug-ledger"), target: target_directory()?.join("bug-ledger-target") };
    renew(&bench.copy)?;
    let sound = bench.sound_tests(&bugs)?;
    let mut missed = 0;
    for bug in &bugs {
        let found = if sound.contains(&bug.test) { bench.bring_back(bug)? } else { Found::Unsound };
        missed += usize::from(found != Found::Yes);
        println!("{:<9}  {}\n           by {}\n           {}", found.word(), bug.name, bug.test, bug.source);
    }
    run(command("git", "worktree remove --force").arg(&bench.copy))?;
    ensure!(missed == 0, "{missed} of {} bugs are not found", bugs.len());
    Ok(())
}

/// Creates a copy of the committed repository.
fn renew(copy: &Path) -> Result<()> {
    if copy.exists() {
        run(command("git", "worktree remove --force").arg(copy))?;
    }
    run(command("git", "worktree add --force --detach").arg(copy).arg("HEAD"))
}

/// The copy in which bugs are restored, and its build directory.
struct Bench {
    copy: PathBuf,
    target: PathBuf,
}

impl Bench {
    /// Returns the tests of these bugs that pass without a bug. A test that always fails cannot detect a bug.
    fn sound_tests(&self, bugs: &[Bug]) -> Result<BTreeSet<String>> {
        let tests: BTreeSet<&String> = bugs.iter().map(|bug| &bug.test).collect();
        let mut sound = BTreeSet::new();
        for test in tests {
            let passes = self.build(test) && self.passes(test)?;
            eprintln!("without a bug: {test}: {}", if passes { "passes" } else { "FAILS" });
            if passes {
                sound.insert(test.clone());
            }
        }
        Ok(sound)
    }

    fn bring_back(&self, bug: &Bug) -> Result<Found> {
        let file = self.copy.join(&bug.file);
        let sound = fs::read_to_string(&file).with_context(|| format!("cannot read {}", bug.file))?;
        fs::write(&file, changed(bug, &sound)?)?;
        let found = match self.build(&bug.test) {
            false => Found::NotBuilt,
            true if self.passes(&bug.test)? => Found::No,
            true => Found::Yes,
        };
        fs::write(&file, sound)?;
        Ok(found)
    }

    /// Builds a test, and the programs that it starts. cargo builds no programs for the tests of another package, and the programs of
    /// the last bug may still exist.
    fn build(&self, test: &str) -> bool {
        let starts_programs = ["--test cluster", "--test e2e"].iter().any(|words| test.contains(words));
        (!starts_programs || works(&mut self.cargo("build --workspace --bins --examples")))
            && works(&mut self.cargo(&format!("test --no-run {test}")))
    }

    /// Returns true if the test exists and passes.
    fn passes(&self, test: &str) -> Result<bool> {
        let output = self.cargo(&format!("test {test}")).stdin(Stdio::null()).stderr(Stdio::null()).output()?;
        let run = TestRun::of(&output.stdout, output.status.success());
        Ok(run.succeeded && run.count.passed > 0)
    }

    fn cargo(&self, words: &str) -> Command {
        let mut cargo = cargo(words);
        cargo.current_dir(&self.copy).env("CARGO_TARGET_DIR", &self.target).env("CARGO_INCREMENTAL", "0");
        cargo
    }
}

/// Returns the text of a file with the bug.
fn changed(bug: &Bug, sound: &str) -> Result<String> {
    let count = sound.matches(&bug.find).count();
    ensure!(count == 1, "{:?}: its text stands {count} times in {}, and must once", bug.name, bug.file);
    Ok(sound.replace(&bug.find, &bug.replace))
}

fn read() -> Result<Ledger> {
    toml::from_str(LEDGER).context("xtask/bugs.toml cannot be read")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::repository;

    /// The texts of the ledger still exist, so that the ledger stays consistent with the code.
    #[test]
    fn every_bug_can_be_brought_back() {
        let Ledger { bugs } = read().unwrap();
        assert!(bugs.len() >= 12);
        for bug in bugs {
            let file = repository().join(&bug.file);
            let sound = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", bug.file));
            assert_ne!(changed(&bug, &sound).unwrap(), sound, "{}", bug.name);
            assert!(!bug.source.is_empty() && bug.test.starts_with("-p "), "{}", bug.name);
        }
    }

    /// The table of attacks only names existing tests.
    #[test]
    fn every_attack_has_a_test() {
        let attacks = fs::read_to_string(repository().join("tests/testdata/attacks.txt")).unwrap();
        let mut numbers = Vec::new();
        for row in attacks.lines().filter(|line| !line.starts_with('#')) {
            let [number, _attack, tests] = row.split(" | ").collect::<Vec<_>>()[..] else { panic!("{row}") };
            numbers.push(number.parse::<u32>().unwrap());
            for (file, function) in tests.split(", ").map(|test| test.split_once(' ').unwrap()) {
                let source =
                    fs::read_to_string(repository().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
                assert!(source.contains(&format!("fn {function}(")), "attack {number}: {file} has no {function}");
            }
        }
        assert_eq!(numbers, Vec::from_iter(1..=64));
    }

    /// The traps of the original design, by the numbers of its review. Trap 14 is of Hydra's manual launcher, which is not supported.
    #[test]
    fn every_trap_of_the_design_has_a_bug() {
        let Ledger { bugs } = read().unwrap();
        let is_there = |trap: &u32| bugs.iter().any(|bug| bug.source.starts_with(&format!("trap {trap}: ")));
        let missing: Vec<u32> = (1..=15).filter(|trap| *trap != 14 && !is_there(trap)).collect();
        assert!(missing.is_empty(), "no bug for the traps {missing:?}");
    }
}
