//! Dialects of `mpiexec` lines, and the names that select one: values of a variable, and names of the command.

use super::super::flag::Refusal;
use super::super::variables;

/// Variable that names the dialect.
pub(super) const VARIABLE: &str = "LATTICE_MPIEXEC";

/// Launcher that defines the rules of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Hydra,
    Intel,
    OpenMpi,
}

/// Name of the command of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    /// `mpiexec`, which each MPI has. The default is Hydra, which refuses nothing, unless the line or its program determines another dialect.
    Mpiexec,
    /// `mpirun`. The default is Open MPI, unless the line or its program determines another dialect.
    Mpirun,
    /// A name of one launcher only.
    Of(Dialect),
}

impl Name {
    /// Parses the name of a command.
    pub(crate) fn called(name: &str) -> Option<Self> {
        match name {
            "mpiexec" | "mpiexec.lattice" => Some(Self::Mpiexec),
            "mpirun" | "mpirun.lattice" => Some(Self::Mpirun),
            "mpiexec.hydra" | "mpirun.hydra" | "mpiexec.mpich" | "mpirun.mpich" => Some(Self::Of(Dialect::Hydra)),
            "mpiexec.openmpi" | "mpirun.openmpi" | "orterun" | "prterun" => Some(Self::Of(Dialect::OpenMpi)),
            _ => None,
        }
    }

    /// Dialect of a name of one launcher only.
    pub(super) fn own(self) -> Option<Dialect> {
        match self {
            Self::Of(dialect) => Some(dialect),
            Self::Mpiexec | Self::Mpirun => None,
        }
    }

    /// Default dialect of the name.
    pub(super) fn usual(self) -> Dialect {
        match self {
            Self::Mpiexec => Dialect::Hydra,
            Self::Mpirun => Dialect::OpenMpi,
            Self::Of(dialect) => dialect,
        }
    }
}

/// The dialect that the variable names.
pub(super) fn by_variable() -> Option<Dialect> {
    std::env::var(VARIABLE).ok().and_then(|name| called(&name))
}

/// The dialect of this name.
fn called(name: &str) -> Option<Dialect> {
    match name {
        "hydra" | "mpich" => Some(Dialect::Hydra),
        "intel" | "impi" => Some(Dialect::Intel),
        "ompi" | "openmpi" => Some(Dialect::OpenMpi),
        _ => None,
    }
}

/// Returns an error if no dialect has the name in the variable. An empty variable counts as not set.
pub(super) fn check_variable() -> Result<(), Refusal> {
    let value = variables::set(|name| std::env::var_os(name), VARIABLE).unwrap_or_default();
    check_name(&value.to_string_lossy())
}

fn check_name(name: &str) -> Result<(), Refusal> {
    if name.is_empty() || called(name).is_some() {
        return Ok(());
    }
    let reason = "hydra (or mpich), intel (or impi) and ompi (or openmpi) are".to_owned();
    Err(Refusal::Value { flag: VARIABLE, value: name.to_owned(), reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_no_dialect_has_is_refused() {
        for name in ["", "hydra", "mpich", "intel", "impi", "ompi", "openmpi"] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        let refusal = check_name("openMPI5").unwrap_err().to_string();
        assert!(
            refusal.starts_with("'LATTICE_MPIEXEC openMPI5' is not possible here: hydra (or mpich), "),
            "{refusal}"
        );
    }
}
