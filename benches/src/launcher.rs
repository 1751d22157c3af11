//! The compared launchers, and the start of one run of each.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

use crate::lattice_binary;

/// A launcher that can be measured.
#[derive(Debug)]
pub struct Launcher {
    /// Its name in a table.
    pub name: &'static str,
    way: Way,
}

/// Its way to start ranks.
#[derive(Debug)]
enum Way {
    /// A launcher program.
    Program {
        file: PathBuf,
        /// Arguments before `-n`.
        arguments: Vec<OsString>,
    },
    /// This process starts the ranks with `posix_spawn` and waits for them. This is the lower limit for the start of programs on this
    /// machine.
    Bare,
}

impl Launcher {
    /// Creates a launcher from a program that accepts `arguments -n RANKS COMMAND`.
    pub fn program(name: &'static str, file: PathBuf, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(OsString::from).collect();
        Self { name, way: Way::Program { file, arguments } }
    }

    /// Returns the launcher of [`lattice_binary`], or the reason why it cannot be measured.
    pub fn lattice() -> Result<Self, String> {
        Ok(Self::program("lattice", lattice_binary()?, &["launch"]))
    }

    /// Returns the way without a launcher: the lower limit for every launcher.
    pub fn bare() -> Self {
        Self { name: "bare", way: Way::Bare }
    }

    /// Returns true if its ranks can use PMI.
    pub fn has_pmi(&self) -> bool {
        matches!(self.way, Way::Program { .. })
    }

    /// Runs a command in `ranks` ranks to its end, and returns their output.
    ///
    /// # Errors
    /// Returns a description of the failure if the launcher cannot be started, fails, or prints bytes that are not text.
    pub fn run(&self, ranks: usize, command: &[OsString]) -> Result<String, String> {
        let Some(launch) = self.launch(ranks, command) else { return run_bare(ranks, command) };
        let (status, printed, said) = run_to_end(launch).map_err(|error| self.absent(&error))?;
        if !status.success() {
            let said = String::from_utf8_lossy(&said);
            return Err(format!("{} with {ranks} ranks ended with {status}: {}", self.name, said.trim_end()));
        }
        String::from_utf8(printed).map_err(|error| format!("{} printed no text: {error}", self.name))
    }

    /// Starts a command in `ranks` ranks, and discards their output.
    ///
    /// # Errors
    /// Returns a description of the failure if the launcher cannot be started.
    pub fn start(&self, ranks: usize, command: &[OsString]) -> Result<Child, String> {
        let mut launch = self.launch(ranks, command).ok_or_else(|| format!("{} is no launcher", self.name))?;
        launch.stdout(Stdio::null()).stderr(Stdio::null()).spawn().map_err(|error| self.absent(&error))
    }

    /// Returns the launcher's command line; `None` for the way without a launcher.
    fn launch(&self, ranks: usize, command: &[OsString]) -> Option<Command> {
        let Way::Program { file, arguments } = &self.way else { return None };
        let mut launch = Command::new(file);
        launch.args(arguments).arg("-n").arg(ranks.to_string()).args(command).stdin(Stdio::null());
        Some(launch)
    }

    fn absent(&self, error: &io::Error) -> String {
        format!("{} did not start: {error}", self.name)
    }
}

/// Runs a command until its own process ends. Returns the standard output and standard error of the command and its children until this
/// time. Both are files instead of pipes. Hydra 5.0.2 sometimes leaves proxies running, which keep a pipe open.
fn run_to_end(mut command: Command) -> io::Result<(ExitStatus, Vec<u8>, Vec<u8>)> {
    let (output, errors) = (tempfile::tempfile()?, tempfile::tempfile()?);
    let status = command.stdout(output.try_clone()?).stderr(errors.try_clone()?).status()?;
    let written = |mut file: File| {
        let mut bytes = Vec::new();
        file.rewind()?;
        file.read_to_end(&mut bytes)?;
        io::Result::Ok(bytes)
    };
    Ok((status, written(output)?, written(errors)?))
}

/// Returns the path of a program, by the search of a shell.
pub fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.exists())
}

fn run_bare(ranks: usize, command: &[OsString]) -> Result<String, String> {
    let start = || Command::new(&command[0]).args(&command[1..]).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    let children: Vec<_> = (0..ranks).map(|_| start()).collect::<Result<_, _>>().map_err(|error| error.to_string())?;
    for mut child in children {
        child.wait().map_err(|error| error.to_string())?;
    }
    Ok(String::new())
}
