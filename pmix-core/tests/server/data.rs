//! Commits of ranks, and their delivery to other ranks.

use std::collections::BTreeSet;

use pmi_core::ids::{JobId, LocalRank, NodeIndex};
use pmi_core::job::Job;
use pmix_core::server::Action;
use pmix_core::wire::Encoding::{Fixed, Flex};
use pmix_core::wire::reader::Proc;
use pmix_core::wire::request::command;
use pmix_core::wire::{status, types};
use pmix_core::{JobIndex, Namespace, NodeFacts};

use super::world::{Client, World, collecting, procs, whole};
use super::{commit, found, get, put_all, values};

#[test]
fn commit_fence_get_on_two_nodes_and_in_two_encodings() {
    let mut world = World::new(1, &[2, 1]);
    let places = [(0, Flex), (0, Fixed), (1, Fixed)];
    let clients: Vec<_> =
        (0..).zip(places).map(|(rank, (node, encoding))| world.join(node, "job0", rank, encoding).unwrap()).collect();
    for (client, rank) in clients.iter().zip(0_u8..) {
        commit(&mut world, *client, "card", &[rank, b'l'], &[rank, b'r']);
    }
    for client in &clients {
        assert_eq!(world.status(*client), None);
        world.send(*client, 103, command::FENCE, collecting(&whole("job0")));
    }
    for client in &clients {
        assert_eq!(world.status(*client), Some((status::SUCCESS, vec![])));
        for rank in 0..3 {
            get(&mut world, *client, "job0", rank, "card", false);
            let (status, objects) = world.status(*client).unwrap();
            let scope = if (rank < 2) == (client.node == 0) { b'l' } else { b'r' };
            assert_eq!((status, values(client.encoding, &objects)), (0, found("card", &[rank as u8, scope])));
        }
    }
}

/// With each commit, libpmix sends all values that its rank has ever put.
#[test]
fn rounds_of_put_commit_and_fence_bring_what_each_has_put_and_cost_what_is_held() {
    const ROUNDS: usize = 40;
    let mut world = World::new(1, &[1, 1]);
    let clients = [0, 1].map(|rank| world.join(rank, "job0", rank as u32, Flex).unwrap());
    let value = vec![7; 100_000];
    for round in 0..ROUNDS {
        for client in clients {
            let keys: Vec<String> = (0..=round).map(|number| format!("key{number}")).collect();
            let pairs: Vec<(&str, &[u8])> = keys.iter().map(|key| (&key[..], &value[..])).collect();
            put_all(&mut world, client, 101, &pairs);
            assert_eq!(world.status(client), Some((status::SUCCESS, vec![])), "round {round}");
            world.send(client, 103, command::FENCE, collecting(&whole("job0")));
        }
        for client in clients {
            assert_eq!(world.status(client), Some((status::SUCCESS, vec![])), "round {round}");
        }
    }
    assert_eq!(world.brought, [2; ROUNDS]);
    get(&mut world, clients[0], "job0", 1, "key0", true);
    assert_eq!(values(Flex, &world.status(clients[0]).unwrap().1).len(), ROUNDS);
    put_all(&mut world, clients[0], 101, &[("key5", b"new"), ("key6", &value)]);
    world.status(clients[0]).unwrap();
    for client in clients {
        world.send(client, 103, command::FENCE, collecting(&whole("job0")));
    }
    assert_eq!(world.brought.last(), Some(&1), "another value is new");
}

#[test]
fn a_server_is_not_needed_for_what_was_committed_again() {
    let mut world = World::new(1, &[1, 1]);
    let clients = [0, 1].map(|rank| world.join(rank, "job0", rank as u32, Flex).unwrap());
    for client in clients {
        commit(&mut world, client, "card", b"near", b"far");
        world.send(client, 103, command::FENCE, collecting(&whole("job0")));
    }
    for client in clients {
        world.status(client).unwrap();
        commit(&mut world, client, "card", b"near", b"far");
        world.send(client, 104, command::FINALIZE, |_| {});
    }
    assert!(world.needed.is_empty(), "{:?}", world.needed);
}

#[test]
fn a_fence_of_two_jobs_brings_what_each_has_brought_to_its_own_nodes_before() {
    let both = [whole("job0")[0], whole("job1")[0]];
    let mut world = World::new(2, &[1, 1]);
    let names = ["job0", "job1"];
    let clients: Vec<Client> = names
        .into_iter()
        .flat_map(|name| [(name, 0), (name, 1)])
        .map(|(name, rank)| world.join(rank, name, rank as u32, Flex).unwrap())
        .collect();
    commit(&mut world, clients[0], "card", b"near", b"far");
    for &client in &clients[..2] {
        world.send(client, 103, command::FENCE, collecting(&whole("job0")));
    }
    for &client in &clients {
        world.send(client, 104, command::FENCE, collecting(&both));
    }
    assert_eq!(world.brought, [1, 1]);
}

#[test]
fn a_get_waits_for_the_commit_and_not_for_ever() {
    let mut world = World::new(1, &[2]);
    let [a, b] = [0, 1].map(|rank| world.join(0, "job0", rank, Flex).unwrap());
    get(&mut world, a, "job0", 1, "card", true);
    assert_eq!(world.status(a), Some((status::NOT_FOUND, vec![])));
    get(&mut world, a, "job0", 1, "card", false);
    assert_eq!(world.status(a), None);
    commit(&mut world, b, "card", b"x", b"y");
    let (_, objects) = world.status(a).unwrap();
    assert_eq!(values(Flex, &objects), found("card", b"x"));

    get(&mut world, a, "job0", 1, "other", false);
    assert_eq!(world.status(a), None);
    world.let_time_pass();
    assert_eq!(world.status(a), Some((status::NOT_FOUND, vec![])));

    get(&mut world, a, "job0", 1, "third", false);
    world.send(b, 110, command::FINALIZE, |_| {});
    assert_eq!(world.status(a), Some((status::NOT_FOUND, vec![])), "nothing more comes from a finalized rank");
    for (rank, key) in [(0, "pmix.cpuset"), (7, "card"), (types::RANK_WILDCARD, "pmix.hwlocxml2")] {
        get(&mut world, a, "job0", rank, key, false);
        assert_eq!(world.status(a), Some((status::NOT_FOUND, vec![])), "{key} of {rank}");
    }
}

#[test]
fn the_topology_of_the_node_is_told_to_those_who_ask() {
    for encoding in [Flex, Fixed] {
        let topology = "<topology version=\"2.0\"/>".repeat(5000);
        let job = Job::on_one_node(JobId::new("job").unwrap(), 1);
        let here = NodeFacts { topology: Some(topology.clone().into()), places: Vec::new() };
        let (name, hosts) = ("job".to_owned(), vec!["n0".to_owned()]);
        let mut world = World::new(1, &[1]);
        let node = world.add_job(Namespace {
            name,
            job,
            node: NodeIndex(0),
            hosts,
            allocation: None,
            directory: None,
            parent: None,
            here,
            command: bytes::Bytes::new(),
            sets: Vec::new(),
        });
        let client = world.join(node, "job", 0, encoding).unwrap();
        get(&mut world, client, "job", types::RANK_WILDCARD, "pmix.hwlocxml2", true);
        let (status, objects) = world.status(client).unwrap();
        assert_eq!(status, status::SUCCESS);
        assert_eq!(values(encoding, &objects), found("pmix.hwlocxml2", topology.as_bytes()));
        // The server does not provide the older form.
        get(&mut world, client, "job", types::RANK_WILDCARD, "pmix.hwlocxml1", true);
        assert_eq!(world.status(client), Some((status::NOT_FOUND, vec![])));
    }
}

#[test]
fn a_get_asks_the_node_of_the_rank_when_no_fence_has_brought_the_key() {
    for (asks, answers) in [(Flex, Flex), (Flex, Fixed), (Fixed, Flex)] {
        let mut world = World::new(1, &[2, 1]);
        let [a, b] = [0, 1].map(|rank| world.join(0, "job0", rank, asks).unwrap());
        let far = world.join(1, "job0", 2, answers).unwrap();
        get(&mut world, a, "job0", 2, "card", true);
        assert_eq!(world.status(a), Some((status::NOT_FOUND, vec![])), "an immediate get looks at this node only");
        for client in [a, b] {
            get(&mut world, client, "job0", 2, "card", false);
            assert_eq!(world.status(client), None);
        }
        assert_eq!(world.questions, 1, "two ranks want one thing");
        commit(&mut world, far, "card", b"near", b"far");
        for client in [a, b] {
            let (status, objects) = world.status(client).expect("the commit was not heard of");
            assert_eq!((status, values(asks, &objects)), (0, found("card", b"far")));
        }
        assert_eq!(world.timers, [], "a get that was answered leaves no timer behind");
        get(&mut world, b, "job0", 2, "card", false);
        assert_eq!(values(asks, &world.status(b).unwrap().1), found("card", b"far"), "it is known now");
        assert_eq!(world.questions, 1);
    }
}

#[test]
fn a_get_from_another_node_ends_with_the_rank_the_time_or_the_node() {
    type Ending = fn(&mut World, Client);
    let ends: [(&str, Ending); 4] = [
        ("the rank finalized", |world, far| world.send(far, 110, command::FINALIZE, |_| {})),
        ("time is over there", |world, _| {
            let late = world.timers.iter().position(|(node, _)| *node == 1).expect("node 1 has no limit");
            let (node, ticket) = world.timers.remove(late);
            world.nodes[node].handle_timer(ticket);
            world.run();
        }),
        ("time is over here", |world, _| world.let_time_pass()),
        ("the rank's process has ended", |world, far| {
            world.send(far, 110, command::FINALIZE, |_| {});
            world.exit(1, 0);
        }),
    ];
    for (case, end) in ends {
        let mut world = World::new(1, &[1, 1]);
        let [a, far] = [0, 1].map(|rank| world.join(rank, "job0", rank as u32, Flex).unwrap());
        get(&mut world, a, "job0", 1, "card", false);
        assert_eq!(world.status(a), None);
        end(&mut world, far);
        assert_eq!(world.status(a), Some((status::NOT_FOUND, vec![])), "{case}");
        assert!(world.end.is_none());
    }
    let mut world = World::new(1, &[1, 1]);
    world.lost = Some(1);
    let a = world.join(0, "job0", 0, Flex).unwrap();
    get(&mut world, a, "job0", 1, "card", false);
    assert_eq!(world.status(a), Some((status::NOT_FOUND, vec![])), "the node is lost");
}

#[test]
fn ranks_and_nodes_that_wait_for_the_same_are_sent_the_same_bytes() {
    // Above a mebibyte, other nodes receive only the requested key.
    for length in [100 << 10, 2 << 20] {
        let mut world = World::new(1, &[4, 1, 1]);
        let places = [0, 0, 0, 0, 1, 2];
        let clients: Vec<_> =
            (0..).zip(places).map(|(rank, node)| world.join(node, "job0", rank, Flex).unwrap()).collect();
        for &client in &clients[1..] {
            get(&mut world, client, "job0", 0, "card", false);
        }
        let value = vec![b'v'; length];
        commit(&mut world, clients[0], "card", &value, &value);
        for &client in &clients[1..] {
            assert_eq!(values(Flex, &world.status(client).unwrap().1), found("card", &value));
        }
        // One for the three ranks here, one for the two nodes, one for the rank on each of these nodes.
        let sent: BTreeSet<_> = world.large.iter().map(|bytes| bytes.as_ptr()).collect();
        assert_eq!((world.large.len(), sent.len()), (7, 4), "{length} bytes");
    }
}

#[test]
fn what_is_no_question_is_answered_too() {
    let mut world = World::new(1, &[1, 1]);
    let ticket = world.nodes[0].handle_question(&bytes::Bytes::from_static(b"noise"));
    let Some(Action::Reply { ticket: answered, answer }) = world.nodes[0].poll_action() else { panic!("no answer") };
    assert_eq!((answered, &answer[..]), (ticket, &status::BAD_PARAM.to_be_bytes()[..]));
}

#[test]
fn it_is_known_who_waits_and_for_whom() {
    let mut world = World::new(1, &[2, 1]);
    let clients = [(0, 0), (0, 1), (1, 2)].map(|(node, rank)| world.join(node, "job0", rank, Flex).unwrap());
    let fence = |world: &mut World, client| world.send(client, 101, command::FENCE, procs(&whole("job0")));
    let standing = |world: &World| {
        let standings = world.nodes[0].pending_fences(JobIndex(0));
        standings.into_iter().map(|standing| (standing.whole_job, standing.waiting, standing.missing)).next()
    };
    assert_eq!(standing(&world), None);
    fence(&mut world, clients[0]);
    assert_eq!(standing(&world), Some((true, vec![LocalRank(0)], vec![LocalRank(1)])));
    fence(&mut world, clients[1]);
    assert_eq!(standing(&world), Some((true, vec![LocalRank(0), LocalRank(1)], vec![])), "another node is waited for");
    fence(&mut world, clients[2]);
    assert_eq!(standing(&world), None);
    let some = [0, 1].map(|rank| Proc { namespace: b"job0", rank });
    world.send(clients[0], 102, command::FENCE, procs(&some));
    assert_eq!(standing(&world), Some((false, vec![LocalRank(0)], vec![LocalRank(1)])));
}
