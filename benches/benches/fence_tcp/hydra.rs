//! Hydra with one proxy and one rank per agent, all on this machine.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use lattice_benches::launcher::in_path;
use lattice_benches::sample::median;

use crate::Figures;

/// Debian's Hydra.
pub(crate) struct Hydra(PathBuf);

impl Hydra {
    /// Finds Debian's Hydra, or returns the reason why it cannot be measured.
    pub(crate) fn find() -> Result<Self, String> {
        in_path("mpiexec.hydra").map(Self).ok_or("no mpiexec.hydra in PATH; Debian's package mpich has it".into())
    }

    /// Performs one run. Returns the medians over all ranks of each figure.
    pub(crate) fn measure(&self, nodes: u32, fences: usize) -> Result<Figures, String> {
        let hosts: Vec<_> = (0..nodes).map(|node| format!("n{node}")).collect();
        let mut launch = Command::new(&self.0);
        launch.args(["-launcher", "fork", "-ppn", "1", "-hosts", &hosts.join(","), "-n", &nodes.to_string()]);
        launch.arg(env!("CARGO_BIN_EXE_pmi_raw")).args([fences, 0, 0, fences].map(|count| count.to_string()));
        let output = launch.stdin(Stdio::null()).output().map_err(|error| format!("it did not start: {error}"))?;
        let printed = String::from_utf8_lossy(&output.stdout);
        let column = |name: &str| {
            let value = |line: &str| line.split(' ').find_map(|word| word.strip_prefix(name)?.parse::<f64>().ok());
            let values: Vec<f64> = printed.lines().filter_map(value).map(|nanos| nanos / 1e3).collect();
            let is_complete = values.len() == nodes as usize;
            let said = || String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
            if is_complete {
                Ok(median(&values))
            } else {
                Err(format!("{} of {nodes} ranks reported: {}", values.len(), said()))
            }
        };
        Ok(Figures { barrier: column("barrier=")?, data: column("fence=")? })
    }
}
