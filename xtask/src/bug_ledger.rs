//! The bug ledger: brings each bug of `bugs.toml` back in a copy of the repository, and shows that its test fails then.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::shell::{cargo, command, run, target_directory, works};

/// The ledger, as it is written.
const LEDGER: &str = include_str!("../bugs.toml");

#[derive(Debug, Deserialize)]
struct Ledger {
    #[serde(rename = "bug")]
    bugs: Vec<Bug>,
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
}

/// Brings bugs back whose names have `only` in them, and prints what was found.
pub(crate) fn run_all(only: Option<&str>) -> Result<()> {
    let Ledger { bugs } = read()?;
    let copy = target_directory()?.join("bug-ledger");
    let target = target_directory()?.join("bug-ledger-target");
    renew(&copy)?;
    let mut table = String::new();
    let mut missed = 0;
    for bug in bugs.iter().filter(|bug| only.is_none_or(|only| bug.name.contains(only))) {
        let found = bring_back(bug, &copy, &target)?;
        let word = match found {
            Found::Yes => "found",
            Found::No => "NOT FOUND",
            Found::NotBuilt => "NOT BUILT",
        };
        missed += usize::from(found != Found::Yes);
        table += &format!("{word:<9}  {}\n           by {}\n           {}\n", bug.name, bug.test, bug.source);
    }
    run(command("git", "worktree remove --force").arg(&copy))?;
    println!("{table}");
    ensure!(missed == 0, "{missed} bugs are not found");
    Ok(())
}

/// A copy of the repository as it is committed.
fn renew(copy: &Path) -> Result<()> {
    if copy.exists() {
        run(command("git", "worktree remove --force").arg(copy))?;
    }
    run(command("git", "worktree add --force --detach").arg(copy).arg("HEAD"))
}

fn bring_back(bug: &Bug, copy: &Path, target: &Path) -> Result<Found> {
    let file = copy.join(&bug.file);
    let sound = fs::read_to_string(&file).with_context(|| format!("cannot read {}", bug.file))?;
    fs::write(&file, changed(bug, &sound)?)?;
    let test = |words: &str| {
        let mut test = cargo(&format!("test --quiet {} {words}", bug.test));
        test.current_dir(copy).env("CARGO_TARGET_DIR", target).env("CARGO_INCREMENTAL", "0");
        test
    };
    eprintln!("bringing back: {}", bug.name);
    let found = match works(&mut test("--no-run")) {
        false => Found::NotBuilt,
        true if works(&mut test("")) => Found::No,
        true => Found::Yes,
    };
    fs::write(&file, sound)?;
    Ok(found)
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
}
