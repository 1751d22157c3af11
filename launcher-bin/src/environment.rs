//! Environments as lists of variables. The environment of this process is read once, and passed on.

use std::ffi::{OsStr, OsString};

/// Variables with their values.
pub(crate) type Environment = [(OsString, OsString)];

/// Value of a variable; `None` if it is not set.
pub(crate) fn value(environment: &Environment, name: impl AsRef<OsStr>) -> Option<&OsStr> {
    let name = name.as_ref();
    environment.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_os_str())
}

/// Value of a variable; `None` if it is not set, or empty.
pub(crate) fn non_empty<'a>(environment: &'a Environment, name: &str) -> Option<&'a OsStr> {
    value(environment, name).filter(|value| !value.is_empty())
}
