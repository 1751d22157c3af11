//! A command in an allocation, and what it finds there: files and variables by which it reaches the nodes, and an unchanged `mpirun`
//! its own daemons.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::unistd::mkdtemp;
use tokio::process::Command;

use super::CommandError;
use crate::cluster::{self, AllocatedNodes, Cluster};
use crate::environment::{self, Environment};
use crate::mpirun_setup::{MpirunSetup, Slots};

/// Files of one command, in a directory of their own. They are there until they are [removed](Self::remove).
#[derive(Debug)]
pub(super) struct CommandFiles {
    directory: PathBuf,
    setup: MpirunSetup,
    allocation: String,
}

impl CommandFiles {
    /// Makes them for a command in this allocation.
    ///
    /// # Errors
    /// Fails if the nodes cannot be asked for, or the files not be written.
    pub(super) async fn make(
        cluster: &Cluster,
        allocation: &AllocatedNodes,
        environment: &Environment,
    ) -> Result<Self, CommandError> {
        let slots = slots(cluster, allocation).await?;
        let directory = directory(environment)?;
        match MpirunSetup::write(directory.join("mpirun"), &slots) {
            Ok(setup) => Ok(Self { directory, setup, allocation: allocation.id.clone() }),
            Err(error) => {
                // Nobody else knows of it.
                fs::remove_dir_all(&directory)?;
                Err(error.into())
            }
        }
    }

    /// Removes them.
    ///
    /// # Errors
    /// Fails as the system does.
    pub(super) fn remove(self) -> io::Result<()> {
        fs::remove_dir_all(self.directory)
    }

    /// The directory that they are in, of the user alone.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// `PATH` with the names by which the nodes are reached in front.
    ///
    /// # Errors
    /// Fails for a `PATH` that is none.
    pub(super) fn path(&self) -> io::Result<OsString> {
        self.setup.path(&std::env::var_os("PATH").unwrap_or_default())
    }

    /// A command with the variables of the allocation.
    ///
    /// # Errors
    /// Fails for a `PATH` that is none.
    pub(super) fn command(&self, program: &OsStr) -> io::Result<Command> {
        let mut command = Command::new(program);
        command.envs(self.setup.variables()).env("PATH", self.path()?).env(cluster::ALLOCATION, &self.allocation);
        Ok(command)
    }
}

/// The nodes of the allocation with a slot for each of their cores.
async fn slots(cluster: &Cluster, allocation: &AllocatedNodes) -> Result<Vec<Slots>, CommandError> {
    let facts = cluster.node_facts().await?;
    let cores = |name: &str| facts.iter().find(|node| node.name == name).map_or(1, |node| node.cores);
    Ok(allocation.names.iter().map(|node| Slots { node: node.clone(), slots: cores(node) }).collect())
}

/// Makes a directory of its own, in the user's home if that can be: all nodes see that one, and Open MPI's daemons look for it there.
fn directory(environment: &Environment) -> io::Result<PathBuf> {
    let path = |name| environment::non_empty(environment, name).map(PathBuf::from);
    let state = path("XDG_STATE_HOME").or_else(|| Some(path("HOME")?.join(".local/state")));
    let in_home = state.map(|state| state.join("lattice")).map(|parent| made_in(&parent));
    match in_home {
        Some(Ok(directory)) => Ok(directory),
        Some(Err(_)) | None => made_in(&std::env::temp_dir()),
    }
}

fn made_in(parent: &Path) -> io::Result<PathBuf> {
    if !MpirunSetup::can_be_in(parent) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    fs::create_dir_all(parent)?;
    Ok(mkdtemp(&parent.join("shell-XXXXXX"))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory_for(variables: &[(&str, &OsStr)]) -> PathBuf {
        let environment: Vec<_> =
            variables.iter().map(|&(name, value)| (OsString::from(name), value.to_owned())).collect();
        let made = directory(&environment).unwrap();
        fs::remove_dir(&made).unwrap();
        made
    }

    #[test]
    fn its_files_are_where_all_nodes_see_them_if_they_can_be() {
        let home = tempfile::tempdir().unwrap();
        assert!(
            directory_for(&[("HOME", home.path().as_os_str())]).starts_with(home.path().join(".local/state/lattice"))
        );
        let state = home.path().join("state");
        let variables = [("HOME", home.path().as_os_str()), ("XDG_STATE_HOME", state.as_os_str())];
        assert!(directory_for(&variables).starts_with(state.join("lattice")));
        for elsewhere in [home.path().join("a b"), PathBuf::from("/proc/none")] {
            let made = directory_for(&[("HOME", elsewhere.as_os_str())]);
            assert!(made.starts_with(std::env::temp_dir()), "{}", made.display());
        }
    }
}
