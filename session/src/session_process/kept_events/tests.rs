use std::collections::VecDeque;

use proptest::prelude::*;
use prost::Message;
use proto::from_session::What as FromWhat;

use super::*;
use crate::session_process::frames::codec;

fn output(text: String) -> proto::NodeEvent {
    let output = proto::RankOutput { data: text.into(), ..Default::default() };
    proto::NodeEvent { what: Some(What::Output(output)), ..Default::default() }
}

fn cause() -> proto::NodeEvent {
    proto::NodeEvent { what: Some(What::Ending(proto::Cause::default())), ..Default::default() }
}

fn report() -> proto::NodeEvent {
    proto::NodeEvent { what: Some(What::Report(proto::SessionReport::default())), ..Default::default() }
}

/// Writes all writable events. Returns the number and text of each event.
fn written(kept: &mut KeptEvents) -> Vec<(u64, String)> {
    use tokio_util::codec::Decoder;
    let (mut bytes, mut frames) = (BytesMut::new(), codec(1 << 20));
    kept.write(&mut bytes, || 0);
    let frames = std::iter::from_fn(|| frames.decode(&mut bytes).unwrap());
    let event = |frame: BytesMut| match proto::FromSession::decode(frame).unwrap().what {
        Some(FromWhat::Event(event)) => (event.sequence, word(&event)),
        other => panic!("{other:?}"),
    };
    frames.map(event).collect()
}

fn word(event: &proto::NodeEvent) -> String {
    match event.what.as_ref().unwrap() {
        What::Output(output) => String::from_utf8(output.data.to_vec()).unwrap(),
        What::Ending(_) => "cause".to_owned(),
        What::Report(_) => "report".to_owned(),
        What::Died(death) => format!("death of {}", death.rank),
        other => panic!("{other:?}"),
    }
}

fn death(rank: u32) -> proto::NodeEvent {
    proto::NodeEvent { what: Some(What::Died(proto::Death { rank, ..Default::default() })), ..Default::default() }
}

fn numbered(events: &[(u64, &str)]) -> Vec<(u64, String)> {
    events.iter().map(|&(number, word)| (number, word.to_owned())).collect()
}

#[test]
fn an_api_server_that_knows_nothing_is_told_the_cause_and_the_report_and_what_was_not_handed_over() {
    let mut kept = KeptEvents::default();
    for event in [output("a".into()), cause(), output("b".into()), output("c".into()), report()] {
        kept.push(event);
    }
    assert_eq!(written(&mut kept).len(), 5);
    kept.confirm(2);
    assert_eq!(kept.resume(Position::Unknown { handed: Some(3) }), 5);
    assert_eq!(written(&mut kept), numbered(&[(6, "cause"), (7, "c"), (8, "report")]));
    kept.break_off();
    assert_eq!(kept.resume(Position::Unknown { handed: None }), 8);
    assert_eq!(written(&mut kept), numbered(&[(9, "cause"), (10, "report")]), "each time, until it is acknowledged");
    kept.confirm(10);
    assert_eq!(kept.bytes, 0);
}

#[test]
fn an_api_server_that_knows_nothing_is_told_what_the_one_before_took_and_may_not_have_written_down() {
    let mut kept = KeptEvents::default();
    for event in [cause(), output("a".into()), report()] {
        kept.push(event);
    }
    written(&mut kept);
    kept.confirm(3);
    kept.break_off();
    assert_eq!(kept.resume(Position::After(3)), 3);
    assert_eq!(written(&mut kept), [], "one that took it knows");
    kept.break_off();
    assert_eq!(kept.resume(Position::Unknown { handed: Some(3) }), 3);
    assert_eq!(written(&mut kept), numbered(&[(4, "cause"), (5, "report")]));
    kept.confirm(5);
    assert_eq!(kept.bytes, 0);
}

fn cause_on(host: &str) -> proto::NodeEvent {
    let cause = proto::Cause { host: host.to_owned(), ..Default::default() };
    proto::NodeEvent { what: Some(What::Ending(cause)), ..Default::default() }
}

fn host_of(event: &proto::NodeEvent) -> Option<&str> {
    match &event.what {
        Some(What::Ending(cause)) => Some(&cause.host),
        _ => None,
    }
}

/// Hosts of the causes that are kept.
fn hosts(kept: &KeptEvents) -> Vec<&str> {
    kept.sent.iter().filter_map(host_of).collect()
}

/// The API server may have stopped after it received a death and before it stored it. Ranks would then wait for the dead rank.
#[test]
fn an_api_server_that_knows_nothing_is_told_every_death() {
    let mut kept = KeptEvents::default();
    for event in [death(1), output("a".into()), death(2), cause(), output("b".into()), death(3)] {
        kept.push(event);
    }
    assert_eq!(written(&mut kept).len(), 6);
    kept.confirm(2);
    kept.break_off();
    assert_eq!(kept.resume(Position::Unknown { handed: Some(4) }), 6);
    let expected = [(7, "death of 1"), (8, "death of 2"), (9, "cause"), (10, "b"), (11, "death of 3")];
    assert_eq!(written(&mut kept), numbered(&expected));
}

#[test]
fn the_chosen_cause_takes_the_place_of_one_that_was_not_taken() {
    let mut kept = KeptEvents::default();
    kept.push(output("a".into()));
    kept.push(cause_on("own"));
    kept.choose(cause_on("chosen elsewhere"));
    assert_eq!((hosts(&kept), kept.sent.last()), (vec!["chosen elsewhere"], 2));
    written(&mut kept);
    kept.choose(cause_on("other"));
    assert_eq!((hosts(&kept), kept.sent.last()), (vec!["other", "other"], 3), "the first one may be read as it was");
    kept.confirm(2);
    assert!(!kept.has_told_cause());
    written(&mut kept);
    kept.confirm(3);
    assert!(kept.has_told_cause());
    kept.choose(cause_on("late"));
    assert_eq!((hosts(&kept), kept.sent.last()), (vec!["late"], 4), "one that was taken stays");
    kept.break_off();
    kept.resume(Position::Unknown { handed: None });
    assert_eq!(hosts(&kept), ["late"], "which a server that knows nothing is told");
    assert_eq!(kept.bytes, kept.sent.iter().map(memory).sum::<usize>());
}

#[test]
fn what_is_kept_is_bounded_and_nothing_is_kept_for_nobody() {
    let mut kept = KeptEvents::default();
    let piece = || output("x".repeat(1 << 20));
    (0..31).for_each(|_| kept.push(piece()));
    assert!(kept.has_room());
    kept.push(piece());
    assert!(!kept.has_room());
    let mut bytes = BytesMut::new();
    kept.write(&mut bytes, || 0);
    assert!(!kept.has_room(), "it was written, not taken");
    kept.confirm(16);
    assert!(kept.has_room());
    kept.break_off();
    kept.give_up();
    for _ in 0..100 {
        kept.push(piece());
        assert!(kept.has_room(), "nobody is waited for");
        kept.write(&mut BytesMut::new(), || 0);
        assert_eq!((kept.bytes, kept.sent.count()), (0, 0));
    }
}

#[test]
fn commands_that_were_taken_are_told_with_the_next_event() {
    let mut kept = KeptEvents::default();
    kept.push(output("a".into()));
    kept.push(output("b".into()));
    let (mut bytes, mut told) = (BytesMut::new(), [7, 0].into_iter());
    kept.write(&mut bytes, || told.next().unwrap());
    let events: Vec<u64> = kept.sent.iter().map(|event| event.commands_taken).collect();
    assert_eq!(events, [7, 0]);
}

#[derive(Clone, Debug)]
enum Step {
    Push,
    Write,
    /// Deliver at most this number of written events to the API server.
    Deliver(usize),
    Confirm,
    /// Break the stream. The next stream is from the same API server, or from a new one if `anew` is true.
    Break {
        anew: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Push),
        3 => Just(Step::Write),
        4 => (1_usize..5).prop_map(Step::Deliver),
        2 => Just(Step::Confirm),
        2 => any::<bool>().prop_map(|anew| Step::Break { anew }),
    ]
}

proptest! {
    /// With breaks and new API servers at any time, no output arrives twice or out of order. Only output that was sent to a previous API
    /// server is lost. Each API server receives the cause and the report.
    #[test]
    fn each_event_arrives_once(steps in prop::collection::vec(step(), 0..100), cause_at in 0_usize..20) {
        let mut kept = KeptEvents::default();
        let (mut under_way, mut here, mut arrived) = (VecDeque::new(), 0, Vec::new());
        let (mut pushed, mut lost) = (0, 0);
        for step in steps.into_iter().chain([Step::Push, Step::Write, Step::Deliver(usize::MAX)]) {
            match step {
                Step::Push => {
                    pushed += 1;
                    kept.push(output(format!("{pushed:03}")));
                    if pushed == cause_at {
                        kept.push(cause());
                    }
                }
                Step::Write => under_way.extend(written(&mut kept)),
                Step::Deliver(count) => for (number, word) in under_way.drain(..count.min(under_way.len())) {
                    prop_assert_eq!(number, here + 1, "no gap, and nothing again");
                    here = number;
                    arrived.push(word);
                },
                Step::Confirm => kept.confirm(here),
                Step::Break { anew } => {
                    let dropped = under_way.iter().filter(|(_, word)| word != "cause").count();
                    under_way.clear();
                    kept.break_off();
                    if anew {
                        lost += dropped;
                        here = kept.resume(Position::Unknown { handed: None });
                        arrived.retain(|word| word != "cause");
                    } else {
                        prop_assert_eq!(kept.resume(Position::After(here)), here);
                    }
                }
            }
        }
        kept.push(report());
        arrived.extend(written(&mut kept).into_iter().map(|(_, word)| word));
        prop_assert_eq!(arrived.pop(), Some("report".to_owned()));
        prop_assert_eq!(arrived.iter().filter(|word| *word == "cause").count(), usize::from(1 <= cause_at && cause_at <= pushed));
        let output: Vec<&String> = arrived.iter().filter(|word| *word != "cause").collect();
        prop_assert!(output.is_sorted_by(|one, next| one < next));
        prop_assert_eq!(output.len() + lost, pushed);
    }
}
