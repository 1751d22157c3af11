//! A demonstration of the main function on a machine with Rust alone.

use std::path::PathBuf;

use anyhow::Result;

use crate::shell::{self, cargo, command, target_directory};

/// Builds lattice, its agent and an example; returns their directory.
pub(crate) fn build() -> Result<PathBuf> {
    let packages = "--package lattice-mpi --package lattice-agent --package lattice-examples";
    let programs = "--bin lattice --bin lattice-agent --example pmi_ring";
    shell::run(&mut cargo(&format!("build --profile demo {packages} {programs}")))?;
    Ok(target_directory()?.join("demo"))
}

/// Builds the programs, and launches the example.
pub(crate) fn run() -> Result<()> {
    let built = build()?;
    shell::run(command(built.join("lattice"), "launch -n 4 --label").arg(built.join("examples/pmi_ring")))
}
