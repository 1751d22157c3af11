//! What ranks ask of a server and what they get, in both encodings, on one node and on two.

mod world;

use pmi_core::Phase;
use pmi_core::ids::{LocalRank, Rank};
use pmi_core::server::EndReason;
use pmi_core::services::MeetError;
use pmix_core::JobIndex;
use pmix_core::server::Action;
use pmix_core::wire::Encoding::{self, Fixed, Flex};
use pmix_core::wire::reader::{Proc, Reader};
use pmix_core::wire::request::command;
use pmix_core::wire::value::{Info, Value};
use pmix_core::wire::writer::Writer;
use pmix_core::wire::{status, types};

use self::world::{Client, World, procs, seat, whole};

/// Commits one key for ranks of the node, and another value of it for all others.
fn commit(world: &mut World, client: Client, key: &str, local: &[u8], remote: &[u8]) {
    world.send(client, 101, command::COMMIT, |out| {
        for (scope, value) in [(types::SCOPE_LOCAL, local), (types::SCOPE_REMOTE, remote)] {
            let mut buffer = Writer::new(out.encoding());
            buffer.kval(key, &Value::Bytes(value));
            out.one();
            out.byte(scope);
            out.one();
            out.byte(1);
            out.byte_object(&buffer.into_bytes());
        }
    });
    assert_eq!(world.status(client), Some((status::SUCCESS, vec![])));
}

fn get(world: &mut World, client: Client, namespace: &str, rank: u32, key: &str, immediate: bool) {
    world.send(client, 102, command::GET, |out| {
        out.one();
        out.text(Some(namespace.as_bytes()));
        out.one();
        out.u32(rank);
        out.count(immediate.into());
        out.group(immediate.into());
        if immediate {
            out.info(&Info::new("pmix.immediate", Value::Bool(true)));
        }
        out.one();
        out.text(Some(key.as_bytes()));
    });
}

/// The keys with their values in the last object of an answer.
fn values(encoding: Encoding, objects: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut reader = Reader::new(encoding, objects);
    let mut values = Vec::new();
    while !reader.is_empty() {
        reader.one().unwrap();
        let mut object = Reader::new(encoding, reader.byte_object().unwrap());
        object.one().unwrap();
        object.proc().unwrap();
        while !object.is_empty() {
            object.one().unwrap();
            let key = String::from_utf8(object.required_text("key").unwrap().to_vec()).unwrap();
            let value = match object.value().unwrap() {
                Value::Bytes(bytes) => bytes.to_vec(),
                other => format!("{other:?}").into_bytes(),
            };
            values.push((key, value));
        }
    }
    values
}

fn found(key: &str, value: &[u8]) -> Vec<(String, Vec<u8>)> {
    vec![(key.to_owned(), value.to_vec())]
}

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
        world.send(*client, 103, command::FENCE, procs(&whole("job0")));
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
            let late = world.wakes.iter().position(|(node, _)| *node == 1).expect("node 1 has no limit");
            let (node, ticket) = world.wakes.remove(late);
            world.nodes[node].handle_time(ticket);
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
        let standings = world.nodes[0].standings(JobIndex(0));
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

#[test]
fn only_ranks_get_in_and_each_once() {
    let mut world = World::new(1, &[1, 1]);
    assert!(world.join(0, "job1", 0, Flex).is_none(), "an unknown namespace");
    assert!(world.join(0, "job0", 1, Flex).is_none(), "a rank of another node");
    let first = world.join(0, "job0", 0, Flex).unwrap();
    assert!(world.join(0, "job0", 0, Flex).is_none(), "a second claim");
    world.send(first, 101, command::FINALIZE, |_| {});
    world.hang_up(first);
    assert!(world.join(0, "job0", 0, Flex).is_some(), "MPI can be initialized again");
    assert!(world.end.is_none());
}

#[test]
fn job_facts_are_heard_in_the_clients_encoding_and_name_the_jobs_nodes_only() {
    for encoding in Encoding::ALL {
        let mut world = World::new(1, &[2, 0, 1]);
        let client = world.join(2, "job0", 2, encoding).unwrap();
        world.send(client, 101, command::REQ, |_| {});
        let message = world.receive(client).unwrap();
        let mut reader = Reader::new(encoding, &message.payload);
        reader.one().unwrap();
        assert_eq!(reader.text().unwrap(), Some(&b"job0"[..]));
        let mut facts = Vec::new();
        while !reader.is_empty() {
            reader.one().unwrap();
            facts.push((
                String::from_utf8_lossy(reader.required_text("key").unwrap()).into_owned(),
                reader.value().unwrap(),
            ));
        }
        let fact = |key: &str| facts.iter().find(|(known, _)| known == key).map(|(_, value)| value);
        assert_eq!(fact("pmix.job.size"), Some(&Value::U32(3)));
        assert_eq!(fact("pmix.num.nodes"), Some(&Value::U32(2)));
        assert_eq!(fact("pmix.nlist"), Some(&Value::Text(b"n0,n2")));
        assert_eq!(facts.iter().filter(|(key, _)| key == "pmix.pblob").count(), 3);
        let nodes: Vec<_> = facts.iter().filter(|(key, _)| key == "pmix.node.arr").map(|(_, value)| value).collect();
        assert_eq!(nodes.len(), 2);
        let Value::Infos(last) = nodes[1] else { panic!("{:?}", nodes[1]) };
        let of_node = |key: &str| last.iter().find(|info| info.key == key.as_bytes()).map(|info| &info.value);
        assert_eq!(of_node("pmix.nodeid"), Some(&Value::U32(2)), "a node has one number in all jobs");
        assert_eq!(of_node("pmix.lldr"), Some(&Value::Rank(2)));
        assert_eq!(of_node("pmix.lpeers"), Some(&Value::Text(b"2")));
    }
}

#[test]
fn ends_are_judged() {
    let check = |act: fn(&mut World, Client), expected: fn(&EndReason) -> bool| {
        let mut world = World::new(1, &[3]);
        let clients = [0, 1].map(|rank| world.join(0, "job0", rank, Flex).unwrap());
        world.send(clients[0], 101, command::FENCE, procs(&whole("job0")));
        act(&mut world, clients[1]);
        let end = world.end.expect("the job goes on");
        assert!(expected(&end), "{end:?}");
    };
    let abort = |world: &mut World, client: Client| {
        world.send(client, 102, command::ABORT, |out| {
            out.status(7);
            out.one();
            out.text(Some(b"N/A"));
            out.count(0);
        });
    };
    check(
        abort,
        |end| matches!(end, EndReason::Abort { rank: Rank(1), code: Some(7), message, .. } if message.is_empty()),
    );
    check(|world, _| world.exit(0, 1), |end| matches!(end, EndReason::LeftWithoutFinalize { rank: Rank(1) }));
    check(|world, _| world.exit(0, 2), |end| matches!(end, EndReason::LeftBeforeInit { rank: Rank(2), .. }));
    let finalize = |world: &mut World, client| world.send(client, 102, command::FINALIZE, |_| {});
    check(finalize, |end| matches!(end, EndReason::LeftFence { rank: Rank(1), .. }));
    let noise = |world: &mut World, client| world.send(client, 102, command::FENCE, |out| out.raw(&[0xff; 9]));
    check(noise, |end| matches!(end, EndReason::Offence { rank: Rank(1), .. }));
}

#[test]
fn values_are_published_for_one_reader_or_for_many() {
    let mut world = World::new(1, &[2]);
    let [a, b] = [(0, Fixed), (1, Flex)].map(|(rank, encoding)| world.join(0, "job0", rank, encoding).unwrap());
    let publish = |world: &mut World, key: &str, once: bool| {
        let persistence = if once { types::PERSIST_FIRST_READ } else { 4 };
        world.send(a, 101, command::PUBLISH, |out| {
            out.one();
            out.u32(0);
            out.count(2);
            out.group(2);
            out.info(&Info::new(key, Value::U32(5)));
            out.info(&Info::new("pmix.persist", Value::Persistence(persistence)));
        });
        world.status(a).unwrap().0
    };
    let look_up = |world: &mut World, key: &str| {
        world.send(b, 102, command::LOOKUP, |out| {
            out.one();
            out.u32(0);
            out.count(1);
            out.one();
            out.text(Some(key.as_bytes()));
            out.count(0);
        });
        let (status, rest) = world.status(b).unwrap();
        let mut reader = Reader::new(Flex, &rest);
        if status == 0 {
            assert_eq!(reader.count(), Ok(1));
            reader.one().unwrap();
            assert_eq!(reader.proc(), Ok(Proc { namespace: b"job0", rank: 0 }));
            assert_eq!(reader.text(), Ok(Some(key.as_bytes())));
            assert_eq!(reader.value(), Ok(Value::U32(5)));
        }
        status
    };
    assert_eq!(publish(&mut world, "once", true), status::SUCCESS);
    assert_eq!(publish(&mut world, "many", false), status::SUCCESS);
    assert_eq!(publish(&mut world, "many", false), status::DUPLICATE_KEY);
    assert_eq!(["once", "once", "many", "many"].map(|key| look_up(&mut world, key)), [0, status::NOT_FOUND, 0, 0]);
}

#[test]
fn jobs_that_connect_learn_of_each_other() {
    let mut world = World::new(2, &[1]);
    let [a, b] = ["job0", "job1"].map(|name| world.join(0, name, 0, Flex).unwrap());
    commit(&mut world, b, "card", b"b", b"");
    let both = [whole("job0")[0], whole("job1")[0]];
    world.send(a, 101, command::CONNECT, procs(&both));
    assert_eq!(world.status(a), None);
    world.send(b, 101, command::CONNECT, procs(&[both[1], both[0]]));
    for (client, other) in [(a, "job1"), (b, "job0")] {
        let (status, rest) = world.status(client).unwrap();
        let mut reader = Reader::new(Flex, &rest);
        reader.one().unwrap();
        let mut object = Reader::new(Flex, reader.byte_object().unwrap());
        object.one().unwrap();
        assert_eq!((status, object.text()), (0, Ok(Some(other.as_bytes()))));
        assert!(reader.is_empty(), "facts about the client's own job");
    }
    get(&mut world, a, "job1", 0, "card", false);
    let (_, objects) = world.status(a).unwrap();
    let values = values(Flex, &objects);
    assert!(values.iter().any(|(key, _)| key == "pmix.job.size"), "a rank of another job cannot be placed");
    assert_eq!(values.last(), Some(&("card".to_owned(), b"b".to_vec())));
}

/// One rank on each of two nodes, and one of another launch on a third.
fn two_launches() -> (World, [Client; 3]) {
    let mut world = World::new(1, &[1, 1]);
    world.add_launch(&["far"], &[1]);
    let clients = [(0, "job0", 0, Flex), (1, "job0", 1, Fixed), (2, "far", 0, Flex)];
    let clients = clients.map(|(node, name, rank, encoding)| world.join(node, name, rank, encoding).unwrap());
    (world, clients)
}

const BOTH_LAUNCHES: [Proc<'static>; 2] =
    [Proc { namespace: b"job0", rank: types::RANK_WILDCARD }, Proc { namespace: b"far", rank: 0 }];

#[test]
fn launches_that_connect_learn_of_each_other_and_can_part() {
    let (mut world, clients) = two_launches();
    for (client, card) in clients.into_iter().zip([b"a0", b"a1", b"b0"]) {
        commit(&mut world, client, "card", b"near", card);
        world.send(client, 101, command::CONNECT, procs(&BOTH_LAUNCHES));
        assert_eq!(world.status(client), None);
    }
    let names: Vec<_> = world.meeting.iter().map(|(.., meeting)| (meeting.name.clone(), meeting.epoch)).collect();
    assert!(names.len() == 3 && names.iter().all(|name| *name == names[0]), "all must call it alike: {names:?}");
    let told: Vec<_> =
        world.meeting.iter().map(|(.., meeting)| (meeting.others.join(","), meeting.jobs.len())).collect();
    assert_eq!(told, [("far".to_owned(), 1), ("far".to_owned(), 0), ("job0".to_owned(), 1)]);

    world.end_meeting(None);
    for (client, other) in clients.into_iter().zip(["far", "far", "job0"]) {
        let (status, rest) = world.status(client).unwrap();
        let mut reader = Reader::new(client.encoding, &rest);
        reader.one().unwrap();
        let mut object = Reader::new(client.encoding, reader.byte_object().unwrap());
        object.one().unwrap();
        assert_eq!((status, object.text()), (0, Ok(Some(other.as_bytes()))));
    }
    let mut card = |client: Client, namespace: &str, rank| {
        get(&mut world, client, namespace, rank, "card", false);
        let (_, objects) = world.status(client).unwrap();
        values(client.encoding, &objects).last().cloned()
    };
    assert_eq!(card(clients[0], "far", 0), Some(("card".to_owned(), b"b0".to_vec())));
    assert_eq!(card(clients[2], "job0", 1), Some(("card".to_owned(), b"a1".to_vec())));
    // Nobody can be asked for what the meeting did not bring.
    get(&mut world, clients[0], "far", 0, "another", false);
    assert_eq!(world.status(clients[0]), Some((status::NOT_FOUND, vec![])));

    for client in clients {
        world.send(client, 101, command::DISCONNECT, procs(&BOTH_LAUNCHES));
        assert_eq!(world.status(client), None);
    }
    world.end_meeting(None);
    for client in clients {
        assert_eq!(world.status(client), Some((status::SUCCESS, vec![])));
    }
}

#[test]
fn a_meeting_that_is_refused_can_be_tried_again() {
    let (mut world, clients) = two_launches();
    for round in 0..2 {
        for client in &clients[..2] {
            world.send(*client, 101, command::CONNECT, procs(&BOTH_LAUNCHES));
        }
        assert!(world.meeting.iter().all(|(.., meeting)| meeting.epoch.0 == round));
        world.end_meeting(Some(MeetError::NotFound));
        for client in &clients[..2] {
            assert_eq!(world.status(*client), Some((status::NOT_FOUND, vec![])));
        }
    }
    assert!(world.end.is_none(), "the launch lives on");
    // Another launch may keep its ranks waiting: that is no fence of theirs that is stuck.
    world.send(clients[0], 101, command::FENCE, procs(&BOTH_LAUNCHES));
    let standings = world.nodes[0].standings(JobIndex(0));
    assert!(standings.len() == 1 && !standings[0].whole_job, "{standings:?}");
    assert_eq!(world.join(0, "far", 0, Flex).map(|client| client.node), None, "a rank of another launch came here");
}

#[test]
fn a_group_has_one_context_on_all_nodes() {
    let mut world = World::new(1, &[1, 1]);
    let clients =
        [(0, 0, Flex), (1, 1, Flex)].map(|(node, rank, encoding)| world.join(node, "job0", rank, encoding).unwrap());
    for (client, number) in clients.into_iter().zip(40..) {
        world.send(client, 101, command::GROUP_CONSTRUCT, |out| {
            out.one();
            out.text(Some(b"mpi://world"));
            out.count(1);
            out.group(1);
            out.proc(whole("job0")[0]);
            out.count(1);
            out.group(1);
            out.info(&Info::new("pmix.grp.info", Value::Infos(vec![Info::new("pmix.grp.lclid", Value::Size(number))])));
        });
    }
    let contexts = clients.map(|client| {
        let (status, rest) = world.status(client).unwrap();
        let mut reader = Reader::new(Flex, &rest);
        assert_eq!((status, reader.counted_procs().unwrap().len()), (0, 2));
        reader.one().unwrap();
        reader.size().unwrap()
    });
    assert_eq!(contexts[0], contexts[1]);
    assert_ne!(contexts[0], 0);
    for client in clients {
        get(&mut world, client, "job0", 1, "pmix.grp.lclid", false);
        let (_, objects) = world.status(client).unwrap();
        let values = format!("{:?}", values(Flex, &objects));
        assert!(values.contains("pmix.qual.val"), "{values}");
    }
}

#[test]
fn events_reach_those_who_asked() {
    let mut world = World::new(1, &[3]);
    let [a, b, c] =
        [(0, Flex), (1, Fixed), (2, Flex)].map(|(rank, encoding)| world.join(0, "job0", rank, encoding).unwrap());
    world.send(b, 101, command::REGISTER_EVENTS, |out| {
        out.count(1);
        out.status(-61);
        out.count(0);
    });
    assert_eq!(world.status(b), Some((0, vec![])));
    let notify = |world: &mut World, code| {
        world.send(a, 102, command::NOTIFY, |out| {
            out.status(code);
            out.one();
            out.byte(3);
            out.count(0);
        });
        assert_eq!(world.status(a), Some((0, vec![])));
    };
    notify(&mut world, -5);
    assert_eq!(world.receive(b), None);
    notify(&mut world, -61);
    let event = world.receive(b).unwrap();
    assert_eq!((event.tag, &event.payload[..5]), (0, &[0, 0, 0, 1, command::NOTIFY][..]));
    assert_eq!(world.receive(c), None);
    world.hang_up(c);
    assert!(world.receive(b).is_some(), "a rank was lost");
    world.send(b, 103, command::DEREGISTER_EVENTS, |out| out.status(-61));
    notify(&mut world, -61);
    assert_eq!(world.receive(b), None);
}

#[test]
fn clean_up_logs_and_the_rest() {
    let mut world = World::new(1, &[1]);
    let client = world.join(0, "job0", 0, Flex).unwrap();
    let control = |world: &mut World, key: &'static str, value: Value<'static>| {
        world.send(client, 101, command::JOB_CONTROL, |out| {
            out.count(0);
            out.count(1);
            out.group(1);
            out.info(&Info::new(key, value));
        });
        world.status(client).unwrap().0
    };
    assert_eq!(control(&mut world, "pmix.reg.cleanup", Value::Text(b"/tmp/a,relative,/tmp/b")), status::SUCCESS);
    assert_eq!(control(&mut world, "pmix.jctrl.kill", Value::Bool(true)), status::NOT_SUPPORTED);
    let clean_up = world.nodes[0].take_clean_up(seat(0, 0));
    assert_eq!(clean_up[0].files, ["/tmp/a", "/tmp/b"].map(std::path::PathBuf::from));
    world.send(client, 102, command::LOG, |out| {
        out.one();
        out.u64(0);
        out.count(1);
        out.group(1);
        out.info(&Info::new("pmix.log.stderr", Value::Text(b"help")));
        out.count(0);
    });
    assert_eq!(world.status(client), Some((0, vec![])));
    assert_eq!(world.said, ["help"]);
    for command in [command::QUERY, 19, 37, 255] {
        world.send(client, 103, command, |_| {});
        assert_eq!(world.status(client), Some((status::NOT_SUPPORTED, vec![])), "command {command}");
    }
    assert_eq!(world.nodes[0].progress(seat(0, 0)).unwrap().phase, Phase::Open);
}
