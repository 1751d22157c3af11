//! Container runtimes as data in tables.

use std::ffi::OsStr;

use lattice_console::machine::Machine;
use serde::Deserialize;

/// A container runtime.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Runtime {
    /// Description of its images.
    pub(super) about: String,
    /// Words before the program.
    pub(super) command: Vec<String>,
    pub(super) pmi: Way,
    /// Images that it takes.
    #[serde(default)]
    pub(super) image: Image,
    /// Launches that select the runtime.
    #[serde(default)]
    pub(super) chosen: Chosen,
    /// Patterns of device files for `{devices}`, separated by blanks. A word with `{devices}` is repeated for each matching file of the node.
    #[serde(default)]
    pub(super) devices: String,
    /// Memory of other ranks on the node that a rank can read.
    pub(super) memory: Memory,
}

/// Images that a runtime takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Image {
    /// Files, names, or other forms of the runtime.
    #[default]
    Any,
    /// Directories.
    Directory,
}

/// Launches that select a runtime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Chosen {
    /// Launches that name it, or that name no runtime if its program is in `PATH`.
    #[default]
    ByPath,
    /// Launches that name it.
    ByName,
}

/// Memory of other ranks on the node. MPI libraries read it by `process_vm_readv` for long messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Memory {
    /// All ranks, because they are in one user namespace.
    Shared,
    /// No other rank, because each rank is in a separate user namespace.
    Own,
}

/// Way from a program in a container to its PMI server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Way {
    /// An inherited descriptor.
    Socket,
    /// A loopback port, because the runtime closes inherited descriptors.
    Port,
    /// A socket in the file system, because the container has a separate network as well.
    File,
}

impl Runtime {
    pub(super) fn is_in_path(&self, machine: &Machine) -> bool {
        let path = machine.variable(OsStr::new("PATH")).unwrap_or_default();
        self.command
            .first()
            .is_some_and(|program| std::env::split_paths(path).any(|place| place.join(program).is_file()))
    }
}
