//! Results of checks, and the facts that checks start from.

use std::ffi::OsString;

use lattice_console::environment::Environment;
use lattice_console::machine::Machine;
use lattice_daemon::build::Build;
use serde::Serialize;

/// State of a checked part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    /// It works, or is not needed.
    Ok,
    /// It works with a limit, or will stop to work.
    Warning,
    /// It does not work.
    Error,
}

impl State {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// Result of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Check {
    /// Checked part.
    pub(super) name: String,
    pub(super) state: State,
    /// Observation.
    pub(super) detail: String,
    /// Next step; `None` for a part that is well.
    pub(super) action: Option<String>,
}

impl Check {
    pub(super) fn ok(name: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { name: name.into(), state: State::Ok, detail: detail.into(), action: None }
    }

    pub(super) fn warning(name: impl Into<String>, detail: impl Into<String>, action: impl Into<String>) -> Self {
        Self { state: State::Warning, action: Some(action.into()), ..Self::ok(name, detail) }
    }

    pub(super) fn error(name: impl Into<String>, detail: impl Into<String>, action: impl Into<String>) -> Self {
        Self { state: State::Error, action: Some(action.into()), ..Self::ok(name, detail) }
    }

    /// A failure whose text has the next step after `try: `.
    pub(super) fn failed(name: impl Into<String>, text: &str, otherwise: &str) -> Self {
        let (detail, action) = text.split_once("\ntry: ").unwrap_or((text, otherwise));
        Self::error(name, detail, action)
    }
}

/// Names of the container runtimes that a launch can use on this machine.
pub type ContainerRuntimes = fn(&Machine) -> Result<Vec<String>, Box<dyn std::error::Error + Send + Sync>>;

/// Facts that checks start from.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    pub(super) build: Build,
    pub(super) runtimes: ContainerRuntimes,
    /// Value of `--api`.
    pub(super) api: Option<String>,
    pub(super) environment: Vec<(OsString, OsString)>,
}

impl Subject {
    pub(super) fn environment(&self) -> &Environment {
        &self.environment
    }
}

#[cfg(test)]
/// A subject with this environment.
pub(super) fn subject(environment: Vec<(OsString, OsString)>) -> Subject {
    let build = Build { program: "lattice", version: "0", pmi: lattice_session::PMI_VERSIONS };
    Subject { build, runtimes: |_| Ok(Vec::new()), api: None, environment }
}
