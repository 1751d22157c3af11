use std::collections::BTreeSet;
use std::time::Duration;

use lattice_session::call_stacks::RankStack;
use lattice_session::event::{MpiFamily, MpiLibrary, Notice};
use pmi_core::ids::NodeIndex;
use rank_spawner::{Limit, LimitedResource};
use serde_json::Value;

use super::super::summary::Summary;
use super::*;

/// One line of every kind, with all optional fields.
fn samples() -> Vec<Bytes> {
    let rank = Rank(1);
    let killed = RankExit::Signal { signal: 11, core_dumped: false };
    let cause = Cause { host: "node3".to_owned(), kind: CauseKind::Failed { rank, exit: killed } };
    let lost = CauseKind::NodeLost { reason: "no heartbeat for 3 s".to_owned() };
    let lost = Cause { host: "node7".to_owned(), kind: lost };
    let library = MpiLibrary { name: "Open MPI".to_owned(), file: "libmpi.so.40".to_owned(), family: MpiFamily::Pmix };
    let after = Duration::from_millis(1500);
    let opening = crate::prepared::tests::prepared(&[(2, "true", &["-x"])]);
    let output =
        |bytes: &'static [u8]| Event::Output(Output { rank, stream: Stream::Stderr, bytes: Bytes::from_static(bytes) });
    let silent = |library| Notice::Silent { ranks: vec![rank], size: 2, ended: true, after, library };
    let missing = vec![(rank, Some("get".to_owned())), (Rank(0), None)];
    let events = [
        Event::Started { rank, pid: 4711, at: after },
        output(b"hello\n"),
        output(b"\xff\xfe"),
        Event::Notice(silent(Some(library))),
        Event::Notice(silent(None)),
        Event::Notice(Notice::Stuck { after, waiting: 1, missing }),
        Event::Notice(Notice::Stacks { stacks: vec![RankStack { ranks: vec![rank], text: "thread 1\n".to_owned() }] }),
        Event::Notice(Notice::Leftover { pids: vec![4711] }),
        Event::Notice(Notice::OutputHeld { rank, pid: 4711, program: "tee".to_owned(), after }),
        Event::Notice(Notice::PmiMisuse { rank, observed: "a second init".to_owned() }),
        Event::Notice(Notice::StdinClosed { rank }),
        Event::Notice(Notice::ReleaseOverdue { rank, resource: "shm:7".to_owned(), within: after, killed: false }),
        Event::Notice(Notice::BoundElsewhere {
            rank,
            node: "node3".to_owned(),
            planned: "0-3".parse().unwrap(),
            seen: "0".parse().unwrap(),
        }),
        Event::Notice(Notice::LimitTooHigh {
            node: "node3".to_owned(),
            resource: LimitedResource::Stack,
            asked: Limit::UNLIMITED,
            hard: 8_388_608,
        }),
        Event::Exited { rank, exit: RankExit::Code(3), reached: None, ran: after },
        Event::Exited { rank, exit: killed, reached: None, ran: after },
        Event::Ending(cause.clone()),
        Event::Ending(lost),
    ];
    let holes = [dropped(Some(4711)), dropped(None)];
    let failed =
        Report { exits: vec![(rank, killed)], cause: Some(cause), duration: after, usage: None, by_node: None };
    let fine =
        Report { exits: vec![(rank, RankExit::Code(0))], cause: None, duration: after, usage: None, by_node: None };
    let mut lines = vec![launch(&opening), plan(&opening)];
    lines.extend(events[..7].iter().filter_map(|sample| event(sample, "node3")));
    lines.extend(holes);
    lines.extend(events[7..].iter().filter_map(|sample| event(sample, "node3")));
    let mut summary = Summary::new(1);
    summary.event(NodeIndex(0), &Event::Started { rank, pid: 1, at: after });
    let hosts = ["node3".to_owned()];
    lines.extend([complete("k3jq", 139, &failed, None), complete("k3jq", 0, &fine, Some(summary.line(&hosts, &fine)))]);
    lines
}

#[test]
fn every_line_is_one_of_the_documented_events() {
    let schema = schemars::schema_for!(Line<'_>);
    let events = schema.get("oneOf").and_then(Value::as_array).unwrap().iter();
    let documented: BTreeSet<&str> =
        events.map(|event| event["properties"]["event"]["const"].as_str().unwrap()).collect();
    let validator = jsonschema::validator_for(schema.as_value()).unwrap();
    let mut printed = BTreeSet::new();
    for line in samples() {
        assert_eq!(line.iter().filter(|&&byte| byte == b'\n').count(), 1);
        let value: Value = serde_json::from_slice(&line).unwrap();
        validator.validate(&value).unwrap_or_else(|error| panic!("{value}: {error}"));
        printed.insert(value["event"].as_str().unwrap().to_owned());
    }
    assert!(printed.iter().eq(documented), "{printed:?}");
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
    /// The bytes of a rank can be restored from one line.
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

/// Programs distinguish failures by these strings.
#[test]
fn every_cause_has_a_kind_of_its_own() {
    let rank = Rank(3);
    let text = || "words".to_owned();
    let not_started = |class| CauseKind::NotStarted { reason: text(), class };
    let limit = Duration::from_secs(1);
    let named = [
        (CauseKind::Failed { rank, exit: RankExit::Code(1) }, "failed"),
        (CauseKind::LeftWithoutFinalize { rank }, "left_without_finalize"),
        (CauseKind::LeftBeforeInit { rank, exit: RankExit::Code(0), others: vec![rank] }, "left_before_init"),
        (CauseKind::LeftFence { rank, waiting: vec![rank] }, "left_fence"),
        (CauseKind::Aborted { rank, code: 1, message: text() }, "aborted"),
        (CauseKind::Offence { rank, offence: text() }, "offence"),
        (CauseKind::NotServed { rank, protocol: text() }, "not_served"),
        (CauseKind::FirstExit { rank, wait: limit }, "first_exit"),
    ];
    let nobody = [
        (CauseKind::Fence { reason: text() }, "fence"),
        (CauseKind::FenceTimeout { limit, waiting: 1, missing: Vec::new() }, "fence_timeout"),
        (CauseKind::NodeLost { reason: text() }, "node_lost"),
        (not_started(StartClass::NotFound), "not_found"),
        (not_started(StartClass::CannotExecute), "cannot_execute"),
        (not_started(StartClass::System), "not_started"),
        (CauseKind::Interrupted { signal: 2 }, "interrupted"),
        (CauseKind::Ended { who: text(), reason: text() }, "ended"),
        (CauseKind::TimedOut { limit }, "timed_out"),
        (CauseKind::FailedRanks { failed: vec![(Rank(1), RankExit::Code(3))] }, "failed_ranks"),
    ];
    let named = named.into_iter().map(|cause| (cause, Value::from(3)));
    for ((kind, word), rank) in named.chain(nobody.into_iter().map(|cause| (cause, Value::Null))) {
        let cause = Cause { host: "node3".to_owned(), kind };
        let line = serde_json::to_value(CauseLine::of(&cause)).unwrap();
        let expected = serde_json::json!({ "kind": word, "node": "node3", "rank": rank, "message": cause.to_string() });
        assert_eq!(line, expected);
    }
}

#[test]
fn a_plan_tells_every_rank_its_place_and_its_program_its_words() {
    let plan = plan(&crate::prepared::tests::prepared(&[(2, "true", &["-x"]), (1, "false", &[])]));
    let plan: Value = serde_json::from_slice(&plan).unwrap();
    let rank = |rank: u32| serde_json::json!({ "rank": rank, "node": "node3", "local_rank": rank, "cpus": null });
    assert_eq!(plan["ranks"], serde_json::json!([rank(0), rank(1), rank(2)]));
    assert_eq!(
        plan["programs"],
        serde_json::json!([
            { "num_ranks": 2, "program": "true", "args": ["-x"] },
            { "num_ranks": 1, "program": "false", "args": [] },
        ])
    );
    assert_eq!((&plan["num_ranks"], &plan["allocation_id"]), (&3.into(), &Value::Null));
}
