//! Clients that break the rules or request too much: the consequences for them, and none for other clients.

use std::collections::BTreeSet;

use pmi_core::ids::Rank;
use pmi_core::server::{EndReason, Offence};
use pmi_core::services::{SpawnApp, SpawnError};
use pmix_core::services::Call;
use pmix_core::wire::Encoding::{Fixed, Flex};
use pmix_core::wire::reader::Proc;
use pmix_core::wire::request::command;
use pmix_core::wire::types::RANK_WILDCARD;
use pmix_core::wire::value::{Info, Value};
use pmix_core::wire::writer::Writer;
use pmix_core::wire::{Encoding, status, types};

use super::world::{Client, World, procs, whole};
use super::{commit, get};

#[test]
fn a_stranger_that_speaks_something_else_is_closed_and_nobody_hears_of_it() {
    let no_handshake = {
        let mut frame = pmix_core::wire::frame::message(101, &[2, 5]).to_vec();
        frame.resize(64, 0);
        frame
    };
    let long_handshake = [&[0xff; 8][..], &5000_u32.to_ne_bytes(), &[0; 4]].concat();
    let frames: [(&str, &[u8]); 4] = [
        ("another protocol", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("zeros", &[0; 64]),
        ("a request before the handshake", &no_handshake),
        ("a handshake that is too long", &long_handshake),
    ];
    let mut world = World::new(1, &[2]);
    let rank = world.join(0, "job0", 0, Flex).unwrap();
    for (case, bytes) in frames {
        let stranger = Client { node: 0, connection: world.nodes[0].accept(), encoding: Flex };
        world.send_raw(stranger, bytes);
        assert!(world.is_closed(stranger), "{case}");
        assert_eq!(world.receive(stranger), None, "{case} is answered");
        // Bytes after it are ignored.
        world.send_raw(stranger, bytes);
        commit(&mut world, rank, "card", b"x", b"y");
    }
    assert!(world.end.is_none());
    assert!(world.join(0, "job0", 1, Fixed).is_some(), "the place of a stranger serves a rank");
}

#[test]
fn a_rank_that_breaks_the_protocol_ends_its_job_with_words() {
    let too_long = [&[0_u8; 4][..], &101_u32.to_be_bytes(), &u32::MAX.to_be_bytes(), &[0; 4]].concat();
    let message = |payload: &[u8]| pmix_core::wire::frame::message(101, payload).to_vec();
    let cases: [(&[u8], &str); 3] = [
        (&too_long, "a message of 4294967295 bytes is announced"),
        (&message(&[4, 3]), "a group of 2 items where 1 belong"),
        (&message(&[2, command::GET, 2, 0x7e]), "63 more bytes are announced, 0 are there"),
    ];
    for (bytes, words) in cases {
        let mut world = World::new(1, &[2]);
        let [offender, other] = [0, 1].map(|rank| world.join(0, "job0", rank, Flex).unwrap());
        world.send_raw(offender, bytes);
        let Some(EndReason::Offence { rank, offence: offence @ Offence::Foreign { .. } }) = &world.end else {
            panic!("{words}: {:?}", world.end)
        };
        assert_eq!(rank.0, 0);
        assert!(offence.to_string().contains(words), "{offence}");
        assert!(world.is_closed(offender) && !world.is_closed(other));
    }
}

/// A library forwards the arguments of its program unchecked.
#[test]
fn an_argument_that_makes_no_sense_is_refused_and_its_rank_lives_on() {
    type Written = fn(&mut Writer);
    let cases: [(&str, u8, Written, i32); 6] = [
        ("a fence of nobody", command::FENCE, |out| procs(&[])(out), status::BAD_PARAM),
        ("a connect of nobody", command::CONNECT, |out| procs(&[])(out), status::BAD_PARAM),
        (
            "a group of nobody",
            command::GROUP_CONSTRUCT,
            |out| {
                out.one();
                out.text(Some(b"group"));
                procs(&[])(out);
            },
            status::NOT_SUPPORTED,
        ),
        (
            "a get of no namespace",
            command::GET,
            |out| {
                out.one();
                out.text(None);
                out.one();
                out.u32(0);
                out.count(0);
            },
            status::BAD_PARAM,
        ),
        (
            "a look-up of no key",
            command::LOOKUP,
            |out| {
                out.one();
                out.u32(0);
                out.count(1);
                out.one();
                out.text(None);
                out.count(0);
            },
            status::BAD_PARAM,
        ),
        (
            "a spawn of fewer than no ranks",
            command::SPAWN,
            |out| {
                out.count(0);
                out.count(1);
                out.group(1);
                out.text(Some(b"true"));
                out.int(0);
                out.i32(0);
                out.text(None);
                out.int(-1);
                out.size(0);
            },
            status::BAD_PARAM,
        ),
    ];
    for encoding in Encoding::ALL {
        for (case, command, write, expected) in cases {
            let mut world = World::new(1, &[1]);
            let client = world.join(0, "job0", 0, encoding).unwrap();
            world.send(client, 101, command, write);
            assert_eq!(world.status(client), Some((expected, vec![])), "{case} {encoding:?}");
            commit(&mut world, client, "card", b"x", b"y");
            assert!(world.end.is_none(), "{case}");
        }
    }
}

#[test]
fn a_value_of_an_unknown_type_is_refused_and_its_rank_lives_on() {
    let mut world = World::new(1, &[1]);
    let client = world.join(0, "job0", 0, Flex).unwrap();
    world.send(client, 101, command::PUBLISH, |out| {
        out.one();
        out.u32(0);
        out.count(1);
        out.group(1);
        out.text(Some(b"key"));
        out.u32(0);
        out.u16(4000);
    });
    assert_eq!(world.status(client), Some((status::UNPACK_FAILURE, vec![])));
    commit(&mut world, client, "card", b"x", b"y");
    assert!(world.end.is_none());
}

#[test]
fn a_rank_may_have_as_many_open_questions_as_the_settings_say() {
    let limit = pmix_core::server::Settings::default().questions_per_rank;
    for encoding in Encoding::ALL {
        let mut world = World::new(1, &[3]);
        let [asker, other] = [0, 1].map(|rank| world.join(0, "job0", rank, encoding).unwrap());
        for question in 0..limit {
            get(&mut world, asker, "job0", 2, &format!("key{question}"), false);
            assert_eq!(world.status(asker), None);
        }
        get(&mut world, asker, "job0", 2, "one more", false);
        assert_eq!(world.status(asker), Some((status::OUT_OF_RESOURCE, vec![])));
        get(&mut world, other, "job0", 2, "its own", false);
        assert_eq!(world.status(other), None, "the questions of others do not count");
        assert_eq!(world.timers.len(), limit + 1);
        world.let_time_pass();
        for _ in 0..limit {
            assert_eq!(world.status(asker), Some((status::NOT_FOUND, vec![])));
        }
        get(&mut world, asker, "job0", 2, "again", false);
        assert_eq!(world.status(asker), None, "answered questions make room");
    }
}

#[test]
fn a_rank_may_commit_as_many_bytes_as_the_settings_say() {
    let limit = pmix_core::server::Settings::default().bytes_per_rank;
    let mut world = World::new(1, &[2]);
    let [greedy, other] = [0, 1].map(|rank| world.join(0, "job0", rank, Flex).unwrap());
    // Each commit counts both of its scopes.
    let half = vec![7; 4 * 1024 * 1024];
    let mut keys = (0..).map(|number| format!("key{number}"));
    let mut committed = 0;
    while committed + 2 * (half.len() + 128) < limit {
        commit(&mut world, greedy, &keys.next().unwrap(), &half, &half);
        committed += 2 * (half.len() + 128);
    }
    let refused = |world: &mut World, key: &str, value: &[u8]| {
        super::put(world, greedy, 101, key, value, value);
        assert_eq!(world.status(greedy), Some((status::OUT_OF_RESOURCE, vec![])), "{key}");
    };
    refused(&mut world, "another", &half);
    // A repeated commit costs nothing, and a new value of a key costs the difference.
    for _ in 0..3 {
        commit(&mut world, greedy, "key0", &half, &half);
        commit(&mut world, greedy, "key1", &[8; 4 * 1024 * 1024], &half);
    }
    refused(&mut world, "key0", &[7; 8 * 1024 * 1024 - 100]);
    commit(&mut world, greedy, "key0", b"x", b"y");
    commit(&mut world, greedy, "another", &half[64..], &half[64..]);
    refused(&mut world, "key0", &half);
    commit(&mut world, other, "card", b"x", b"y");
    assert!(world.end.is_none());
}

#[test]
fn a_second_client_of_a_rank_is_refused_and_reported_once() {
    let mut world = World::new(1, &[2]);
    assert!(world.join(0, "job0", 1, Flex).is_some());
    for _ in 0..2 {
        assert!(world.join(0, "job0", 1, Fixed).is_none());
    }
    assert_eq!(world.second, [Rank(1)]);
}

/// Clients send a value of global scope twice, once for each of the two other scopes.
#[test]
fn a_value_of_any_scope_may_have_almost_16_mib() {
    let mut world = World::new(1, &[2]);
    let [rank, other] = [0, 1].map(|rank| world.join(0, "job0", rank, Flex).unwrap());
    let most = vec![7; 16 * 1024 * 1024 - 100];
    commit(&mut world, rank, "key", &most, &most);
    super::put(&mut world, rank, 101, "key", &[7; 16 * 1024 * 1024], b"");
    assert_eq!(world.status(rank), Some((status::OUT_OF_RESOURCE, vec![])));
    commit(&mut world, other, "card", b"x", b"y");
    assert!(world.end.is_none());
}

#[test]
fn a_million_pairs_of_nothing_are_more_than_a_rank_may_commit() {
    let commit = |pairs: usize| {
        let mut world = World::new(1, &[1]);
        let client = world.join(0, "job0", 0, Flex).unwrap();
        let mut buffer = Writer::new(Flex);
        for number in 0..pairs {
            buffer.kval(&format!("{number:x}"), &Value::Bool(true));
        }
        world.send(client, 101, command::COMMIT, |out| {
            out.one();
            out.byte(types::SCOPE_REMOTE);
            out.one();
            out.byte(1);
            out.byte_object(&buffer.into_bytes());
        });
        world.status(client).unwrap().0
    };
    assert_eq!([1000, 1_000_000].map(commit), [status::SUCCESS, status::OUT_OF_RESOURCE]);
}

#[test]
fn a_flood_of_collectives_is_refused_and_the_launch_lives_on() {
    let mut world = World::new(1, &[2]);
    let flood = world.join(0, "job0", 0, Flex).unwrap();
    let group = |world: &mut World, number: usize| {
        world.send(flood, 101, command::GROUP_CONSTRUCT, |out| {
            out.one();
            out.text(Some(format!("group{number}").as_bytes()));
            procs(&whole("job0"))(out);
        });
        world.status(flood)
    };
    let mut open = 0;
    let refused = loop {
        match group(&mut world, open) {
            None => open += 1,
            Some((code, _)) => break code,
        }
        assert!(open < 100_000, "nothing bounds the groups of a rank");
    };
    assert_eq!(refused, status::OUT_OF_RESOURCE);
    assert!(world.end.is_none());
    // Repeated rounds of one group have a separate limit.
    let mut begun = 0;
    while group(&mut world, 0).is_none() {
        begun += 1;
        assert!(begun < 100_000);
    }
    assert!(world.end.is_none());
}

#[test]
fn a_rank_may_register_for_a_bounded_number_of_events() {
    let mut world = World::new(1, &[1]);
    let client = world.join(0, "job0", 0, Flex).unwrap();
    let mut register = |from: i32| {
        world.send(client, 101, command::REGISTER_EVENTS, |out| {
            out.count(1024);
            out.group(1024);
            (from..from + 1024).for_each(|code| out.i32(code));
            out.count(0);
        });
        world.status(client).unwrap().0
    };
    assert_eq!([0, 1024, 2048, 3072].map(&mut register), [status::SUCCESS; 4]);
    assert_eq!(register(4096), status::OUT_OF_RESOURCE);
}

#[test]
fn nobody_takes_part_for_others_or_controls_them() {
    let mut world = World::new(2, &[2]);
    let client = world.join(0, "job0", 0, Flex).unwrap();
    let refused = |world: &mut World, namespace: &str, rank: u32, expected: i32| {
        let list = [Proc { namespace: namespace.as_bytes(), rank }];
        world.send(client, 101, command::FENCE, procs(&list));
        assert_eq!(world.status(client), Some((expected, vec![])), "{namespace} {rank}");
    };
    refused(&mut world, "job0", 1, status::BAD_PARAM);
    refused(&mut world, "job0", 77, status::NOT_FOUND);
    refused(&mut world, "job1", 0, status::BAD_PARAM);
    refused(&mut world, "nobody", 0, status::BAD_PARAM);
    world.send(client, 101, command::JOB_CONTROL, |out| {
        out.count(1);
        out.group(1);
        out.proc(Proc { namespace: b"job1", rank: 0 });
        out.count(1);
        out.group(1);
        out.info(&Info::new("pmix.reg.cleanup", Value::Text(b"/tmp/a")));
    });
    assert_eq!(world.status(client), Some((status::NOT_SUPPORTED, vec![])));
    assert!(world.end.is_none());
}

#[test]
fn requests_that_wait_count_by_their_bytes() {
    const LIMIT: usize = 200;
    let mut world = World::with_questions(LIMIT, &[2]);
    let [flood, other] = [0, 1].map(|rank| world.join(0, "job0", rank, Flex).unwrap());
    let long = vec![b'a'; 4 << 20];
    let spawn = |world: &mut World, client: Client| {
        world.send(client, 101, command::SPAWN, |out| {
            out.count(0);
            out.count(1);
            out.group(1);
            out.text(Some(b"true"));
            out.int(2);
            out.text(Some(b"true"));
            out.text(Some(&long));
            out.i32(0);
            out.text(None);
            out.int(1);
            out.size(0);
        });
        world.status(client).map(|(code, _)| code)
    };
    // A spawn of 4 MiB counts as 65 questions.
    for _ in 0..LIMIT / 65 {
        assert_eq!(spawn(&mut world, flood), None);
    }
    assert_eq!(spawn(&mut world, flood), Some(status::OUT_OF_RESOURCE));
    assert_eq!(spawn(&mut world, other), None, "the bytes of others do not count");
    world.end_spawns(&Err(SpawnError::Refused { reason: "no room".into() }));
    while world.status(flood).is_some() {}
    assert_eq!(spawn(&mut world, flood), None, "answered ones make room");
    assert!(world.end.is_none());
}

/// Requests a spawn of `apps` programs, each with the directives `own`. Returns the status, unless the host must answer.
fn spawn_with(world: &mut World, client: Client, job: &[Info<'_>], apps: usize, own: &[Info<'_>]) -> Option<i32> {
    world.send(client, 101, command::SPAWN, |out| {
        out.count(job.len());
        if !job.is_empty() {
            out.group(job.len());
        }
        job.iter().for_each(|info| out.info(info));
        out.count(apps);
        out.group(apps);
        for _ in 0..apps {
            out.text(Some(b"true"));
            out.int(1);
            out.text(Some(b"true"));
            out.i32(0);
            out.text(None);
            out.int(1);
            out.size(own.len() as u64);
            own.iter().for_each(|info| out.info(info));
        }
    });
    world.status(client).map(|(code, _)| code)
}

/// Programs of the last spawn that was passed to the host.
fn spawned(world: &mut World) -> Vec<SpawnApp> {
    match world.calls.pop() {
        Some(Call::Spawn(request)) => request.apps,
        other => panic!("no spawn: {other:?}"),
    }
}

#[test]
fn directives_of_a_spawn_are_there_once_however_many_programs_it_has() {
    let mut world = World::new(1, &[1]);
    let client = world.join(0, "job0", 0, Flex).unwrap();
    let long = vec![b'a'; 1 << 20];
    let directive = [Info::new("pmix.host", Value::Text(&long))];
    assert_eq!(spawn_with(&mut world, client, &directive, 3, &[]), None);
    let texts = spawned(&mut world).into_iter().map(|app| app.info[0].1.as_ptr()).collect::<BTreeSet<_>>();
    assert_eq!(texts.len(), 1, "the text was copied for each program");
    assert_eq!(spawn_with(&mut world, client, &directive, 1024, &[]), Some(status::OUT_OF_RESOURCE));
    assert_eq!(spawn_with(&mut world, client, &[], 1024, &[]), None);
    assert_eq!(spawn_with(&mut world, client, &[], 1025, &[]), Some(status::OUT_OF_RESOURCE));
    assert!(world.end.is_none());
}

#[test]
fn directives_of_a_program_win_against_those_of_its_job() {
    let mut world = World::new(1, &[1]);
    let client = world.join(0, "job0", 0, Flex).unwrap();
    let texts = |texts: [(&'static str, &'static str); 2]| {
        texts.map(|(key, text)| Info::new(key, Value::Text(text.as_bytes())))
    };
    let job = [
        texts([("pmix.mapby", "ppr:4:node"), ("pmix.host", "node0")]),
        texts([("pmix.wdir", "/job"), ("pmix.bindto", "core")]),
    ];
    let own =
        [texts([("pmix.mapby", "ppr:1:node"), ("pmix.host", "node1")]), texts([("pmix.wdir", "/own"), ("soft", "1")])];
    assert_eq!(spawn_with(&mut world, client, &job.concat(), 1, &own.concat()), None);
    let app = &spawned(&mut world)[0];
    let pairs = [("pmix.mapby", "ppr:1:node"), ("pmix.host", "node1"), ("soft", "1"), ("pmix.bindto", "core")];
    assert_eq!(app.info, pairs.map(|(key, value)| (key.into(), value.into())));
    assert_eq!(app.directory.as_deref(), Some(&b"/own"[..]));
}

#[test]
fn a_collective_of_a_thousand_launches_is_refused_and_long_lists_count_by_their_bytes() {
    const LIMIT: usize = 64;
    let mut world = World::with_questions(LIMIT, &[1]);
    let client = world.join(0, "job0", 0, Flex).unwrap();
    let names: Vec<String> = (0..2000).map(|launch| format!("launch{launch}")).collect();
    let of = |names: &[String]| {
        let others = names.iter().map(|name| Proc { namespace: name.as_bytes(), rank: RANK_WILDCARD });
        world.send(client, 101, command::CONNECT, procs(&whole("job0").into_iter().chain(others).collect::<Vec<_>>()));
        world.status(client).map(|(code, _)| code)
    };
    assert_eq!([&names[..10], &names].map(of), [None, Some(status::OUT_OF_RESOURCE)]);

    // 800,000 bytes count as 12 questions in addition to the request.
    let long: Vec<Proc<'_>> =
        whole("job0").into_iter().chain((0..200_000).map(|rank| Proc { namespace: b"b", rank })).collect();
    let mut open = 0;
    let refused = loop {
        world.send(client, 101, command::GROUP_CONSTRUCT, |out| {
            out.one();
            out.text(Some(format!("group{open}").as_bytes()));
            procs(&long)(out);
        });
        match world.status(client) {
            None => open += 1,
            Some((code, _)) => break code,
        }
    };
    assert_eq!((refused, open), (status::OUT_OF_RESOURCE, LIMIT / 12));
    assert!(world.end.is_none());
}
