//! The two launchers, and how one run of each is started.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A launcher that can be measured.
pub(crate) struct Launcher {
    pub(crate) name: &'static str,
    program: PathBuf,
    /// What stands before `-n`.
    subcommand: &'static [&'static str],
}

impl Launcher {
    /// Debian's Hydra, or why it cannot be measured.
    pub(crate) fn hydra() -> Result<Self, String> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let program =
            std::env::split_paths(&path).map(|folder| folder.join("mpiexec.hydra")).find(|file| file.exists());
        let program = program.ok_or("no mpiexec.hydra in PATH; Debian's package mpich has it")?;
        Ok(Self { name: "hydra", program, subcommand: &[] })
    }

    /// The program in `LATTICE_BIN`, else the one built beside this bench; or why it cannot be measured.
    pub(crate) fn lattice() -> Result<Self, String> {
        let beside = || Path::new(env!("CARGO_BIN_EXE_pmi_raw")).with_file_name("lattice").into_os_string();
        let program: PathBuf = std::env::var_os("LATTICE_BIN").unwrap_or_else(beside).into();
        if !program.exists() {
            return Err(format!("no {}; build it with --release, or name it in LATTICE_BIN", program.display()));
        }
        Ok(Self { name: "lattice", program, subcommand: &["launch"] })
    }

    /// Runs a command in so many ranks to its end, and returns what they printed.
    pub(crate) fn run(&self, ranks: usize, command: &[OsString]) -> Result<String, String> {
        let mut launch = Command::new(&self.program);
        launch.args(self.subcommand).arg("-n").arg(ranks.to_string()).args(command).stdin(Stdio::null());
        let output = launch.output().map_err(|error| format!("{} did not start: {error}", self.program.display()))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{} with {ranks} ranks ended with {}: {}", self.name, output.status, said.trim_end()));
        }
        String::from_utf8(output.stdout).map_err(|error| format!("{} printed no text: {error}", self.name))
    }
}
