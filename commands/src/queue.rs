//! `lattice queue` and `lattice cancel`: lists pending and running allocations, and ends them.

use std::fmt::Display;
use std::time::Duration;

use lattice_cluster_client::{Cluster, ClusterError, state_word};
use lattice_console::table::{Align, Table};
use lattice_console::{Verbosity, confirm, exit, formatting, print, print_json, report};
use lattice_session::unix_time;
use nix::unistd::geteuid;
use pmi_transport::proto::v1 as proto;
use proto::AllocationState;
use serde::Serialize;
use tonic::Code;

use super::error::CommandError;
use super::questions::{ask, ask_about, here, node_names};
use crate::args::{CancelArgs, QueueArgs};

/// An allocation in the JSON output.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Entry<'a> {
    /// Also the id of the batch job, if it is one.
    allocation_id: &'a str,
    /// Name of the batch job, if it is one.
    name: Option<&'a str>,
    uid: u32,
    user: String,
    state: &'static str,
    /// Seconds since it started to run; `null` unless it runs.
    duration_s: Option<u64>,
    time_limit_s: Option<u64>,
    /// Nodes of the allocation, or the nodes that it requests by name.
    nodes: Vec<String>,
    num_nodes: u32,
    reason: Option<String>,
    /// Launch that runs the script.
    launch_id: Option<&'a str>,
    exit_code: Option<u32>,
    requeues: u32,
    #[cfg_attr(test, schemars(extend("format" = "date-time")))]
    created_at: String,
    started_at: Option<String>,
}

/// Prints the queue; returns the exit code.
pub fn queue(args: &QueueArgs) -> Result<u8, CommandError> {
    let allocations = ask(&args.table.api, async |cluster| {
        if args.ids.is_empty() {
            let request = proto::ListAllocationsRequest { all: args.all };
            return Ok(cluster.ask(cluster.allocations().list_allocations(request)).await?.allocations);
        }
        let mut named = Vec::new();
        for id in &args.ids {
            let request = proto::GetAllocationRequest { id: id.clone() };
            named.push(cluster.ask(cluster.allocations().get_allocation(request)).await?);
        }
        Ok(named)
    })?;
    let allocations = in_order(allocations);
    let now = unix_time::seconds();
    if args.table.json {
        return Ok(print_json(&allocations.iter().map(|allocation| entry(allocation, now)).collect::<Vec<_>>())?);
    }
    Ok(print(table(&allocations, now).as_bytes())?)
}

/// Order: allocations with nodes, then pending allocations by turn, then ended allocations.
fn in_order(mut allocations: Vec<proto::Allocation>) -> Vec<proto::Allocation> {
    let class = |allocation: &proto::Allocation| match allocation.state() {
        AllocationState::Pending if allocation.nodes.is_empty() => 1,
        AllocationState::Released => 2,
        _ => 0,
    };
    // Turns restart when no allocation has one, so they do not order ended allocations.
    let since = |allocation: &proto::Allocation| match allocation.state() {
        AllocationState::Released => allocation.created_at,
        _ => 0,
    };
    allocations.sort_unstable_by_key(|allocation| (class(allocation), since(allocation), allocation.turn));
    allocations
}

fn table(allocations: &[proto::Allocation], now: u64) -> String {
    let mut table = Table::new([
        ("ID", Align::Left),
        ("NAME", Align::Left),
        ("USER", Align::Left),
        ("STATE", Align::Left),
        ("TIME", Align::Right),
        ("LIMIT", Align::Right),
        ("NODES", Align::Left),
        ("REASON", Align::Left),
    ]);
    let duration = |seconds: u64| formatting::duration(Duration::from_secs(seconds));
    for allocation in allocations {
        table.push([
            allocation.id.clone(),
            name(allocation).unwrap_or("-").to_owned(),
            formatting::user(allocation.uid),
            state_word(allocation.state()).to_owned(),
            runs_for(allocation, now).map_or_else(|| "-".to_owned(), duration),
            some(allocation.time_limit_s).map_or_else(|| "-".to_owned(), duration),
            nodes(allocation),
            reason(allocation).unwrap_or_default(),
        ]);
    }
    table.to_string()
}

fn entry(allocation: &proto::Allocation, now: u64) -> Entry<'_> {
    let job = allocation.batch.as_ref();
    let named = if allocation.nodes.is_empty() { &allocation.wanted_nodes } else { &allocation.nodes };
    let nodes = node_names(named);
    Entry {
        allocation_id: &allocation.id,
        name: name(allocation),
        uid: allocation.uid,
        user: formatting::user(allocation.uid),
        state: state_word(allocation.state()),
        duration_s: runs_for(allocation, now),
        time_limit_s: some(allocation.time_limit_s),
        num_nodes: if nodes.is_empty() { allocation.num_nodes } else { nodes.len() as u32 },
        nodes,
        reason: reason(allocation),
        launch_id: job.map(|job| job.launch_id.as_str()).filter(|id| !id.is_empty()),
        exit_code: job.and_then(|job| job.end.as_ref()?.exit_code),
        requeues: allocation.requeues,
        created_at: formatting::rfc3339(allocation.created_at),
        started_at: some(allocation.began_at).map(formatting::rfc3339),
    }
}

fn some(number: u64) -> Option<u64> {
    Some(number).filter(|&number| number != 0)
}

fn name(allocation: &proto::Allocation) -> Option<&str> {
    allocation.batch.as_ref().map(|job| job.name.as_str())
}

fn runs_for(allocation: &proto::Allocation, now: u64) -> Option<u64> {
    let began = some(allocation.began_at).filter(|_| allocation.state() == AllocationState::Running)?;
    Some(now.saturating_sub(began))
}

/// Nodes of the allocation, or the nodes that it waits for: their names, or their number.
fn nodes(allocation: &proto::Allocation) -> String {
    match (allocation.nodes.as_str(), allocation.wanted_nodes.as_str()) {
        ("", "") => allocation.num_nodes.to_string(),
        ("", wanted) => wanted.to_owned(),
        (nodes, _) => nodes.to_owned(),
    }
}

/// Reason why the allocation waits, or how its script ended.
fn reason(allocation: &proto::Allocation) -> Option<String> {
    let end = allocation.batch.as_ref().and_then(|job| job.end.as_ref());
    match (allocation.reason.as_str(), end) {
        ("", Some(proto::BatchEnd { exit_code: Some(code), cause })) if cause.is_empty() => {
            Some(format!("exit code {code}"))
        }
        ("", Some(proto::BatchEnd { exit_code: Some(code), cause })) => Some(format!("exit code {code}: {cause}")),
        ("", Some(proto::BatchEnd { exit_code: None, cause })) => Some(cause.clone()),
        ("", None) => None,
        (reason, _) => Some(reason.to_owned()),
    }
}

/// Ends the object of each id: a launch on this machine, a pending or running allocation, or a launch on a cluster. Reports the ids that
/// cannot be ended, and continues with the rest. Returns the exit code.
pub fn cancel(args: &CancelArgs, verbosity: Verbosity) -> Result<u8, CommandError> {
    let (mut elsewhere, mut ended, mut code) = (Vec::new(), Vec::new(), 0);
    let mut told = |id, outcome: Result<(), &dyn Display>| match outcome {
        Ok(()) => ended.push(id),
        Err(error) => {
            report(&error.to_string());
            code = exit::OURS;
        }
    };
    let of_user = match args.me.then(|| geteuid().as_raw()).or(args.user) {
        Some(uid) => of_user(uid, args)?,
        None => Vec::new(),
    };
    elsewhere.extend(&of_user);
    for id in &args.ids {
        match here(id, &args.table.api) {
            Some(launch) => told(id, launch.abort(&args.reason).as_ref().map(|_| ()).map_err(|error| error as _)),
            None => elsewhere.push(id),
        }
    }
    if let Some(first) = elsewhere.first() {
        ask_about(first, &args.table.api, async |cluster| {
            for &id in &elsewhere {
                match cancel_one(&cluster, id, &args.reason).await {
                    // The next id would fail in the same way.
                    Err(error) if error.is_passing() => return Err(error.into()),
                    outcome => told(id, outcome.as_ref().map(|_| ()).map_err(|error| error as _)),
                }
            }
            Ok(())
        })?;
    }
    match &ended[..] {
        [] => {}
        _ if args.table.json => {
            print_json(&Cancelled { asked: "cancel", ids: ended, reason: &args.reason })?;
        }
        _ => confirm(
            &format!("cancelled: {}", ended.iter().map(|id| id.as_str()).collect::<Vec<_>>().join(", ")),
            verbosity,
        ),
    }
    Ok(code)
}

/// Ids of a user's allocations that have not ended, batch jobs included. Pending allocations come first, so that none of them starts
/// meanwhile.
fn of_user(uid: u32, args: &CancelArgs) -> Result<Vec<String>, CommandError> {
    let listed = ask(&args.table.api, async |cluster| {
        let request = proto::ListAllocationsRequest { all: false };
        Ok(cluster.ask(cluster.allocations().list_allocations(request)).await?.allocations)
    })?;
    let of_user: Vec<_> = in_order(listed).into_iter().filter(|allocation| allocation.uid == uid).collect();
    Ok(of_user.into_iter().rev().map(|allocation| allocation.id).collect())
}

/// Ended ids in the JSON output.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Cancelled<'a> {
    asked: &'static str,
    ids: Vec<&'a String>,
    reason: &'a str,
}

async fn cancel_one(cluster: &Cluster, id: &str, reason: &str) -> Result<(), ClusterError> {
    let mut service = cluster.allocations();
    let released = async {
        match service.release_allocation(proto::ReleaseAllocationRequest { id: id.to_owned() }).await {
            Err(status) if status.code() == Code::NotFound => Ok(tonic::Response::new(false)),
            answer => answer.map(|released| released.map(|_| true)),
        }
    };
    match cluster.ask(released).await? {
        true => Ok(()),
        false => cluster.abort_launch(id, reason).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(id: &str, state: AllocationState) -> proto::Allocation {
        proto::Allocation { id: id.to_owned(), state: state.into(), turn: 1, ..proto::Allocation::default() }
    }

    fn queue() -> Vec<proto::Allocation> {
        let job = |end| {
            Some(proto::BatchJob { name: "ocean".to_owned(), launch_id: "l1".to_owned(), end, ..Default::default() })
        };
        let end = proto::BatchEnd { exit_code: Some(3), cause: "rank 0 exited with status 3".to_owned() };
        let waits = proto::Allocation {
            num_nodes: 4,
            reason: "waits behind allocation w1".to_owned(),
            turn: 7,
            ..sample("w2", AllocationState::Pending)
        };
        let head = proto::Allocation {
            wanted_nodes: "node[0-1]".to_owned(),
            reason: "node node0 belongs to allocation r".to_owned(),
            turn: 6,
            time_limit_s: 60,
            ..sample("w1", AllocationState::Pending)
        };
        let runs = proto::Allocation {
            nodes: "node0".to_owned(),
            began_at: 1_795_183_742,
            time_limit_s: 3600,
            turn: 5,
            batch: job(None),
            ..sample("r", AllocationState::Running)
        };
        let over = proto::Allocation {
            nodes: "node1".to_owned(),
            batch: job(Some(end)),
            ..sample("o", AllocationState::Released)
        };
        in_order(vec![over, waits, head, runs])
    }

    #[test]
    fn those_with_nodes_stand_before_those_that_wait_and_those_before_the_ended() {
        let text = table(&queue(), 1_795_183_742 + 65);
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split("  ").filter(|cell| !cell.is_empty()).map(str::trim).collect())
            .collect();
        assert_eq!(lines[0], ["ID", "NAME", "USER", "STATE", "TIME", "LIMIT", "NODES", "REASON"]);
        assert_eq!(lines[1], ["r", "ocean", "root", "running", "1 min 5 s", "1 h", "node0"]);
        assert_eq!(
            lines[2],
            ["w1", "-", "root", "pending", "-", "1 min", "node[0-1]", "node node0 belongs to allocation r"]
        );
        assert_eq!(lines[3], ["w2", "-", "root", "pending", "-", "-", "4", "waits behind allocation w1"]);
        assert_eq!(
            lines[4],
            ["o", "ocean", "root", "released", "-", "-", "node1", "exit code 3: rank 0 exited with status 3"]
        );
    }

    #[test]
    fn programs_get_the_same_facts() {
        let queue = queue();
        let json = serde_json::to_value(entry(&queue[0], 1_795_183_742 + 65)).unwrap();
        let expected = serde_json::json!({
            "allocation_id": "r", "name": "ocean", "uid": 0, "user": "root", "state": "running", "duration_s": 65, "time_limit_s": 3600,
            "nodes": ["node0"], "num_nodes": 1, "reason": null, "launch_id": "l1", "exit_code": null, "requeues": 0,
            "created_at": "1970-01-01T00:00:00Z", "started_at": "2026-11-20T14:09:02Z",
        });
        assert_eq!(json, expected);
        let json = serde_json::to_value(entry(&queue[2], 0)).unwrap();
        assert_eq!((&json["num_nodes"], &json["nodes"]), (&serde_json::json!(4), &serde_json::json!([])));
        assert_eq!(serde_json::to_value(entry(&queue[3], 0)).unwrap()["exit_code"], 3);
    }
}
