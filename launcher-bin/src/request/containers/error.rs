//! Refusals of containers.

use std::path::PathBuf;

use super::super::user_tables::UserTablesError;

/// Refusal of a container.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ContainerError {
    /// No runtime has this name.
    #[error("--container-profile {name}: there is none of this name{}; there are\n{known}", file.as_ref().map(|file| format!(" here or in {}", file.display())).unwrap_or_default())]
    Unknown {
        /// The name.
        name: String,
        /// The user's file, which need not exist.
        file: Option<PathBuf>,
        /// All runtimes, one on each line.
        known: String,
    },
    /// A runtime is named without an image: the program would run outside of any container.
    #[error(
        "--container-profile {name} has the way to start a container, and no option has its image\ntry: --container IMAGE; LATTICE_CONTAINER_PROFILE may stand alone"
    )]
    NoImage {
        /// Name of the runtime.
        name: String,
    },
    /// The name of the image is empty.
    #[error(
        "--container: the name of the image is empty, as that of a variable that is not set\ntry: --container IMAGE; or the line without it"
    )]
    EmptyImage,
    /// No runtime is named, and no runtime in `PATH` takes the image.
    #[error(
        "--container {}: no container runtime that takes {} is in PATH here (looked for {})\n\
         try: --container-profile NAME (or LATTICE_CONTAINER_PROFILE), if the nodes have one; the names are\n{known}",
        image.display(), if *is_directory { "a directory" } else { "an image that is no directory" }, looked_for.join(", ")
    )]
    NoRuntime {
        /// The image.
        image: PathBuf,
        /// True if the image is a directory.
        is_directory: bool,
        /// Programs of the runtimes.
        looked_for: Vec<String>,
        /// All profiles, one on each line.
        known: String,
    },
    /// The runtime takes a directory, but the image is a file.
    #[error(
        "--container {}: it is a file, and {name} takes a directory that holds a root file system\n\
         try: --container-profile apptainer or podman, for image files; or the directory into which it was unpacked",
        image.display()
    )]
    NoDirectory {
        /// The image.
        image: PathBuf,
        /// Name of the runtime.
        name: String,
    },
    /// Programs in the container cannot inherit memory of the node.
    #[error(
        "--node-memory: this container runtime closes the descriptor by which ranks share memory\ntry: a --container-profile with pmi = \"socket\""
    )]
    NodeMemory,
    /// The profile contains no command.
    #[error(
        "--container-profile {name}: its command is empty\ntry: a command in that entry of containers.toml; or another profile"
    )]
    NoCommand {
        /// The name.
        name: String,
    },
    /// The command of the profile contains no `{image}`.
    #[error(
        "--container-profile {name}: its command has no {{image}}: {command}\ntry: {{image}} as one of its words, or within one"
    )]
    NoPlace {
        /// The name.
        name: String,
        /// The command.
        command: String,
    },
    /// The file of the user cannot be used.
    #[error("--container: {0}")]
    File(#[from] UserTablesError),
}
