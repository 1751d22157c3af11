//! Members with a stolen key, floods, endless bodies, and clocks that differ.

use std::time::{Duration, Instant};

use bytes::Bytes;
use lattice_overlay::address::{Process, SetId, Uid};
use lattice_overlay::error::CallError;
use lattice_overlay::frame::{BODY_MAX, Frame, Kind};
use lattice_overlay::machine::{CallOptions, Effect, Machine, Membership, Neighbour, Opener};
use lattice_overlay::method::Method;

use super::world::{MIRROR, SILENCE, World};

const SETS: [SetId; 3] = [SetId::from_bits(0x0010_0001), SetId::from_bits(0x0010_0002), SetId::from_bits(0x0010_0003)];

fn node(set: SetId, index: u32) -> Uid {
    Uid::new(set, Process::Node(index))
}

fn request(method: Method, id: u64, source: Uid, destination: Uid) -> Frame {
    let (kind, ttl, detours, remaining_ms, body) = (Kind::Request, 9, 0, 60_000, Bytes::from_static(b"?"));
    Frame { kind, ttl, detours, method: method.0, source, destination, id, remaining_ms, body }
}

/// An attacker with the key of a launch can send any frame to its root. For other sets it is always a member of that launch.
#[test]
fn a_member_whose_key_was_stolen_speaks_for_nobody_outside_its_own_launch() {
    let mut world = SETS.iter().fold(World::new(), |world, &set| world.with_set(set, 8));
    let everybody: Vec<Uid> = SETS.iter().flat_map(|&set| [node(set, 0), node(set, 3)]).collect();
    let [own, others @ ..] = SETS;
    let mut id = 0;
    for &source in &everybody {
        for &destination in &everybody {
            id += 1;
            world.inject(Neighbour::Member(1), own.root(), request(MIRROR, id, source, destination));
            for root in others.map(SetId::root) {
                world.inject(Neighbour::Set(own), root, request(MIRROR, id, source, destination));
            }
        }
    }
    world.run_for(Duration::from_secs(1));
    let outside: Vec<_> = world.served.iter().filter(|(server, _)| server.set() != own).collect();
    assert!(!outside.is_empty());
    for (server, request) in outside {
        assert_eq!(request.from.set(), own, "{server} serves {}", request.from);
    }
    for from in everybody {
        assert_eq!(world.ask(from, others[0].root(), Method::PING, b""), Ok(Bytes::new()), "{from}");
    }
}

/// Handlers have 64 slots and 256 waiting places. All other requests are refused, and not stored.
#[test]
fn a_member_that_floods_is_told_so_and_others_are_answered() {
    let [set, ..] = SETS;
    let mut world = World::new().with_set(set, 8);
    assert!(world.ask(node(set, 1), set.root(), Method::PING, b"").is_ok());
    let (flood, before) = (20_000, world.sent);
    for id in 0..flood {
        world.inject(Neighbour::Member(1), set.root(), request(SILENCE, id, node(set, 1), set.root()));
    }
    world.run_for(Duration::from_secs(1));
    assert_eq!((world.served.len(), world.sent - before), (64, flood - 64 - 256));
    let busy = Err(CallError::Busy { at: set.root() });
    assert_eq!(world.ask(node(set, 2), set.root(), MIRROR, b"?"), busy);
    assert_eq!(world.ask(node(set, 2), set.root(), Method::PING, b"?"), Ok(Bytes::from_static(b"?")));
    assert_eq!(world.ask(node(set, 2), node(set, 3), MIRROR, b"?"), Ok(Bytes::from_static(b"?")));
}

#[test]
fn bodies_of_calls_that_wait_have_16_mib_at_most() {
    let [set, ..] = SETS;
    let (mut world, me, other) = (World::new().with_set(set, 2), set.root(), node(set, 1));
    assert!(world.ask(me, other, Method::PING, b"").is_ok());
    let longest = vec![7; BODY_MAX];
    let ids: Vec<_> = (0..256).map(|_| world.call(me, other, SILENCE, &longest, CallOptions::default())).collect();
    assert_eq!(world.ask(me, other, Method::PING, b"?"), Err(CallError::Busy { at: me }));
    assert_eq!(world.ask(me, other, Method::PING, b""), Ok(Bytes::new()));
    world.machine(me).give_up(ids[0]);
    assert_eq!(world.ask(me, other, Method::PING, &longest), Ok(longest.into()));
}

/// A request has its remaining time, not its deadline.
#[test]
fn clocks_that_differ_change_no_deadline() {
    let [set, ..] = SETS;
    let member = |node| {
        let (homes, launch) = (vec![0, 1], None);
        Machine::new(Membership { set, node, members: 2, homes, launch })
    };
    let (mut caller, mut server) = (member(0), member(1));
    let here = Instant::now();
    for there in [here + Duration::from_secs(86_400), here] {
        // A later local time corresponds to an earlier remote time.
        let here = here + (here + Duration::from_secs(86_400)).duration_since(there);
        caller.handle_opened(Neighbour::Member(1), Opener::Us, here);
        server.handle_opened(Neighbour::Member(0), Opener::Them, there);
        let options = CallOptions { timeout: Duration::from_secs(20), within: None };
        let id = caller.call(node(set, 1), MIRROR, Bytes::new(), options, here);
        let Some(Effect::Send(_, frame)) = caller.poll_effect() else { panic!("nothing is sent") };
        server.handle_frame(Neighbour::Member(0), frame, there);
        let Some(Effect::Serve(request)) = server.poll_effect() else { panic!("nothing is served") };
        assert_eq!(request.until - there, Duration::from_secs(20));
        let later = Duration::from_secs(19);
        server.answer(request.ticket, Ok(Bytes::from_static(b"in time")), there + later);
        let Some(Effect::Send(_, frame)) = server.poll_effect() else { panic!("nothing is answered") };
        caller.handle_frame(Neighbour::Member(1), frame, here + later);
        assert_eq!(caller.poll_effect(), Some(Effect::Ended(id, Ok(Bytes::from_static(b"in time")))));
    }
}
