//! Queries and signals: data of a server, of its host, and of other nodes.

use bytes::Bytes;
use pmi_core::ids::{JobId, NodeIndex, Rank};
use pmi_core::job::Job;
use pmi_core::services::{JobProcesses, ProcessState, RankProcess};
use pmix_core::wire::Encoding::{self, Fixed, Flex};
use pmix_core::wire::reader::{Proc, Reader};
use pmix_core::wire::request::command;
use pmix_core::wire::types::RANK_WILDCARD;
use pmix_core::wire::value::{Info, Value};
use pmix_core::wire::{status, types};
use pmix_core::{Namespace, NodeFacts, ProcessSet};

use super::world::{Client, World, procs};

/// Requests keys in one query; returns the status, and each found key with its value.
fn query(world: &mut World, client: Client, keys: &[&str], qualifiers: &[Info<'_>]) -> (i32, Vec<(String, Vec<u8>)>) {
    world.send(client, 101, command::QUERY, |out| {
        out.count(1);
        out.group(1);
        out.i32(keys.len() as i32);
        keys.iter().for_each(|key| out.text(Some(key.as_bytes())));
        out.size(qualifiers.len() as u64);
        qualifiers.iter().for_each(|info| out.info(info));
    });
    let (status, rest) = world.status(client).expect("an answer");
    let mut reader = Reader::new(client.encoding, &rest);
    let mut found = Vec::new();
    if !reader.is_empty() {
        let count = reader.count().unwrap();
        reader.group_of(count).unwrap();
        for _ in 0..count {
            let key = String::from_utf8(reader.required_text("a key").unwrap().to_vec()).unwrap();
            reader.u32().unwrap();
            found.push((key, reader.skip(types::VALUE).unwrap().to_vec()));
        }
        assert!(reader.is_empty());
    }
    (status, found)
}

/// The only value of a key, as `read` decodes it.
pub(crate) fn value<T>(
    world: &mut World,
    client: Client,
    key: &str,
    qualifiers: &[Info<'_>],
    read: impl FnOnce(&mut Reader<'_>) -> T,
) -> Result<T, i32> {
    let (status, found) = query(world, client, &[key], qualifiers);
    match &found[..] {
        [(found, bytes)] if status == status::SUCCESS => {
            assert_eq!(found, key);
            Ok(read(&mut Reader::new(client.encoding, bytes)))
        }
        [] => Err(status),
        more => panic!("{status}, {more:?}"),
    }
}

fn words(reader: &mut Reader<'_>) -> String {
    format!("{:?}", reader.value().unwrap()).replace("[115, 101, 97]", "sea")
}

fn text(reader: &mut Reader<'_>) -> String {
    match reader.value().unwrap() {
        Value::Text(text) => String::from_utf8(text.to_vec()).unwrap(),
        other => panic!("{other:?}"),
    }
}

fn process(rank: u32) -> RankProcess {
    RankProcess {
        rank: Rank(rank),
        pid: 100 + rank,
        program: Bytes::from_static(b"/bin/a"),
        state: ProcessState::Running,
        memory: 2_000_000,
    }
}

/// Two nodes with two ranks each, and the processes on their hosts.
fn two_nodes(encoding: Encoding) -> (World, Client) {
    let mut world = World::new(1, &[2, 2]);
    for (node, ranks) in [(0, [0, 1]), (1, [2, 3])] {
        let ranks = ranks.map(process).to_vec();
        world.processes.insert(
            node,
            JobProcesses { node_memory: 1 << 30, server_memory: 1_500_000, seconds_left: Some(90), ranks },
        );
    }
    let client = world.join(0, "job0", 0, encoding).unwrap();
    (world, client)
}

fn sea() -> (World, Client) {
    let mut world = World::new(1, &[1]);
    let name = "sea".to_owned();
    let node = world.add_job(Namespace {
        name: name.clone(),
        job: Job::on_one_node(JobId::new("sea").unwrap(), 4),
        node: NodeIndex(0),
        hosts: vec!["alpha".to_owned()],
        allocation: None,
        directory: None,
        parent: None,
        here: NodeFacts::default(),
        command: Bytes::from_static(b"./sail -n 4"),
        sets: vec![
            ProcessSet { name: "app://ocean".to_owned(), ranks: vec![0..1, 3..4] },
            ProcessSet { name: "app://ice".to_owned(), ranks: vec![1..2, 2..3] },
        ],
    });
    let client = world.join(node, &name, 2, Flex).unwrap();
    (world, client)
}

#[test]
fn sets_are_counted_named_and_taken_apart() {
    let (mut world, client) = sea();
    assert_eq!(value(&mut world, client, "pmix.qry.psetnum", &[], words), Ok("Size(2)".to_owned()));
    assert_eq!(value(&mut world, client, "pmix.qry.psets", &[], text), Ok("app://ice,app://ocean".to_owned()));
    let mut members = |name: &'static str| {
        let named = [Info::new("pmix.pset.nm", Value::Text(name.as_bytes()))];
        value(&mut world, client, "pmix.qry.pmems", &named, |reader| match reader.value().unwrap() {
            Value::Procs(procs) => procs.iter().map(|proc| proc.rank).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        })
    };
    assert_eq!(members("app://ocean"), Ok(vec![0, 3]));
    assert_eq!(members("app://ice"), Ok(vec![1, 2]));
    assert_eq!(members("mpi://WORLD"), Ok(vec![0, 1, 2, 3]));
    assert_eq!(members("mpi://SELF"), Ok(vec![2]));
    assert_eq!(members("app://none"), Err(status::NOT_FOUND));
    assert_eq!(query(&mut world, client, &["pmix.qry.pmems"], &[]).0, status::NOT_FOUND, "which set?");
}

#[test]
fn facts_of_the_server_need_nobody_else() {
    let (mut world, client) = sea();
    let keys = value(&mut world, client, "pmix.qry.keys", &[], text).unwrap();
    assert!(keys.split(',').any(|key| key == "pmix.qry.ptable"), "{keys}");
    assert_eq!(value(&mut world, client, "pmix.qry.ns", &[], text), Ok("sea".to_owned()));
    assert_eq!(value(&mut world, client, "pmix.qry.stabiver", &[], text), Ok("5.0".to_owned()));
    assert_eq!(value(&mut world, client, "pmix.job.size", &[], words), Ok("U32(4)".to_owned()));
    let elsewhere = [Info::new("pmix.nspace", Value::Text(b"elsewhere"))];
    assert_eq!(query(&mut world, client, &["pmix.job.size"], &elsewhere).0, status::NOT_FOUND);
    assert_eq!(world.questions, 0);
}

#[test]
fn a_jobs_name_command_line_and_size_are_one_answer() {
    let (mut world, client) = sea();
    let told = |reader: &mut Reader<'_>| match reader.value().unwrap() {
        Value::Infos(jobs) => jobs.iter().map(|job| job.value.clone()).map(facts).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    fn facts(job: Value<'_>) -> (Vec<u8>, Vec<u8>, u64) {
        let Value::Infos(facts) = job else { panic!("{job:?}") };
        let [name, command, size] = &facts[..] else { panic!("{facts:?}") };
        let (Value::Text(name), Value::Text(command)) = (&name.value, &command.value) else { panic!("{facts:?}") };
        (name.to_vec(), command.to_vec(), size.value.number().unwrap())
    }
    let sea = vec![(b"sea".to_vec(), b"./sail -n 4".to_vec(), 4)];
    assert_eq!(value(&mut world, client, "pmix.qry.nsinfo", &[], told), Ok(sea.clone()));
    let named = [Info::new("pmix.nspace", Value::Text(b"sea"))];
    assert_eq!(value(&mut world, client, "pmix.qry.nsinfo", &named, told), Ok(sea));
    let elsewhere = [Info::new("pmix.nspace", Value::Text(b"elsewhere"))];
    assert_eq!(value(&mut world, client, "pmix.qry.nsinfo", &elsewhere, told), Err(status::NOT_FOUND));
    let (mut world, client) = two_nodes(Fixed);
    assert_eq!(value(&mut world, client, "pmix.qry.nsinfo", &[], told), Ok(vec![(b"job0".to_vec(), vec![], 4)]));
}

fn group(world: &mut World, client: Client, command: u8, name: &str, members: &[Proc<'_>]) {
    world.send(client, 102, command, |out| {
        out.one();
        out.text(Some(name.as_bytes()));
        if command == command::GROUP_CONSTRUCT {
            procs(members)(out);
        } else {
            out.count(0);
        }
    });
}

/// Holds until a member has left the group.
#[test]
fn groups_are_counted_named_and_taken_apart() {
    let mut world = World::new(1, &[3]);
    let ranks = [0, 1, 2].map(|rank| world.join(0, "job0", rank, Flex).unwrap());
    let members = [0, 2].map(|rank| Proc { namespace: b"job0", rank });
    let asked = |world: &mut World| {
        let count = value(world, ranks[1], "pmix.qry.pgrpnum", &[], |reader| reader.value().unwrap().number());
        let names = value(world, ranks[1], "pmix.qry.pgrp", &[], |reader| {
            assert_eq!((reader.u16().unwrap(), reader.u16().unwrap()), (types::DATA_ARRAY, types::STRING));
            let count = reader.size().unwrap();
            (0..count).map(|_| reader.required_text("a name").unwrap().to_vec()).collect::<Vec<_>>()
        });
        let tide = [Info::new("pmix.grp.id", Value::Text(b"tide"))];
        let ranks = value(world, ranks[1], "pmix.qry.pgrpmems", &tide, |reader| match reader.value().unwrap() {
            Value::Procs(procs) => procs.iter().map(|proc| proc.rank).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        });
        (count.unwrap().unwrap(), names.unwrap(), ranks)
    };
    let none = (0, vec![], Err(status::NOT_FOUND));
    group(&mut world, ranks[0], command::GROUP_CONSTRUCT, "tide", &members);
    assert_eq!(asked(&mut world), none, "it is not made yet");
    group(&mut world, ranks[2], command::GROUP_CONSTRUCT, "tide", &members);
    for member in [0, 2] {
        assert_eq!(world.status(ranks[member]).unwrap().0, status::SUCCESS);
    }
    assert_eq!(asked(&mut world), (1, vec![b"tide".to_vec()], Ok(vec![0, 2])));
    group(&mut world, ranks[1], command::GROUP_DESTRUCT, "tide", &[]);
    world.status(ranks[1]);
    assert_eq!(asked(&mut world).0, 1, "who is no member ends nothing");
    group(&mut world, ranks[2], command::GROUP_DESTRUCT, "tide", &[]);
    assert_eq!(asked(&mut world), none);
    // Far more than the limit, and one with a much too long name.
    let alone = [Proc { namespace: b"job0", rank: 0 }];
    group(&mut world, ranks[0], command::GROUP_CONSTRUCT, &"x".repeat(512), &alone);
    for number in 0..2000 {
        group(&mut world, ranks[0], command::GROUP_CONSTRUCT, &format!("group {number}"), &alone);
    }
    assert_eq!(asked(&mut world).0, 1024);
    assert!(world.end.is_none());
}

#[test]
fn the_status_says_how_much_of_it_is_there() {
    let (mut world, client) = sea();
    let mut status = |keys: &[&str]| {
        let (status, found) = query(&mut world, client, keys, &[]);
        (status, found.len())
    };
    assert_eq!(status(&["pmix.job.size", "pmix.qry.ns"]), (status::SUCCESS, 2));
    assert_eq!(status(&["pmix.job.size", "nothing"]), (status::PARTIAL_SUCCESS, 1));
    assert_eq!(status(&["nothing"]), (status::NOT_SUPPORTED, 0));
    assert_eq!(status(&["pmix.qry.ptable"]), (status::NOT_FOUND, 0), "the host shows no process");
    assert_eq!(status(&["pmix.job.size"; 257]), (status::BAD_PARAM, 0));
}

#[test]
fn processes_of_all_nodes_are_one_table_in_either_encoding() {
    for encoding in [Fixed, Flex] {
        let (mut world, client) = two_nodes(encoding);
        let mut table = |key| {
            value(&mut world, client, key, &[], |reader| {
                assert_eq!((reader.u16().unwrap(), reader.u16().unwrap()), (types::DATA_ARRAY, types::PROC_INFO));
                let rows = reader.size().unwrap();
                let row = |_| {
                    let proc = reader.proc().unwrap();
                    let host = String::from_utf8(reader.required_text("a host").unwrap().to_vec()).unwrap();
                    assert_eq!((proc.namespace, reader.text().unwrap()), (&b"job0"[..], Some(&b"/bin/a"[..])));
                    (proc.rank, host, reader.pid().unwrap(), reader.byte().unwrap())
                };
                (0..rows).map(row).collect::<Vec<_>>()
            })
        };
        let row = |rank: u32, state| (rank, format!("n{}", rank / 2), 100 + rank, state);
        let all = vec![row(0, 6), row(1, 5), row(2, 5), row(3, 5)];
        assert_eq!(table("pmix.qry.lptable"), Ok(all[..2].to_vec()));
        assert_eq!(table("pmix.qry.ptable"), Ok(all.clone()));
        world.lost = Some(1);
        let mut table = |key| query(&mut world, client, &[key], &[]).1.len();
        assert_eq!(table("pmix.qry.ptable"), 1, "a lost node holds nobody up");
    }
}

#[test]
fn memory_is_told_of_each_node() {
    let (mut world, client) = two_nodes(Flex);
    let megabytes = |reader: &mut Reader<'_>| {
        let value = reader.value().unwrap();
        format!("{value:?}")
            .matches("pmix.hname".as_bytes().iter().map(u8::to_string).collect::<Vec<_>>().join(", ").as_str())
            .count()
    };
    assert_eq!(value(&mut world, client, "pmix.qry.mem", &[], megabytes), Ok(2));
    let here = [Info::new("pmix.qry.local", Value::Bool(true))];
    assert_eq!(value(&mut world, client, "pmix.qry.mem", &here, megabytes), Ok(1));
    let bytes = |reader: &mut Reader<'_>| (reader.u16().unwrap(), reader.u64().unwrap());
    assert_eq!(value(&mut world, client, "pmix.pmem", &[], bytes), Ok((types::UINT64, 1 << 30)));
}

#[test]
fn the_time_that_a_launch_has_left_is_told_if_there_is_a_limit() {
    let seconds = |reader: &mut Reader<'_>| reader.value().unwrap().number();
    let (mut world, client) = two_nodes(Flex);
    assert_eq!(value(&mut world, client, "pmix.time.remaining", &[], seconds), Ok(Some(90)));
    let (mut world, client) = sea();
    world.processes.insert(0, JobProcesses::default());
    assert_eq!(value(&mut world, client, "pmix.time.remaining", &[], seconds), Err(status::NOT_FOUND));
}

/// Answer to a request for an allocation: its status, and the infos of a granted request.
fn allocate(world: &mut World, client: Client, directive: u8, infos: &[Info<'_>]) -> (i32, Vec<(String, String)>) {
    world.send(client, 102, command::ALLOC, |out| {
        out.one();
        out.byte(directive);
        out.count(infos.len());
        out.group(infos.len());
        infos.iter().for_each(|info| out.info(info));
    });
    let (code, payload) = world.status(client).expect("an answer");
    let mut granted = Vec::new();
    if code == status::SUCCESS {
        for info in Reader::new(Flex, &payload).counted_infos().unwrap() {
            let value = match info.value {
                Value::Text(text) => String::from_utf8_lossy(text).into_owned(),
                value => value.number().unwrap().to_string(),
            };
            granted.push((String::from_utf8_lossy(info.key).into_owned(), value));
        }
    }
    (code, granted)
}

#[test]
fn what_the_allocation_has_is_granted() {
    let (mut world, client) = two_nodes(Flex);
    let own = |text: &str| text.to_owned();
    let node = |count| Info::new("pmix.alloc.nnodes", Value::U64(count));
    let (code, granted) =
        allocate(&mut world, client, 1, &[node(1), Info::new("pmix.alloc.reqid", Value::Text(b"mine"))]);
    let expected = [
        ("pmix.alloc.id", "local"),
        ("pmix.alloc.nnodes", "1"),
        ("pmix.alloc.nlist", "n0"),
        ("pmix.alloc.reqid", "mine"),
    ];
    assert_eq!((code, granted), (status::SUCCESS, expected.map(|(key, value)| (own(key), own(value))).to_vec()));
    let (code, granted) = allocate(&mut world, client, 2, &[]);
    assert_eq!((code, granted[2].1.as_str()), (status::SUCCESS, "n0,n1"));
    let list = |nodes: &'static [u8]| Info::new("pmix.alloc.nlist", Value::Text(nodes));
    assert_eq!(allocate(&mut world, client, 1, &[list(b"n1")]).1[2].1, "n1");
    let twice = allocate(&mut world, client, 1, &[list(b"n1,n1")]).1;
    assert_eq!((&*twice[1].1, &*twice[2].1), ("1", "n1"), "a node is granted once");
    assert_eq!(allocate(&mut world, client, 1, &[list(b"n1,n0,n1")]).0, status::OUT_OF_RESOURCE);
    for (directive, infos, expected) in [
        (1, vec![node(3)], status::OUT_OF_RESOURCE),
        (2, vec![list(b"n1"), node(2)], status::OUT_OF_RESOURCE),
        (1, vec![list(b"node7")], status::OUT_OF_RESOURCE),
        (1, vec![Info::new("pmix.alloc.nnodes", Value::Text(b"one"))], status::BAD_PARAM),
        (
            1,
            vec![Info { flags: types::INFO_REQUIRED, ..Info::new("pmix.alloc.msize", Value::U64(1)) }],
            status::NOT_SUPPORTED,
        ),
        (3, vec![], status::NOT_SUPPORTED),
        (9, vec![], status::NOT_SUPPORTED),
    ] {
        assert_eq!(allocate(&mut world, client, directive, &infos).0, expected, "{directive} {infos:?}");
    }
}

fn control(world: &mut World, client: Client, targets: &[Proc<'_>], key: &str, value: Value<'_>) -> Option<i32> {
    world.send(client, 101, command::JOB_CONTROL, |out| {
        out.count(targets.len());
        out.group(targets.len());
        targets.iter().for_each(|&target| out.proc(target));
        out.count(1);
        out.group(1);
        out.info(&Info { key: key.as_bytes(), flags: 0, value });
    });
    Some(world.status(client)?.0)
}

#[test]
fn signals_reach_ranks_on_the_nodes_where_they_are() {
    let (mut world, client) = two_nodes(Flex);
    let rank = |rank| Proc { namespace: b"job0", rank };
    let sent = |world: &mut World| {
        let mut signals = std::mem::take(&mut world.signals);
        signals.sort_by_key(|(node, ..)| *node);
        let numbers = |ranks: &[Rank]| ranks.iter().map(|rank| rank.0).collect::<Vec<_>>();
        signals.iter().map(|(node, ranks, signal)| (*node, numbers(ranks), *signal)).collect::<Vec<_>>()
    };
    let on = Value::Bool(true);
    assert_eq!(control(&mut world, client, &[rank(3)], "pmix.jctrl.pause", on.clone()), Some(status::SUCCESS));
    assert_eq!(sent(&mut world), [(1, vec![3], 19)]);
    assert_eq!(control(&mut world, client, &[], "pmix.jctrl.resume", on.clone()), Some(status::SUCCESS));
    assert_eq!(sent(&mut world), [(0, vec![0, 1], 18), (1, vec![2, 3], 18)]);
    let all_and_one = [rank(RANK_WILDCARD), rank(1)];
    assert_eq!(control(&mut world, client, &all_and_one, "pmix.jctrl.sig", Value::Int(10)), Some(status::SUCCESS));
    assert_eq!(sent(&mut world), [(0, vec![0, 1], 10), (1, vec![2, 3], 10)]);
    assert_eq!(control(&mut world, client, &[rank(2)], "pmix.jctrl.sig", Value::Int(99)), Some(status::BAD_PARAM));
    sent(&mut world);
    for targets in [[rank(0), rank(4)], [rank(0), Proc { namespace: b"elsewhere", rank: 0 }]] {
        let answer = control(&mut world, client, &targets, "pmix.jctrl.kill", on.clone());
        assert_eq!((answer, sent(&mut world)), (Some(status::BAD_PARAM), vec![]));
    }
    world.lost = Some(1);
    assert_eq!(control(&mut world, client, &[rank(3)], "pmix.jctrl.term", on), Some(status::COMM_FAILURE));
}
