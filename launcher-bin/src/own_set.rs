//! This process as a set of the user's: where its file is, and what it says.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use lattice_overlay::directory::{self, SetFacts};
use lattice_session::placed::PlacedLaunch;
use lattice_session::spec::AppSpec;

/// Directory of the user's sets, as an environment tells it.
pub(crate) fn place(environment: &[(OsString, OsString)]) -> Option<PathBuf> {
    let variable = |name: &str| environment.iter().find(|(known, _)| known == name).map(|(_, value)| Path::new(value));
    directory::place(variable(directory::VARIABLE), variable("HOME")).ok()
}

/// Facts about the set of a launch.
pub(crate) fn facts(placed: &PlacedLaunch) -> SetFacts {
    SetFacts {
        launch: Some(placed.launch_id.clone()),
        ranks: placed.job.size(),
        nodes: placed.hosts.len() as u32,
        command: placed.apps.iter().map(command).collect::<Vec<_>>().join(" : "),
    }
}

/// Facts about the set of a command that speaks to launches.
pub(crate) fn facts_of_tool(command: &str) -> SetFacts {
    SetFacts { launch: None, ranks: 1, nodes: 1, command: command.to_owned() }
}

fn command(app: &AppSpec) -> String {
    let words = std::iter::once(app.program.as_os_str()).chain(app.args.iter().map(OsString::as_os_str));
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}
