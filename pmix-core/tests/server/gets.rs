//! Gets that wait: their time limits, the answers at the limit, and answers for a rank that has left.

use std::time::Duration;

use pmix_core::wire::Encoding;
use pmix_core::wire::Encoding::Flex;
use pmix_core::wire::reader::Reader;
use pmix_core::wire::request::command;
use pmix_core::wire::status;
use pmix_core::wire::value::{Info, Value};

use super::world::{Client, World};
use super::{commit, found, get, put, values};

/// Requests a key of a rank of `job0`, with the client's timeout in seconds.
fn get_within(world: &mut World, client: Client, rank: u32, seconds: Option<Value<'static>>) {
    world.send(client, 103, command::GET, |out| {
        out.one();
        out.text(Some(b"job0"));
        out.one();
        out.u32(rank);
        out.count(seconds.iter().len());
        out.group(seconds.iter().len());
        if let Some(seconds) = seconds {
            out.info(&Info::new("pmix.timeout", seconds));
        }
        out.one();
        out.text(Some(b"card"));
    });
}

/// Two ranks of one node, and one of another node.
fn three() -> (World, [Client; 3]) {
    let mut world = World::new(1, &[2, 1]);
    let clients = [(0, 0), (0, 1), (1, 2)].map(|(node, rank)| world.join(node, "job0", rank, Flex).unwrap());
    (world, clients)
}

#[test]
fn a_get_waits_as_long_as_its_client_says_and_within_the_servers_limits() {
    const KEY: u64 = 2;
    const RANK: u64 = 120;
    const LATE: u64 = 5;
    // The requested rank, its earlier commits, the client's timeout; the time of the timer at the client's node.
    let cases = [
        (1, "nothing", None, RANK),
        (1, "another key", None, KEY),
        (1, "another key", Some(Value::Int(7)), 7),
        (1, "nothing", Some(Value::Int(1)), 1),
        (1, "nothing", Some(Value::Int(1000)), RANK),
        (1, "nothing", Some(Value::Int(0)), RANK),
        (1, "nothing", Some(Value::Int(-3)), RANK),
        (2, "nothing", None, RANK + LATE),
        (2, "nothing", Some(Value::Int(7)), 7 + LATE),
        (2, "nothing", Some(Value::Int(1000)), RANK + LATE),
        (1, "nothing", Some(Value::U64(u64::MAX)), RANK),
        (2, "nothing", Some(Value::U64(u64::MAX)), RANK + LATE),
    ];
    for (rank, committed, limit, expected) in cases {
        let (mut world, clients) = three();
        if committed == "another key" {
            commit(&mut world, clients[rank as usize], "other", b"x", b"y");
        }
        let case = format!("rank {rank} committed {committed}, {limit:?}");
        get_within(&mut world, clients[0], rank, limit);
        assert_eq!(world.status(clients[0]), None, "{case}");
        let own = world.timers.iter().position(|(node, _)| *node == 0).expect("a get without a limit");
        assert_eq!(world.limits[own], Duration::from_secs(expected), "{case}");
    }
}

#[test]
fn the_other_node_waits_no_longer_than_the_client_said() {
    let (mut world, [asks, _, far]) = three();
    get_within(&mut world, asks, 2, Some(Value::Int(7)));
    let there = world.timers.iter().position(|(node, _)| *node == 1).expect("a question without a limit");
    assert_eq!(world.limits[there], Duration::from_secs(7));
    commit(&mut world, far, "card", b"near", b"far");
    assert_eq!(values(Flex, &world.status(asks).unwrap().1), found("card", b"far"));
    assert_eq!(world.timers, [], "both timers are cancelled");
}

#[test]
fn a_get_is_answered_by_its_own_key_alone() {
    for (rank, own) in [(1, b"near"), (2, b"far!")] {
        let (mut world, clients) = three();
        get(&mut world, clients[0], "job0", rank, "card", false);
        commit(&mut world, clients[rank as usize], "other", b"x", b"y");
        assert_eq!(world.status(clients[0]), None, "rank {rank} has committed something else");
        commit(&mut world, clients[rank as usize], "card", b"near", b"far!");
        let (_, objects) = world.status(clients[0]).unwrap();
        assert!(values(Flex, &objects).contains(&("card".to_owned(), own.to_vec())), "rank {rank}");
    }
}

#[test]
fn gets_of_several_clients_are_answered_by_one_commit_and_each_once() {
    let mut world = World::new(1, &[4]);
    let clients = [0, 1, 2, 3].map(|rank| world.join(0, "job0", rank, Flex).unwrap());
    for client in clients {
        get(&mut world, client, "job0", 3, "card", false);
    }
    put(&mut world, clients[3], 101, "card", b"x", b"y");
    for client in &clients[..3] {
        assert_eq!(values(Flex, &world.status(*client).unwrap().1), found("card", b"x"));
    }
    let tags = [(); 2].map(|()| world.receive(clients[3]).unwrap().tag);
    assert_eq!(tags, [101, 102], "the commit is answered before the gets that it ends");
    assert_eq!(world.timers, []);
    world.let_time_pass();
    assert!(clients.iter().all(|client| world.receive(*client).is_none()), "answered twice");
}

#[test]
fn the_answer_for_a_rank_that_has_left_goes_to_nobody() {
    type Ending = fn(&mut World, Client);
    let ends: [(&str, Ending); 2] = [
        ("a commit", |world, other| put(world, other, 101, "card", b"x", b"y")),
        ("the time", |world, _| world.let_time_pass()),
    ];
    for (case, end) in ends {
        let (mut world, [leaves, other, _]) = three();
        get(&mut world, leaves, "job0", 1, "card", false);
        world.send(leaves, 110, command::FINALIZE, |_| {});
        assert_eq!(world.status(leaves), Some((status::SUCCESS, vec![])));
        world.hang_up(leaves);
        end(&mut world, other);
        assert_eq!(world.receive(leaves), None, "{case}");
        assert!(world.end.is_none(), "{case}");
    }
}

/// MPI can be initialized again, and a library then counts its tags from the beginning.
#[test]
fn a_rank_that_comes_back_hears_no_answer_of_its_former_life() {
    let (mut world, [leaves, other, _]) = three();
    get(&mut world, leaves, "job0", 1, "card", false);
    world.send(leaves, 110, command::FINALIZE, |_| {});
    world.hang_up(leaves);
    let back = world.join(0, "job0", 0, Flex).unwrap();
    put(&mut world, other, 101, "card", b"x", b"y");
    assert_eq!(world.receive(back), None);
    get(&mut world, back, "job0", 1, "card", false);
    assert_eq!(values(Flex, &world.status(back).unwrap().1), found("card", b"x"));
}

#[test]
fn a_get_of_a_rank_that_nobody_has_is_refused_at_once() {
    let (mut world, [asks, ..]) = three();
    for (namespace, rank) in [("job0", 3), ("job0", u32::MAX), ("elsewhere", 0)] {
        get(&mut world, asks, namespace, rank, "card", false);
        assert_eq!(world.status(asks), Some((status::NOT_FOUND, vec![])), "rank {rank} of {namespace}");
    }
    assert_eq!((world.timers.len(), world.questions), (0, 0));
}

/// A new value of a rank on another node reaches the clients that request it, and no other client.
#[test]
fn a_refresh_brings_what_the_rank_has_now() {
    for encoding in Encoding::ALL {
        let mut world = World::new(1, &[1, 1]);
        let [asks, far] = [0, 1].map(|rank| world.join(rank, "job0", rank as u32, encoding).unwrap());
        let refreshed = |world: &mut World, rank: u32| {
            world.send(asks, 104, command::REFRESH_CACHE, |out| {
                out.one();
                out.text(Some(b"job0"));
                out.one();
                out.u32(rank);
            });
            world.let_time_pass();
            let (code, rest) = world.status(asks).expect("an answer");
            let mut reader = Reader::new(encoding, &rest);
            let mut pairs = Vec::new();
            while !reader.is_empty() {
                reader.one().unwrap();
                let key = String::from_utf8(reader.required_text("key").unwrap().to_vec()).unwrap();
                pairs.push((key, reader.value().unwrap()));
            }
            (code, format!("{pairs:?}"))
        };
        let told = |value: &[u8]| format!("{:?}", [("card", Value::Bytes(value))]);
        assert_eq!(refreshed(&mut world, 1), (status::SUCCESS, "[]".to_owned()));
        assert_eq!(world.limits, [Duration::from_millis(1)]);
        assert_eq!(refreshed(&mut world, 7), (status::NOT_FOUND, "[]".to_owned()));
        commit(&mut world, far, "card", b"near", b"old");
        get(&mut world, asks, "job0", 1, "card", false);
        assert_eq!(values(encoding, &world.status(asks).unwrap().1), found("card", b"old"));
        commit(&mut world, far, "card", b"near", b"new");
        get(&mut world, asks, "job0", 1, "card", false);
        assert_eq!(values(encoding, &world.status(asks).unwrap().1), found("card", b"old"));
        assert_eq!(refreshed(&mut world, 1), (status::SUCCESS, told(b"new")));
        commit(&mut world, far, "card", b"near", b"newest");
        world.send(asks, 105, command::GET, |out| {
            out.one();
            out.text(Some(b"job0"));
            out.one();
            out.u32(1);
            out.count(1);
            out.group(1);
            out.info(&Info::new("pmix.get.refresh", Value::Bool(true)));
            out.one();
            out.text(Some(b"card"));
        });
        assert_eq!(values(encoding, &world.status(asks).unwrap().1), found("card", b"newest"));
        commit(&mut world, asks, "card", b"mine", b"far");
        assert_eq!(refreshed(&mut world, 0), (status::SUCCESS, told(b"mine")));
        world.lost = Some(1);
        assert_eq!(refreshed(&mut world, 1), (status::SUCCESS, told(b"newest")), "what is known of a lost node");
    }
}
