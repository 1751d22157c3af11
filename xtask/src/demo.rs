//! A demonstration of the main function on a machine with Rust alone.

use anyhow::Result;

use crate::shell::{self, cargo, command, target_directory};

/// Builds lattice, its agent and an example, and launches the example.
pub(crate) fn run() -> Result<()> {
    let packages = "--package lattice --package lattice-agent --package lattice-examples";
    let programs = "--bin lattice --bin lattice-agent --example pmi_ring";
    shell::run(&mut cargo(&format!("build --profile demo {packages} {programs}")))?;
    let built = target_directory()?.join("demo");
    shell::run(command(built.join("lattice"), "launch -n 4 --label").arg(built.join("examples/pmi_ring")))
}
