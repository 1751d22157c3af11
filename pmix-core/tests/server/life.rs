//! Admission of clients, facts for ranks, evaluation of ends, and further notifications of servers.

use pmi_core::Phase;
use pmi_core::ids::Rank;
use pmi_core::server::EndReason;
use pmix_core::wire::Encoding::{Fixed, Flex};
use pmix_core::wire::reader::Reader;
use pmix_core::wire::request::command;
use pmix_core::wire::value::{Info, Value};
use pmix_core::wire::{Encoding, status};

use super::world::{Client, World, procs, seat, whole};

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

/// A process that the rank has forked may hold the old connection open.
#[test]
fn a_rank_that_has_finalized_comes_back_while_its_former_connection_is_open() {
    let mut world = World::new(1, &[2]);
    let [first, other] = [0, 1].map(|rank| world.join(0, "job0", rank, Flex).unwrap());
    world.send(first, 101, command::FINALIZE, |_| {});
    assert_eq!(world.status(first), Some((status::SUCCESS, vec![])));
    let back = world.join(0, "job0", 0, Flex).expect("the rank has finalized");
    assert!(world.is_closed(first) && back.connection != first.connection);
    assert!(world.join(0, "job0", 0, Flex).is_none(), "a second claim");
    for client in [back, other] {
        world.send(client, 101, command::FENCE, procs(&whole("job0")));
    }
    assert!([back, other].iter().all(|&client| world.status(client) == Some((status::SUCCESS, vec![]))));
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
        assert_eq!(facts.iter().filter(|(key, _)| key == "pmix.pblob").count(), 1);
        let nodes: Vec<_> = facts.iter().filter(|(key, _)| key == "pmix.node.arr").map(|(_, value)| value).collect();
        assert_eq!(nodes.len(), 2);
        let Value::Infos(last) = nodes[1] else { panic!("{:?}", nodes[1]) };
        let of_node = |key: &str| last.iter().find(|info| info.key == key.as_bytes()).map(|info| &info.value);
        assert_eq!(of_node("pmix.nodeid"), Some(&Value::U32(2)), "a node has one number in all jobs");
        assert_eq!(of_node("pmix.lldr"), Some(&Value::Rank(2)));
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
    assert_eq!(control(&mut world, "pmix.jctrl.ckpt", Value::Bool(true)), status::NOT_SUPPORTED);
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
    for command in [19, 37, 255] {
        world.send(client, 103, command, |_| {});
        assert_eq!(world.status(client), Some((status::NOT_SUPPORTED, vec![])), "command {command}");
    }
    assert_eq!(world.nodes[0].progress(seat(0, 0)).unwrap().phase, Phase::Open);
}

#[test]
fn a_rank_is_told_when_its_text_finds_no_room_and_may_write_again_once_there_is() {
    let mut world = World::new(1, &[1]);
    let client = world.join(0, "job0", 0, Flex).unwrap();
    let log = |world: &mut World, lens: &[usize]| {
        let texts: Vec<Vec<u8>> = lens.iter().map(|&len| vec![b'x'; len]).collect();
        world.send(client, 101, command::LOG, |out| {
            out.one();
            out.u64(0);
            out.count(texts.len());
            out.group(texts.len());
            texts.iter().for_each(|text| out.info(&Info::new("pmix.log.stdout", Value::Text(text))));
            out.count(0);
        });
        world.status(client).unwrap().0
    };
    let long = 15 << 20;
    assert_eq!([log(&mut world, &[long]), log(&mut world, &[long])], [status::SUCCESS; 2]);
    assert_eq!(log(&mut world, &[1, 2 << 20]), status::OUT_OF_RESOURCE);
    assert_eq!(world.said.len(), 2, "all texts of a call are taken, or none");
    world.nodes[0].handle_heard(long);
    assert_eq!(log(&mut world, &[1, long]), status::SUCCESS);
    // Short texts also have a cost.
    let taken = (0..100_000).take_while(|_| log(&mut world, &[1]) == status::SUCCESS).count();
    assert!((1000..64_000).contains(&taken), "{taken} texts of one byte wait");
}
