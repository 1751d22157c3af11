//! `lattice alloc`: creates, shows and releases allocations.

mod shell;
mod shell_env;

use std::time::Duration;

use lattice_cluster_client::{Cluster, ClusterError, state_word};
use lattice_console::foreground::Signals;
use lattice_console::table::{Align, Table};
use lattice_console::{Verbosity, formatting, is_captured, print, print_json, print_lines, report};
use pmi_transport::proto::v1 as proto;
use proto::{AllocationState, RequeuePolicy};
use serde::Serialize;
use tokio::time::sleep;

use super::error::CommandError;
use super::questions::{ask, environment, node_names};
use crate::args::{AllocCommand, CreateArgs, Requeue, ShellArgs, TableArgs};

/// Pause between queries for the state of a queued allocation.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// An allocation in the JSON output.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Allocation {
    allocation_id: String,
    state: &'static str,
    uid: u32,
    nodes: Vec<String>,
    requeue: &'static str,
    #[cfg_attr(test, schemars(extend("format" = "date-time")))]
    created_at: String,
    requeues: u32,
    /// Reason of a failure; `null` without one.
    reason: Option<String>,
}

/// Runs a command about allocations; returns the exit code.
pub fn alloc(command: &AllocCommand, verbosity: Verbosity) -> Result<u8, CommandError> {
    match command {
        AllocCommand::Create(args) => create(args, verbosity),
        AllocCommand::Shell(args) => shell::shell(args, verbosity),
        AllocCommand::List { all, table } => {
            let request = proto::ListAllocationsRequest { all: *all };
            let answer = ask(&table.api, async |cluster| {
                Ok(cluster.ask(cluster.allocations().list_allocations(request)).await?)
            })?;
            show(&answer.allocations, table)
        }
        AllocCommand::Show { id, shell_env, table } => {
            let id =
                lattice_cluster_client::allocation(id.as_deref(), &environment())?.ok_or(CommandError::NoAllocation)?;
            if *shell_env {
                return print_variables(&id, table);
            }
            let request = proto::GetAllocationRequest { id };
            let answer = ask(&table.api, async |cluster| {
                Ok(cluster.ask(cluster.allocations().get_allocation(request)).await?)
            })?;
            show_one(answer, table)
        }
        AllocCommand::Release { id, table } => {
            let request = proto::ReleaseAllocationRequest { id: id.clone() };
            // If the release failed, the allocation of a script would keep its nodes indefinitely.
            let answer = ask(&table.api, async |cluster| {
                let cluster = cluster.waiting();
                let release = async || cluster.ask(cluster.allocations().release_allocation(request.clone())).await;
                Ok(cluster.patiently(|error| error.is_unheard() && !error.is_absence(), release).await?)
            })?;
            if let Err(error) = shell_env::remove(&answer.id, &environment()) {
                report(&format!("warning: cannot remove the files of --shell-env: {error}"));
            }
            match (table.json, verbosity) {
                (true, _) => Ok(print_json(&Allocation::from(answer))?),
                (false, Verbosity::Verbose) => {
                    report(&format!("allocation {} is {}", answer.id, state_word(answer.state())));
                    Ok(0)
                }
                (false, _) => Ok(0),
            }
        }
    }
}

fn create(args: &CreateArgs, verbosity: Verbosity) -> Result<u8, CommandError> {
    let request = proto::CreateAllocationRequest {
        nodes: args.nodes.list.clone().unwrap_or_default(),
        num_nodes: args.nodes.count.unwrap_or_default(),
        requeue: RequeuePolicy::from(args.requeue).into(),
        uid: args.uid,
        queue: args.wait,
        time_limit_s: seconds(args.time),
        ..proto::CreateAllocationRequest::default()
    };
    let made = ask(&args.table.api, async |cluster| allocated(&cluster, request, verbosity).await)?;
    if args.table.json {
        return Ok(print_json(&Allocation::from(made))?);
    }
    if verbosity == Verbosity::Verbose {
        report(&format!("allocation {} of {} is {}", made.id, made.nodes, state_word(made.state())));
    }
    if args.shell_env {
        return print_variables(&made.id, &args.table);
    }
    if verbosity > Verbosity::Quiet && is_captured() {
        // The output is most likely for LATTICE_ALLOC_ID. With that variable alone, an unchanged mpirun finds no node.
        report(
            "note: LATTICE_ALLOC_ID is for lattice alone; eval \"$(lattice alloc create ... --shell-env)\" is for mpirun, too",
        );
    }
    Ok(print_lines(&[made.id])?)
}

/// Prints the shell variables of an allocation.
fn print_variables(id: &str, table: &TableArgs) -> Result<u8, CommandError> {
    ask(&table.api, async |cluster| {
        let allocation = cluster.allocated_nodes(id).await?;
        match allocation.over {
            Some(state) => Err(CommandError::AllocationOver { id: id.to_owned(), state }),
            None => {
                let api = table.api.api.as_deref();
                shell_env::print_variables(&cluster, &allocation, api, &environment()).await
            }
        }
    })
}

/// Request of `lattice alloc shell` for an allocation.
fn asked_by_shell(args: &ShellArgs) -> proto::CreateAllocationRequest {
    proto::CreateAllocationRequest {
        nodes: args.list.clone().unwrap_or_default(),
        num_nodes: args.count.unwrap_or_default(),
        queue: args.wait,
        time_limit_s: seconds(args.time),
        ..proto::CreateAllocationRequest::default()
    }
}

/// Time limit in a message: whole seconds, 0 for none.
fn seconds(limit: Option<Duration>) -> u64 {
    limit.map(|limit| limit.as_secs()).unwrap_or_default()
}

impl From<Requeue> for RequeuePolicy {
    fn from(requeue: Requeue) -> Self {
        match requeue {
            Requeue::Never => Self::Never,
            Requeue::OnNodeFailure => Self::OnNodeFailure,
            Requeue::OnAnyFailure => Self::OnAnyFailure,
        }
    }
}

/// Creates an allocation. If it is queued, waits until it runs, and reports why it is pending. A signal during the wait removes it from the
/// queue.
async fn allocated(
    cluster: &Cluster,
    mut request: proto::CreateAllocationRequest,
    verbosity: Verbosity,
) -> Result<proto::Allocation, CommandError> {
    request.nodes = cluster.registered_names(&request.nodes).await?;
    let made = cluster.ask(cluster.allocations().create_allocation(request)).await?;
    if made.state() != AllocationState::Pending {
        return Ok(made);
    }
    let id = made.id.clone();
    let mut signals = Signals::listen()?;
    tokio::select! {
        begun = begun(cluster, made, verbosity) => begun,
        signal = signals.end() => {
            cluster.release_allocation(&id).await?;
            Err(CommandError::Interrupted { id, signal })
        }
    }
}

/// Waits until a queued allocation runs.
async fn begun(
    cluster: &Cluster,
    queued: proto::Allocation,
    verbosity: Verbosity,
) -> Result<proto::Allocation, CommandError> {
    let (id, mut told, mut now) = (queued.id.clone(), String::new(), Ok(queued));
    loop {
        let reason = match now {
            Ok(allocation) => match allocation.state() {
                AllocationState::Running => return Ok(allocation),
                AllocationState::Pending => allocation.reason,
                state => return Err(CommandError::EndedInQueue { id, state: state_word(state) }),
            },
            Err(error) if ClusterError::is_passing(&error) => error.to_string(),
            Err(error) => return Err(error.into()),
        };
        if verbosity > Verbosity::Quiet && reason != told {
            report(&format!("allocation {id} is pending: {reason}"));
            told = reason;
        }
        sleep(ASK_AGAIN).await;
        let request = proto::GetAllocationRequest { id: id.clone() };
        now = cluster.ask(cluster.allocations().get_allocation(request)).await;
    }
}

fn show(allocations: &[proto::Allocation], args: &TableArgs) -> Result<u8, CommandError> {
    if args.json {
        let all: Vec<Allocation> = allocations.iter().cloned().map(Allocation::from).collect();
        return Ok(print_json(&all)?);
    }
    Ok(print(table(allocations).as_bytes())?)
}

fn show_one(allocation: proto::Allocation, args: &TableArgs) -> Result<u8, CommandError> {
    if args.json {
        return Ok(print_json(&Allocation::from(allocation))?);
    }
    Ok(print(table(&[allocation]).as_bytes())?)
}

fn table(allocations: &[proto::Allocation]) -> String {
    let mut table = Table::new([
        ("ID", Align::Left),
        ("STATE", Align::Left),
        ("USER", Align::Left),
        ("NODES", Align::Left),
        ("CREATED", Align::Left),
        ("REQUEUE", Align::Left),
        ("REASON", Align::Left),
    ]);
    for allocation in allocations {
        let requeued = match allocation.requeues {
            0 => String::new(),
            times => format!(" ({times} so far)"),
        };
        table.push([
            allocation.id.clone(),
            state_word(allocation.state()).to_owned(),
            formatting::user(allocation.uid),
            allocation.nodes.clone(),
            formatting::ago(allocation.created_at),
            format!("{}{requeued}", requeue(allocation.requeue())),
            allocation.reason.clone(),
        ]);
    }
    table.to_string()
}

impl From<proto::Allocation> for Allocation {
    fn from(allocation: proto::Allocation) -> Self {
        Self {
            state: state_word(allocation.state()),
            requeue: requeue(allocation.requeue()),
            nodes: node_names(&allocation.nodes),
            allocation_id: allocation.id,
            uid: allocation.uid,
            created_at: formatting::rfc3339(allocation.created_at),
            requeues: allocation.requeues,
            reason: Some(allocation.reason).filter(|reason| !reason.is_empty()),
        }
    }
}

fn requeue(policy: RequeuePolicy) -> &'static str {
    match policy {
        RequeuePolicy::Never => "never",
        RequeuePolicy::OnNodeFailure => "on-node-failure",
        RequeuePolicy::OnAnyFailure => "on-any-failure",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> proto::Allocation {
        proto::Allocation {
            id: "7f3k".to_owned(),
            state: AllocationState::Running.into(),
            nodes: "node[0-3]".to_owned(),
            requeue: RequeuePolicy::OnNodeFailure.into(),
            created_at: 1_795_183_742,
            requeues: 2,
            ..proto::Allocation::default()
        }
    }

    #[test]
    fn allocations_are_shown_in_a_table() {
        let text = table(&[sample()]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("ID    STATE    USER  NODES      CREATED"), "{text}");
        assert!(lines[1].starts_with("7f3k  running  root  node[0-3]  "), "{text}");
        assert!(lines[1].ends_with("on-node-failure (2 so far)"), "{text}");
    }

    #[test]
    fn programs_get_every_node_by_its_name() {
        let json = serde_json::to_value(Allocation::from(sample())).unwrap();
        let expected = serde_json::json!({
            "allocation_id": "7f3k", "state": "running", "uid": 0, "nodes": ["node0", "node1", "node2", "node3"],
            "requeue": "on-node-failure", "created_at": "2026-11-20T14:09:02Z", "requeues": 2, "reason": null,
        });
        assert_eq!(json, expected);
    }
}
