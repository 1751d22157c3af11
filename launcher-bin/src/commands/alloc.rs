//! `lattice alloc`: allocations, made, shown and released.

mod shell;

use std::time::Duration;

use pmi_transport::proto::v1 as proto;
use proto::RequeuePolicy;
use serde::Serialize;
use tokio::time::sleep;
use tonic::{Code, Response};

use super::{CommandError, ask, environment, node_names};
use crate::args::{AllocCommand, CreateArgs, Requeue, ShellArgs, TableArgs};
use crate::cluster::{Cluster, ClusterError, state_word};
use crate::console::{Verbosity, print, print_json, print_lines, report};
use crate::table::{Align, Table};
use crate::{cluster, formatting};

/// Pause between attempts of `alloc create --wait`.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// An allocation as it is printed for programs.
#[derive(Debug, Serialize)]
struct Allocation {
    id: String,
    state: &'static str,
    uid: u32,
    nodes: Vec<String>,
    requeue: &'static str,
    created_at: String,
    requeues: u32,
    reason: String,
}

/// Does what a command about allocations asks for; returns the exit code.
pub(crate) fn alloc(command: &AllocCommand, verbosity: Verbosity) -> Result<u8, CommandError> {
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
        AllocCommand::Show { id, table } => {
            let id = cluster::allocation(id.as_deref(), &environment())?.ok_or(CommandError::NoAllocation)?;
            let request = proto::GetAllocationRequest { id };
            let answer = ask(&table.api, async |cluster| {
                Ok(cluster.ask(cluster.allocations().get_allocation(request)).await?)
            })?;
            show_one(answer, table)
        }
        AllocCommand::Release { id, table } => {
            let request = proto::ReleaseAllocationRequest { id: id.clone() };
            let answer = ask(&table.api, async |cluster| {
                Ok(cluster.ask(cluster.allocations().release_allocation(request)).await?)
            })?;
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
        requeue: match args.requeue {
            Requeue::Never => RequeuePolicy::Never,
            Requeue::OnNodeFailure => RequeuePolicy::OnNodeFailure,
            Requeue::OnAnyFailure => RequeuePolicy::OnAnyFailure,
        }
        .into(),
        uid: args.uid,
        ..proto::CreateAllocationRequest::default()
    };
    let unavailable = if args.wait { Unavailable::Wait } else { Unavailable::Fail };
    let made = ask(&args.table.api, async |cluster| Ok(allocated(&cluster, request, unavailable, verbosity).await?))?;
    if args.table.json {
        return Ok(print_json(&Allocation::from(made))?);
    }
    if verbosity == Verbosity::Verbose {
        report(&format!("allocation {} of {} is {}", made.id, made.nodes, state_word(made.state())));
    }
    Ok(print_lines(&[made.id])?)
}

/// An allocation for a shell.
fn asked_by_shell(args: &ShellArgs) -> proto::CreateAllocationRequest {
    proto::CreateAllocationRequest {
        nodes: args.list.clone().unwrap_or_default(),
        num_nodes: args.count.unwrap_or_default(),
        ..proto::CreateAllocationRequest::default()
    }
}

/// Reaction to nodes that are not up and free now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unavailable {
    /// The command fails.
    Fail,
    /// The command asks again until they are.
    Wait,
}

/// Has an allocation made; if its nodes are waited for, again and again until they can be had. Ctrl-C ends that as any command.
async fn allocated(
    cluster: &Cluster,
    request: proto::CreateAllocationRequest,
    unavailable: Unavailable,
    verbosity: Verbosity,
) -> Result<proto::Allocation, ClusterError> {
    let mut told = String::new();
    loop {
        let mut service = cluster.allocations();
        let asked = async {
            match service.create_allocation(request.clone()).await {
                Err(status) if unavailable == Unavailable::Wait && status.code() == Code::FailedPrecondition => {
                    Ok(Response::new(Err(status.message().to_owned())))
                }
                answer => answer.map(|made| made.map(Ok)),
            }
        };
        let reason = match cluster.ask(asked).await? {
            Ok(made) => return Ok(made),
            Err(reason) => reason,
        };
        if verbosity > Verbosity::Quiet && reason != told {
            report(&format!("waiting: {reason}"));
            told = reason;
        }
        sleep(ASK_AGAIN).await;
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
            id: allocation.id,
            uid: allocation.uid,
            created_at: formatting::rfc3339(allocation.created_at),
            requeues: allocation.requeues,
            reason: allocation.reason,
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
    use proto::AllocationState;

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
            "id": "7f3k", "state": "running", "uid": 0, "nodes": ["node0", "node1", "node2", "node3"],
            "requeue": "on-node-failure", "created_at": "2026-11-20T14:09:02Z", "requeues": 2, "reason": "",
        });
        assert_eq!(json, expected);
    }
}
