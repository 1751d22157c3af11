//! Launchers with a table of flags.

use super::flag::Flag;
use super::mpiexec::{self, Name};
use super::srun;

/// Launcher of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrontEnd {
    /// `mpiexec` of the MPI standard, Hydra, Intel MPI and Open MPI, by the name that it was called by.
    Mpiexec(Name),
    /// `srun` of Slurm.
    Srun,
}

impl FrontEnd {
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "srun" => Some(Self::Srun),
            _ => Name::called(name).map(Self::Mpiexec),
        }
    }

    /// Name of the command.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Mpiexec(_) => "mpiexec",
            Self::Srun => "srun",
        }
    }

    pub(crate) fn flags(self) -> &'static [Flag] {
        match self {
            Self::Mpiexec(_) => mpiexec::FLAGS,
            Self::Srun => srun::FLAGS,
        }
    }
}
