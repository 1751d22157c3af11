//! Events: their receivers, by range, registration and state of the rank.

use pmix_core::server::Action;
use pmix_core::wire::Encoding::{Fixed, Flex};
use pmix_core::wire::reader::Proc;
use pmix_core::wire::request::command;
use pmix_core::wire::types::RANK_WILDCARD;
use pmix_core::wire::value::{Info, Value};
use pmix_core::wire::writer::Writer;

use super::world::{Client, World};

/// Two ranks of one job, and one of another job.
fn three() -> (World, [Client; 3]) {
    let mut world = World::new(2, &[2]);
    let clients = [("job0", 0, Flex), ("job0", 1, Fixed), ("job1", 0, Flex)];
    let clients = clients.map(|(name, rank, encoding)| world.join(0, name, rank, encoding).unwrap());
    (world, clients)
}

pub(super) fn register(world: &mut World, client: Client, codes: &[i32]) {
    world.send(client, 101, command::REGISTER_EVENTS, |out| {
        out.count(codes.len());
        out.group(codes.len());
        codes.iter().for_each(|&code| out.i32(code));
        out.count(0);
    });
    assert_eq!(world.status(client), Some((0, vec![])));
}

fn notify(world: &mut World, client: Client, code: i32, range: u8, chosen: Option<&[Proc<'static>]>) {
    world.send(client, 102, command::NOTIFY, |out| {
        out.status(code);
        out.one();
        out.byte(range);
        out.count(chosen.iter().len());
        out.group(chosen.iter().len());
        if let Some(procs) = chosen {
            out.info(&Info::new("pmix.evrange", Value::Procs(procs.to_vec())));
        }
    });
    assert_eq!(world.status(client), Some((0, vec![])));
}

#[test]
fn an_event_reaches_its_range_and_never_its_source() {
    const OTHER_JOB: &[Proc<'_>] = &[Proc { namespace: b"job1", rank: RANK_WILDCARD }];
    const ONE_RANK: &[Proc<'_>] = &[Proc { namespace: b"job0", rank: 1 }];
    const NOBODY: &[Proc<'_>] = &[Proc { namespace: b"job0", rank: 7 }, Proc { namespace: b"elsewhere", rank: 0 }];
    // Range with the number of the standard, its list, and the receivers: the other rank of the job, the rank of the other job.
    let cases = [
        (1, None, [false, false]),
        (2, None, [true, true]),
        (3, None, [true, false]),
        (4, None, [true, true]),
        (5, None, [true, true]),
        (6, None, [false, false]),
        (6, Some(OTHER_JOB), [false, true]),
        (6, Some(ONE_RANK), [true, false]),
        (6, Some(NOBODY), [false, false]),
        (7, None, [false, false]),
    ];
    for (range, chosen, expected) in cases {
        let (mut world, clients) = three();
        for client in clients {
            register(&mut world, client, &[]);
        }
        notify(&mut world, clients[0], -61, range, chosen);
        let heard = [clients[1], clients[2]].map(|client| world.receive(client).is_some());
        assert_eq!(heard, expected, "range {range}, {chosen:?}");
        assert_eq!(world.receive(clients[0]), None, "its source");
    }
}

#[test]
fn a_rank_hears_of_the_codes_it_registered_until_it_deregisters_or_leaves() {
    let (mut world, [source, listener, _]) = three();
    let hears = |world: &mut World, code| {
        notify(world, source, code, 5, None);
        world.receive(listener).is_some()
    };
    register(&mut world, listener, &[-61, -62]);
    assert_eq!([-61, -62, -63].map(|code| hears(&mut world, code)), [true, true, false]);
    world.send(listener, 103, command::DEREGISTER_EVENTS, |out| out.status(-61));
    assert_eq!([-61, -62].map(|code| hears(&mut world, code)), [false, true]);
    register(&mut world, listener, &[]);
    assert_eq!([-61, -63].map(|code| hears(&mut world, code)), [true, true]);
    world.send(listener, 104, command::DEREGISTER_EVENTS, |_| {});
    assert_eq!([-62, -63].map(|code| hears(&mut world, code)), [true, false], "what was named stays");
    world.send(listener, 105, command::FINALIZE, |_| {});
    assert_eq!(world.status(listener), Some((0, vec![])));
    assert!(!hears(&mut world, -62), "a finalized rank listens no more");
}

#[test]
fn the_loss_of_a_rank_is_told_to_those_who_named_it_once() {
    let (mut world, [lost, named, other]) = three();
    register(&mut world, named, &[pmix_core::wire::status::LOST_CONNECTION]);
    register(&mut world, other, &[pmix_core::wire::status::LOST_CONNECTION]);
    world.hang_up(lost);
    assert!(world.receive(named).is_some());
    assert!(world.receive(other).is_some(), "a rank of another job of the launch");
    world.hang_up(lost);
    assert_eq!(world.receive(named), None, "it is lost once");
}

/// An event to all ranks of a large node is stored once, however many of them do not read.
#[test]
fn listeners_share_the_bytes_of_an_event_and_a_very_long_one_is_refused() {
    const LISTENERS: u32 = 4;
    let mut world = World::new(1, &[1 + LISTENERS]);
    let clients: Vec<Client> = (0..=LISTENERS).map(|rank| world.join(0, "job0", rank, Flex).unwrap()).collect();
    clients[1..].iter().for_each(|&client| register(&mut world, client, &[-77]));
    let event = |bytes: usize| {
        let mut payload = Writer::new(Flex);
        payload.one();
        payload.byte(command::NOTIFY);
        payload.status(-77);
        payload.one();
        payload.byte(3);
        payload.count(1);
        payload.group(1);
        payload.info(&Info::new("data", Value::Bytes(&vec![7; bytes])));
        pmix_core::wire::frame::message(102, &payload.into_bytes())
    };
    let mut sent = |bytes: usize| {
        let server = &mut world.nodes[0];
        server.handle_bytes(clients[0].connection, &event(bytes));
        let actions = std::iter::from_fn(|| server.poll_action());
        let sends = actions.filter_map(|action| match action {
            Action::Send { connection, bytes } if connection != clients[0].connection => Some(bytes),
            _ => None,
        });
        sends.collect::<Vec<_>>()
    };
    let told = sent(100_000);
    assert_eq!(told.len(), LISTENERS as usize);
    assert!(told.iter().all(|bytes| bytes.as_ptr() == told[0].as_ptr()), "each has a copy");
    assert_eq!(sent(2 << 20).len(), 0);
}
