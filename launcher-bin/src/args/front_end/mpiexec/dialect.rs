//! Dialects of `mpiexec` lines, and the variable that names one.

use super::super::{Refusal, variables};

/// Variable that names the dialect.
pub(super) const VARIABLE: &str = "LATTICE_MPIEXEC";

/// Launcher whose words a line has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Hydra,
    Intel,
    OpenMpi,
}

/// The dialect that the variable names.
pub(super) fn by_name() -> Option<Dialect> {
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

/// Refuses a name in the variable that no dialect has; an empty one counts as not set.
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
