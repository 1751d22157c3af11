//! `lattice launches`: lists the launches on this machine and on the cluster. Also the JSON summary of one launch.

use std::ffi::OsStr;
use std::time::Duration;

use jiff::tz::TimeZone;
use lattice_console::environment::{ALLOCATION, NO_ALLOCATION};
use lattice_console::table::{Align, Table};
use lattice_console::terminal::columns;
use lattice_console::{formatting, print, print_json, report};
use pmi_transport::proto::v1 as proto;
use proto::LaunchState;
use serde::Serialize;

use super::error::CommandError;
use super::questions::{ask, environment, node_names};
use crate::args::{LaunchesArgs, TableArgs};

/// A launch in the JSON output.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Summary<'a> {
    launch_id: &'a str,
    /// `null` for a launch on this machine.
    allocation_id: Option<&'a str>,
    uid: u32,
    state: &'static str,
    nodes: Vec<String>,
    num_ranks: u32,
    command: &'a str,
    #[cfg_attr(test, schemars(extend("format" = "date-time")))]
    started_at: String,
    duration_s: f64,
    /// Time at which its client was stopped, if it is stopped.
    #[cfg_attr(test, schemars(extend("format" = "date-time")))]
    client_stopped_at: Option<String>,
    /// The first cause in words.
    reason: Option<&'a str>,
}

/// Prints the launches on this machine and on the cluster, by start time; in an allocation, those of the allocation first. On a terminal,
/// lines are cut to its width. Returns the exit code.
pub fn launches(LaunchesArgs { all, table: form }: &LaunchesArgs) -> Result<u8, CommandError> {
    let Listed { mut launches, has_cluster } = listed(*all, form)?;
    if let Some(id) = std::env::var_os(ALLOCATION) {
        of_allocation_first(&mut launches, &id);
    }
    if launches.is_empty() && !has_cluster {
        report(NONE_HERE);
    }
    if form.json {
        return Ok(print_json(&launches.iter().map(Summary::from).collect::<Vec<_>>())?);
    }
    Ok(print(table(&launches, &TimeZone::system()).within(columns()).as_bytes())?)
}

/// Running launches on this machine and on the cluster, by start time.
pub(super) fn running(form: &TableArgs) -> Result<Vec<proto::LaunchSummary>, CommandError> {
    listed(false, form).map(|listed| listed.launches)
}

/// Note with an empty table on a machine without a cluster.
const NONE_HERE: &str = "no launch of yours runs on this machine, and no API server of a cluster is here that could know others\n\
    try: lattice launches --api URL, for those on a cluster; LATTICE_API_URL is for all commands";

/// Launches, and whether a cluster exists.
struct Listed {
    launches: Vec<proto::LaunchSummary>,
    /// True if a cluster answered, or is configured.
    has_cluster: bool,
}

fn listed(all: bool, form: &TableArgs) -> Result<Listed, CommandError> {
    let request = proto::ListLaunchesRequest { all };
    let here = if form.api.api.is_some() { Vec::new() } else { lattice_local_launches::summaries(&environment()) };
    let answer = ask(&form.api, async |cluster| Ok(cluster.ask(cluster.launches().list_launches(request)).await?));
    let mut has_cluster = true;
    let mut launches = match answer {
        Ok(answer) => answer.launches,
        Err(CommandError::Cluster(error))
            if form.api.api.is_none() && (error.is_absence() || (error.is_passing() && !here.is_empty())) =>
        {
            has_cluster = !error.is_absence();
            // A machine without a cluster needs no note.
            if has_cluster {
                report(&format!("note: launches of this machine alone are shown: {error}"));
            }
            Vec::new()
        }
        Err(error) => return Err(error),
    };
    launches.extend(here);
    launches.sort_unstable_by(|one, other| age(one).cmp(&age(other)));
    Ok(Listed { launches, has_cluster })
}

/// Moves the launches of the allocation `id` to the start. The order among them, and among the rest, stays.
fn of_allocation_first(launches: &mut [proto::LaunchSummary], id: &OsStr) {
    launches.sort_by_key(|launch| launch.allocation_id.as_str() != id);
}

/// Sort key: the start time. The id decides among launches of one second, if the server reports whole seconds only.
fn age(launch: &proto::LaunchSummary) -> (u64, u32, &str) {
    (launch.started_at, launch.started_nanos, &launch.id)
}

/// Times are in `zone`.
fn table(launches: &[proto::LaunchSummary], zone: &TimeZone) -> Table<10> {
    let mut table = Table::new([
        ("ID", Align::Left),
        ("ALLOCATION", Align::Left),
        ("USER", Align::Left),
        ("STATE", Align::Left),
        ("NODES", Align::Left),
        ("RANKS", Align::Right),
        ("STARTED", Align::Left),
        ("RAN", Align::Right),
        ("COMMAND", Align::Left),
        ("CAUSE", Align::Left),
    ]);
    for launch in launches {
        table.push([
            launch.id.clone(),
            launch.allocation_id.clone(),
            formatting::user(launch.uid),
            match launch.client_stopped_at {
                0 => state(launch.state()).to_owned(),
                _ => format!("{}, client stopped", state(launch.state())),
            },
            launch.nodes.clone(),
            launch.ranks.to_string(),
            formatting::date(launch.started_at, zone),
            formatting::duration(Duration::from_micros(launch.duration_us)),
            launch.command.clone(),
            launch.cause.clone(),
        ]);
    }
    table
}

impl<'a> From<&'a proto::LaunchSummary> for Summary<'a> {
    fn from(launch: &'a proto::LaunchSummary) -> Self {
        Self {
            launch_id: &launch.id,
            allocation_id: Some(launch.allocation_id.as_str()).filter(|&id| id != NO_ALLOCATION),
            uid: launch.uid,
            state: state(launch.state()),
            nodes: node_names(&launch.nodes),
            num_ranks: launch.ranks,
            command: &launch.command,
            started_at: formatting::rfc3339(launch.started_at),
            client_stopped_at: (launch.client_stopped_at > 0).then(|| formatting::rfc3339(launch.client_stopped_at)),
            duration_s: Duration::from_micros(launch.duration_us).as_secs_f64(),
            reason: Some(launch.cause.as_str()).filter(|cause| !cause.is_empty()),
        }
    }
}

pub(super) fn state(state: LaunchState) -> &'static str {
    match state {
        LaunchState::Unspecified => "unknown",
        LaunchState::Starting => "starting",
        LaunchState::Active => "active",
        LaunchState::Ending => "ending",
        LaunchState::Succeeded => "succeeded",
        LaunchState::LaunchFailed => "failed",
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn sample() -> proto::LaunchSummary {
        proto::LaunchSummary {
            id: "k3jq09zmf2".to_owned(),
            allocation_id: "7f3k".to_owned(),
            state: LaunchState::Active.into(),
            nodes: "node[0-1]".to_owned(),
            ranks: 3,
            command: "./a.out -x".to_owned(),
            started_at: 1_795_183_742,
            duration_us: 65_000_000,
            ..proto::LaunchSummary::default()
        }
    }

    #[test]
    fn launches_are_shown_in_a_table_and_as_json() {
        assert_eq!(
            table(&[sample()], &TimeZone::UTC).to_string(),
            "ID          ALLOCATION  USER  STATE   NODES      RANKS  STARTED                    RAN  COMMAND     CAUSE\n\
             k3jq09zmf2  7f3k        root  active  node[0-1]      3  2026-11-20 14:09:02  1 min 5 s  ./a.out -x\n"
        );
        let json = serde_json::to_value(Summary::from(&sample())).unwrap();
        assert_eq!(json["nodes"], serde_json::json!(["node0", "node1"]));
        assert_eq!((&json["duration_s"], &json["reason"]), (&65.0.into(), &serde_json::Value::Null));
        assert_eq!(json["client_stopped_at"], serde_json::Value::Null);
    }

    #[test]
    fn launches_of_the_own_allocation_are_first() {
        let of = |id: &str, allocation: &str| proto::LaunchSummary {
            id: id.to_owned(),
            allocation_id: allocation.to_owned(),
            ..sample()
        };
        let mut launches = [of("a", "7f3k"), of("b", "9abc"), of("c", "local"), of("d", "9abc")];
        of_allocation_first(&mut launches, OsStr::new("9abc"));
        assert_eq!(launches.map(|launch| launch.id), ["b", "d", "a", "c"]);
    }

    #[test]
    fn a_launch_whose_client_is_stopped_is_told_from_others() {
        let launch = proto::LaunchSummary { client_stopped_at: 1_795_183_800, ..sample() };
        assert!(
            table(std::slice::from_ref(&launch), &TimeZone::UTC).to_string().contains("  active, client stopped  ")
        );
        let json = serde_json::to_value(Summary::from(&launch)).unwrap();
        assert_eq!(json["client_stopped_at"], "2026-11-20T14:10:00Z");
    }
}
