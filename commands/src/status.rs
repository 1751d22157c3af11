//! `lattice status` and `lattice proctable`: one launch, rank by rank.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use jiff::tz::TimeZone;
use lattice_cluster_client::args::ServerArgs;
use lattice_console::table::{Align, Table};
use lattice_console::{formatting, print, print_json, shown};
use lattice_render::{CauseLine, RankEnd, usage};
use lattice_session::cause::{Cause, RankList};
use lattice_session::event::{RankProgress, RankUsage};
use lattice_session::wire;
use pmi_core::Phase;
use pmi_core::ids::Rank;
use pmi_transport::proto::v1 as proto;
use proto::{LaunchState, SessionRole};
use serde::Serialize;

use super::error::CommandError;
use super::launches::{Summary, state};
use super::questions::{ask_about, here};
use crate::args::TableArgs;

/// A launch in the JSON output.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Status<'a> {
    #[serde(flatten)]
    #[cfg_attr(test, schemars(with = "Summary<'a>"))]
    summary: Option<Summary<'a>>,
    cause: Option<CauseLine<'a>>,
    ranks: Vec<RankLine<'a>>,
    /// Nodes that did not answer. The last known state of their ranks is shown.
    silent_nodes: Vec<&'a str>,
    /// Number of ranks for which the answer had no room. Their last known state is shown.
    left_out: u32,
    /// Resources that ranks used on nodes that have finished; `null` before any node has.
    usage: Option<usage::UsageLine>,
    /// Nodes with running sessions; only for a launch on several nodes.
    sessions: Vec<SessionLine<'a>>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct SessionLine<'a> {
    node: &'a str,
    role: &'static str,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct RankLine<'a> {
    #[cfg_attr(test, schemars(with = "u32"))]
    rank: Rank,
    node: &'a str,
    pid: Option<u32>,
    program: &'a str,
    phase: Option<&'static str>,
    last_command: Option<&'a str>,
    waiting: bool,
    /// End of the rank; `null` while it runs, and for a lost rank.
    exit: Option<RankEnd>,
    /// True if the rank was lost with its node or its session. How it ended is unknown.
    lost: bool,
    /// Resources that its processes use; `null` if unknown.
    usage: Option<RankUsageLine>,
}

/// Resources that the processes of a rank use, in the JSON output.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct RankUsageLine {
    cpu_s: f64,
    memory_bytes: u64,
    read_bytes: u64,
    written_bytes: u64,
}

impl From<RankUsage> for RankUsageLine {
    fn from(usage: RankUsage) -> Self {
        let RankUsage { cpu, memory, read, written } = usage;
        Self { cpu_s: cpu.as_secs_f64(), memory_bytes: memory, read_bytes: read, written_bytes: written }
    }
}

/// One line of a process table for debuggers.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Process<'a> {
    #[cfg_attr(test, schemars(with = "u32"))]
    rank: Rank,
    node: &'a str,
    pid: u32,
    program: Cow<'a, str>,
}

/// A rank and its location.
pub(super) struct RankView<'a> {
    pub(super) node: &'a str,
    pub(super) silent: bool,
    pub(super) program: Cow<'a, str>,
    pub(super) progress: RankProgress,
}

/// Prints one launch; returns the exit code.
pub fn status(launch: &str, args: &TableArgs) -> Result<u8, CommandError> {
    let (answer, cause) = get(launch, &args.api, Extent::Progress)?;
    let ranks = ranks(&answer);
    if args.json {
        return Ok(print_json(&json(&answer, cause.as_ref(), &ranks))?);
    }
    Ok(print(text(&answer, cause.as_ref(), &ranks, &TimeZone::system()).as_bytes())?)
}

/// Prints the locations of the running ranks of a launch; returns the exit code.
pub fn proctable(launch: &str, args: &TableArgs) -> Result<u8, CommandError> {
    let (answer, _) = get(launch, &args.api, Extent::Progress)?;
    let ranks = ranks(&answer);
    let processes = processes(&ranks);
    if args.json {
        return Ok(print_json(&processes)?);
    }
    let mut table =
        Table::new([("RANK", Align::Right), ("NODE", Align::Left), ("PID", Align::Right), ("PROGRAM", Align::Left)]);
    for Process { rank, node, pid, program } in processes {
        table.push([rank.to_string(), node.to_owned(), pid.to_string(), program.into_owned()]);
    }
    Ok(print(table.to_string().as_bytes())?)
}

/// Extent of a query about ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// State and resources of the ranks.
    Progress,
    /// Also the call stacks, which takes some seconds.
    Stacks,
}

/// Queries a launch, on this machine or on the cluster, for the state of its ranks.
pub(super) fn get(
    launch: &str,
    api: &ServerArgs,
    extent: Extent,
) -> Result<(proto::LaunchStatus, Option<Cause>), CommandError> {
    if let Some(here) = here(launch, api) {
        let answer = match extent {
            Extent::Progress => here.status()?,
            Extent::Stacks => here.stacks()?,
        };
        // A cause that this version does not support is omitted.
        let cause = answer.cause.clone().and_then(|cause| wire::cause::decode(cause).ok());
        return Ok((answer, cause));
    }
    let request = proto::GetLaunchRequest { id: launch.to_owned(), stacks: extent == Extent::Stacks };
    ask_about(launch, api, async |cluster| {
        let answer = cluster.ask(cluster.launches().get_launch(request)).await?;
        let cause = answer.cause.clone().map(wire::cause::decode).transpose();
        Ok((answer, cause.map_err(|error| cluster.invalid_answer(error))?))
    })
}

/// Every rank, in rank order.
pub(super) fn ranks(status: &proto::LaunchStatus) -> Vec<RankView<'_>> {
    let mut ranks: Vec<RankView<'_>> = status.nodes.iter().flat_map(ranks_of).collect();
    ranks.sort_unstable_by_key(|seen| seen.progress.rank);
    ranks
}

/// Ranks of one node, as the node reported them.
pub(super) fn ranks_of(node: &proto::NodeStatus) -> impl Iterator<Item = RankView<'_>> {
    let programs = node.programs.iter().map(|program| String::from_utf8_lossy(program));
    let programs = programs.chain(std::iter::repeat(Cow::Borrowed("")));
    node.ranks.iter().zip(programs).map(|(progress, program)| RankView {
        node: &node.node_id,
        silent: node.silent,
        program,
        progress: wire::progress::decode(progress.clone()),
    })
}

fn processes<'a>(ranks: &[RankView<'a>]) -> Vec<Process<'a>> {
    let running = ranks.iter().filter(|seen| seen.progress.exit.is_none());
    running
        .filter_map(|seen| {
            let pid = seen.progress.pid?;
            Some(Process { rank: seen.progress.rank, node: seen.node, pid, program: seen.program.clone() })
        })
        .collect()
}

fn json<'a>(status: &'a proto::LaunchStatus, cause: Option<&'a Cause>, ranks: &'a [RankView<'a>]) -> Status<'a> {
    let line = |seen: &'a RankView<'a>| RankLine {
        rank: seen.progress.rank,
        node: seen.node,
        pid: seen.progress.pid,
        program: &seen.program,
        phase: seen.progress.phase.map(phase),
        last_command: seen.progress.last_command.as_deref(),
        waiting: seen.progress.waiting,
        exit: seen.progress.exit.map(|exit| RankEnd::of(seen.progress.rank, exit)),
        lost: seen.progress.lost,
        usage: seen.progress.usage.map(RankUsageLine::from),
    };
    let silent = status.nodes.iter().filter(|node| node.silent);
    Status {
        summary: status.summary.as_ref().map(Summary::from),
        cause: cause.map(CauseLine::of),
        ranks: ranks.iter().map(line).collect(),
        silent_nodes: silent.map(|node| node.node_id.as_str()).collect(),
        left_out: left_out(status),
        usage: status.usage.map(|usage| wire::event::decode_usage(usage).into()),
        sessions: status.nodes.iter().filter_map(session).collect(),
    }
}

fn session(node: &proto::NodeStatus) -> Option<SessionLine<'_>> {
    let role = match node.role() {
        SessionRole::Shepherd => "shepherd",
        SessionRole::Lamb => "lamb",
        SessionRole::Unspecified => return None,
    };
    Some(SessionLine { node: &node.node_id, role })
}

/// Roles of the sessions as one line; `None` if there are none.
fn roles(status: &proto::LaunchStatus) -> Option<String> {
    let part = |role, words: &str| {
        let nodes = status.nodes.iter().filter(|node| node.role() == role).map(|node| node.node_id.as_str());
        let nodes: Vec<&str> = nodes.collect();
        (!nodes.is_empty()).then(|| format!("{words} on {}", hostlist::fold(&nodes)))
    };
    let parts = [part(SessionRole::Shepherd, "shepherd"), part(SessionRole::Lamb, "lambs")];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| format!("sessions: {}", parts.join(", ")))
}

/// Times are in `zone`.
fn text(status: &proto::LaunchStatus, cause: Option<&Cause>, ranks: &[RankView<'_>], zone: &TimeZone) -> String {
    let mut lines = Vec::new();
    if let Some(summary) = &status.summary {
        let time = formatting::duration(Duration::from_micros(summary.duration_us));
        let verb = match summary.state() {
            LaunchState::Succeeded | LaunchState::LaunchFailed => "has",
            _ => "is",
        };
        let (id, allocation, state) = (&summary.id, &summary.allocation_id, state(summary.state()));
        let ranks = formatting::count(summary.ranks, "rank");
        let (nodes, command) = (&summary.nodes, &summary.command);
        let place = match allocation.as_str() {
            "local" => "on this machine".to_owned(),
            allocation => format!("in allocation {allocation}"),
        };
        lines.push(format!("launch {id} {place} {verb} {state}; {ranks} on {nodes}; {time}; {command}"));
        if summary.client_stopped_at > 0 {
            let since = formatting::date(summary.client_stopped_at, zone);
            lines.push(format!("its client is stopped since {since}; the launch waits for it"));
        }
    }
    lines.extend(cause.map(|cause| format!("cause: {cause}")));
    lines.extend(
        [status.usage.map(|used| usage::words(wire::event::decode_usage(used))), roles(status)].into_iter().flatten(),
    );
    lines.extend(fences(ranks));
    lines.extend(left_out_words(status));
    shown(&lines) + &table(ranks)
}

/// Lines about ranks that wait in a fence. Ranks with the same number of completed fences of all ranks share a line. It lists the waiting
/// ranks, and the running ranks that wait in no fence.
pub(super) fn fences(ranks: &[RankView<'_>]) -> Vec<String> {
    let mut groups: BTreeMap<u64, (Vec<Rank>, Vec<Rank>)> = BTreeMap::new();
    for RankView { progress, .. } in ranks.iter().filter(|seen| seen.progress.exit.is_none()) {
        let Some(number) = progress.fences else { continue };
        let (waiting, others) = groups.entry(number).or_default();
        if progress.waiting { waiting } else { others }.push(progress.rank);
    }
    groups.retain(|_, (waiting, _)| !waiting.is_empty());
    let line = |(number, (waiting, others)): (u64, (Vec<Rank>, Vec<Rank>))| {
        let after = formatting::count(u32::try_from(number).unwrap_or(u32::MAX), "fence");
        let others = if others.is_empty() { String::new() } else { format!("; not in one: {}", listed(&others)) };
        format!("after {after} of all ranks: in a fence: {}{others}", listed(&waiting))
    };
    groups.into_iter().map(line).collect()
}

/// The ranks; their number if the list would fill more than a line.
fn listed(ranks: &[Rank]) -> String {
    let list = RankList(ranks).to_string();
    if list.len() <= 100 { list } else { formatting::count(ranks.len() as u32, "rank") }
}

/// Number of ranks for which the answer had no room.
pub(super) fn left_out(status: &proto::LaunchStatus) -> u32 {
    status.nodes.iter().map(|node| node.left_out).fold(0, u32::saturating_add)
}

/// The same number in words; `None` if it is 0.
pub(super) fn left_out_words(status: &proto::LaunchStatus) -> Option<String> {
    let count = left_out(status);
    (count > 0).then(|| {
        format!(
            "of {} only the last known state is shown: so many do not fit into an answer",
            formatting::count(count, "rank")
        )
    })
}

fn table(ranks: &[RankView<'_>]) -> String {
    let mut table = Table::new([
        ("RANK", Align::Right),
        ("NODE", Align::Left),
        ("PID", Align::Right),
        ("STATE", Align::Left),
        ("LAST PMI COMMAND", Align::Left),
        ("PROGRAM", Align::Left),
    ]);
    for seen in ranks {
        let progress = &seen.progress;
        let node = if seen.silent { format!("{} (silent)", seen.node) } else { seen.node.to_owned() };
        table.push([
            progress.rank.to_string(),
            node,
            progress.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
            rank_state(progress),
            progress.last_command.clone().unwrap_or_else(|| "-".to_owned()),
            seen.program.to_string(),
        ]);
    }
    table.to_string()
}

/// State of a rank according to its PMI servers.
pub(super) fn rank_state(progress: &RankProgress) -> String {
    match (progress.exit, progress.pid, progress.phase) {
        (Some(exit), ..) => exit.to_string(),
        _ if progress.lost => "lost".to_owned(),
        (None, None, _) => "not started".to_owned(),
        _ if progress.waiting => "waits in a fence".to_owned(),
        (None, Some(_), Some(_)) if progress.in_init => "runs, in MPI_Init".to_owned(),
        (None, Some(_), Some(known)) => format!("runs, {}", phase(known).replace('_', " ")),
        (None, Some(_), None) => "runs".to_owned(),
    }
}

fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Silent => "not_initialized",
        Phase::Open => "initialized",
        Phase::Finalized => "finalized",
    }
}

#[cfg(test)]
mod tests {
    use lattice_session::cause::CauseKind;
    use rank_spawner::RankExit;

    use super::super::launches::tests::sample;
    use super::*;

    fn answer() -> proto::LaunchStatus {
        let rank = |rank, pid, phase: proto::RankPhase| proto::RankProgress {
            rank,
            pid,
            phase: phase.into(),
            ..proto::RankProgress::default()
        };
        let waiting = proto::RankProgress {
            waiting: true,
            last_command: Some("barrier_in".to_owned()),
            ..rank(0, 4711, proto::RankPhase::Initialized)
        };
        let exit = proto::RankExitStatus { rank: 2, exit_code: 3, ..proto::RankExitStatus::default() };
        let ended = proto::RankProgress { exit: Some(exit), ..rank(2, 4713, proto::RankPhase::Finalized) };
        let node = |name: &str, silent, ranks: Vec<proto::RankProgress>| proto::NodeStatus {
            node_id: name.to_owned(),
            silent,
            programs: vec!["/bin/app".into(); ranks.len()],
            ranks,
            role: if name == "node0" { SessionRole::Shepherd } else { SessionRole::Lamb }.into(),
            stacks: Vec::new(),
            left_out: 0,
        };
        let nodes = vec![
            node("node0", false, vec![waiting, ended]),
            node("node1", true, vec![rank(1, 99, proto::RankPhase::Silent)]),
        ];
        proto::LaunchStatus { summary: Some(sample()), nodes, cause: None, usage: None }
    }

    #[test]
    fn every_rank_is_shown_with_what_it_does() {
        let answer = answer();
        assert_eq!(
            text(&answer, None, &ranks(&answer), &TimeZone::UTC),
            "launch k3jq09zmf2 in allocation 7f3k is active; 3 ranks on node[0-1]; 1 min 5 s; ./a.out -x\n\
             sessions: shepherd on node0, lambs on node1\n\
             RANK  NODE             PID  STATE                  LAST PMI COMMAND  PROGRAM\n   \
             0  node0           4711  waits in a fence       barrier_in        /bin/app\n   \
             1  node1 (silent)    99  runs, not initialized  -                 /bin/app\n   \
             2  node0           4713  exited with status 3   -                 /bin/app\n"
        );
        let json = serde_json::to_value(json(&answer, None, &ranks(&answer))).unwrap();
        assert_eq!(json["launch_id"], "k3jq09zmf2");
        assert_eq!(json["silent_nodes"], serde_json::json!(["node1"]));
        let session = |node: &str, role: &str| serde_json::json!({ "node": node, "role": role });
        assert_eq!(json["sessions"], serde_json::json!([session("node0", "shepherd"), session("node1", "lamb")]));
        assert_eq!(json["ranks"][2]["exit"], serde_json::json!({ "rank": 2, "code": 3 }));
        assert_eq!(json["ranks"][1]["phase"], "not_initialized");
    }

    #[test]
    fn a_fence_is_told_with_who_waits_and_who_has_not_come() {
        let mut answer = answer();
        let rank = |rank, waiting, fences| proto::RankProgress {
            rank,
            pid: 10 + rank,
            phase: proto::RankPhase::Initialized.into(),
            waiting,
            fences: Some(fences),
            ..proto::RankProgress::default()
        };
        answer.nodes[0].ranks = vec![rank(0, true, 2), rank(1, true, 2), rank(3, false, 2), rank(4, false, 3)];
        answer.nodes[1].ranks = vec![rank(2, false, 2), rank(5, true, 7)];
        let lines = fences(&ranks(&answer));
        let expected = [
            "after 2 fences of all ranks: in a fence: ranks 0-1; not in one: ranks 2-3",
            "after 7 fences of all ranks: in a fence: rank 5",
        ];
        assert_eq!(lines, expected);
        let text = text(&answer, None, &ranks(&answer), &TimeZone::UTC);
        assert!(text.contains(&format!("\n{}\n", lines.join("\n"))), "{text}");
    }

    #[test]
    fn ranks_that_an_answer_had_no_room_for_are_counted() {
        let mut answer = answer();
        answer.nodes.iter_mut().for_each(|node| node.left_out = 2);
        let text = text(&answer, None, &ranks(&answer), &TimeZone::UTC);
        assert!(text.contains("\nof 4 ranks only the last known state is shown: "), "{text}");
        assert_eq!(serde_json::to_value(json(&answer, None, &ranks(&answer))).unwrap()["left_out"], 4);
    }

    #[test]
    fn what_ranks_used_is_told_of_nodes_whose_part_is_over() {
        let usage = proto::Usage { user_us: 61_500_000, system_us: 250_000, peak_memory_bytes: 3 << 20 };
        let answer = proto::LaunchStatus { usage: Some(usage), ..answer() };
        let text = text(&answer, None, &ranks(&answer), &TimeZone::UTC);
        let line = "\nused: 1 min 1 s of processor time for programs, 250 ms in the kernel; at most 3.0 MiB of memory in one process\n";
        assert!(text.contains(line), "{text}");
        let json = serde_json::to_value(json(&answer, None, &ranks(&answer))).unwrap();
        let expected = serde_json::json!({ "user_s": 61.5, "system_s": 0.25, "peak_memory_bytes": 3 << 20 });
        assert_eq!(json["usage"], expected);
    }

    #[test]
    fn nobodys_command_or_cause_writes_lines_of_its_own() {
        let summary = proto::LaunchSummary { command: "sh -c \x1b[2J\nlaunch x".to_owned(), ..sample() };
        let answer = proto::LaunchStatus { summary: Some(summary), nodes: Vec::new(), cause: None, usage: None };
        let kind = CauseKind::NodeLost { reason: "gone\r\x1b]0;title\x07".to_owned() };
        let cause = Cause { host: "node\u{9b}1".to_owned(), kind };
        let text = text(&answer, Some(&cause), &[], &TimeZone::UTC);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].ends_with("; sh -c \\x1b[2J\\nlaunch x"), "{text}");
        assert_eq!(lines[1], "cause: node node\\x9b1 was lost: gone\\x0d\\x1b]0;title\\x07");
        assert_eq!(lines.len(), 3, "and the head of the table");
    }

    #[test]
    fn a_stopped_client_is_told_with_its_time() {
        let summary = proto::LaunchSummary { client_stopped_at: 1_795_183_800, ..sample() };
        let answer = proto::LaunchStatus { summary: Some(summary), ..answer() };
        let text = text(&answer, None, &ranks(&answer), &TimeZone::UTC);
        assert!(
            text.contains("\nits client is stopped since 2026-11-20 14:10:00; the launch waits for it\n"),
            "{text}"
        );
    }

    #[test]
    fn the_process_table_has_those_that_run() {
        let answer = answer();
        let ranks = ranks(&answer);
        let processes = processes(&ranks);
        let seen: Vec<_> = processes.iter().map(|process| (process.rank.0, process.node, process.pid)).collect();
        assert_eq!(seen, [(0, "node0", 4711), (1, "node1", 99)]);
        assert_eq!(ranks[2].progress.exit, Some(RankExit::Code(3)));
    }
}
