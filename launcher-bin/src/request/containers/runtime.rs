//! Container runtimes as the tables describe them.

use std::ffi::OsStr;

use serde::Deserialize;

use crate::machine::Machine;

/// A container runtime.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Runtime {
    /// What it takes as an image.
    pub(super) about: String,
    /// Words before the program.
    pub(super) command: Vec<String>,
    pub(super) pmi: Way,
    /// Images that it takes.
    #[serde(default)]
    pub(super) image: Image,
    /// Launches that it is chosen for.
    #[serde(default)]
    pub(super) chosen: Chosen,
    /// Patterns of files that `{devices}` stands for, divided by blanks: a word with it is repeated for each of them that the node has.
    #[serde(default)]
    pub(super) devices: String,
    /// Whose memory ranks of one node can read.
    pub(super) memory: Memory,
}

/// Images that a runtime takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Image {
    /// Files, names, or what else the runtime knows.
    #[default]
    Any,
    /// Directories.
    Directory,
}

/// Launches that a runtime is chosen for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Chosen {
    /// Also those that name no runtime, if its program is in `PATH`.
    #[default]
    ByPath,
    /// Those that name it.
    ByName,
}

/// Memory of other ranks of the node, which MPI libraries read by `process_vm_readv` for long messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Memory {
    /// Any rank's: they are in one user namespace.
    Shared,
    /// Nobody's: each is in a user namespace of its own.
    Own,
}

/// Way from a program in a container to its PMI server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Way {
    /// An inherited descriptor.
    Socket,
    /// A loopback port, because inherited descriptors are closed.
    Port,
    /// A socket in the file system, because the network is another one, too.
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
