//! Environments as lists of variables. The environment of this process is read once, and passed on.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// Variables with their values.
pub type Environment = [(OsString, OsString)];

/// Variable that names the allocation if no flag does.
pub const ALLOCATION: &str = "LATTICE_ALLOC_ID";
/// Value of [`ALLOCATION`] in a launch without an allocation.
pub const NO_ALLOCATION: &str = "local";
/// Variable with hosts and their slots, in the form of `--host`, for launches without flags for placement.
pub const HOSTS: &str = "LATTICE_HOSTS";

/// Value of a variable; `None` if it is not set.
pub fn value(environment: &Environment, name: impl AsRef<OsStr>) -> Option<&OsStr> {
    let name = name.as_ref();
    environment.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_os_str())
}

/// Value of a variable; `None` if it is not set, or empty.
pub fn non_empty<'a>(environment: &'a Environment, name: &str) -> Option<&'a OsStr> {
    value(environment, name).filter(|value| !value.is_empty())
}

/// Path of a settings file of the user: in `XDG_CONFIG_HOME` of `environment`, otherwise in `~/.config`. The file need not exist.
pub fn user_file(name: &str, environment: &Environment) -> Option<PathBuf> {
    let path = |name| non_empty(environment, name).map(PathBuf::from);
    let directory = path("XDG_CONFIG_HOME").or_else(|| Some(path("HOME")?.join(".config")));
    directory.map(|directory| directory.join("lattice").join(name))
}
