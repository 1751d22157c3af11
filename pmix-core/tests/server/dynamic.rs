//! Names, jobs that connect, launches that meet, and groups.

use pmi_core::ids::LocalRank;
use pmi_core::services::MeetError;
use pmix_core::wire::Encoding::{Fixed, Flex};
use pmix_core::wire::reader::{Proc, Reader};
use pmix_core::wire::request::command;
use pmix_core::wire::value::{Info, Value};
use pmix_core::wire::{status, types};
use pmix_core::{JobIndex, Seat};

use super::world::{Client, World, procs, whole};
use super::{commit, get, values};

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
fn a_job_that_is_removed_is_known_no_more_and_who_waits_for_it_is_answered() {
    let mut world = World::new(2, &[1]);
    let [a, b] = ["job0", "job1"].map(|name| world.join(0, name, 0, Flex).unwrap());
    commit(&mut world, b, "card", b"b", b"");
    let both = [whole("job0")[0], whole("job1")[0]];
    world.send(a, 101, command::CONNECT, procs(&both));
    get(&mut world, a, "job1", 0, "other", false);
    assert_eq!(world.status(a), None);
    world.nodes[0].remove(JobIndex(1));
    world.run();
    assert!(world.is_closed(b));
    let answers = [world.status(a).unwrap().0, world.status(a).unwrap().0];
    assert_eq!(answers, [status::NOT_FOUND, status::LOST_CONNECTION]);
    world.send(a, 102, command::CONNECT, procs(&both));
    assert_eq!(world.status(a).unwrap().0, status::NOT_FOUND);
    get(&mut world, a, "job1", 0, "card", false);
    world.let_time_pass();
    assert_ne!(world.status(a).unwrap().0, status::SUCCESS);
    assert!(world.join(0, "job1", 0, Flex).is_none());
    assert_eq!(world.nodes[0].progress(Seat { job: JobIndex(1), local: LocalRank(0) }), None);
    // Late events of the removed job affect no other job.
    world.nodes[0].handle_exit(Seat { job: JobIndex(1), local: LocalRank(0) });
    world.nodes[0].remove(JobIndex(1));
    world.run();
    assert!(world.end.is_none());
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

/// The facts about a job of a thousand ranks take 100 kB: libpmix stores them until it disconnects.
#[test]
fn the_facts_about_another_job_come_with_the_first_get_of_its_ranks() {
    let mut world = World::new(2, &[3]);
    let [a, b] = [("job0", 0), ("job1", 0)].map(|(name, rank)| world.join(0, name, rank, Flex).unwrap());
    let peers = [1, 2].map(|rank| world.join(0, "job1", rank, Flex).unwrap());
    let has_facts = |world: &mut World, rank: u32| {
        get(world, a, "job1", rank, "card", false);
        if world.nodes[0]
            .progress(super::world::seat(1, rank))
            .is_some_and(|state| state.last_command.as_deref() != Some("COMMIT"))
        {
            commit(world, [b, peers[0], peers[1]][rank as usize], "card", b"near", b"far");
        }
        let (_, objects) = world.status(a).unwrap();
        values(Flex, &objects).iter().any(|(key, _)| key == "pmix.job.size")
    };
    assert_eq!([0, 0, 1, 2].map(|rank| has_facts(&mut world, rank)), [true, false, false, false]);
    let all = [whole("job0")[0], Proc { namespace: b"job1", rank: 0 }];
    world.send(a, 101, command::DISCONNECT, procs(&all));
    let others = [1, 2].map(|rank| world.join(0, "job0", rank, Flex).unwrap());
    for client in [others[0], others[1], b] {
        world.send(client, 101, command::DISCONNECT, procs(&all));
    }
    assert_eq!(world.status(a), Some((status::SUCCESS, vec![])));
    assert_eq!([1, 2].map(|rank| has_facts(&mut world, rank)), [true, false], "it has disconnected from the job");
}

/// One rank on each of two nodes, and one of another launch on a third node.
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
    // No node can provide data of the other launch that the meeting did not carry.
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
    // Another launch may delay these ranks, so the fence does not count as a stuck fence of the job.
    world.send(clients[0], 101, command::FENCE, procs(&BOTH_LAUNCHES));
    let standings = world.nodes[0].pending_fences(JobIndex(0));
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
