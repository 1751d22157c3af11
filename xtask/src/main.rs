//! The chores of a developer: `cargo xtask CHORE`.
//!
//! Each chore is a list of commands. They are printed before they run, so that each can be repeated by hand.

mod background;
mod book;
mod bug_ledger;
mod checks;
mod client_libraries;
mod commits;
mod demo;
mod dependencies;
mod dist;
#[cfg(test)]
mod doc_links;
mod failed_once;
mod fuzz;
mod miri;
mod mutants;
mod ours;
mod packages;
mod picture;
mod prose;
mod public_api;
mod semver;
mod setup;
mod shell;
mod simulation;
mod steps;
mod tiers;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::tiers::Second;

/// The chores of a developer.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Clone, Debug, Subcommand)]
enum Chore {
    /// Build lattice, and launch four ranks that find each other; needs no MPI.
    Demo,
    /// Install the requirements of the tests: MPI libraries from Debian and from the Python package index.
    Setup,
    /// Set up, then run the tests.
    Test {
        /// Run the second tier as well: every MPI library for each feature, fault matrices, floods, long runs.
        #[arg(long)]
        all: bool,
    },
    /// Check the walls of ARCHITECTURE.md, and print the table of crates.
    Walls {
        /// Also list the items that the table counts: riddles, bare bools, missing documentation, large types.
        #[arg(long)]
        list: bool,
        /// Lower the sizes in `xtask/sizes.txt` to the measured ones.
        #[arg(long, conflicts_with = "list")]
        write: bool,
    },
    /// Check that subjects of commits have at most 72 characters.
    Commits,
    /// Check the code by clippy, and its documentation by rustdoc.
    Lints,
    /// Build every fuzz target, and run some or all for a while.
    Fuzz {
        /// Targets to run; all, if none is named.
        targets: Vec<String>,
        /// Seconds for each target.
        #[arg(long, default_value_t = fuzz::SECONDS)]
        seconds: u32,
    },
    /// Build the simulation optimised, and run the seeds of this commit.
    Simulate,
    /// Build libpmi.so.0 and libpmi2.so.0, and install them with headers and pkg-config files (docs/embed/c-libraries.md).
    ClientLibraries {
        /// Directory that gets lib/lattice, include/lattice and lib/pkgconfig, such as /usr/local.
        prefix: PathBuf,
    },
    /// Change functions of the state machines one by one, and report changes that no test detects (cargo-mutants).
    Mutants {
        /// Packages; those of the state machines, if none is named.
        packages: Vec<String>,
        /// A share of the changes, such as 3/30 for the fourth of thirty nights.
        #[arg(long)]
        shard: Option<String>,
    },
    /// Restore each bug of `xtask/bugs.toml` in a copy of the repository, and check that its test fails.
    BugLedger {
        /// Only bugs with this text in their name or test.
        #[arg(long)]
        only: Option<String>,
        /// Only this bug, by its full name, and all bugs after it in the file.
        #[arg(long, value_name = "NAME")]
        from: Option<String>,
    },
    /// Run tests of `unsafe` code under Miri; installs a nightly toolchain if there is none.
    Miri,
    /// Check licences, sources and bans of all dependencies with cargo-deny (deny.toml).
    Dependencies {
        /// Check for known vulnerabilities as well; fetches a database.
        #[arg(long)]
        advisories: bool,
    },
    /// Write a list of the components of each packaged program (CycloneDX) to target/sbom.
    Sbom,
    /// Create the package of every published crate, and check its contents.
    Packages {
        /// Build each from its package as well; takes minutes.
        #[arg(long)]
        build: bool,
    },
    /// Check the documentation, and that CRATE/public-api.txt lists the public items of each crate for embedders.
    PublicApi {
        /// Write the lists.
        #[arg(long)]
        write: bool,
    },
    /// Check for breaking changes of the crates for embedders that are not in CHANGELOG.md, with cargo-semver-checks.
    Semver {
        /// Commit to compare with; by default the last commit that changed CHANGELOG.md.
        base: Option<String>,
    },
    /// Build the packages for users in target/dist: a tarball, .deb, .rpm, Python wheel, and the tree for an image.
    Dist {
        /// Pack the programs of the tests, and install, upgrade and remove each package in a clean system. Needs root.
        #[arg(long)]
        check: bool,
    },
    /// Build the book of `docs` by mdBook, which is installed below `target`.
    Book,
    /// Draw the picture of a terminal in README from the programs of the demo.
    Picture,
    /// Count words that make texts hard to read, and print the table of kinds and packages.
    Prose {
        /// Print the texts of this kind that have such a word.
        #[arg(long, value_name = "KIND")]
        list: Option<prose::Kind>,
    },
    /// Generate the code of the protocol's messages from their .proto files.
    Proto,
    /// Everything that must pass before a change is merged: format, lints, walls, packages, docs and public API, tests of the first tier and
    /// a share of the second, packages for users, benches, fresh seeds of the simulation, a short fuzz run.
    Ci,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Without a backtrace, which would hide the reports of failed tests.
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    ours::become_compiler()?;
    public_api::become_rustdoc()?;
    std::env::set_current_dir(shell::repository())?;
    match Cli::parse().chore {
        Chore::Demo => demo::run(),
        Chore::Setup => setup::run(),
        Chore::Test { all: true } => checks::test(Second::All),
        Chore::Test { all: false } => checks::test(Second::None),
        Chore::Lints => checks::lints(),
        Chore::Walls { list, write } => checks::walls(if list {
            "list"
        } else if write {
            "write"
        } else {
            ""
        }),
        Chore::Commits => commits::check(),
        Chore::Fuzz { targets, seconds } => fuzz::build().and_then(|()| fuzz::run_targets(&targets, seconds)),
        Chore::Simulate => simulation::build().and_then(|()| simulation::run_fresh()),
        Chore::ClientLibraries { prefix } => client_libraries::install(&prefix),
        Chore::Mutants { packages, shard } => mutants::run_all(&packages, shard.as_deref()),
        Chore::BugLedger { only, from } => bug_ledger::run_all(only.as_deref(), from.as_deref()),
        Chore::Miri => miri::check(),
        Chore::Dependencies { advisories: true } => dependencies::check(dependencies::Advisories::Fetched),
        Chore::Dependencies { advisories: false } => dependencies::check(dependencies::Advisories::Left),
        Chore::Sbom => dependencies::list(),
        Chore::Packages { build: true } => packages::check(packages::Build::FromPackages),
        Chore::Packages { build: false } => packages::check(packages::Build::Left),
        Chore::PublicApi { write: true } => public_api::check(public_api::Lists::Written),
        Chore::PublicApi { write: false } => public_api::check(public_api::Lists::Checked),
        Chore::Semver { base } => semver::check(base.as_deref()),
        Chore::Dist { check: false } => dist::build(),
        Chore::Dist { check: true } => dist::check(),
        Chore::Book => book::build(),
        Chore::Picture => picture::draw(),
        Chore::Prose { list } => prose::check(list),
        Chore::Proto => shell::run(&mut shell::cargo("run --quiet --package pmi-transport-codegen")),
        Chore::Ci => checks::ci(),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
