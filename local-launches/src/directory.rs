//! Directory of the sockets of the user's launches.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lattice_console::environment::{self, Environment};
use lattice_console::report;
use nix::unistd::geteuid;
use rank_spawner::{NotPrivate, PrivateDirectory};

/// Name of the directory of the sockets, within the directory of the user.
pub(super) const LAUNCHES: &str = "launches";

/// Directory of this user on this machine.
pub(super) fn of_user(environment: &Environment) -> PathBuf {
    let set = environment::value(environment, "XDG_RUNTIME_DIR").map(Path::new).filter(|path| path.is_absolute());
    set.map_or_else(|| PathBuf::from(format!("/tmp/lattice-{}", geteuid())), |runtime| runtime.join("lattice"))
}

/// Opens the directory of the sockets of this user's launches; `None` if there is none. A directory that is not private to this user is
/// reported, and not used.
pub(super) fn opened(environment: &Environment) -> Option<Arc<PrivateDirectory>> {
    let opened = PrivateDirectory::open(of_user(environment)).and_then(|user| user.open_below(LAUNCHES));
    match opened {
        Ok(directory) => Some(Arc::new(directory)),
        Err(error) if error.is_absent() => None,
        Err(error) => {
            report(&format!("warning: launches on this machine are not looked for: {error}"));
            None
        }
    }
}

/// Opens the same directory, and creates it if it is missing.
///
/// # Errors
/// Fails if it cannot be created, or is not private to this user.
pub(super) fn prepared(environment: &Environment) -> Result<PrivateDirectory, NotPrivate> {
    PrivateDirectory::make(of_user(environment))?.make_below(LAUNCHES)
}

/// Creates a socket in the directory of this user's launches, as a launch does, and removes it. Returns the directory.
///
/// # Errors
/// Fails if the directory cannot be created, is not private to this user, or takes no socket.
pub fn try_directory(environment: &Environment) -> Result<PathBuf, NotPrivate> {
    let directory = prepared(environment)?;
    let path = directory.path().to_owned();
    // No launch has a name with a dot.
    let name = format!(".{}.try", std::process::id());
    let bound = UnixListener::bind(directory.by_descriptor(&name));
    directory.remove_socket(&name);
    bound.map(|_| path.clone()).map_err(|source| NotPrivate::System { path, source })
}
