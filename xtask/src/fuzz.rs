//! Fuzz targets: every crate `*/fuzz`, built at once, each target run for a while.
//!
//! The crates are one workspace, `fuzz/`, so that what they depend on is built once. Inputs of a target are in three places of its
//! crate: `regressions/TARGET/` is committed and holds what once was a finding, `corpus/TARGET/` grows, and its seeds come from the
//! crate's test `fuzz_seeds` where there is one. A finding is written to `artifacts/TARGET/`. `cargo fuzz` works on each crate too.

pub(crate) mod instrument;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use anyhow::{Context, Result, bail, ensure};

use crate::background::{Background, lowest};
use crate::setup;
use crate::shell::{cargo, command, run, started, target_directory};

/// Time that each target runs, in seconds: long enough to find what broke since the last change, not more.
pub(crate) const SECONDS: u32 = 3;
/// Directory of the programs' build, in the target directory.
const BUILD: &str = "fuzzing";
/// The longest input that is tried: room for a spawn of several programs, and for messages beyond their limits.
const INPUT_BYTES: u32 = 8192;
/// Last lines of a target's output that are shown when it fails.
const SHOWN_LINES: usize = 60;

/// A file `CRATE/fuzz/fuzz_targets/NAME.rs`.
#[derive(Debug, PartialEq, Eq)]
struct FuzzTarget {
    /// `CRATE/fuzz`.
    directory: PathBuf,
    name: String,
}

/// Build of all targets, under way; it ends with this value.
pub(crate) struct Build {
    process: Background,
    /// Directory of the targets' programs.
    programs: PathBuf,
}

/// Starts to build every target of every crate. The instrumentation is for the targets and our crates: a `--target` keeps it from
/// build scripts, the wrapper from the crates of others.
pub(crate) fn start_build() -> Result<Build> {
    setup::fuzzer()?;
    let triple = host_triple()?;
    let mut build = lowest("cargo build --manifest-path fuzz/Cargo.toml --workspace --release --target");
    instrument::ours(build.arg(&triple))?;
    let programs = target_directory()?.join(BUILD).join(triple).join("release");
    Ok(Build { process: Background::start(BUILD, build)?, programs })
}

/// Replays what is kept in all targets, and lets each look for more.
pub(crate) fn run_all(build: Build, seconds: u32) -> Result<()> {
    build.process.finish()?;
    let mut targets = Vec::new();
    for directory in crates(Path::new("."))? {
        targets.extend(self::targets(&directory)?);
    }
    write_seeds()?;
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    for group in targets.chunks(processors) {
        let mut running = Vec::new();
        for target in group {
            running.push((target, target.start(&build.programs, seconds)?));
        }
        for (target, (process, log)) in running {
            target.finish(process, &log)?;
        }
    }
    Ok(())
}

/// The platform that the compiler runs on.
fn host_triple() -> Result<String> {
    let output = command("rustc", "-vV").output().context("cannot run rustc")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let triple = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(triple.context("rustc -vV does not name its host")?.to_owned())
}

/// The fuzz crates, sorted.
fn crates(repository: &Path) -> Result<Vec<PathBuf>> {
    let entries = repository.read_dir().context("cannot read the repository's directory")?;
    let directories = entries.flatten().map(|entry| entry.path().join("fuzz"));
    let mut crates: Vec<PathBuf> = directories.filter(|directory| directory.join("Cargo.toml").exists()).collect();
    crates.sort_unstable();
    ensure!(!crates.is_empty(), "no crate has fuzz targets: there is no */fuzz/Cargo.toml");
    Ok(crates)
}

/// The targets of a fuzz crate, sorted by name.
fn targets(directory: &Path) -> Result<Vec<FuzzTarget>> {
    let sources = directory.join("fuzz_targets");
    let entries = sources.read_dir().with_context(|| format!("cannot read {}", sources.display()))?;
    let files = entries.flatten().map(|entry| entry.path());
    let names = files.filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    let mut targets: Vec<FuzzTarget> = names
        .filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned()))
        .map(|name| FuzzTarget { directory: directory.to_owned(), name })
        .collect();
    targets.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(targets)
}

/// Lets every crate that has recorded conversations write them as seeds. All packages are selected, as for the tests: another
/// selection would build them anew with other features.
fn write_seeds() -> Result<()> {
    run(&mut cargo("test --quiet --workspace --test fuzz_seeds -- --ignored"))
}

impl FuzzTarget {
    /// Starts the target on its corpus and its regressions; returns where its output goes.
    fn start(&self, programs: &Path, seconds: u32) -> Result<(Child, PathBuf)> {
        let inputs = ["corpus", "regressions", "artifacts"].map(|kind| self.directory.join(kind).join(&self.name));
        let [corpus, regressions, artifacts] = &inputs;
        for directory in [corpus, artifacts] {
            fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        }
        let log = artifacts.with_extension("log");
        let output = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut process = Command::new(programs.join(&self.name));
        process.arg(corpus).args(regressions.exists().then_some(regressions));
        process.arg(format!("-artifact_prefix={}/", artifacts.display()));
        process.args([format!("-max_total_time={seconds}"), format!("-max_len={INPUT_BYTES}")]);
        process.stdout(output.try_clone()?).stderr(output);
        Ok((started(&mut process)?, log))
    }

    /// Waits for the target; shows the end of its output if it found something.
    fn finish(&self, mut process: Child, log: &Path) -> Result<()> {
        let status = process.wait().context("cannot wait for a fuzz target")?;
        let text = String::from_utf8_lossy(&fs::read(log)?).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        let name = format!("{} {}", self.directory.display(), self.name);
        if status.success() {
            eprintln!("{name}: {}", lines.last().copied().unwrap_or_default());
            return Ok(());
        }
        lines[lines.len().saturating_sub(SHOWN_LINES)..].iter().for_each(|line| eprintln!("{line}"));
        bail!("fuzz target {name} ended with {status}; its input is in {}/artifacts", self.directory.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::repository;

    #[test]
    fn every_target_has_a_program_of_its_own_name() {
        let mut names = Vec::new();
        for directory in crates(repository()).unwrap() {
            let manifest = fs::read_to_string(directory.join("Cargo.toml")).unwrap();
            for target in targets(&directory).unwrap() {
                let declared = format!("name = \"{}\"", target.name);
                assert!(manifest.contains(&declared), "{}: {} is not declared", directory.display(), target.name);
                names.push(target.name);
            }
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        // They are built into one directory.
        assert_eq!(names.len(), count, "two fuzz targets have one name: {names:?}");
    }

    #[test]
    fn every_fuzz_crate_is_in_the_one_workspace() {
        for directory in crates(repository()).unwrap() {
            let manifest = fs::read_to_string(directory.join("Cargo.toml")).unwrap();
            assert!(manifest.contains("workspace = \"../../fuzz\""), "{}", directory.display());
        }
    }
}
