//! Causes, events and reports.

use bytes::Bytes;
use pmi_core::DialoguePoint;
use pmi_core::deaths::{Death, DeathKind};
use pmi_transport::limits::kept_cost;
use rank_spawner::CpuSet;

use super::super::event::NodeHappening;
use super::super::{cause, event, progress};
use super::*;
use crate::call_stacks::RankStack;
use crate::cause::{Cause, CauseKind, StartClass};
use crate::event::{
    Event, MpiFamily, MpiLibrary, Notice, Output, RankAffinity, RankProgress, RankUsage, Report, SpokenProtocol,
    Stream, Usage,
};
use crate::gathered::NodeSelection;
use crate::map_hash::MapHash;

fn causes() -> Vec<CauseKind> {
    let exit = RankExit::Signal { signal: 11, core_dumped: true };
    let rank = Rank(3);
    let missing = vec![(Rank(1), Some("fullinit".to_owned())), (Rank(2), None)];
    vec![
        CauseKind::Failed { rank, exit },
        CauseKind::LeftWithoutFinalize { rank },
        CauseKind::LeftBeforeInit { rank, exit: RankExit::Code(3), others: vec![Rank(0), Rank(7)] },
        CauseKind::LeftFence { rank, waiting: vec![Rank(9)] },
        CauseKind::Aborted { rank, code: -5, message: "text".into() },
        CauseKind::Offence { rank, offence: "nonsense".into() },
        CauseKind::NotServed { rank, protocol: "PMI-1".into() },
        CauseKind::Fence { reason: "broken".into() },
        CauseKind::FenceTimeout { limit: Duration::from_secs(3), waiting: 5, missing },
        CauseKind::NodeLost { reason: "no heartbeat".into() },
        CauseKind::NotStarted { reason: "no such program".into(), class: StartClass::NotFound },
        CauseKind::Interrupted { signal: 2 },
        CauseKind::Ended { who: "user 7".into(), reason: "enough".into() },
        CauseKind::TimedOut { limit: Duration::from_secs(9) },
        CauseKind::FirstExit { rank, wait: Duration::from_secs(4) },
        CauseKind::FailedRanks { failed: vec![(rank, exit), (Rank(9), RankExit::Code(3))] },
        CauseKind::LostNodes { nodes: vec![("n1".into(), "gone".into())], failed: vec![(rank, exit)] },
    ]
}

#[test]
fn causes_travel() {
    for kind in causes() {
        let sent = Cause { host: "node3".into(), kind };
        assert_eq!(cause::decode(cause::encode(&sent)).unwrap(), sent);
    }
    assert!(cause::decode(proto::Cause::default()).is_err());
}

#[test]
fn events_travel() {
    let library = MpiLibrary { name: "MPICH".into(), file: "libmpi.so.12".into(), family: MpiFamily::Vendor };
    let stuck = vec![(Rank(1), Some("barrier_in".to_owned()))];
    let progress = RankProgress {
        rank: Rank(2),
        pid: Some(77),
        phase: Some(Phase::Open),
        fences: Some(0),
        last_command: Some("get".into()),
        waiting: true,
        waits_for_all: true,
        in_init: true,
        protocol: Some(SpokenProtocol::Pmix),
        exit: Some(RankExit::Code(1)),
        lost: true,
        usage: Some(RankUsage { cpu: Duration::from_micros(7), memory: 8, read: 9, written: 10 }),
        affinity: Some(RankAffinity { bound_to: "2-3".parse().ok(), allowed: "0-3,8".parse().unwrap() }),
    };
    let early = RankProgress::unknown(progress.rank);
    let seen = RankStack { ranks: vec![Rank(1), Rank(4)], text: "thread 1\n".into() };
    let after = Duration::from_millis(5);
    let silent = Notice::Silent { ranks: vec![Rank(0)], size: 2, ended: true, after, library: Some(library) };
    let events = [
        Event::Mapped(MapHash(u64::MAX - 1)),
        Event::Started { rank: Rank(1), pid: 17, at: Duration::from_millis(1_764_400_000_250) },
        Event::Output(Output { rank: Rank(1), stream: Stream::Stderr, bytes: Bytes::from_static(b"a\xff\n") }),
        Event::Notice(silent),
        Event::Notice(Notice::Stuck { after, waiting: 3, missing: stuck }),
        Event::Notice(Notice::Leftover { pids: vec![5, 6] }),
        Event::Notice(Notice::OutputHeld {
            rank: Rank(3),
            pid: 7,
            program: "tee".to_owned(),
            after: Duration::from_secs(1),
        }),
        Event::Notice(Notice::PmiMisuse { rank: Rank(3), observed: "a second init".to_owned() }),
        Event::Notice(Notice::ReleaseOverdue {
            rank: Rank(2),
            resource: "shm:7".to_owned(),
            within: Duration::from_millis(10),
            killed: true,
        }),
        Event::Notice(Notice::BoundElsewhere {
            rank: Rank(5),
            node: "n1".to_owned(),
            planned: "0-3,8".parse().unwrap(),
            seen: "0".parse().unwrap(),
        }),
        Event::Notice(Notice::LimitTooHigh {
            node: "node1".into(),
            resource: LimitedResource::Memlock,
            asked: Limit::UNLIMITED,
            hard: 65_536,
        }),
        Event::Notice(Notice::Stacks { stacks: vec![seen.clone()] }),
        Event::Exited {
            rank: Rank(1),
            exit: RankExit::Code(7),
            reached: Some(DialoguePoint { phase: Phase::Finalized, fences: 3 }),
            ran: Duration::ZERO,
        },
        Event::Exited {
            rank: Rank(1),
            exit: RankExit::Signal { signal: 9, core_dumped: false },
            reached: None,
            ran: Duration::from_micros(1_500_001),
        },
        Event::Spawned { job: JobId::new("kvs_a_0.s1").unwrap(), failure: None },
        Event::Spawned { job: JobId::new("kvs_a_0.s1").unwrap(), failure: Some("no".into()) },
        Event::Progress { question: 4, ranks: vec![progress, early], stacks: Some(vec![seen]) },
        Event::Waiting { ranks: vec![Rank(4)] },
        Event::LongWait { since: Duration::from_millis(1500) },
        Event::Died(Death { rank: Rank(4), kind: DeathKind::Killed }),
        Event::Died(Death { rank: Rank(4), kind: DeathKind::Exited }),
        Event::Died(Death { rank: Rank(4), kind: DeathKind::NodeLost }),
        Event::Ending(Cause { host: "h".into(), kind: CauseKind::Interrupted { signal: 2 } }),
    ];
    for sent in events {
        let NodeHappening::Event(got) = event::decode(event::encode(&sent)).unwrap() else {
            panic!("{sent:?} came as something else");
        };
        assert_eq!(got, sent);
    }
}

#[test]
fn reports_travel() {
    let exits = vec![(Rank(0), RankExit::Code(0)), (Rank(3), RankExit::Signal { signal: 9, core_dumped: false })];
    let used = Usage { user: Duration::from_secs(7), system: Duration::from_micros(1), peak_memory: 1 << 40 };
    for usage in [None, Some(used)] {
        let duration = Duration::from_micros(1234);
        let report = Report { exits: exits.clone(), duration, usage, ..Report::default() };
        match event::decode(event::encode_report(&report)).unwrap() {
            NodeHappening::Report { exits: got, duration: ran, usage: used } => {
                assert_eq!((&got, ran, used), (&exits, duration, usage));
            }
            other => panic!("{other:?}"),
        }
    }
}

fn any_ranks() -> impl Strategy<Value = Vec<Rank>> {
    proptest::collection::vec(any_rank(), 0..4)
}

fn any_missing() -> impl Strategy<Value = Vec<(Rank, Option<String>)>> {
    proptest::collection::vec((any_rank(), proptest::option::of(".{0,9}")), 0..4)
}

fn any_cause() -> impl Strategy<Value = CauseKind> {
    let class = prop_oneof![Just(StartClass::NotFound), Just(StartClass::CannotExecute), Just(StartClass::System)];
    let of_rank = prop_oneof![
        (any_rank(), any_exit()).prop_map(|(rank, exit)| CauseKind::Failed { rank, exit }),
        any_rank().prop_map(|rank| CauseKind::LeftWithoutFinalize { rank }),
        (any_rank(), any_exit(), any_ranks()).prop_map(|(rank, exit, others)| CauseKind::LeftBeforeInit {
            rank,
            exit,
            others
        }),
        (any_rank(), any_ranks()).prop_map(|(rank, waiting)| CauseKind::LeftFence { rank, waiting }),
        (any_rank(), any::<i32>(), ".{0,9}").prop_map(|(rank, code, message)| CauseKind::Aborted {
            rank,
            code,
            message
        }),
        (any_rank(), ".{0,9}").prop_map(|(rank, offence)| CauseKind::Offence { rank, offence }),
        (any_rank(), ".{0,9}").prop_map(|(rank, protocol)| CauseKind::NotServed { rank, protocol }),
    ];
    let of_others = prop_oneof![
        ".{0,9}".prop_map(|reason| CauseKind::Fence { reason }),
        (any_time(), any::<u32>(), any_missing()).prop_map(|(limit, waiting, missing)| CauseKind::FenceTimeout {
            limit,
            waiting: waiting as usize,
            missing
        }),
        ".{0,9}".prop_map(|reason| CauseKind::NodeLost { reason }),
        (".{0,9}", class).prop_map(|(reason, class)| CauseKind::NotStarted { reason, class }),
        any::<i32>().prop_map(|signal| CauseKind::Interrupted { signal }),
        (".{0,9}", ".{0,9}").prop_map(|(who, reason)| CauseKind::Ended { who, reason }),
        any_time().prop_map(|limit| CauseKind::TimedOut { limit }),
        (any_rank(), any_time()).prop_map(|(rank, wait)| CauseKind::FirstExit { rank, wait }),
        proptest::collection::vec((any_rank(), any_exit()), 0..4).prop_map(|failed| CauseKind::FailedRanks { failed }),
    ];
    prop_oneof![of_rank, of_others]
}

fn any_progress() -> impl Strategy<Value = RankProgress> {
    let ended = proptest::option::of(any_exit());
    let pid = proptest::option::of(1..=u32::MAX);
    let usage = any::<(u64, u64, u64, u64)>().prop_map(|(cpu, memory, read, written)| RankUsage {
        cpu: Duration::from_micros(cpu),
        memory,
        read,
        written,
    });
    let cpus = || proptest::collection::vec(any::<u16>(), 1..5).prop_map(|cpus| cpus.into_iter().collect::<CpuSet>());
    let affinity = (proptest::option::of(cpus()), cpus());
    let affinity = affinity.prop_map(|(bound_to, allowed)| RankAffinity { bound_to, allowed });
    let seen = proptest::option::of((usage, affinity));
    let fences = proptest::option::of(any::<u64>());
    let protocol = prop_oneof![Just(None), Just(Some(SpokenProtocol::Pmi)), Just(Some(SpokenProtocol::Pmix))];
    let dialogue = (any_phase(), fences, protocol);
    (any_rank(), pid, dialogue, some_text(), any::<(bool, bool, bool)>(), ended, seen).prop_map(
        |(rank, pid, (phase, fences, protocol), last_command, (waiting, in_init, lost), exit, seen)| RankProgress {
            rank,
            pid,
            phase,
            fences,
            last_command,
            waiting,
            waits_for_all: waiting && in_init,
            in_init,
            protocol,
            exit,
            lost,
            usage: seen.as_ref().map(|(usage, _)| *usage),
            affinity: seen.map(|(_, affinity)| affinity),
        },
    )
}

fn any_output() -> impl Strategy<Value = Output> {
    let stream = prop_oneof![Just(Stream::Stdout), Just(Stream::Stderr)];
    (any_rank(), stream, any::<Vec<u8>>()).prop_map(|(rank, stream, bytes)| Output {
        rank,
        stream,
        bytes: bytes.into(),
    })
}

proptest! {
    #[test]
    fn causes_of_every_kind_travel(host in ".{0,9}", kind in any_cause()) {
        let sent = Cause { host, kind };
        prop_assert_eq!(cause::decode(cause::encode(&sent)).unwrap(), sent);
    }

    #[test]
    fn the_progress_of_a_rank_travels(sent in any_progress()) {
        prop_assert_eq!(progress::decode(progress::encode(&sent)), sent);
    }

    #[test]
    fn exits_travel_with_what_was_reached(rank in any_rank(), exit in any_exit(), phase in any_phase(), fences: u64) {
        let reached = phase.map(|phase| DialoguePoint { phase, fences });
        let sent = cause::encode_exit(rank, exit, reached);
        let decoded = (Rank(sent.rank), cause::decode_exit(&sent), cause::decode_reached(&sent));
        prop_assert_eq!(decoded, (rank, exit, reached));
    }

    /// If the sender charged less than the receiver, it would exceed its window.
    #[test]
    fn both_ends_charge_the_same_for_output(output in any_output()) {
        let cost = kept_cost(output.bytes.len());
        let sent = event::encode(&Event::Output(output));
        prop_assert_eq!(event::cost(&sent), cost);
        prop_assert!(cost > 0 && cost <= event::COST_MAX);
        prop_assert_eq!(event::happening_cost(&event::decode(sent).unwrap()), cost);
    }

    #[test]
    fn reports_of_any_length_travel(exits in proptest::collection::vec((any_rank(), any_exit()), 0..9), micros: u32) {
        let duration = Duration::from_micros(micros.into());
        let sent = NodeHappening::Report { exits, duration, usage: None };
        let got = event::decode(event::encode_happening(&sent)).unwrap();
        prop_assert_eq!(got, sent);
    }
}

#[test]
fn traces_and_counts_of_input_travel() {
    let passed = |missed| NodeHappening::InputPassed { offset: 7, missed };
    for sent in [
        NodeHappening::StdinTaken(0),
        NodeHappening::StdinTaken(u64::MAX),
        passed(None),
        passed(NodeSelection::of([1, 2, u32::MAX - 1])),
        NodeHappening::Trace("C: \n".into()),
    ] {
        let got = event::decode(event::encode_happening(&sent)).unwrap();
        assert_eq!(got, sent);
    }
}

#[test]
fn events_that_this_version_has_no_meaning_for_are_refused_by_name() {
    use proto::node_event::What;
    use proto::notice::What as Notice;
    let check = |what: Option<What>, expected: &str| {
        assert_eq!(refusal(event::decode(proto::NodeEvent { what, ..Default::default() })), expected);
    };
    let notice = |notice| Some(What::Notice(proto::Notice { what: Some(notice) }));
    let too_long = format!("{} ms; possible is at most {} ms", u64::MAX, TIME_MAX.as_millis());
    check(None, "the message has no event");
    check(Some(What::Notice(proto::Notice { what: None })), "the message has no notice");
    check(Some(What::Ending(proto::Cause::default())), "the message has no kind of cause");
    let job_id = "a b".to_owned();
    check(
        Some(What::Spawned(proto::Spawned { job_id, failure: String::new() })),
        &format!("the spawned job: {}", JobId::new("a b").unwrap_err()),
    );
    let silent = proto::SilentRanks { after_ms: u64::MAX, ..Default::default() };
    check(notice(Notice::Silent(silent)), &format!("the time that ranks were silent is {too_long}"));
    let stuck = proto::StuckStart { after_ms: u64::MAX, ..Default::default() };
    check(notice(Notice::Stuck(stuck)), &format!("the time of a start-up is {too_long}"));
    let library = Some(proto::MpiLibrary { family: 9, ..Default::default() });
    let silent = proto::SilentRanks { library, ..Default::default() };
    check(notice(Notice::Silent(silent)), "the family of an MPI library is 9; possible is 0 to 2");
    let asked = Some(proto::SoftLimit { resource: "files".into(), value: 1 });
    let limit = proto::LimitTooHigh { asked, ..Default::default() };
    let unknown = "files".parse::<LimitedResource>().unwrap_err().to_string();
    check(notice(Notice::LimitTooHigh(limit)), &unknown);
}

#[test]
fn causes_that_this_version_has_no_meaning_for_are_refused_by_name() {
    use proto::cause::Kind;
    let check = |kind: Kind, expected: &str| {
        let wrong = proto::Cause { host: "node0".into(), kind: Some(kind) };
        assert_eq!(refusal(cause::decode(wrong)), expected);
    };
    let too_long = format!("{} ms; possible is at most {} ms", u64::MAX, TIME_MAX.as_millis());
    let timeout = proto::FenceTimeout { limit_ms: u64::MAX, ..Default::default() };
    check(Kind::FenceTimeout(timeout), &format!("the time limit of a fence is {too_long}"));
    let first = proto::FirstExit { rank: 0, wait_ms: u64::MAX };
    check(Kind::FirstExit(first), &format!("the time after the first exit is {too_long}"));
    check(Kind::TimedOutMs(u64::MAX), &format!("the time limit is {too_long}"));
    check(Kind::LeftBeforeInit(proto::LeftBeforeInit::default()), "the message has no rank that left");
    let failure = proto::NotStarted { reason: String::new(), class: 12 };
    check(Kind::NotStarted(failure), "the class of a failed start is 12; possible is 0 to 11");
}

/// A later version may have more phases than this one.
#[test]
fn a_phase_that_is_unknown_here_is_none() {
    assert_eq!([-1, 0, 99].map(cause::decode_phase), [None; 3]);
}
