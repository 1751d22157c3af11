//! The main job, seen working on a machine that has Rust and nothing else.

use anyhow::Result;

use crate::shell::{self, cargo, command, target_directory};

/// Builds lattice and an example, and launches the example.
pub(crate) fn run() -> Result<()> {
    // Launches on one machine need no API server.
    let packages = "--package lattice --package lattice-examples --no-default-features";
    shell::run(&mut cargo(&format!("build --profile demo {packages} --bin lattice --example pmi_ring")))?;
    let built = target_directory()?.join("demo");
    shell::run(command(built.join("lattice"), "launch -n 4 --label").arg(built.join("examples/pmi_ring")))
}
