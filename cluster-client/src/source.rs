//! The place that a setting comes from.

use std::fmt;
use std::path::PathBuf;

/// Source of the value of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A flag of the command line.
    Flag(&'static str),
    /// A variable of the environment.
    Variable(&'static str),
    /// A file.
    File(PathBuf),
    /// No setting.
    Default,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(name) => write!(f, "flag {name}"),
            Self::Variable(name) => write!(f, "variable {name}"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}
