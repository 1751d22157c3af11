//! `lattice alloc shell`: a shell, or one command, in an allocation, from which an unchanged `mpirun` reaches the nodes.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::unistd::mkdtemp;
use tokio::process::Command;

use super::{Unavailable, allocated, asked_by_shell};
use crate::args::ShellArgs;
use crate::cluster::{self, AllocatedNodes, Cluster, Environment};
use crate::commands::{CommandError, ask, environment};
use crate::console::{Verbosity, report};
use crate::foreground::{self, Signals};
use crate::mpirun_setup::{MpirunSetup, Slots};

/// Runs the shell to its end; returns its exit code.
pub(super) fn shell(args: &ShellArgs, verbosity: Verbosity) -> Result<u8, CommandError> {
    let environment = environment();
    let present = match args.count.is_some() || args.list.is_some() {
        true => None,
        false => Some(cluster::allocation(args.id.as_deref(), &environment)?.ok_or(CommandError::NoAllocation)?),
    };
    ask(&args.api, async |cluster| match present {
        Some(id) => {
            let allocation = cluster.allocated_nodes(&id).await?;
            match allocation.over {
                Some(state) => Err(CommandError::AllocationOver { id, state }),
                None => run(args, &cluster, &allocation, &environment).await,
            }
        }
        None => {
            let id = allocate(args, &cluster, verbosity).await?;
            let code = async { run(args, &cluster, &cluster.allocated_nodes(&id).await?, &environment).await }.await;
            cluster.release_allocation(&id).await?;
            code
        }
    })
}

/// Makes an allocation for the shell alone; returns its id.
async fn allocate(args: &ShellArgs, cluster: &Cluster, verbosity: Verbosity) -> Result<String, CommandError> {
    let unavailable = if args.wait { Unavailable::Wait } else { Unavailable::Fail };
    let allocation = allocated(cluster, asked_by_shell(args), unavailable, verbosity).await?;
    if verbosity > Verbosity::Quiet {
        report(&format!("allocation {} of {}, until the command ends", allocation.id, allocation.nodes));
    }
    Ok(allocation.id)
}

async fn run(
    args: &ShellArgs,
    cluster: &Cluster,
    allocation: &AllocatedNodes,
    environment: &Environment,
) -> Result<u8, CommandError> {
    let slots = slots(cluster, allocation).await?;
    let directory = directory(environment)?;
    let code = run_in(args, allocation, &slots, &directory).await;
    // Nobody else knows of it.
    let removed = fs::remove_dir_all(&directory);
    let code = code?;
    removed?;
    Ok(code)
}

/// The nodes of the allocation with a slot for each of their cores.
async fn slots(cluster: &Cluster, allocation: &AllocatedNodes) -> Result<Vec<Slots>, CommandError> {
    let facts = cluster.node_facts().await?;
    let cores = |name: &str| facts.iter().find(|node| node.name == name).map_or(1, |node| node.cores);
    Ok(allocation.names.iter().map(|node| Slots { node: node.clone(), slots: cores(node) }).collect())
}

/// Makes a directory of its own, in the user's home if that can be: all nodes see that one, and Open MPI's daemons look for it there.
fn directory(environment: &Environment) -> io::Result<PathBuf> {
    let set = |name: &str| environment.iter().find(|(known, value)| known == name && !value.is_empty());
    let path = |(_, value): &(OsString, OsString)| PathBuf::from(value);
    let state = set("XDG_STATE_HOME").map(path).or_else(|| Some(path(set("HOME")?).join(".local/state")));
    let in_home = state.map(|state| state.join("lattice")).map(|parent| made_in(&parent));
    match in_home {
        Some(Ok(directory)) => Ok(directory),
        Some(Err(_)) | None => made_in(&std::env::temp_dir()),
    }
}

fn made_in(parent: &Path) -> io::Result<PathBuf> {
    if !MpirunSetup::can_be_in(parent) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    fs::create_dir_all(parent)?;
    Ok(mkdtemp(&parent.join("shell-XXXXXX"))?)
}

async fn run_in(
    args: &ShellArgs,
    allocation: &AllocatedNodes,
    slots: &[Slots],
    directory: &Path,
) -> Result<u8, CommandError> {
    let setup = MpirunSetup::write(directory.join("mpirun"), slots)?;
    let shell = [std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into())];
    let words = if args.command.is_empty() { &shell[..] } else { &args.command };
    let path = setup.path(&std::env::var_os("PATH").unwrap_or_default())?;
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).envs(setup.variables()).env("PATH", path).env(cluster::ALLOCATION, &allocation.id);
    if let Some(url) = &args.api.api {
        command.env(cluster::API_URL, url);
    }
    let mut signals = Signals::listen()?;
    let child = command.spawn().map_err(|error| CommandError::Shell { command: words[0].clone(), error })?;
    Ok(foreground::wait(child, &mut signals).await?)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    fn directory_for(variables: &[(&str, &OsStr)]) -> PathBuf {
        let environment: Vec<_> =
            variables.iter().map(|&(name, value)| (OsString::from(name), value.to_owned())).collect();
        let made = directory(&environment).unwrap();
        fs::remove_dir(&made).unwrap();
        made
    }

    #[test]
    fn its_files_are_where_all_nodes_see_them_if_they_can_be() {
        let home = tempfile::tempdir().unwrap();
        assert!(
            directory_for(&[("HOME", home.path().as_os_str())]).starts_with(home.path().join(".local/state/lattice"))
        );
        let state = home.path().join("state");
        let variables = [("HOME", home.path().as_os_str()), ("XDG_STATE_HOME", state.as_os_str())];
        assert!(directory_for(&variables).starts_with(state.join("lattice")));
        for elsewhere in [home.path().join("a b"), PathBuf::from("/proc/none")] {
            let made = directory_for(&[("HOME", elsewhere.as_os_str())]);
            assert!(made.starts_with(std::env::temp_dir()), "{}", made.display());
        }
    }
}
