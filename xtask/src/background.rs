//! A command that runs concurrently with the tests, which wait half of the time. It has the lowest priority, and runs
//! one compiler at a time.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use anyhow::{Context, Result, bail};

use crate::shell::{command, started, target_directory};

/// Returns a command with the lowest priority. The words must not contain spaces.
pub(crate) fn lowest(words: &str) -> Command {
    let mut lowest = command("nice", "-n 19");
    lowest.args(words.split_whitespace());
    lowest
}

/// A started command and its output. The command is killed when this is dropped.
pub(crate) struct Background {
    name: &'static str,
    process: Child,
    directory: PathBuf,
}

/// File with the output of the command, in its directory.
const LOG: &str = "output.log";

impl Background {
    /// Starts `command`. `name` is the name of its step, and of its directory for build products.
    pub(crate) fn start(name: &'static str, mut command: Command) -> Result<Self> {
        let directory = target_directory()?.join(name);
        fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
        let log = directory.join(LOG);
        let output = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        command.env("CARGO_TARGET_DIR", &directory).env("CARGO_BUILD_JOBS", "1");
        let process = started(command.stdout(output.try_clone()?).stderr(output))?;
        Ok(Self { name, process, directory })
    }

    /// Directory of its build products.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Waits for the end of the command. If it failed, prints its output.
    pub(crate) fn finish(mut self) -> Result<()> {
        let status = self.process.wait().with_context(|| format!("cannot wait for the {}", self.name))?;
        if !status.success() {
            eprintln!("{}", fs::read_to_string(self.directory.join(LOG)).unwrap_or_default());
            bail!("the {} ended with {status}", self.name);
        }
        Ok(())
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
