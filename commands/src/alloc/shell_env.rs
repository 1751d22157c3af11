//! `--shell-env`: the variables of `lattice alloc shell` as lines for an existing shell. An unchanged `mpirun` in that shell reaches the
//! nodes. The files stay in the user's home directory until the allocation is released there.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use lattice_cluster_client::{AllocatedNodes, Cluster};
use lattice_console::environment::{self, Environment};
use lattice_console::print;
use lattice_dialects::mpirun_setup::MpirunSetup;
use rank_spawner::{remove_recorded, write_own_file};

use crate::error::CommandError;
use crate::in_allocation::{slots, variables};

/// Prints `export NAME=VALUE` for each variable; returns the exit code. `api` is the API server that a flag names.
///
/// # Errors
/// Fails if the nodes cannot be queried, or the files cannot be written.
pub(super) async fn print_variables(
    cluster: &Cluster,
    allocation: &AllocatedNodes,
    api: Option<&str>,
    environment: &Environment,
) -> Result<u8, CommandError> {
    let slots = slots(cluster, allocation).await?;
    let directory = directory(&allocation.id, environment)?;
    remove_made(&directory)?;
    if let Some(parent) = directory.parent() {
        fs::create_dir_all(parent)?;
    }
    let setup = MpirunSetup::write(directory.clone(), &slots)?;
    write_own_file(&record_of(&directory), 0o600, setup.identity().to_string().as_bytes())?;
    let path = setup.path(&std::env::var_os("PATH").unwrap_or_default())?;
    let of_allocation = variables(allocation).map(|(name, value)| (name, OsString::from(value)));
    let api = api.map(|url| (lattice_cluster_client::API_URL, url.into()));
    let all = setup.variables().into_iter().chain(of_allocation).chain(api).chain([("PATH", path)]);
    Ok(print(lines(all).as_bytes())?)
}

/// Removes the files of an allocation, if this user has any here.
pub(super) fn remove(id: &str, environment: &Environment) -> io::Result<()> {
    directory(id, environment).and_then(|directory| remove_made(&directory))
}

/// Removes the directory that its record identifies. A directory that this program did not create stays.
fn remove_made(directory: &Path) -> io::Result<()> {
    let record = record_of(directory);
    let identity = match fs::read_to_string(&record) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        text => text?.parse(),
    };
    if let Ok(identity) = identity {
        remove_recorded(directory, identity);
    }
    fs::remove_file(record)
}

/// File that records the identity of the directory.
fn record_of(directory: &Path) -> PathBuf {
    directory.with_extension("made")
}

/// Directory for the files of an allocation, below this user's state directory.
fn directory(id: &str, environment: &Environment) -> io::Result<PathBuf> {
    let path = |name| environment::non_empty(environment, name).map(PathBuf::from);
    let state = path("XDG_STATE_HOME").or_else(|| Some(path("HOME")?.join(".local/state")));
    let state = state.ok_or_else(|| io::Error::other("neither HOME nor XDG_STATE_HOME is set"))?;
    // The id comes from the API server.
    match id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        true => Ok(state.join("lattice").join(format!("mpirun-{id}"))),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{id:?} is no id of an allocation"))),
    }
}

fn lines<'a>(variables: impl IntoIterator<Item = (&'a str, OsString)>) -> String {
    let line = |(name, value): (&str, OsString)| format!("export {name}={}\n", quoted(&value));
    variables.into_iter().map(line).collect()
}

/// The value as a quoted shell word. Parts that are not UTF-8 are replaced.
fn quoted(value: &OsStr) -> String {
    format!("'{}'", value.to_string_lossy().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_dialects::mpirun_setup::Slots;

    #[test]
    fn lines_are_words_of_the_shell() {
        let variables = [("A", "x y"), ("B", "it's"), ("C", "$(touch /x)`")].map(|(name, value)| (name, value.into()));
        assert_eq!(lines(variables), "export A='x y'\nexport B='it'\\''s'\nexport C='$(touch /x)`'\n");
    }

    #[test]
    fn a_directory_that_was_not_made_here_stays() {
        let state = tempfile::tempdir().unwrap();
        let (directory, slots) = (state.path().join("mpirun-a"), [Slots { node: "n0".to_owned(), slots: 2 }]);
        let setup = MpirunSetup::write(directory.clone(), &slots).unwrap();
        write_own_file(&record_of(&directory), 0o600, setup.identity().to_string().as_bytes()).unwrap();
        // Another directory now has its name.
        fs::rename(&directory, state.path().join("mpirun-b")).unwrap();
        fs::create_dir(&directory).unwrap();
        remove_made(&directory).unwrap();
        assert!(directory.exists() && !record_of(&directory).exists());
        fs::remove_dir(&directory).unwrap();
        fs::rename(state.path().join("mpirun-b"), &directory).unwrap();
        write_own_file(&record_of(&directory), 0o600, setup.identity().to_string().as_bytes()).unwrap();
        remove_made(&directory).unwrap();
        assert_eq!(fs::read_dir(state.path()).unwrap().count(), 0);
    }

    #[test]
    fn files_are_below_the_state_of_the_user_and_no_id_leads_elsewhere() {
        let home: Vec<_> = vec![("HOME".into(), "/home/u".into())];
        assert_eq!(directory("k3jq", &home).unwrap(), Path::new("/home/u/.local/state/lattice/mpirun-k3jq"));
        for id in ["../x", "a/b", "a.b", "a b"] {
            assert!(directory(id, &home).is_err(), "{id}");
        }
    }
}
