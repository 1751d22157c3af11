//! Tools: processes that are not ranks, and inspect or control a launch without being part of it.

use pmi_core::deaths::DeathKind;
use pmi_core::ids::Rank;
use pmix_core::wire::Encoding::Flex;
use pmix_core::wire::reader::{Proc, Reader};
use pmix_core::wire::request::command;
use pmix_core::wire::types::RANK_WILDCARD;
use pmix_core::wire::value::{Info, Value};
use pmix_core::wire::writer::Writer;
use pmix_core::wire::{frame, status};

use super::controls::control;
use super::queries::value;
use super::world::{Client, World, procs, seat, whole};
use super::{commit, found, get, values};

/// Connects as a tool of this kind, with or without a name; returns the answer with its name and the server's name.
fn attach(world: &mut World, kind: u8, name: Option<(&str, u32)>) -> Option<(Client, Vec<u8>)> {
    let mut payload = b"native\0\0\0\0\x08\0\0\0\0\0\0\0\0".to_vec();
    payload.push(kind);
    payload.extend([0; 8]);
    if let Some((namespace, rank)) = name {
        payload.extend(format!("{namespace}\0").bytes());
        payload.extend(rank.to_be_bytes());
    }
    payload.extend(b"4.2.2rc2\0v41\0\x01hash\0");
    let mut bytes = vec![0xff; 8];
    bytes.extend((payload.len() as u32).to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend(payload);
    let client = Client { node: 0, connection: world.nodes[0].accept(), encoding: Flex };
    world.begin(client);
    world.send_raw(client, &bytes);
    let told = world.take_unread(client);
    assert!(told.is_empty() == world.is_closed(client), "who is not welcome is told nothing: libpmix 4 would go on");
    (!world.is_closed(client)).then_some((client, told))
}

pub(crate) fn tool(world: &mut World) -> Client {
    attach(world, 3, None).unwrap().0
}

fn name_at(told: &[u8], at: usize) -> (String, u32) {
    let text = told[at..at + 256].split(|&byte| byte == 0).next().unwrap();
    (String::from_utf8(text.to_vec()).unwrap(), u32::from_be_bytes(told[at + 256..at + 260].try_into().unwrap()))
}

#[test]
fn a_tool_is_given_a_name_unless_it_has_one() {
    let mut world = World::new(1, &[1]);
    let (_, told) = attach(&mut world, 3, None).unwrap();
    let (name, rank) = name_at(&told, 4);
    assert!(name.starts_with("lattice-tool-") && rank == 0, "{name}");
    assert_eq!(name_at(&told, 264), ("lattice".to_owned(), 0));
    assert_eq!((told.len(), &told[..4], &told[524..]), (528, &[0; 4][..], &[0; 4][..]));
    for kind in [4, 5, 7, 8] {
        let (_, told) = attach(&mut world, kind, Some(("debugger", 3))).unwrap();
        assert_eq!((name_at(&told, 4), told.len()), (("lattice".to_owned(), 0), 268), "kind {kind}");
    }
    let (_, other) = attach(&mut world, 6, None).unwrap();
    assert_ne!(name_at(&other, 4).0, name);
    assert!(attach(&mut world, 9, Some(("singleton", 0))).is_none(), "it does without a server");
    assert!(attach(&mut world, 4, Some((&"x".repeat(256), 0))).is_none());
}

#[test]
fn a_tool_that_a_rank_started_is_told_of_the_ranks_job_and_the_rank_stays_silent() {
    let mut world = World::new(1, &[2]);
    let told_of_size = |world: &mut World, client| {
        world.send(client, 101, command::REQ, |_| {});
        let payload = world.receive(client).unwrap().payload;
        let mut reader = Reader::new(Flex, &payload);
        reader.one().unwrap();
        let name = reader.required_text("a name").unwrap().to_vec();
        (name, payload.windows(13).any(|window| window == b"pmix.job.size"))
    };
    let (child, _) = attach(&mut world, 5, Some(("job0", 1))).unwrap();
    assert_eq!(told_of_size(&mut world, child), (b"job0".to_vec(), true));
    let alone = tool(&mut world);
    let (name, has_size) = told_of_size(&mut world, alone);
    assert!(name.starts_with(b"lattice-tool-") && !has_size);
    assert!(world.nodes[0].has_tool(seat(0, 1)) && !world.nodes[0].has_tool(seat(0, 0)));
    assert!(world.join(0, "job0", 1, Flex).is_some(), "its place was not taken");
}

#[test]
fn a_tool_asks_what_ranks_ask_about_the_launched_job() {
    let mut world = World::new(2, &[2]);
    let rank = world.join(0, "job0", 1, Flex).unwrap();
    commit(&mut world, rank, "key", b"near", b"far");
    let tool = tool(&mut world);
    let names = value(&mut world, tool, "pmix.qry.ns", &[], |out| match out.value().unwrap() {
        Value::Text(text) => text.to_vec(),
        other => panic!("{other:?}"),
    });
    assert_eq!(names.unwrap(), b"job0,job1", "tools are no jobs of the launch");
    let size = value(&mut world, tool, "pmix.job.size", &[], |out| out.value().unwrap().number());
    assert_eq!(size, Ok(Some(2)));
    let me = [Info::new("pmix.pset.nm", Value::Text(b"mpi://SELF"))];
    assert_eq!(value(&mut world, tool, "pmix.qry.pmems", &me, |_| ()), Err(status::NOT_FOUND));
    get(&mut world, tool, "job0", 1, "key", true);
    let (code, rest) = world.status(tool).unwrap();
    assert_eq!((code, values(Flex, &rest).pop()), (status::SUCCESS, found("key", b"near").pop()));
    get(&mut world, tool, "job1", RANK_WILDCARD, "pmix.job.size", false);
    assert_eq!(world.status(tool).unwrap().0, status::SUCCESS);
}

#[test]
fn a_tool_signals_ranks_and_hears_of_their_ends() {
    let mut world = World::new(1, &[2]);
    let ranks = [0, 1].map(|rank| world.join(0, "job0", rank, Flex).unwrap());
    let tool = tool(&mut world);
    let pause = [Info::new("pmix.jctrl.pause", Value::Bool(true))];
    assert_eq!(control(&mut world, tool, &[], &pause), status::SUCCESS);
    assert_eq!(control(&mut world, tool, &[Proc { namespace: b"job0", rank: 1 }], &pause), status::SUCCESS);
    assert_eq!(world.signals, [(0, vec![Rank(0), Rank(1)], 19), (0, vec![Rank(1)], 19)]);
    let files = [Info::new("pmix.reg.cleanup", Value::Text(b"/a"))];
    assert_eq!(control(&mut world, tool, &[], &files), status::NOT_SUPPORTED);
    world.send(tool, 101, command::REGISTER_EVENTS, |out| {
        out.count(1);
        out.group(1);
        out.i32(status::PROC_ABORTED_BY_SIG);
        out.count(0);
    });
    assert_eq!(world.status(tool).unwrap().0, status::SUCCESS);
    world.kill(0, 1, DeathKind::Killed);
    assert_eq!(world.receive(tool).unwrap().tag, frame::TAG_NOTIFY);
    world.hang_up(ranks[0]);
    assert_eq!(world.receive(tool), None, "it asked for the other event");
}

#[test]
fn a_tool_is_no_part_of_the_launch() {
    let mut world = World::new(1, &[1]);
    let tool = tool(&mut world);
    let refused = |world: &mut World, command, write: &dyn Fn(&mut Writer)| {
        world.send(tool, 101, command, write);
        assert_eq!(world.status(tool).unwrap().0, status::NOT_SUPPORTED, "command {command}");
    };
    refused(&mut world, command::FENCE, &|out| procs(&whole("job0"))(out));
    refused(&mut world, command::CONNECT, &|out| procs(&whole("job0"))(out));
    refused(&mut world, command::ABORT, &|out| {
        out.status(7);
        out.one();
        out.text(Some(b"no"));
    });
    refused(&mut world, command::COMMIT, &|_| {});
    refused(&mut world, 77, &|_| {});
    world.send(tool, 101, command::FINALIZE, |_| {});
    assert_eq!(world.status(tool).unwrap().0, status::SUCCESS);
    world.hang_up(tool);
    // Malformed messages end a tool's connection, and a rank's launch.
    let mad = self::tool(&mut world);
    world.send_raw(mad, &frame::message(101, &[2, 3, 2, 0xff, 0xff, 0xff, 0xff, 0x7f]));
    assert!(world.is_closed(mad));
    let long = self::tool(&mut world);
    world.send_raw(long, &[&[0; 7][..], &[101, 0, 2, 0, 0, 0, 0, 0, 0]].concat());
    assert!(world.is_closed(long), "128 KiB");
    assert!(world.end.is_none() && world.calls.is_empty());
    assert!(world.nodes[0].pending_fences(pmix_core::JobIndex(0)).is_empty());
}

#[test]
fn tools_are_few_and_leave_no_trace() {
    let mut world = World::new(1, &[1]);
    let mut tools: Vec<Client> = (0..32).map(|_| tool(&mut world)).collect();
    assert!(attach(&mut world, 3, None).is_none());
    assert!(world.join(0, "job0", 0, Flex).is_some(), "ranks have room of their own");
    for _ in 0..1000 {
        world.hang_up(tools.remove(0));
        tools.push(tool(&mut world));
    }
    assert!(attach(&mut world, 3, None).is_none());
    // Unanswered questions of a tool count for the next tool in its slot, as long as they wait.
    let last = tools.pop().unwrap();
    for _ in 0..64 {
        get(&mut world, last, "job0", 0, "key", false);
    }
    assert_eq!(world.status(last), None);
    world.hang_up(last);
    let next = tool(&mut world);
    get(&mut world, next, "job0", 0, "key", false);
    assert_eq!(world.status(next).unwrap().0, status::OUT_OF_RESOURCE);
    world.let_time_pass();
    assert_eq!(world.status(next), None, "nothing of the tool before it");
    get(&mut world, next, "job0", 0, "key", true);
    assert_eq!(world.status(next).unwrap().0, status::NOT_FOUND);
}
