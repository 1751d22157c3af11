//! `--json`: output for programs, one event on each line. `docs/reference/json.md` describes the lines.

mod notice;

use std::borrow::Cow;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use lattice_session::cause::{Cause, CauseKind, StartClass};
use lattice_session::event::{Event, Output, Report, Stream};
use lattice_session::placed::PlacedLaunch;
use pmi_core::ids::{LocalRank, Rank};
use rank_spawner::{CpuSet, RankExit};
use serde::Serialize;

use self::notice::NoticeLine;
use super::decoration::time_stamp;
use super::prepared::{PreparedLaunch, RankRow};
use super::summary::SummaryLine;
use super::usage::UsageLine;
use super::words;

/// One line of output.
#[derive(Debug, Serialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct Line<'a> {
    /// Local time with milliseconds, RFC 3339.
    time: String,
    #[serde(flatten)]
    body: Body<'a>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(tag = "event", rename_all = "snake_case")]
enum Body<'a> {
    /// First line of a launch; with `--detach` the only line.
    Launch {
        /// `LATTICE_LAUNCH_ID` of the ranks.
        launch_id: &'a str,
        #[serde(flatten)]
        launch: Launch<'a>,
    },
    /// Only line of `--dry-run`.
    Plan {
        #[serde(flatten)]
        launch: Launch<'a>,
        /// Place of each rank, in rank order.
        ranks: Vec<RankLine<'a>>,
    },
    /// The process of a rank runs.
    Started {
        #[cfg_attr(any(test, feature = "schema"), schemars(with = "u32"))]
        rank: Rank,
        node: &'a str,
        /// Process number on the node.
        pid: u32,
    },
    /// A rank wrote lines, or a part of a line that is long or has paused.
    Output {
        #[cfg_attr(any(test, feature = "schema"), schemars(with = "u32"))]
        rank: Rank,
        node: &'a str,
        #[cfg_attr(any(test, feature = "schema"), schemars(with = "StreamName"))]
        stream: Stream,
        #[serde(flatten)]
        content: Content<'a>,
    },
    /// A warning or note that does not end the launch.
    Notice {
        #[serde(flatten)]
        notice: NoticeLine<'a>,
        /// The notice in words.
        message: String,
    },
    /// The process of a rank ended. All its output precedes this line.
    Exited {
        node: &'a str,
        #[serde(flatten)]
        end: RankEnd,
    },
    /// The launch is being ended before all ranks ended by themselves; at most once.
    Ending { cause: CauseLine<'a> },
    /// Last line: no process of the launch is left.
    Complete {
        launch_id: &'a str,
        /// Exit code of `lattice`.
        exit_code: u8,
        /// First cause of the failure; null for a launch without failure.
        cause: Option<CauseLine<'a>>,
        /// End of each rank that started, in rank order.
        ranks: Vec<RankEnd>,
        /// Time from the first start to the last end.
        duration_s: f64,
        /// Resources of the ranks on the nodes that reported them.
        usage: Option<UsageLine>,
        /// Null for a launch that was not followed from its begin.
        summary: Option<SummaryLine<'a>>,
    },
}

/// Names of [`Stream`].
#[cfg(any(test, feature = "schema"))]
#[derive(schemars::JsonSchema)]
#[schemars(rename_all = "lowercase")]
#[expect(dead_code, reason = "only its schema is used")]
enum StreamName {
    Stdout,
    Stderr,
}

/// Data of a launch that is known before its first rank starts.
#[derive(Debug, Serialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
struct Launch<'a> {
    /// Allocation of the launch; null on one machine.
    allocation_id: Option<&'a str>,
    num_ranks: u32,
    /// Names of the nodes, in node order.
    nodes: &'a [String],
    /// Programs in the order of their ranks.
    programs: Vec<Program<'a>>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
struct Program<'a> {
    num_ranks: u32,
    /// Executed file.
    program: Cow<'a, str>,
    args: Vec<Cow<'a, str>>,
}

/// Place of a rank.
#[derive(Debug, Serialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
struct RankLine<'a> {
    #[cfg_attr(any(test, feature = "schema"), schemars(with = "u32"))]
    rank: Rank,
    node: &'a str,
    /// Position on the node.
    #[cfg_attr(any(test, feature = "schema"), schemars(with = "u32"))]
    local_rank: LocalRank,
    /// CPUs to which the rank is bound, such as 0-3,8; null for an unbound rank, or if its node decides.
    cpus: Option<String>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
enum Content<'a> {
    /// UTF-8.
    Text(&'a str),
    /// Bytes that are not UTF-8, in base64 (RFC 4648).
    Base64(String),
}

/// End of a rank.
#[derive(Debug, Serialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct RankEnd {
    #[cfg_attr(any(test, feature = "schema"), schemars(with = "u32"))]
    rank: Rank,
    /// Exit code; absent after a signal.
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<i32>,
    /// Signal that killed the rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
}

/// First cause of a launch's failure.
#[derive(Debug, Serialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct CauseLine<'a> {
    /// Kind of the cause; `docs/reference/json.md` lists them.
    kind: &'static str,
    /// Node of the cause.
    node: &'a str,
    /// Rank that caused it, if one did.
    #[cfg_attr(any(test, feature = "schema"), schemars(with = "Option<u32>"))]
    rank: Option<Rank>,
    /// The cause in words.
    message: String,
}

/// First line of a launch.
pub(crate) fn launch(launch: &PreparedLaunch) -> Bytes {
    line(Body::Launch { launch_id: &launch.placed.launch_id, launch: Launch::of(launch) })
}

/// Only line of a launch that is not started.
pub(crate) fn plan(launch: &PreparedLaunch) -> Bytes {
    let rank = |row: &RankRow| RankLine {
        rank: row.place.rank,
        node: launch.placed.host(row.place.node),
        local_rank: row.place.local_rank,
        cpus: row.cpus.as_ref().map(CpuSet::to_string),
    };
    line(Body::Plan { launch: Launch::of(launch), ranks: launch.ranks.iter().map(rank).collect() })
}

/// Line of an event on `node`; `None` for an event without a line.
pub(crate) fn event(event: &Event, node: &str) -> Option<Bytes> {
    let body = match event {
        Event::Started { rank, pid, .. } => Body::Started { rank: *rank, node, pid: *pid },
        Event::Output(output) => output_body(output, node),
        Event::Notice(notice) => Body::Notice { notice: NoticeLine::of(notice), message: words::notice(notice) },
        Event::Exited { rank, exit, .. } => Body::Exited { node, end: RankEnd::of(*rank, *exit) },
        Event::Ending(cause) => Body::Ending { cause: CauseLine::of(cause) },
        _ => return None,
    };
    Some(line(body))
}

/// Line for a gap in the output.
pub(crate) fn dropped(bytes: Option<u64>) -> Bytes {
    line(Body::Notice { notice: NoticeLine::Dropped { bytes }, message: words::dropped(bytes) })
}

/// Last line of a launch.
pub(crate) fn complete(launch_id: &str, exit_code: u8, report: &Report, summary: Option<SummaryLine<'_>>) -> Bytes {
    line(Body::Complete {
        launch_id,
        exit_code,
        cause: report.cause.as_ref().map(CauseLine::of),
        ranks: report.exits.iter().map(|(rank, exit)| RankEnd::of(*rank, *exit)).collect(),
        duration_s: report.duration.as_secs_f64(),
        usage: report.usage.map(Into::into),
        summary,
    })
}

fn line(body: Body<'_>) -> Bytes {
    let line = Line { time: time_stamp(), body };
    let mut text = serde_json::to_vec(&line).expect("numbers, texts and maps with text keys always become JSON");
    text.push(b'\n');
    text.into()
}

fn output_body<'a>(output: &'a Output, node: &'a str) -> Body<'a> {
    let content = match std::str::from_utf8(&output.bytes) {
        Ok(text) => Content::Text(text),
        Err(_) => Content::Base64(BASE64_STANDARD.encode(&output.bytes)),
    };
    Body::Output { rank: output.rank, node, stream: output.stream, content }
}

impl<'a> Launch<'a> {
    fn of(launch: &'a PreparedLaunch) -> Self {
        let PlacedLaunch { allocation_id, job, hosts, apps, .. } = &launch.placed;
        let programs = job.apps.iter().zip(apps).map(|(app, program)| Program {
            num_ranks: app.ranks,
            program: program.program.to_string_lossy(),
            args: program.args.iter().map(|arg| arg.to_string_lossy()).collect(),
        });
        Self {
            allocation_id: allocation_id.as_deref(),
            num_ranks: job.size(),
            nodes: hosts,
            programs: programs.collect(),
        }
    }
}

impl RankEnd {
    /// The end of a rank by this exit.
    pub fn of(rank: Rank, exit: RankExit) -> Self {
        let (code, signal) = match exit {
            RankExit::Code(code) => (Some(code), None),
            RankExit::Signal { signal, .. } => (None, Some(signal)),
        };
        Self { rank, code, signal }
    }
}

impl<'a> CauseLine<'a> {
    /// The form of a cause in JSON.
    pub fn of(cause: &'a Cause) -> Self {
        let (kind, rank) = match &cause.kind {
            CauseKind::Failed { rank, .. } => ("failed", Some(*rank)),
            CauseKind::LeftWithoutFinalize { rank } => ("left_without_finalize", Some(*rank)),
            CauseKind::LeftBeforeInit { rank, .. } => ("left_before_init", Some(*rank)),
            CauseKind::LeftFence { rank, .. } => ("left_fence", Some(*rank)),
            CauseKind::Aborted { rank, .. } => ("aborted", Some(*rank)),
            CauseKind::Offence { rank, .. } => ("offence", Some(*rank)),
            CauseKind::NotServed { rank, .. } => ("not_served", Some(*rank)),
            CauseKind::Fence { .. } => ("fence", None),
            CauseKind::FenceTimeout { .. } => ("fence_timeout", None),
            CauseKind::NodeLost { .. } => ("node_lost", None),
            CauseKind::NotStarted { class: StartClass::NotFound, .. } => ("not_found", None),
            CauseKind::NotStarted { class, .. } if class.is_of_program() => ("cannot_execute", None),
            CauseKind::NotStarted { .. } => ("not_started", None),
            CauseKind::Interrupted { .. } => ("interrupted", None),
            CauseKind::Ended { .. } => ("ended", None),
            CauseKind::TimedOut { .. } => ("timed_out", None),
            CauseKind::FirstExit { rank, .. } => ("first_exit", Some(*rank)),
            CauseKind::FailedRanks { .. } => ("failed_ranks", None),
            CauseKind::LostNodes { .. } => ("lost_nodes", None),
            _ => ("other", None),
        };
        Self { kind, node: &cause.host, rank, message: cause.to_string() }
    }
}

#[cfg(test)]
mod tests;
