//! The bug ledger: brings each bug of `bugs.toml` back in a copy of the repository, and shows that its test fails then.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::shell::{cargo, command, run, target_directory, works};
use crate::steps::TestRun;

/// The ledger, as it is written.
const LEDGER: &str = include_str!("../bugs.toml");

#[derive(Debug, Deserialize)]
struct Ledger {
    #[serde(rename = "bug")]
    bugs: Vec<Bug>,
}

impl Ledger {
    /// Bugs whose names or tests have `only` in them, of those that stand from `from` on.
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
    /// Where it was: a trap of the design, or what users saw.
    source: String,
    file: String,
    /// A text that stands once in the file.
    find: String,
    /// Text that brings the bug back in its place.
    replace: String,
    /// Arguments of `cargo test` that find it.
    test: String,
}

/// Result of bringing a bug back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Yes,
    /// The test passes.
    No,
    /// The changed code does not compile.
    NotBuilt,
    /// The test does not pass without the bug either, or no test has that name.
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

/// Brings bugs back, and prints of each whether it is found. All tests are run without a bug first, while nothing has to be built anew.
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

/// A copy of the repository as it is committed.
fn renew(copy: &Path) -> Result<()> {
    if copy.exists() {
        run(command("git", "worktree remove --force").arg(copy))?;
    }
    run(command("git", "worktree add --force --detach").arg(copy).arg("HEAD"))
}

/// The copy in which bugs are brought back, and where it is built.
struct Bench {
    copy: PathBuf,
    target: PathBuf,
}

impl Bench {
    /// Tests of these bugs that pass without a bug: one that fails anyway finds nothing.
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

    /// Builds a test, and the programs that it starts: cargo builds none for the tests of another package, and those of the last bug
    /// may be there still.
    fn build(&self, test: &str) -> bool {
        let starts_programs = ["--test cluster", "--test e2e"].iter().any(|words| test.contains(words));
        (!starts_programs || works(&mut self.cargo("build --workspace --bins --examples")))
            && works(&mut self.cargo(&format!("test --no-run {test}")))
    }

    /// True if the test is there and passes.
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

/// The text of a file with the bug in it.
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

    /// What the ledger changes is still there, so that the ledger goes with the code.
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

    /// The table of attacks names tests that exist.
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

    /// The traps of the design that Lattice began with, by the numbers of its review.
    #[test]
    fn every_trap_of_the_design_has_a_bug() {
        let Ledger { bugs } = read().unwrap();
        let is_there = |trap: &u32| bugs.iter().any(|bug| bug.source.starts_with(&format!("trap {trap}: ")));
        let missing: Vec<u32> = (1..=15).filter(|trap| !is_there(trap)).collect();
        assert!(missing.is_empty(), "no bug for the traps {missing:?}");
    }
}
