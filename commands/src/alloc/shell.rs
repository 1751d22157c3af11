//! `lattice alloc shell`: a shell, or one command, in an allocation. An unchanged `mpirun` in it reaches the nodes.

use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use lattice_cluster_client::{AllocatedNodes, Cluster};
use lattice_console::environment::Environment;
use lattice_console::foreground::{self, Signals};
use lattice_console::{Verbosity, report};
use tokio::time::sleep;

use super::{allocated, asked_by_shell};
use crate::args::ShellArgs;
use crate::error::CommandError;
use crate::in_allocation::CommandFiles;
use crate::questions::{ask, environment};

/// Pause between checks whether the allocation still exists.
const LOOK: Duration = Duration::from_secs(3);

/// Runs the shell to its end; returns its exit code.
pub(super) fn shell(args: &ShellArgs, verbosity: Verbosity) -> Result<u8, CommandError> {
    let environment = environment();
    let present = match args.count.is_some() || args.list.is_some() {
        true => None,
        false => Some(
            lattice_cluster_client::allocation(args.id.as_deref(), &environment)?.ok_or(CommandError::NoAllocation)?,
        ),
    };
    ask(&args.api, async |cluster| {
        // Signals must be handled before there is an allocation to release.
        let mut signals = Signals::listen()?;
        match present {
            Some(id) => {
                let allocation = cluster.allocated_nodes(&id).await?;
                match allocation.over {
                    Some(state) => Err(CommandError::AllocationOver { id, state }),
                    None => run(args, &cluster, &allocation, &environment, &mut signals).await,
                }
            }
            None => {
                let id = allocate(args, &cluster, verbosity).await?;
                let work = async {
                    run(args, &cluster, &cluster.allocated_nodes(&id).await?, &environment, &mut signals).await
                };
                let code = work.await;
                cluster.release_allocation(&id).await?;
                code
            }
        }
    })
}

/// Creates an allocation for the shell; returns its id.
async fn allocate(args: &ShellArgs, cluster: &Cluster, verbosity: Verbosity) -> Result<String, CommandError> {
    let allocation = allocated(cluster, asked_by_shell(args), verbosity).await?;
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
    signals: &mut Signals,
) -> Result<u8, CommandError> {
    let files = CommandFiles::make(cluster, allocation, environment).await?;
    let code = match signals.arrived().await {
        Some(signal) => Err(CommandError::Interrupted { id: allocation.id.clone(), signal }),
        None => tokio::select! {
            code = run_with(args, &files, signals) => code,
            never = tell_end(cluster, &allocation.id) => match never {},
        },
    };
    let removed = files.remove();
    let code = code?;
    removed?;
    Ok(code)
}

/// Reports the end of the allocation while the command runs, whatever ended it. Other jobs may use its nodes afterwards.
async fn tell_end(cluster: &Cluster, id: &str) -> Infallible {
    loop {
        sleep(LOOK).await;
        // An API server that is away ends no allocation.
        if let Ok(Some(why)) = cluster.end_of_allocation(id).await {
            report(&format!("allocation {id} has ended: {why}; the command goes on without its nodes"));
            return pending().await;
        }
    }
}

async fn run_with(args: &ShellArgs, files: &CommandFiles, signals: &mut Signals) -> Result<u8, CommandError> {
    let shell = [std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into())];
    let words = if args.command.is_empty() { &shell[..] } else { &args.command };
    let mut command = files.command(&words[0])?;
    command.args(&words[1..]);
    if let Some(url) = &args.api.api {
        command.env(lattice_cluster_client::API_URL, url);
    }
    let child = command.spawn().map_err(|error| CommandError::Shell { command: words[0].clone(), error })?;
    Ok(foreground::wait(child, signals).await?)
}
