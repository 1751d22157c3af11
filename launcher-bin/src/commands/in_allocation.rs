//! A command in an allocation, and what it finds there: files and variables by which it reaches the nodes, and an unchanged `mpirun`
//! its own daemons.

mod directory;

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;

use lattice_session::limits::NODE_LIST_MAX;
use tokio::process::Command;

use self::directory::CommandDirectory;
use super::CommandError;
use crate::cluster::{self, AllocatedNodes, Cluster};
use crate::environment::Environment;
use crate::mpirun_setup::{MpirunSetup, Slots};

/// Files of one command, in a directory of their own. They are there until they are [removed](Self::remove), or, if this process is
/// killed, until the next command makes its own.
#[derive(Debug)]
pub(super) struct CommandFiles {
    directory: CommandDirectory,
    setup: MpirunSetup,
    variables: [(&'static str, String); 3],
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
        let directory = CommandDirectory::make(environment)?;
        match MpirunSetup::write(directory.path().join("mpirun"), &slots) {
            Ok(setup) => Ok(Self { directory, setup, variables: variables(allocation) }),
            Err(error) => {
                directory.remove()?;
                Err(error.into())
            }
        }
    }

    /// Removes them.
    ///
    /// # Errors
    /// Fails as the system does.
    pub(super) fn remove(self) -> io::Result<()> {
        self.directory.remove()
    }

    /// The directory that they are in, of the user alone.
    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
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
        let variables = self.variables.iter().map(|(name, value)| (name, value));
        command.envs(self.setup.variables()).env("PATH", self.path()?).envs(variables);
        Ok(command)
    }
}

/// Variables that tell of the allocation. Its nodes stand separated by commas as long as that has at most 32 KiB, as in those of a rank.
pub(super) fn variables(allocation: &AllocatedNodes) -> [(&'static str, String); 3] {
    let names = allocation.names.join(",");
    let nodes = if names.len() <= NODE_LIST_MAX { names } else { allocation.list.clone() };
    [
        (cluster::ALLOCATION, allocation.id.clone()),
        ("LATTICE_NODELIST", nodes),
        ("LATTICE_NNODES", allocation.names.len().to_string()),
    ]
}

/// The nodes of the allocation with a slot for each of their cores.
pub(super) async fn slots(cluster: &Cluster, allocation: &AllocatedNodes) -> Result<Vec<Slots>, CommandError> {
    let facts = cluster.node_facts().await?;
    let cores = |name: &str| facts.iter().find(|node| node.name == name).map_or(1, |node| node.cores);
    Ok(allocation.names.iter().map(|node| Slots { node: node.clone(), slots: cores(node) }).collect())
}
