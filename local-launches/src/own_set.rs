//! This process as a set of the user: the directory of its file, and the contents of the file.

use std::path::{Path, PathBuf};

use lattice_console::environment::{self, Environment};
use lattice_overlay::directory::{self, Kin, SetFacts, UnixSeconds};
use lattice_session::names;
use lattice_session::placed::PlacedLaunch;

/// Directory of the user's sets, from an environment.
pub fn place(environment: &Environment) -> Option<PathBuf> {
    let variable = |name| environment::value(environment, name).map(Path::new);
    directory::place(variable(directory::VARIABLE), variable("HOME")).ok()
}

/// Facts about the set of a launch.
pub fn facts(placed: &PlacedLaunch) -> SetFacts {
    SetFacts {
        launch: Some(placed.launch_id.clone()),
        ranks: placed.job.size(),
        nodes: placed.hosts.len() as u32,
        command: placed.command(),
        begun: UnixSeconds::now(),
        kin: names::kin(&placed.apps, &placed.settings.ancestors),
    }
}

/// Facts about the set of a command that connects to launches.
pub fn facts_of_tool(command: &str) -> SetFacts {
    let begun = UnixSeconds::now();
    SetFacts { launch: None, ranks: 1, nodes: 1, command: command.to_owned(), begun, kin: Kin::default() }
}
