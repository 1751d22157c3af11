//! Fuzz targets: all targets of the package in `fuzz/`, built at once. Each target runs for a while.
//!
//! Inputs of a target are in two directories of the package, which are not committed. `corpus/TARGET/` grows; its seeds come from the
//! test `fuzz_seeds` of the crate that the target calls. A finding is written to `artifacts/TARGET/`; after its fix it becomes a unit
//! test of that crate. `cargo fuzz` also works on the package.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use anyhow::{Context, Result, bail, ensure};

use crate::ours::Build;
use crate::setup;
use crate::shell::{cargo, repository, run, started, target_directory};

/// Time limit of each target, in seconds. It is long enough to find new bugs of the last change, and no longer.
pub(crate) const SECONDS: u32 = 2;
/// Maximum size of an input, in bytes. It suffices for a spawn of several programs, and for messages beyond their limits.
const INPUT_BYTES: u32 = 8192;
/// Number of last lines of output that are printed for a failed target.
const SHOWN_LINES: usize = 60;

/// A file `fuzz/fuzz_targets/NAME.rs`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FuzzTarget(String);

/// Builds every target. The dependencies are those of the test build. Therefore all packages are selected as for the tests, and an
/// example next to the targets: see its manifest.
pub(crate) fn build() -> Result<()> {
    setup::fuzzer()?;
    let mut build = cargo("build --workspace --features lattice-fuzz/targets --example engine");
    for FuzzTarget(name) in targets()? {
        build.args(["--bin", &name]);
    }
    run(Build::Fuzzed.of(&mut build)?)
}

/// Replays the corpus, and searches for new inputs, with these targets; with all targets if the list is empty.
pub(crate) fn run_targets(named: &[String], seconds: u32) -> Result<()> {
    let mut targets = targets()?;
    for name in named {
        ensure!(targets.contains(&FuzzTarget(name.clone())), "there is no fuzz target {name} in fuzz/fuzz_targets");
    }
    targets.retain(|FuzzTarget(name)| named.is_empty() || named.contains(name));
    write_seeds()?;
    let programs = target_directory()?.join("debug");
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    for group in targets.chunks(processors) {
        let mut running = Vec::new();
        for target in group {
            running.push((target, target.start(&programs, seconds)?));
        }
        for (target, (process, log)) in running {
            target.finish(process, &log)?;
        }
    }
    Ok(())
}

/// Returns the directory of the package.
fn package() -> PathBuf {
    repository().join("fuzz")
}

/// Returns all targets, sorted by name.
fn targets() -> Result<Vec<FuzzTarget>> {
    let sources = package().join("fuzz_targets");
    let entries = sources.read_dir().with_context(|| format!("cannot read {}", sources.display()))?;
    let files = entries.flatten().map(|entry| entry.path());
    let names = files.filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    let mut targets: Vec<FuzzTarget> =
        names.filter_map(|path| Some(FuzzTarget(path.file_stem()?.to_str()?.to_owned()))).collect();
    targets.sort_unstable_by(|FuzzTarget(a), FuzzTarget(b)| a.cmp(b));
    Ok(targets)
}

/// Makes every crate with recorded exchanges write them as seeds. All packages are selected, as for the tests: another selection would
/// rebuild them with other features.
fn write_seeds() -> Result<()> {
    run(&mut cargo("test --quiet --workspace --test fuzz_seeds -- --ignored"))
}

impl FuzzTarget {
    /// Starts the target on its corpus. Returns the path of its output.
    fn start(&self, programs: &Path, seconds: u32) -> Result<(Child, PathBuf)> {
        let Self(name) = self;
        let [corpus, artifacts] = ["corpus", "artifacts"].map(|kind| package().join(kind).join(name));
        for directory in [&corpus, &artifacts] {
            fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        }
        let log = artifacts.with_extension("log");
        let output = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut process = Command::new(programs.join(name));
        process.arg(corpus);
        process.arg(format!("-artifact_prefix={}/", artifacts.display()));
        process.args([format!("-max_total_time={seconds}"), format!("-max_len={INPUT_BYTES}")]);
        process.stdout(output.try_clone()?).stderr(output);
        Ok((started(&mut process)?, log))
    }

    /// Waits for the target. If it found a bug, prints the end of its output.
    fn finish(&self, mut process: Child, log: &Path) -> Result<()> {
        let Self(name) = self;
        let status = process.wait().context("cannot wait for a fuzz target")?;
        let text = String::from_utf8_lossy(&fs::read(log)?).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        if status.success() {
            eprintln!("{name}: {}", lines.last().copied().unwrap_or_default());
            return Ok(());
        }
        lines[lines.len().saturating_sub(SHOWN_LINES)..].iter().for_each(|line| eprintln!("{line}"));
        bail!("fuzz target {name} ended with {status}; its input is in {}/artifacts", package().display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_has_a_program_of_its_own_name() {
        let manifest = fs::read_to_string(package().join("Cargo.toml")).unwrap();
        let targets = targets().unwrap();
        assert!(!targets.is_empty());
        for FuzzTarget(name) in targets {
            let declared = format!("name = \"{name}\"\npath = \"fuzz_targets/{name}.rs\"\n");
            assert!(manifest.contains(&declared), "fuzz/Cargo.toml does not declare {name}");
        }
    }
}
