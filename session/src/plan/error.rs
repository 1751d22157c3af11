//! Reasons why a session spec cannot be carried out.

use std::path::PathBuf;

use pmi_core::ids::Rank;
use rank_spawner::{ArgumentError, BindHereError, EnvironmentError, MemBindError, ProgramError};

use crate::cause::StartClass;
use crate::gpus::GpuError;

/// Reason why a spec cannot be carried out on this node. Nothing was started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A program cannot be executed.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// An argument cannot be passed to a program.
    #[error(transparent)]
    Argument(#[from] ArgumentError),
    /// A variable cannot be passed to a program.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// The ranks cannot be bound as requested.
    #[error(transparent)]
    Bind(#[from] BindHereError),
    /// The node does not have the NUMA nodes for the memory of ranks.
    #[error(transparent)]
    Memory(#[from] MemBindError),
    /// The node does not have the GPUs that ranks are bound to.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// A file for standard input cannot be read.
    #[error("rank {rank} cannot read {} as its standard input: {source}", path.display())]
    Stdin {
        /// The rank.
        rank: Rank,
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// No thread can be started to open the files that ranks read.
    #[error(
        "no thread can be had that opens the files of standard input: the user may have no further process (ulimit -u)"
    )]
    NoThread,
    /// The launch's own standard input cannot be passed to a rank.
    #[error("cannot hand the standard input of the launch to a rank: {0}")]
    Descriptor(std::io::Error),
    /// The job's programs do not match its ranks.
    #[error("rank {rank} has no program: the job lists {apps}")]
    NoProgram {
        /// The rank.
        rank: Rank,
        /// Number of programs.
        apps: usize,
    },
}

impl PlanError {
    /// Returns the class of the failure, by the rules of a shell.
    pub fn class(&self) -> StartClass {
        match self {
            Self::Program(error) => match error {
                ProgramError::NotFound { .. } => StartClass::NotFound,
                ProgramError::NotExecutable { .. } => StartClass::NotPermitted,
                ProgramError::IsDirectory { .. } => StartClass::IsDirectory,
                ProgramError::WrongArchitecture { .. } => StartClass::OtherMachine,
                ProgramError::MissingInterpreter { .. } => StartClass::NoInterpreter,
                _ => StartClass::CannotExecute,
            },
            Self::Gpu(_) => StartClass::Gpus,
            _ => StartClass::System,
        }
    }
}
