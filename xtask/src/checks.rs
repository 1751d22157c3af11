//! What must hold before a change lands.

use std::process::Command;

use anyhow::{Context, Result};

use crate::background::{Background, lowest};
use crate::public_api::SAME_DEPENDENCIES;
use crate::shell::{cargo, command, run, run_tests, target_directory, works};
use crate::steps::Steps;
use crate::{client_libraries, dependencies, fuzz, packages, public_api, semver, setup, simulation};

/// Every test.
pub(crate) fn test() -> Result<()> {
    reported(|steps| {
        prepare_tests(steps)?;
        run_all_tests(steps)
    })
}

/// The walls of ARCHITECTURE.md.
pub(crate) fn walls() -> Result<()> {
    run(&mut cargo("run --quiet --package walls"))
}

/// What is said of the code without running it.
pub(crate) fn lints() -> Result<()> {
    run(&mut cargo("clippy --workspace --all-targets -- -D warnings"))?;
    // As embedders build libraries without their default features.
    let few = "--lib --bins --no-default-features --features pmi-core/driver,pmix-core/driver";
    let without_std = client_libraries::PACKAGES;
    let others: String = without_std.iter().map(|package| format!(" --exclude {package}")).collect();
    run(&mut cargo(&format!("clippy --workspace{others} {SAME_DEPENDENCIES} {few} -- -D warnings")))?;
    // By themselves: packages around them have `std`.
    run(client_libraries::command("clippy").args(["--", "-D", "warnings"]))?;
    public_api::document()
}

/// Everything.
pub(crate) fn ci() -> Result<()> {
    reported(|steps| {
        steps.take("format", format)?;
        prepare_tests(steps)?;
        // As they were just built, with the features of all packages together.
        steps.take("walls", || run(&mut Command::new(target_directory()?.join("debug/walls"))))?;
        steps.take("dependencies", || dependencies::check(dependencies::Advisories::Left))?;
        steps.take("packages", || packages::check(packages::Build::Left))?;
        let lints = start_lints()?;
        run_all_tests(steps)?;
        // Without `--bench` each bench only shows that it works.
        steps.take("benches", || run(cargo("test --workspace --bench").arg("*")))?;
        let directory = lints.directory().join("doc");
        steps.take("lints", || lints.finish())?;
        steps.take("public API", || public_api::compare(directory))?;
        steps.take("breaking changes", || semver::check(None))?;
        steps.take("build of simulation", simulation::build)?;
        steps.take("simulation", simulation::run_fresh)?;
        steps.take("build of fuzz targets", fuzz::build)?;
        steps.take("fuzz targets", || fuzz::run_targets(&[], fuzz::SECONDS))
    })
}

/// Starts [`lints`] in a process of its own: what it builds must not wait for the tests' builds.
fn start_lints() -> Result<Background> {
    let itself = std::env::current_exe().context("cannot tell where this program is")?;
    let mut lints = lowest("");
    lints.arg(itself).arg("lints");
    Background::start("lints", lints)
}

fn format() -> Result<()> {
    // A minimal Rust has neither.
    if !works(&mut cargo("clippy --version")) || !works(&mut cargo("fmt --version")) {
        run(&mut command("rustup", "component add clippy rustfmt"))?;
    }
    run(&mut cargo("fmt --all --check"))
}

fn prepare_tests(steps: &mut Steps) -> Result<()> {
    steps.take("set-up", setup::run)?;
    // All at once keeps every processor busy; cargo builds no binary for the tests of another package.
    steps.take("build", || run(&mut cargo("build --workspace --all-targets")))
}

fn run_all_tests(steps: &mut Steps) -> Result<()> {
    // Many wait more than they compute: for limits to pass, for MPI libraries to look for networks.
    let threads = 4 * std::thread::available_parallelism().map_or(1, usize::from);
    let libraries = client_libraries::build()?;
    let mut tests = cargo("test --workspace --no-fail-fast");
    // Programs in C are tested with what is installed, and not with what is built for tests.
    tests.env("LATTICE_TEST_CLIENT_LIBRARIES", &libraries).env("RUST_TEST_THREADS", threads.to_string());
    steps.take_tests("tests", || run_tests(&mut tests))?;
    let prefix = target_directory()?.join("installed");
    steps.take("client libraries", || client_libraries::install(&prefix))?;
    // A server without tokio is a promise to those who embed it.
    steps
        .take("without tokio", || run(&mut cargo("build --package pmi-core --package pmix-core --no-default-features")))
}

/// Runs a chore, and prints its steps however it ends.
fn reported(chore: impl FnOnce(&mut Steps) -> Result<()>) -> Result<()> {
    let mut steps = Steps::default();
    let result = chore(&mut steps);
    eprint!("\n{steps}");
    result
}
