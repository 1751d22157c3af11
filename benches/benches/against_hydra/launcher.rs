//! The two launchers, and how one run of each is started.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use lattice_benches::lattice_binary;

/// A launcher that can be measured.
pub(crate) struct Launcher {
    pub(crate) name: &'static str,
    way: Way,
}

/// How it starts ranks.
enum Way {
    /// A program that is asked to.
    Program {
        file: PathBuf,
        /// What stands before `-n`.
        subcommand: &'static [&'static str],
    },
    /// This process starts them with `posix_spawn` and waits for them: the least that starting programs takes here.
    Bare,
}

impl Launcher {
    /// Debian's Hydra, or why it cannot be measured.
    pub(crate) fn hydra() -> Result<Self, String> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let program =
            std::env::split_paths(&path).map(|folder| folder.join("mpiexec.hydra")).find(|file| file.exists());
        let file = program.ok_or("no mpiexec.hydra in PATH; Debian's package mpich has it")?;
        Ok(Self { name: "hydra", way: Way::Program { file, subcommand: &[] } })
    }

    /// The program in `LATTICE_BIN`, else the one built beside this bench; or why it cannot be measured.
    pub(crate) fn lattice() -> Result<Self, String> {
        let file = lattice_binary(env!("CARGO_BIN_EXE_pmi_raw"))?;
        Ok(Self { name: "lattice", way: Way::Program { file, subcommand: &["launch"] } })
    }

    /// No launcher at all: the floor under every other one.
    pub(crate) fn bare() -> Self {
        Self { name: "bare", way: Way::Bare }
    }

    /// Whether its ranks can speak PMI.
    pub(crate) fn has_pmi(&self) -> bool {
        matches!(self.way, Way::Program { .. })
    }

    /// Runs a command in so many ranks to its end, and returns what they printed.
    pub(crate) fn run(&self, ranks: usize, command: &[OsString]) -> Result<String, String> {
        let (file, subcommand) = match &self.way {
            Way::Program { file, subcommand } => (file, subcommand),
            Way::Bare => return run_bare(ranks, command),
        };
        let mut launch = Command::new(file);
        launch.args(*subcommand).arg("-n").arg(ranks.to_string()).args(command).stdin(Stdio::null());
        let output = launch.output().map_err(|error| format!("{} did not start: {error}", file.display()))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{} with {ranks} ranks ended with {}: {}", self.name, output.status, said.trim_end()));
        }
        String::from_utf8(output.stdout).map_err(|error| format!("{} printed no text: {error}", self.name))
    }
}

fn run_bare(ranks: usize, command: &[OsString]) -> Result<String, String> {
    let start = || Command::new(&command[0]).args(&command[1..]).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    let children: Vec<_> = (0..ranks).map(|_| start()).collect::<Result<_, _>>().map_err(|error| error.to_string())?;
    for mut child in children {
        child.wait().map_err(|error| error.to_string())?;
    }
    Ok(String::new())
}
