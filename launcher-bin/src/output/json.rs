//! `--json`: output for programs, one event on each line. `docs/reference/json.md` describes the lines, and `docs/reference/json-events.schema.json` is their
//! schema.

use std::borrow::Cow;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use lattice_session::cause::{Cause, CauseKind, StartClass};
use lattice_session::event::{Event, MpiFamily, MpiLibrary, Notice, Output, Report, Stream};
use lattice_session::placed::PlacedLaunch;
use pmi_core::ids::{LocalRank, Rank};
use rank_spawner::{CpuSet, Limit, LimitedResource, RankExit};
use serde::Serialize;

use super::decoration::time_stamp;
use super::summary::SummaryLine;
use super::words;
use crate::prepared::{PreparedLaunch, RankRow};
use crate::usage::UsageLine;

/// One line of output.
#[derive(Debug, Serialize)]
struct Line<'a> {
    time: String,
    #[serde(flatten)]
    body: Body<'a>,
}

#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Body<'a> {
    Launch {
        launch_id: &'a str,
        #[serde(flatten)]
        launch: Launch<'a>,
    },
    Plan {
        #[serde(flatten)]
        launch: Launch<'a>,
        ranks: Vec<RankLine<'a>>,
    },
    Started {
        rank: Rank,
        node: &'a str,
        pid: u32,
    },
    Output {
        rank: Rank,
        node: &'a str,
        stream: Stream,
        #[serde(flatten)]
        content: Content<'a>,
    },
    Notice {
        #[serde(flatten)]
        notice: NoticeLine<'a>,
        message: String,
    },
    Exited {
        node: &'a str,
        #[serde(flatten)]
        end: RankEnd,
    },
    Ending {
        cause: CauseLine<'a>,
    },
    Complete {
        launch_id: &'a str,
        exit_code: u8,
        cause: Option<CauseLine<'a>>,
        ranks: Vec<RankEnd>,
        duration_s: f64,
        usage: Option<UsageLine>,
        summary: Option<SummaryLine<'a>>,
    },
}

/// Data of a launch that is known before its first rank starts.
#[derive(Debug, Serialize)]
struct Launch<'a> {
    allocation_id: Option<&'a str>,
    num_ranks: u32,
    nodes: &'a [String],
    programs: Vec<Program<'a>>,
}

#[derive(Debug, Serialize)]
struct Program<'a> {
    num_ranks: u32,
    program: Cow<'a, str>,
    args: Vec<Cow<'a, str>>,
}

/// Place of a rank.
#[derive(Debug, Serialize)]
struct RankLine<'a> {
    rank: Rank,
    node: &'a str,
    local_rank: LocalRank,
    cpus: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Content<'a> {
    Text(&'a str),
    /// Bytes that are not UTF-8.
    Base64(String),
}

#[derive(Debug, Serialize)]
#[serde(tag = "notice", rename_all = "snake_case")]
enum NoticeLine<'a> {
    Silent { ranks: &'a [Rank], ended: bool, after_s: f64, library: Option<Library<'a>> },
    Stuck { after_s: f64, waiting: usize, missing: Vec<Missing<'a>> },
    Stacks { stacks: Vec<Stack<'a>> },
    Leftover { pids: &'a [u32] },
    OutputHeld { rank: Rank, pid: u32, program: &'a str, after_s: f64 },
    PmiMisuse { rank: Rank, observed: &'a str },
    StdinClosed { rank: Rank },
    NotSpawned { rank: Rank, reason: &'a str },
    NameRefused { rank: Rank, reason: &'a str },
    ReleaseOverdue { rank: Rank, registered: &'a str, within_s: f64, killed: bool },
    BoundElsewhere { rank: Rank, node: &'a str, planned: String, seen: String },
    LimitTooHigh { node: &'a str, resource: LimitedResource, asked: Option<u64>, hard: Option<u64> },
    Dropped { bytes: Option<u64> },
    Other,
}

#[derive(Debug, Serialize)]
struct Stack<'a> {
    ranks: &'a [Rank],
    text: &'a str,
}

#[derive(Debug, Serialize)]
struct Library<'a> {
    name: &'a str,
    file: &'a str,
    speaks: &'static str,
}

#[derive(Debug, Serialize)]
struct Missing<'a> {
    rank: Rank,
    last_command: Option<&'a str>,
}

/// End of a rank.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct RankEnd {
    #[cfg_attr(test, schemars(with = "u32"))]
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
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct CauseLine<'a> {
    kind: &'static str,
    node: &'a str,
    #[cfg_attr(test, schemars(with = "Option<u32>"))]
    rank: Option<Rank>,
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
        Event::Notice(notice) => Body::Notice { notice: notice_line(notice), message: words::notice(notice) },
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

fn notice_line(notice: &Notice) -> NoticeLine<'_> {
    match notice {
        Notice::Silent { ranks, ended, after, library, .. } => NoticeLine::Silent {
            ranks,
            ended: *ended,
            after_s: after.as_secs_f64(),
            library: library.as_ref().map(library_line),
        },
        Notice::Stuck { after, waiting, missing } => NoticeLine::Stuck {
            after_s: after.as_secs_f64(),
            waiting: *waiting,
            missing: missing
                .iter()
                .map(|(rank, last)| Missing { rank: *rank, last_command: last.as_deref() })
                .collect(),
        },
        Notice::Stacks { stacks } => {
            let stacks = stacks.iter().map(|stack| Stack { ranks: &stack.ranks, text: &stack.text });
            NoticeLine::Stacks { stacks: stacks.collect() }
        }
        Notice::Leftover { pids } => NoticeLine::Leftover { pids },
        Notice::OutputHeld { rank, pid, program, after } => {
            NoticeLine::OutputHeld { rank: *rank, pid: *pid, program, after_s: after.as_secs_f64() }
        }
        Notice::PmiMisuse { rank, observed } => NoticeLine::PmiMisuse { rank: *rank, observed },
        Notice::StdinClosed { rank } => NoticeLine::StdinClosed { rank: *rank },
        Notice::NotSpawned { rank, reason } => NoticeLine::NotSpawned { rank: *rank, reason },
        Notice::NameRefused { rank, reason } => NoticeLine::NameRefused { rank: *rank, reason },
        Notice::ReleaseOverdue { rank, resource, within, killed } => NoticeLine::ReleaseOverdue {
            rank: *rank,
            registered: resource,
            within_s: within.as_secs_f64(),
            killed: *killed,
        },
        Notice::BoundElsewhere { rank, node, planned, seen } => {
            NoticeLine::BoundElsewhere { rank: *rank, node, planned: planned.to_string(), seen: seen.to_string() }
        }
        Notice::LimitTooHigh { node, resource, asked, hard } => {
            let value = |limit: u64| (limit != Limit::UNLIMITED).then_some(limit);
            NoticeLine::LimitTooHigh { node, resource: *resource, asked: value(*asked), hard: value(*hard) }
        }
        _ => NoticeLine::Other,
    }
}

fn library_line(library: &MpiLibrary) -> Library<'_> {
    let speaks = match library.family {
        MpiFamily::Pmi => "pmi",
        MpiFamily::Pmix => "pmix",
        MpiFamily::Vendor => "vendor",
        _ => "other",
    };
    Library { name: &library.name, file: &library.file, speaks }
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
    pub(crate) fn of(rank: Rank, exit: RankExit) -> Self {
        let (code, signal) = match exit {
            RankExit::Code(code) => (Some(code), None),
            RankExit::Signal { signal, .. } => (None, Some(signal)),
        };
        Self { rank, code, signal }
    }
}

impl<'a> CauseLine<'a> {
    pub(crate) fn of(cause: &'a Cause) -> Self {
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
            CauseKind::NotStarted { class: StartClass::CannotExecute, .. } => ("cannot_execute", None),
            CauseKind::NotStarted { class: StartClass::System, .. } => ("not_started", None),
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
