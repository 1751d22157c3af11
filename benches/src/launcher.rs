//! Launchers that are compared, and how one run of each is started.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

use crate::lattice_binary;

/// A launcher that can be measured.
#[derive(Debug)]
pub struct Launcher {
    /// What it is called in a table.
    pub name: &'static str,
    way: Way,
}

/// How it starts ranks.
#[derive(Debug)]
enum Way {
    /// A program that is asked to.
    Program {
        file: PathBuf,
        /// What stands before `-n`.
        arguments: Vec<OsString>,
    },
    /// This process starts them with `posix_spawn` and waits for them: the least that starting programs takes here.
    Bare,
}

impl Launcher {
    /// A program that takes `arguments -n RANKS COMMAND`.
    pub fn program(name: &'static str, file: PathBuf, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(OsString::from).collect();
        Self { name, way: Way::Program { file, arguments } }
    }

    /// The launcher of [`lattice_binary`]; or why it cannot be measured.
    pub fn lattice() -> Result<Self, String> {
        Ok(Self::program("lattice", lattice_binary()?, &["launch"]))
    }

    /// No launcher at all: the floor under every other one.
    pub fn bare() -> Self {
        Self { name: "bare", way: Way::Bare }
    }

    /// Whether its ranks can speak PMI.
    pub fn has_pmi(&self) -> bool {
        matches!(self.way, Way::Program { .. })
    }

    /// Runs a command in so many ranks to its end, and returns what they printed.
    ///
    /// # Errors
    /// Says why, if the launcher cannot be started, ends with a failure, or prints what is no text.
    pub fn run(&self, ranks: usize, command: &[OsString]) -> Result<String, String> {
        let Some(launch) = self.launch(ranks, command) else { return run_bare(ranks, command) };
        let (status, printed, said) = run_to_end(launch).map_err(|error| self.absent(&error))?;
        if !status.success() {
            let said = String::from_utf8_lossy(&said);
            return Err(format!("{} with {ranks} ranks ended with {status}: {}", self.name, said.trim_end()));
        }
        String::from_utf8(printed).map_err(|error| format!("{} printed no text: {error}", self.name))
    }

    /// Starts a command in so many ranks, whose output nobody reads.
    ///
    /// # Errors
    /// Says why the launcher cannot be started.
    pub fn start(&self, ranks: usize, command: &[OsString]) -> Result<Child, String> {
        let mut launch = self.launch(ranks, command).ok_or_else(|| format!("{} is no launcher", self.name))?;
        launch.stdout(Stdio::null()).stderr(Stdio::null()).spawn().map_err(|error| self.absent(&error))
    }

    /// The launcher's command line; `None` without one.
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

/// Runs a command until its own process ends, and returns what it and its children wrote to standard output and standard error until then.
/// Both are files and not pipes: proxies that a launcher leaves behind, as Hydra 5.0.2 does now and then, keep a pipe open.
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

/// Where a program is that a shell would find.
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
