//! `--json`: one event on each line, for programs. The lines are described in `docs/json-events.md`, and their schema is
//! `docs/json-events.schema.json`.

use std::borrow::Cow;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use lattice_session::cause::{Cause, CauseKind, StartClass};
use lattice_session::event::{Event, MpiFamily, MpiLibrary, Notice, Output, Report, Stream};
use lattice_session::placed::PlacedLaunch;
use pmi_core::ids::{LocalRank, Rank};
use rank_spawner::{CpuSet, RankExit};
use serde::Serialize;

use super::decoration::time_stamp;
use super::words;
use crate::prepared::{PreparedLaunch, RankRow};

/// One line.
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
    },
}

/// Facts of a launch before its first rank starts.
#[derive(Debug, Serialize)]
struct Launch<'a> {
    allocation_id: Option<&'a str>,
    size: u32,
    nodes: &'a [String],
    programs: Vec<Program<'a>>,
}

#[derive(Debug, Serialize)]
struct Program<'a> {
    ranks: u32,
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
    /// For bytes that are not UTF-8.
    Base64(String),
}

#[derive(Debug, Serialize)]
#[serde(tag = "notice", rename_all = "snake_case")]
enum NoticeLine<'a> {
    Silent { ranks: &'a [Rank], ended: bool, after_s: f64, library: Option<Library<'a>> },
    Stuck { after_s: f64, waiting: usize, missing: Vec<Missing<'a>> },
    Leftover { pids: &'a [u32] },
    StdinClosed { rank: Rank },
    Dropped { bytes: Option<u64> },
    Other,
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
pub(crate) struct RankEnd {
    rank: Rank,
    #[serde(flatten)]
    end: End,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum End {
    Code(i32),
    Signal(i32),
}

/// First cause of a launch's failure.
#[derive(Debug, Serialize)]
pub(crate) struct CauseLine<'a> {
    kind: &'static str,
    node: &'a str,
    rank: Option<Rank>,
    message: String,
}

/// The line that opens a launch.
pub(crate) fn launch(launch: &PreparedLaunch) -> Bytes {
    line(Body::Launch { launch_id: &launch.placed.launch_id, launch: Launch::of(launch) })
}

/// The only line of a launch that is not started.
pub(crate) fn plan(launch: &PreparedLaunch) -> Bytes {
    let rank = |row: &RankRow| RankLine {
        rank: row.place.rank,
        node: launch.placed.host(row.place.node),
        local_rank: row.place.local_rank,
        cpus: row.cpus.as_ref().map(CpuSet::to_string),
    };
    line(Body::Plan { launch: Launch::of(launch), ranks: launch.ranks.iter().map(rank).collect() })
}

/// The line of an event on `node`.
pub(crate) fn event(event: &Event, node: &str) -> Option<Bytes> {
    let body = match event {
        Event::Started { rank, pid } => Body::Started { rank: *rank, node, pid: *pid },
        Event::Output(output) => output_body(output, node),
        Event::Notice(notice) => Body::Notice { notice: notice_line(notice), message: words::notice(notice) },
        Event::Exited { rank, exit, .. } => Body::Exited { node, end: RankEnd::of(*rank, *exit) },
        Event::Ending(cause) => Body::Ending { cause: CauseLine::of(cause) },
        _ => return None,
    };
    Some(line(body))
}

/// The line of output that is missing here.
pub(crate) fn dropped(bytes: Option<u64>) -> Bytes {
    line(Body::Notice { notice: NoticeLine::Dropped { bytes }, message: words::dropped(bytes) })
}

/// The line that closes a launch.
pub(crate) fn complete(launch_id: &str, exit_code: u8, report: &Report) -> Bytes {
    line(Body::Complete {
        launch_id,
        exit_code,
        cause: report.cause.as_ref().map(CauseLine::of),
        ranks: report.exits.iter().map(|(rank, exit)| RankEnd::of(*rank, *exit)).collect(),
        duration_s: report.duration.as_secs_f64(),
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
        Notice::Leftover { pids } => NoticeLine::Leftover { pids },
        Notice::StdinClosed { rank } => NoticeLine::StdinClosed { rank: *rank },
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
            ranks: app.ranks,
            program: program.program.to_string_lossy(),
            args: program.args.iter().map(|arg| arg.to_string_lossy()).collect(),
        });
        Self { allocation_id: allocation_id.as_deref(), size: job.size(), nodes: hosts, programs: programs.collect() }
    }
}

impl RankEnd {
    pub(crate) fn of(rank: Rank, exit: RankExit) -> Self {
        let end = match exit {
            RankExit::Code(code) => End::Code(code),
            RankExit::Signal { signal, .. } => End::Signal(signal),
        };
        Self { rank, end }
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
            _ => ("other", None),
        };
        Self { kind, node: &cause.host, rank, message: cause.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::Value;

    use super::*;

    const SCHEMA: &str = include_str!("../../../docs/json-events.schema.json");

    /// One line of every kind, with everything in it that can be in it.
    fn samples() -> Vec<Bytes> {
        let rank = Rank(1);
        let killed = RankExit::Signal { signal: 11, core_dumped: false };
        let cause = Cause { host: "node3".to_owned(), kind: CauseKind::Failed { rank, exit: killed } };
        let lost = CauseKind::NodeLost { reason: "no heartbeat for 3 s".to_owned() };
        let lost = Cause { host: "node7".to_owned(), kind: lost };
        let library =
            MpiLibrary { name: "Open MPI".to_owned(), file: "libmpi.so.40".to_owned(), family: MpiFamily::Pmix };
        let after = Duration::from_millis(1500);
        let opening = crate::prepared::tests::prepared("-n 2 true -x").unwrap();
        let output = |bytes: &'static [u8]| {
            Event::Output(Output { rank, stream: Stream::Stderr, bytes: Bytes::from_static(bytes) })
        };
        let silent = |library| Notice::Silent { ranks: vec![rank], size: 2, ended: true, after, library };
        let missing = vec![(rank, Some("get".to_owned())), (Rank(0), None)];
        let events = [
            Event::Started { rank, pid: 4711 },
            output(b"hello\n"),
            output(b"\xff\xfe"),
            Event::Notice(silent(Some(library))),
            Event::Notice(silent(None)),
            Event::Notice(Notice::Stuck { after, waiting: 1, missing }),
            Event::Notice(Notice::Leftover { pids: vec![4711] }),
            Event::Notice(Notice::StdinClosed { rank }),
            Event::Exited { rank, exit: RankExit::Code(3), phase: None },
            Event::Exited { rank, exit: killed, phase: None },
            Event::Ending(cause.clone()),
            Event::Ending(lost),
        ];
        let holes = [dropped(Some(4711)), dropped(None)];
        let failed = Report { exits: vec![(rank, killed)], cause: Some(cause), duration: after };
        let fine = Report { exits: vec![(rank, RankExit::Code(0))], cause: None, duration: after };
        let mut lines = vec![launch(&opening), plan(&opening)];
        lines.extend(events[..7].iter().filter_map(|sample| event(sample, "node3")));
        lines.extend(holes);
        lines.extend(events[7..].iter().filter_map(|sample| event(sample, "node3")));
        lines.extend([complete("k3jq", 139, &failed), complete("k3jq", 0, &fine)]);
        lines
    }

    #[test]
    fn every_line_is_as_the_schema_says() {
        let schema: Value = serde_json::from_str(SCHEMA).unwrap();
        let mut kinds = Vec::new();
        for line in samples() {
            assert_eq!(line.iter().filter(|&&byte| byte == b'\n').count(), 1);
            let value: Value = serde_json::from_slice(&line).unwrap();
            let kind = value["event"].as_str().unwrap().to_owned();
            conforms(&value, &schema["$defs"][&kind], &schema, &kind);
            kinds.push(kind);
        }
        kinds.dedup();
        let documented: Vec<&str> =
            schema["oneOf"].as_array().unwrap().iter().map(|one| &one["$ref"].as_str().unwrap()[8..]).collect();
        assert_eq!(kinds, documented);
    }

    /// Checks what the schema uses of JSON Schema: `type`, `properties`, `required`, `items`, `enum`, `const`, `$ref`.
    fn conforms(value: &Value, schema: &Value, root: &Value, at: &str) {
        if let Some(target) = schema["$ref"].as_str() {
            let target = target.strip_prefix('#').unwrap();
            return conforms(value, root.pointer(target).unwrap_or_else(|| panic!("{at}: no {target}")), root, at);
        }
        if let Some(expected) = schema.get("const") {
            assert_eq!(value, expected, "{at}");
        }
        if let Some(possible) = schema["enum"].as_array() {
            assert!(possible.contains(value), "{at}: {value} is none of {possible:?}");
        }
        let types: Vec<&str> = match &schema["type"] {
            Value::String(one) => vec![one],
            several => several.as_array().into_iter().flatten().filter_map(Value::as_str).collect(),
        };
        let seen = match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(number) if number.is_f64() => "number",
            Value::Number(_) => "integer",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        assert!(types.is_empty() || types.contains(&seen), "{at}: {value} is none of {types:?}");
        if let Value::Object(fields) = value {
            for (name, field) in fields {
                let described = schema["properties"].get(name);
                conforms(field, described.unwrap_or_else(|| panic!("{at}.{name} is not in the schema")), root, name);
            }
            for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                assert!(fields.contains_key(name), "{at} lacks {name}");
            }
        }
        for item in value.as_array().into_iter().flatten() {
            conforms(item, &schema["items"], root, at);
        }
    }

    #[test]
    fn bytes_that_are_no_text_become_base64() {
        let check = |bytes: &'static [u8], field: &str, expected: &str| {
            let output = Output { rank: Rank(0), stream: Stream::Stdout, bytes: Bytes::from_static(bytes) };
            let line: Value = serde_json::from_slice(&event(&Event::Output(output), "node3").unwrap()).unwrap();
            assert_eq!(line[field], expected);
        };
        check(b"", "text", "");
        check(b"caf\xc3\xa9", "text", "caf\u{e9}");
        check(b"caf\xc3", "base64", "Y2Fmww==");
        check(b"\xff\xfe\xfd", "base64", "//79");
    }

    proptest::proptest! {
        /// A reader gets back what a rank wrote, byte by byte, from one line.
        #[test]
        fn no_bytes_of_a_rank_break_a_line(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300)) {
            let output = Output { rank: Rank(1), stream: Stream::Stdout, bytes: bytes.clone().into() };
            let line = event(&Event::Output(output), "node3").unwrap();
            proptest::prop_assert_eq!(line.iter().filter(|&&byte| byte == b'\n').count(), 1);
            let value: Value = serde_json::from_slice(&line).unwrap();
            let read = match value["text"].as_str() {
                Some(text) => text.as_bytes().to_vec(),
                None => BASE64_STANDARD.decode(value["base64"].as_str().unwrap()).unwrap(),
            };
            proptest::prop_assert_eq!(read, bytes);
        }

        #[test]
        fn hosts_and_words_of_any_kind_are_quoted(host in ".{0,20}", reason in ".{0,40}") {
            let kind = CauseKind::NodeLost { reason };
            let line = event(&Event::Ending(Cause { host: host.clone(), kind }), &host).unwrap();
            let value: Value = serde_json::from_slice(&line).unwrap();
            proptest::prop_assert_eq!(value["cause"]["node"].as_str(), Some(host.as_str()));
        }
    }
}
