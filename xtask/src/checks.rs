//! Checks before a change is merged.

use std::process::Command;

use anyhow::{Context, Result};

use crate::background::{Background, lowest};
use crate::public_api::SAME_DEPENDENCIES;
use crate::shell::{cargo, command, run, target_directory, works};
use crate::steps::Steps;
use crate::tiers::{self, Second};
use crate::{
    client_libraries, commits, dependencies, dist, fuzz, packages, prose, public_api, semver, setup, simulation,
};

/// The tests of the first tier, and of the second one.
pub(crate) fn test(second: Second) -> Result<()> {
    reported(|steps| {
        prepare_tests(steps)?;
        run_all_tests(steps, second)
    })
}

/// The walls of ARCHITECTURE.md. `argument` is `list`, `write` or empty.
pub(crate) fn walls(argument: &str) -> Result<()> {
    run(&mut cargo(&format!("run --quiet --package walls -- {argument}")))
}

/// Static checks of the code.
pub(crate) fn lints() -> Result<()> {
    run(&mut cargo("clippy --workspace --all-targets -- -D warnings"))?;
    // The configuration in which embedders build libraries without their default features.
    let few = "--lib --bins --no-default-features --features pmi-core/driver,pmix-core/driver";
    let without_std = client_libraries::PACKAGES;
    let others: String = without_std.iter().map(|package| format!(" --exclude {package}")).collect();
    run(&mut cargo(&format!("clippy --workspace{others} {SAME_DEPENDENCIES} {few} -- -D warnings")))?;
    // In a separate command, because packages around them have `std`.
    run(client_libraries::command("clippy").args(["--", "-D", "warnings"]))?;
    public_api::document()
}

/// Everything.
pub(crate) fn ci() -> Result<()> {
    reported(|steps| {
        steps.take("format", format)?;
        prepare_tests(steps)?;
        // With the programs that were just built, with the features of all packages together.
        steps.take("walls", || run(&mut Command::new(target_directory()?.join("debug/walls"))))?;
        steps.take("subjects of commits", commits::check)?;
        steps.take("prose", || prose::check(None))?;
        steps.take("dependencies", || dependencies::check(dependencies::Advisories::Left))?;
        steps.take("packages", || packages::check(packages::Build::Left))?;
        let lints = start_lints()?;
        run_all_tests(steps, Second::Share)?;
        steps.take("packages for users", dist::check)?;
        // Without `--bench` each bench only proves that it works.
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

/// Starts [`lints`] in a separate process, so that its builds do not wait for the tests' builds.
fn start_lints() -> Result<Background> {
    let itself = std::env::current_exe().context("cannot find the path of this program")?;
    let mut lints = lowest("");
    lints.arg(itself).arg("lints");
    Background::start("lints", lints)
}

fn format() -> Result<()> {
    // A minimal Rust installation has neither of them.
    if !works(&mut cargo("clippy --version")) || !works(&mut cargo("fmt --version")) {
        run(&mut command("rustup", "component add clippy rustfmt"))?;
    }
    run(&mut cargo("fmt --all --check"))
}

fn prepare_tests(steps: &mut Steps) -> Result<()> {
    steps.take("set-up", setup::run)?;
    // A single build uses all processors. cargo builds no binary for the tests of another package.
    steps.take("build", || run(&mut cargo("build --workspace --all-targets")))
}

fn run_all_tests(steps: &mut Steps, second: Second) -> Result<()> {
    tiers::run_all(steps, second)?;
    let prefix = target_directory()?.join("installed");
    steps.take("client libraries", || client_libraries::install(&prefix))?;
    // A server without tokio is a guarantee to embedders.
    steps
        .take("without tokio", || run(&mut cargo("build --package pmi-core --package pmix-core --no-default-features")))
}

/// Runs a chore, and prints its steps after its success or failure.
fn reported(chore: impl FnOnce(&mut Steps) -> Result<()>) -> Result<()> {
    let mut steps = Steps::default();
    let result = chore(&mut steps);
    eprint!("\n{steps}");
    result
}
