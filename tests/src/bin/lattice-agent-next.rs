//! `lattice-agent` as a build of the next version: the target of upgrades in the tests.

use std::process::ExitCode;

use clap::Parser;
use lattice_agent::{Answer, Args};

fn main() -> ExitCode {
    let Answer { text, problems, exit } =
        lattice_agent::run_as(concat!(env!("CARGO_PKG_VERSION"), "-next"), Args::parse());
    print!("{text}");
    problems.iter().for_each(|problem| eprintln!("lattice-agent-next: {problem}"));
    exit.into()
}
