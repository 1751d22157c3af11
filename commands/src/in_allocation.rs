//! Files and variables of a command in an allocation. The command reaches the nodes through them, and an unchanged `mpirun` reaches its own
//! daemons.

mod directory;

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;

use lattice_cluster_client::{AllocatedNodes, Cluster};
use lattice_console::environment::{ALLOCATION, Environment};
use lattice_dialects::mpirun_setup::{MpirunSetup, Slots};
use lattice_session::limits::NODE_LIST_MAX;
use tokio::process::Command;

use self::directory::CommandDirectory;
use super::error::CommandError;

/// Files of one command, in their own directory. They exist until they are [removed](Self::remove). If this process is killed, they exist
/// until the user's next command creates its own.
#[derive(Debug)]
pub(super) struct CommandFiles {
    directory: CommandDirectory,
    setup: MpirunSetup,
    variables: [(&'static str, String); 3],
}

impl CommandFiles {
    /// Writes the files for a command in this allocation.
    ///
    /// # Errors
    /// Fails if the nodes cannot be queried, or the files cannot be written.
    pub(super) async fn make(
        cluster: &Cluster,
        allocation: &AllocatedNodes,
        environment: &Environment,
    ) -> Result<Self, CommandError> {
        let slots = slots(cluster, allocation).await?;
        let directory = CommandDirectory::make(environment)?;
        match MpirunSetup::write(directory.path().join("mpirun"), &slots) {
            Ok(setup) => Ok(Self { directory, setup, variables: variables(allocation) }),
            Err(error) => {
                directory.remove()?;
                Err(error.into())
            }
        }
    }

    /// Removes the files.
    ///
    /// # Errors
    /// Returns the error of the system call.
    pub(super) fn remove(self) -> io::Result<()> {
        self.directory.remove()
    }

    /// Directory of the files, which only the user can enter.
    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// `PATH` with the directory of the launchers' helper programs in front.
    ///
    /// # Errors
    /// Fails if the result is not a valid `PATH`.
    pub(super) fn path(&self) -> io::Result<OsString> {
        self.setup.path(&std::env::var_os("PATH").unwrap_or_default())
    }

    /// Command with the variables of the allocation.
    ///
    /// # Errors
    /// Fails as [`path`](Self::path).
    pub(super) fn command(&self, program: &OsStr) -> io::Result<Command> {
        let mut command = Command::new(program);
        let variables = self.variables.iter().map(|(name, value)| (name, value));
        command.envs(self.setup.variables()).env("PATH", self.path()?).envs(variables);
        Ok(command)
    }
}

/// Variables that describe the allocation. As for a rank, the nodes are separated by commas if that takes at most 32 KiB; else they are a
/// hostlist.
pub(super) fn variables(allocation: &AllocatedNodes) -> [(&'static str, String); 3] {
    let names = allocation.names.join(",");
    let nodes = if names.len() <= NODE_LIST_MAX { names } else { allocation.list.clone() };
    [
        (ALLOCATION, allocation.id.clone()),
        ("LATTICE_NODELIST", nodes),
        ("LATTICE_NNODES", allocation.names.len().to_string()),
    ]
}

/// The nodes of the allocation, with one slot per core.
pub(super) async fn slots(cluster: &Cluster, allocation: &AllocatedNodes) -> Result<Vec<Slots>, CommandError> {
    let facts = cluster.node_facts().await?;
    let cores = |name: &str| facts.iter().find(|node| node.name == name).map_or(1, |node| node.cores);
    Ok(allocation.names.iter().map(|node| Slots { node: node.clone(), slots: cores(node) }).collect())
}
