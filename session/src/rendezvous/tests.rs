//! Meetings that succeed, and meetings that fail.

use super::*;

const UID: u32 = 7;

fn job(launch: &str) -> String {
    format!("kvs_{launch}_0.secret")
}

fn introduced(namespace: String) -> Introduced {
    Introduced { namespace, encoded: Bytes::new() }
}

/// A call of a launch with `nodes` nodes to meet the job `other`.
fn call(other: String, nodes: u32) -> Call {
    Call {
        name: "connect".to_owned(),
        epoch: 0,
        others: vec![other],
        nodes: (0..nodes).map(NodeIndex).collect(),
        jobs: Vec::new(),
        segments: Vec::new(),
        length: 100,
    }
}

/// Node `node` of 2 of `launch` arrives to meet `other`, with `bytes` bytes.
fn come(rendezvous: &Rendezvous, launch: &str, node: u32, other: &str, bytes: usize) -> oneshot::Receiver<Answer> {
    let call = Call {
        jobs: if node == 0 { vec![introduced(job(launch))] } else { Vec::new() },
        segments: vec![Bytes::from(vec![node as u8; bytes])],
        length: bytes + 100,
        ..call(job(other), 2)
    };
    let others = [other.to_owned()].into();
    rendezvous.arrive(Participant { uid: UID, launch, node: NodeIndex(node) }, &others, call).unwrap()
}

fn is_idle(rendezvous: &Rendezvous) -> bool {
    rendezvous.state.lock().meetings.is_empty()
}

#[test]
fn all_get_the_same_when_the_last_one_has_come() {
    let rendezvous = Rendezvous::default();
    let mut answers =
        vec![come(&rendezvous, "b", 0, "a", 3), come(&rendezvous, "a", 1, "b", 2), come(&rendezvous, "b", 1, "a", 4)];
    assert!(answers.iter_mut().all(|answer| answer.try_recv().is_err()));
    answers.push(come(&rendezvous, "a", 0, "b", 1));
    let answers: Vec<Met> = answers.iter_mut().map(|answer| answer.try_recv().unwrap().unwrap()).collect();
    assert!(answers.iter().all(|answer| *answer == answers[0]));
    let lengths: Vec<usize> = answers[0].segments.iter().map(Bytes::len).collect();
    assert_eq!((lengths, answers[0].jobs.len()), (vec![1, 2, 3, 4], 2));
    assert!(answers[0].number >= 1 << 63 && is_idle(&rendezvous));
}

#[test]
fn the_end_of_a_launch_ends_its_meetings_only() {
    let rendezvous = Rendezvous::default();
    let (mut with_b, mut with_c) = (come(&rendezvous, "a", 0, "b", 1), come(&rendezvous, "a", 0, "c", 1));
    rendezvous.withdraw("b");
    assert_eq!(with_b.try_recv(), Ok(Err(MeetError::NotFound)));
    assert!(with_c.try_recv().is_err());
    rendezvous.withdraw("a");
    assert_eq!(with_c.try_recv(), Ok(Err(MeetError::NotFound)));
    assert!(is_idle(&rendezvous));
}

#[test]
fn what_is_brought_is_bounded() {
    let rendezvous = Rendezvous::default();
    let mut answers = [come(&rendezvous, "a", 0, "b", BYTES_MAX / 2), come(&rendezvous, "b", 0, "a", BYTES_MAX / 2)];
    for answer in &mut answers {
        assert!(matches!(answer.try_recv(), Ok(Err(MeetError::TooMuch { .. }))));
    }
    assert!(is_idle(&rendezvous));
    for launch in 0..MEETINGS_OF_USER_MAX {
        assert!(come(&rendezvous, "a", 0, &launch.to_string(), 1).try_recv().is_err());
    }
    assert!(matches!(come(&rendezvous, "a", 0, "b", 1).try_recv(), Ok(Err(MeetError::TooMuch { .. }))));
    assert_eq!(rendezvous.state.lock().held(UID).meetings, MEETINGS_OF_USER_MAX);
}

#[test]
fn a_refusal_names_the_limit_that_was_reached() {
    let refused = |mut answer: oneshot::Receiver<Answer>| match answer.try_recv() {
        Ok(Err(MeetError::TooMuch { reason })) => reason,
        other => panic!("{other:?}"),
    };
    let rendezvous = Rendezvous::default();
    let brought = BYTES_MAX - 1000;
    let mut waiting = Vec::new();
    let fitting = BYTES_OF_USER_MAX / brought;
    for other in 0..fitting {
        waiting.push(come(&rendezvous, "a", 0, &other.to_string(), brought));
    }
    assert!(waiting.iter_mut().all(|answer| answer.try_recv().is_err()));
    let reason = refused(come(&rendezvous, "a", 0, "late", brought));
    assert!(reason.ends_with(&format!("of user {UID}; the limit is {BYTES_OF_USER_MAX}")), "{reason}");
    let reason = refused(come(&Rendezvous::default(), "a", 0, "b", BYTES_MAX));
    assert!(reason.ends_with(&format!("to one meeting; the limit is {BYTES_MAX}")), "{reason}");
}

#[test]
fn a_node_that_comes_twice_is_refused_and_its_first_call_goes_on_waiting() {
    let rendezvous = Rendezvous::default();
    let mut first = come(&rendezvous, "a", 0, "b", 1);
    let call = Call { jobs: vec![introduced(job("a"))], ..call(job("b"), 2) };
    let again =
        rendezvous.arrive(Participant { uid: UID, launch: "a", node: NodeIndex(0) }, &["b".to_owned()].into(), call);
    let refusal = again.unwrap_err().to_string();
    assert!(refusal.contains("node 0 of launch a waits in this meeting already"), "{refusal}");
    assert_eq!(first.try_recv(), Err(oneshot::error::TryRecvError::Empty), "it was not dropped");
    let _others =
        [come(&rendezvous, "a", 1, "b", 1), come(&rendezvous, "b", 0, "a", 1), come(&rendezvous, "b", 1, "a", 1)];
    assert!(first.try_recv().unwrap().is_ok());
}

#[test]
fn a_job_that_nobody_has_is_not_met() {
    let rendezvous = Rendezvous::default();
    let call = |namespace: String, other: &str| Call {
        jobs: vec![introduced(namespace)],
        ..call(format!("kvs_{other}_0.s9.guessed"), 1)
    };
    let come = |launch, other: &str| {
        let participant = Participant { uid: UID, launch, node: NodeIndex(0) };
        rendezvous.arrive(participant, &[other.to_owned()].into(), call(job(launch), other)).unwrap()
    };
    let mut answers = [come("a", "b"), come("b", "a")];
    assert!(answers.iter_mut().all(|answer| answer.try_recv() == Ok(Err(MeetError::NotFound))));
    assert_eq!(launch_of("kvs_abc_0.s2.secret"), Some("abc"));
    assert_eq!([launch_of("kvs_abc"), launch_of("abc_0")], [None, None]);
}

/// Node `node` of `launch` arrives with this call to meet `other`.
fn come_with(rendezvous: &Rendezvous, launch: &str, node: u32, other: &str, call: Call) -> Result<Waiting, MeetError> {
    rendezvous.arrive(Participant { uid: UID, launch, node: NodeIndex(node) }, &[other.to_owned()].into(), call)
}

type Waiting = oneshot::Receiver<Answer>;

#[test]
fn launches_that_differ_about_the_meeting_do_not_meet() {
    let connect = || Call { jobs: vec![introduced(job("a"))], ..call(job("b"), 1) };
    let accept = || Call { jobs: vec![introduced(job("b"))], ..call(job("a"), 1) };
    let others = [Call { name: "accept".to_owned(), ..accept() }, Call { epoch: 1, ..accept() }];
    for other in others {
        let rendezvous = Rendezvous::default();
        let mut waiting = [
            come_with(&rendezvous, "a", 0, "b", connect()).unwrap(),
            come_with(&rendezvous, "b", 0, "a", other).unwrap(),
        ];
        assert!(waiting.iter_mut().all(|answer| answer.try_recv().is_err()), "both go on waiting");
        let _agreeing = come_with(&rendezvous, "b", 0, "a", accept()).unwrap();
        assert!(waiting[0].try_recv().unwrap().is_ok());
        assert!(waiting[1].try_recv().is_err());
    }
}

#[test]
fn nodes_that_differ_about_who_takes_part_end_the_meeting_for_all() {
    let rendezvous = Rendezvous::default();
    let mut answers = [
        come_with(&rendezvous, "b", 0, "a", call(job("a"), 2)).unwrap(),
        come_with(&rendezvous, "a", 0, "b", call(job("b"), 2)).unwrap(),
        come_with(&rendezvous, "a", 1, "b", call(job("b"), 3)).unwrap(),
    ];
    for answer in &mut answers {
        let reason = "the nodes of a launch differ about who of them takes part".to_owned();
        assert_eq!(answer.try_recv().unwrap(), Err(MeetError::Unavailable { reason }));
    }
    assert!(is_idle(&rendezvous));
}

#[test]
fn a_node_that_does_not_take_part_is_refused() {
    let rendezvous = Rendezvous::default();
    let refusal = come_with(&rendezvous, "a", 2, "b", call(job("b"), 2)).unwrap_err();
    assert_eq!(refusal, MeetError::Unavailable { reason: "node 2 comes to a meeting of 2 other nodes".to_owned() });
    assert!(is_idle(&rendezvous));
}

#[test]
fn numbers_of_meetings_are_not_given_out_twice() {
    let rendezvous = Rendezvous::default();
    let number = |round: u64| {
        let of = |launch: &str, other: &str| Call {
            epoch: round,
            jobs: vec![introduced(job(launch))],
            ..call(job(other), 1)
        };
        let _waiting = come_with(&rendezvous, "a", 0, "b", of("a", "b")).unwrap();
        let mut last = come_with(&rendezvous, "b", 0, "a", of("b", "a")).unwrap();
        last.try_recv().unwrap().unwrap().number
    };
    let numbers: Vec<u64> = (0..10).map(number).collect();
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{numbers:?}");
}
