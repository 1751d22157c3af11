//! Processes of ranks that make and serve calls themselves, through their sessions.

use std::time::Duration;

use bytes::Bytes;
use lattice_overlay::address::{Process, SetId, Uid};
use lattice_overlay::error::CallError;
use lattice_overlay::frame::{Frame, Kind};
use lattice_overlay::machine::{CallOptions, Neighbour};
use lattice_overlay::method::Method;

use super::world::{MIRROR, SILENCE, TO_AND_FRO, World};

const HERE: SetId = SetId::from_bits(0x0010_0001);
const THERE: SetId = SetId::from_bits(0x0010_0002);

fn rank(set: SetId, rank: u32) -> Uid {
    Uid::new(set, Process::Rank(rank))
}

/// Two sets of 20. The processes of their ranks 3 and 17 are participants.
fn world() -> World {
    let sets = World::new().with_set(HERE, 20).with_set(THERE, 20);
    [HERE, THERE].into_iter().fold(sets, |world, set| world.with_process(set, 3).with_process(set, 17))
}

#[test]
fn ranks_call_each_other_within_a_set_and_across() {
    let mut world = world();
    for from in [rank(HERE, 3), rank(HERE, 17), rank(THERE, 17)] {
        for to in [rank(HERE, 3), rank(THERE, 3), rank(THERE, 17)] {
            assert_eq!(world.ask(from, to, MIRROR, b"?"), Ok(Bytes::from_static(b"?")), "{from} to {to}");
            let (server, request) = world.served.pop().unwrap();
            assert_eq!((server, request.from), (to, from));
        }
    }
}

#[test]
fn handlers_of_ranks_call_back() {
    let mut world = world();
    let answer = world.ask(rank(HERE, 3), rank(THERE, 17), TO_AND_FRO, &[100]);
    assert_eq!(answer, Ok(Bytes::from_static(b"the bottom")));
}

#[test]
fn methods_of_ours_are_answered_while_a_rank_does_something_else() {
    let mut world = world();
    world.stopped.insert(rank(THERE, 17));
    assert_eq!(world.ask(rank(HERE, 3), rank(THERE, 17), Method::PING, b"?"), Ok(Bytes::from_static(b"?")));
    assert!(matches!(world.ask(rank(HERE, 3), rank(THERE, 17), MIRROR, b"?"), Err(CallError::Timeout { .. })));
}

#[test]
fn a_rank_without_a_process_is_spoken_for_by_its_session() {
    let mut world = world();
    assert_eq!(
        world.ask(rank(HERE, 3), rank(THERE, 5), MIRROR, b"?"),
        Ok(Bytes::from_static(b"?")),
        "its session serves"
    );
    world.end_process(THERE, 17);
    assert_eq!(world.ask(rank(HERE, 3), rank(THERE, 17), Method::PING, b""), Ok(Bytes::new()));
    for node in [0, 17, 20] {
        let guest = rank(THERE, Process::guest(node, 7).unwrap());
        assert_eq!(world.ask(rank(HERE, 3), guest, Method::PING, b""), Err(CallError::NoSuchProcess));
    }
}

#[test]
fn a_rank_speaks_for_itself_only() {
    let mut world = world();
    for source in [rank(HERE, 4), Uid::new(HERE, Process::Node(3)), rank(THERE, 3)] {
        let (kind, destination, body) = (Kind::Request, rank(HERE, 17), Bytes::new());
        let (ttl, detours, method, id, remaining_ms) = (9, 0, MIRROR.0, 1, 1000);
        let frame = Frame { kind, ttl, detours, method, source, destination, id, remaining_ms, body };
        world.inject(Neighbour::Rank(3), Uid::new(HERE, Process::Node(3)), frame);
    }
    world.run_for(Duration::from_secs(1));
    assert_eq!((world.served.len(), world.sent), (0, 0));
}

#[test]
fn the_link_of_a_rank_stays_while_nobody_uses_it() {
    let mut world = world();
    assert!(world.ask(rank(HERE, 3), rank(HERE, 17), MIRROR, b"").is_ok());
    world.run_for(Duration::from_secs(600));
    assert!(world.ask(rank(HERE, 17), rank(HERE, 3), MIRROR, b"").is_ok());
}

/// The member before the only process that can answer a call notifies its caller when that process is lost.
#[test]
fn a_call_that_others_passed_on_ends_when_nobody_is_left_who_could_answer() {
    let node = |set, index| Uid::new(set, Process::Node(index));
    // The lost rank or session, whether it is only stopped, and the member that reports it.
    for (gone, is_stopped, at) in [
        (THERE.root(), false, HERE.root()),
        (THERE.root(), true, HERE.root()),
        (HERE.root(), false, node(HERE, 1)),
        (node(THERE, 17), false, node(THERE, 16)),
        (rank(THERE, 17), false, node(THERE, 17)),
    ] {
        let mut world = world();
        let id = world.call(rank(HERE, 3), rank(THERE, 17), SILENCE, b"", CallOptions::default());
        world.run_for(Duration::from_millis(10));
        assert_eq!(world.served.len(), 1);
        match gone.process() {
            Process::Rank(_) => world.end_process(THERE, 17),
            Process::Node(_) if is_stopped => drop(world.stopped.insert(gone)),
            Process::Node(_) => world.kill(gone),
        }
        assert_eq!(world.await_end(rank(HERE, 3), id), Err(CallError::Lost { at }), "{gone}");
        assert!(world.elapsed() < Duration::from_secs(if is_stopped { 15 } else { 1 }), "{gone}");
        assert_eq!(world.served.len(), 1, "it was made once");
    }
}
