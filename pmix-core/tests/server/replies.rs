//! Replies byte for byte, in each encoding of a client's handshake.
//!
//! The layouts are as in libpmix 3.2.5, 4.2.2 and 5.0, written as hexadecimal digits, with `{text}` for a text and its NUL.

use pmi_core::ids::JobId;
use pmi_core::services::SpawnError;
use pmix_core::wire::Encoding;
use pmix_core::wire::reader::Proc;
use pmix_core::wire::request::command;
use pmix_core::wire::value::{Info, Value};
use pmix_core::wire::writer::Writer;

use super::world::{Client, World, procs, whole};
use super::{commit, get};

/// The names of encodings, each with a version of the library that uses it.
const CLIENTS: [(&str, &str); 4] = [("2.1.4", "v21"), ("3.2.5a1", "v3"), ("4.0.0", "v4"), ("4.2.2rc2", "v41")];

fn bytes(written: &str) -> Vec<u8> {
    let word = |word: &str| match word.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
        Some(text) => [text.as_bytes(), &[0]].concat(),
        None => vec![u8::from_str_radix(word, 16).unwrap()],
    };
    written.split_whitespace().filter(|word| *word != "|").flat_map(word).collect()
}

/// Runs `act` for a client of each kind on a separate server, and compares the reply with the expected bytes of its encoding.
fn check(act: impl Fn(&mut World, Client), fixed: &str, flex: &str) {
    for (version, module) in CLIENTS {
        let mut world = World::new(2, &[2]);
        let client = world.join_as(0, ("job0", 0), version, module).unwrap();
        act(&mut world, client);
        let heard = world.receive(client).expect("no answer").payload;
        let expected = bytes(match client.encoding {
            Encoding::Fixed => fixed,
            Encoding::Flex => flex,
        });
        assert_eq!(heard.escape_ascii().to_string(), expected.escape_ascii().to_string(), "{module}");
        assert!(world.receive(client).is_none(), "{module}: more than one answer");
    }
}

fn check_status(act: impl Fn(&mut World, Client), fixed: &str, flex: &str) {
    check(act, &format!("00 00 00 01 | {fixed}"), &format!("02 | {flex}"));
}

#[test]
fn statuses_are_one_number() {
    check_status(|world, client| world.send(client, 101, command::FINALIZE, |_| {}), "00 00 00 00", "00");
    check_status(|world, client| world.send(client, 101, command::QUERY, |out| out.count(0)), "ff ff ff d1", "5d");
    check_status(|world, client| get(world, client, "job0", 7, "card", false), "ff ff ff d2", "5b");
    let foreign = [Proc { namespace: b"job1", rank: 0 }];
    check_status(|world, client| world.send(client, 101, command::FENCE, procs(&foreign)), "ff ff ff e5", "35");
}

#[test]
fn a_get_brings_an_object_with_the_rank_and_its_pairs() {
    let act = |world: &mut World, client| {
        commit(world, client, "card", b"\x01\x02", b"");
        get(world, client, "job0", 0, "card", false);
    };
    let fixed = "00 00 00 01 00 00 00 00 | 00 00 00 01 00 0f 00 00 00 00 00 00 00 2c \
        | 00 00 00 01 00 00 00 05 {job0} 00 00 00 00 \
        | 00 00 00 01 00 00 00 05 {card} 00 1b 00 0f 00 00 00 00 00 00 00 02 01 02";
    let flex = "02 00 | 02 13 | 02 0a {job0} 00 | 02 0a {card} 1b 02 01 02";
    check(act, fixed, flex);
}

#[test]
fn a_look_up_brings_the_publisher_with_each_value() {
    let act = |world: &mut World, client: Client| {
        world.send(client, 101, command::PUBLISH, |out| {
            out.one();
            out.u32(0);
            out.count(1);
            out.group(1);
            out.info(&Info::new("port", Value::Text(b"tcp")));
        });
        world.receive(client).unwrap();
        world.send(client, 102, command::LOOKUP, |out| {
            out.one();
            out.u32(0);
            out.count(1);
            out.one();
            out.text(Some(b"port"));
            out.count(0);
        });
    };
    let fixed = "00 00 00 01 00 00 00 00 | 00 00 00 01 00 0f 00 00 00 00 00 00 00 01 \
        | 00 00 00 01 00 00 00 05 {job0} 00 00 00 00 00 00 00 05 {port} 00 03 00 00 00 04 {tcp}";
    let flex = "02 00 | 02 01 | 02 0a {job0} 00 0a {port} 03 08 {tcp}";
    check(act, fixed, flex);
}

fn spawn(out: &mut Writer) {
    out.count(0);
    out.count(1);
    out.group(1);
    out.text(Some(b"./child"));
    out.int(0);
    out.i32(0);
    out.text(None);
    out.int(1);
    out.size(0);
}

#[test]
fn a_spawn_brings_the_namespace_of_the_new_job_or_a_status() {
    let end = |result: Result<JobId, SpawnError>| {
        move |world: &mut World, client: Client| {
            world.send(client, 101, command::SPAWN, spawn);
            assert_eq!(world.receive(client), None);
            world.end_spawns(&result);
        }
    };
    let begun = end(Ok(JobId::new("job1").unwrap()));
    check(begun, "00 00 00 01 00 00 00 00 | 00 00 00 01 00 00 00 05 {job1}", "02 00 | 02 0a {job1}");
    // A job that was never added to this server has no namespace here.
    check_status(end(Ok(JobId::new("unknown").unwrap())), "ff ff ff 4b", "e9 02");
    check_status(end(Err(SpawnError::Refused { reason: "no room".into() })), "ff ff ff 4b", "e9 02");
}

#[test]
fn an_event_names_its_source_and_comes_under_the_tag_of_events() {
    let act = |world: &mut World, client: Client| {
        world.send(client, 101, command::REGISTER_EVENTS, |out| {
            out.count(0);
            out.count(0);
        });
        world.receive(client).unwrap();
        let source = world.join(0, "job0", 1, Encoding::Flex).unwrap();
        world.send(source, 101, command::NOTIFY, |out| {
            out.status(-61);
            out.one();
            out.byte(3);
            out.count(1);
            out.group(1);
            out.info(&Info::new("on", Value::Bool(true)));
        });
    };
    let fixed = "00 00 00 01 0c | 00 00 00 01 ff ff ff c3 | 00 00 00 01 00 00 00 05 {job0} 00 00 00 01 \
        | 00 00 00 01 00 0f 00 00 00 00 00 00 00 01 | 00 00 00 01 00 00 00 03 {on} 00 00 00 00 00 01 01 | 00 00 00 01 03";
    let flex = "02 0c | 02 79 | 02 0a {job0} 01 | 02 01 | 02 06 {on} 00 01 01 | 02 03";
    check(act, fixed, flex);
}

#[test]
fn the_facts_about_a_job_begin_with_its_namespace_and_the_clients_own_encoding() {
    for (version, module) in CLIENTS {
        let mut world = World::new(1, &[1]);
        let client = world.join_as(0, ("job0", 0), version, module).unwrap();
        world.send(client, 101, command::REQ, |_| {});
        let heard = world.receive(client).unwrap().payload;
        let mut expected = Writer::new(client.encoding);
        expected.one();
        expected.text(Some(b"job0"));
        expected.kval("pmix.bfrops.mod", &Value::Text(module.as_bytes()));
        expected.kval("pmix.num.nodes", &Value::U32(1));
        assert!(heard.starts_with(&expected.into_bytes()), "{module}: {}", heard.escape_ascii());
    }
    let flex = "02 0a {job0} | 02 20 {pmix.bfrops.mod} 03 08 {v41} | 02 1e {pmix.num.nodes} 0e 01";
    let mut world = World::new(1, &[1]);
    let client = world.join_as(0, ("job0", 0), "4.2.2", "v41").unwrap();
    world.send(client, 101, command::REQ, |_| {});
    assert!(world.receive(client).unwrap().payload.starts_with(&bytes(flex)));
}

#[test]
fn the_server_answers_under_the_tag_that_it_was_asked_with() {
    let mut world = World::new(1, &[1]);
    let client = world.join(0, "job0", 0, Encoding::Fixed).unwrap();
    for tag in [100, 101, 77_777, u32::MAX - 1] {
        world.send(client, tag, command::FENCE, procs(&whole("job0")));
        assert_eq!(world.receive(client).map(|message| message.tag), Some(tag));
    }
}
