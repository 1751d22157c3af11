//! Calls in simulated sets: results, limits, handlers, and hostile or silent members.

use std::time::Duration;

use bytes::Bytes;
use lattice_overlay::address::{Process, SetId, Uid};
use lattice_overlay::error::{CallError, Fault};
use lattice_overlay::frame::{BODY_MAX, Frame, Kind};
use lattice_overlay::machine::{CallOptions, Neighbour};
use lattice_overlay::method::{Connectivity, Method, SetInfo};

use super::world::{MIRROR, SILENCE, TO_AND_FRO, World};

const SET: SetId = SetId::from_bits(0x0010_0001);

fn node(index: u32) -> Uid {
    Uid::new(SET, Process::Node(index))
}

fn set_of(members: u32) -> World {
    World::new().with_set(SET, members)
}

fn within(timeout: Duration) -> CallOptions {
    CallOptions { timeout, ..CallOptions::default() }
}

/// Opens a link first, because fewer requests can wait for a link that is being opened.
fn open_link(world: &mut World) {
    assert!(world.ask(node(0), node(1), Method::PING, b"").is_ok());
}

#[test]
fn members_of_a_set_name_the_same_root() {
    let mut world = set_of(16);
    for member in 0..16 {
        let answer = world.ask(node(3), node(member), Method::SET_INFO, b"").unwrap();
        let info: SetInfo = serde_json::from_slice(&answer).unwrap();
        assert_eq!((info.set, info.members, info.ranks), (SET.bits(), 16, 16));
        assert_eq!(info.root.parse(), Ok(node(0)));
    }
}

#[test]
fn links_are_told_by_both_ends() {
    let mut world = set_of(4);
    world.ask(node(0), node(1), Method::PING, b"").unwrap();
    let told: Vec<Connectivity> = [0, 1]
        .into_iter()
        .map(|member| {
            serde_json::from_slice(&world.ask(node(0), node(member), Method::CONNECTIVITY, b"").unwrap()).unwrap()
        })
        .collect();
    assert_eq!((told[0].links[0].opened, told[1].links[0].opened), (true, false));
    assert_eq!(told[0].links[0].to.parse(), Ok(node(1)));
}

#[test]
fn a_call_ends_when_its_time_is_over_and_no_sooner() {
    let mut world = set_of(4);
    let before = world.elapsed();
    assert_eq!(world.ask(node(0), node(2), SILENCE, b""), Err(CallError::Timeout { ms: 30_000 }));
    assert_eq!(world.elapsed() - before, Duration::from_secs(30));
    let id = world.call(node(0), node(2), SILENCE, b"", within(Duration::from_millis(20)));
    assert_eq!(world.await_end(node(0), id), Err(CallError::Timeout { ms: 20 }));
}

#[test]
fn an_answer_that_no_frame_holds_is_the_handlers_failure_and_the_link_lives_on() {
    for (len, is_answer) in [(BODY_MAX, true), (BODY_MAX + 1, false)] {
        let mut world = set_of(2);
        let id = world.call(node(0), node(1), SILENCE, b"", within(Duration::from_secs(5)));
        world.run_for(Duration::from_millis(100));
        let (member, request) = world.served.pop().unwrap();
        world.answer(member, request.ticket, vec![7; len]);
        match world.await_end(node(0), id) {
            Ok(body) => assert!(is_answer && body.len() == len),
            Err(CallError::Handler(Fault(why))) => {
                assert!(!is_answer);
                assert_eq!(why, "an answer has at most 65536 bytes, and this one has 65537");
            }
            Err(error) => panic!("{len}: {error}"),
        }
        assert_eq!(world.ask(node(0), node(1), MIRROR, b"next"), Ok(Bytes::from_static(b"next")));
    }
}

#[test]
fn a_late_answer_is_nobodys() {
    let mut world = set_of(2);
    let id = world.call(node(0), node(1), SILENCE, b"", within(Duration::from_millis(5)));
    assert_eq!(world.await_end(node(0), id), Err(CallError::Timeout { ms: 5 }));
    let (member, request) = world.served.pop().unwrap();
    let now = world.now();
    world.machine(member).answer(request.ticket, Ok(Bytes::new()), now);
    assert_eq!(world.ask(node(0), node(1), MIRROR, b"next"), Ok(Bytes::from_static(b"next")));
}

#[test]
fn what_is_not_there_is_told() {
    let mut world = set_of(4);
    assert_eq!(world.ask(node(0), node(1), Method(999), b""), Err(CallError::NoSuchMethod));
    for absent in [Process::Rank(4), Process::Node(4), Process::Node(0x7fff_ffff)] {
        assert_eq!(
            world.ask(node(0), Uid::new(SET, absent), Method::PING, b""),
            Err(CallError::NoSuchProcess),
            "{absent:?}"
        );
    }
}

#[test]
fn bodies_are_as_long_as_may_be_and_no_longer() {
    let mut world = set_of(4);
    let longest = vec![7; BODY_MAX];
    assert_eq!(world.ask(node(0), node(3), MIRROR, &longest), Ok(longest.into()));
    let refused = world.ask(node(0), node(3), MIRROR, &vec![7; BODY_MAX + 1]);
    assert!(matches!(refused, Err(CallError::Refused { .. })), "{refused:?}");
}

#[test]
fn handlers_that_call_each_other_a_hundred_deep_come_to_an_end() {
    let mut world = set_of(2);
    // All slots but one of both members are occupied by handlers that never end.
    for _ in 0..63 {
        world.call(node(0), node(1), SILENCE, b"", CallOptions::default());
        world.call(node(1), node(0), SILENCE, b"", CallOptions::default());
    }
    assert_eq!(world.ask(node(0), node(1), TO_AND_FRO, &[100]), Ok(Bytes::from_static(b"the bottom")));
}

#[test]
fn the_4097th_call_that_waits_is_refused_and_the_others_go_on() {
    let mut world = set_of(2);
    open_link(&mut world);
    let ids: Vec<_> =
        (0..4096).map(|_| world.call(node(0), node(1), SILENCE, b"", within(Duration::from_secs(60)))).collect();
    assert_eq!(world.ask(node(0), node(1), Method::PING, b""), Err(CallError::Busy { at: node(0) }));
    world.machine(node(0)).give_up(ids[4095]);
    assert_eq!(world.ask(node(0), node(1), Method::PING, b""), Ok(Bytes::new()));
}

#[test]
fn a_member_whose_handlers_never_end_is_busy_and_still_answers_pings() {
    let mut world = set_of(2);
    open_link(&mut world);
    let ids: Vec<_> =
        (0..400).map(|_| world.call(node(0), node(1), SILENCE, b"", within(Duration::from_secs(60)))).collect();
    assert_eq!(world.await_end(node(0), ids[399]), Err(CallError::Busy { at: node(1) }));
    assert_eq!(world.ask(node(0), node(1), Method::PING, b""), Ok(Bytes::new()));
    assert_eq!(world.served.len(), 64);
}

#[test]
fn a_stopped_member_is_gone_round_after_three_seconds() {
    let mut world = set_of(64);
    // Through member 32, which then has an open link.
    assert!(world.ask(node(0), node(33), Method::PING, b"").is_ok());
    world.stopped.insert(node(32));
    let lost = world.call(node(0), node(33), Method::PING, b"", CallOptions::default());
    world.run_for(Duration::from_secs(4));
    let again = world.ask(node(0), node(33), Method::PING, b"round it");
    assert_eq!(again, Ok(Bytes::from_static(b"round it")));
    assert_eq!(world.await_end(node(0), lost), Err(CallError::Lost { at: node(0) }));
}

#[test]
fn links_that_nobody_uses_are_closed_after_a_minute() {
    let mut world = set_of(64);
    assert!(world.ask(node(0), node(21), Method::PING, b"").is_ok());
    assert!(!world.machine(node(0)).connectivity().links.is_empty());
    world.run_for(Duration::from_secs(70));
    for member in 0..64 {
        assert!(world.machine(node(member)).connectivity().links.is_empty(), "{member}");
    }
    assert!(world.ask(node(0), node(21), Method::PING, b"").is_ok());
}

fn forged(kind: Kind, source: Uid, destination: Uid) -> Frame {
    let (ttl, detours, method, id, remaining_ms) = (9, 0, MIRROR.0, 1, 1000);
    Frame { kind, ttl, detours, method, source, destination, id, remaining_ms, body: Bytes::from_static(b"forged") }
}

#[test]
fn frames_that_cannot_have_come_that_way_are_dropped() {
    let mut world = set_of(4);
    let stranger = SetId::new(7, 7);
    // A foreign set sends frames as a member of ours, as a third set, and for forwarding to a third set.
    for (source, destination) in
        [(node(2), node(0)), (SetId::new(8, 8).root(), node(0)), (stranger.root(), SetId::new(8, 8).root())]
    {
        world.inject(Neighbour::Set(stranger), node(0), forged(Kind::Request, source, destination));
    }
    world.inject(Neighbour::Member(1), node(0), forged(Kind::Request, stranger.root(), SetId::new(8, 8).root()));
    world.run_for(Duration::from_secs(1));
    assert_eq!((world.served.len(), world.sent), (0, 0));
}

#[test]
fn a_response_of_somebody_who_was_not_asked_is_dropped() {
    let mut world = set_of(4);
    let id = world.call(node(0), node(1), SILENCE, b"", within(Duration::from_secs(5)));
    world.inject(Neighbour::Member(2), node(0), forged(Kind::Response, node(2), node(0)));
    assert_eq!(world.await_end(node(0), id), Err(CallError::Timeout { ms: 5000 }));
}

#[test]
fn a_frame_that_goes_in_circles_ends() {
    let mut world = set_of(64);
    let frame = Frame { ttl: 0, ..forged(Kind::Request, node(5), node(40)) };
    world.inject(Neighbour::Member(1), node(0), frame);
    world.run_for(Duration::from_secs(1));
    assert!(world.served.is_empty());
    // Only the error for that request was forwarded.
    assert!((1..=6).contains(&world.sent), "{}", world.sent);
}

/// If the called member is lost, calls do not wait until they expire.
#[test]
fn a_call_ends_when_the_member_that_was_called_is_gone() {
    let mut world = set_of(4);
    open_link(&mut world);
    let before = world.elapsed();
    let (asked, by_way) = (
        world.call(node(0), node(1), SILENCE, b"", CallOptions::default()),
        world.call(node(0), node(2), SILENCE, b"", CallOptions::default()),
    );
    world.run_for(Duration::from_millis(1));
    world.kill(node(1));
    assert_eq!(world.await_end(node(0), asked), Err(CallError::Lost { at: node(0) }));
    assert!(world.elapsed() - before < Duration::from_secs(1));
    assert_eq!(world.await_end(node(0), by_way), Err(CallError::Timeout { ms: 30_000 }));
}

#[test]
fn a_call_outlives_the_link_that_it_went_over() {
    let mut world = set_of(2);
    let id = world.call(node(0), node(1), SILENCE, b"", within(Duration::from_secs(600)));
    // The link becomes idle four times, and breaks once.
    world.run_for(Duration::from_secs(290));
    world.cut(node(0), node(1));
    world.run_for(Duration::from_secs(1));
    let (member, request) = world.served.pop().unwrap();
    world.answer(member, request.ticket, "at last");
    assert_eq!(world.await_end(node(0), id), Ok(Bytes::from_static(b"at last")));
    assert!(world.served.is_empty(), "it was made once");
}

#[test]
fn a_link_that_is_lost_again_and_again_is_opened_once_for_a_call() {
    let mut world = set_of(2);
    let id = world.call(node(0), node(1), SILENCE, b"", CallOptions::default());
    for _ in 0..2 {
        world.run_for(Duration::from_millis(1));
        world.cut(node(0), node(1));
    }
    assert_eq!(world.await_end(node(0), id), Err(CallError::Lost { at: node(0) }));
}

#[test]
fn a_refusal_is_told_with_its_reason_as_long_as_nobody_is_tried_again() {
    let mut world = set_of(2);
    let stranger = SetId::new(7, 7).root();
    let refused = || Err(CallError::Refused { why: "it is somebody else's".to_owned() });
    world.refusing = Some("it is somebody else's");
    for caller in [node(0), node(0), node(1)] {
        assert_eq!(world.ask(caller, stranger, Method::PING, b""), refused());
    }
    world.refusing = None;
    world.run_for(Duration::from_secs(4));
    assert_eq!(world.ask(node(0), stranger, Method::PING, b""), Err(CallError::NoRoute { at: node(0) }));
}
