//! Output of ranks for clients that pull it.

use pmi_core::ids::Rank;
use pmix_core::server::Action;
use pmix_core::services::Call;
use pmix_core::wire::Encoding::{self, Fixed, Flex};
use pmix_core::wire::forwarding::channel::{STDERR, STDIN, STDOUT};
use pmix_core::wire::forwarding::{COMPLETE, LOST};
use pmix_core::wire::reader::{Proc, Reader};
use pmix_core::wire::request::command;
use pmix_core::wire::types::{INFO_REQUIRED, RANK_WILDCARD};
use pmix_core::wire::value::{Info, Value};
use pmix_core::wire::{frame, status};

use super::tools::tool;
use super::world::{Client, World, whole};

/// Requests output, with this identifier of the client; returns the number of the pull.
fn pull_as(
    world: &mut World,
    client: Client,
    sources: &[Proc<'_>],
    (channels, reference): (u16, u64),
    infos: &[Info<'_>],
) -> Result<u64, i32> {
    world.send(client, 101, command::IOF_PULL, |out| {
        out.count(sources.len());
        // libpmix 4 sends an empty group for an empty list.
        out.i32(sources.len() as i32);
        sources.iter().for_each(|&source| out.proc(source));
        out.count(infos.len());
        out.group(infos.len());
        infos.iter().for_each(|info| out.info(info));
        out.one();
        out.u16(channels);
        out.one();
        out.size(reference);
    });
    let (code, rest) = world.status(client).unwrap();
    if code != status::SUCCESS {
        return Err(code);
    }
    let mut reader = Reader::new(client.encoding, &rest);
    Ok(reader.one().and_then(|()| reader.size()).unwrap())
}

fn pull(world: &mut World, client: Client, sources: &[Proc<'_>], channels: u16) -> Result<u64, i32> {
    pull_as(world, client, sources, (channels, 7), &[])
}

fn end(world: &mut World, client: Client, number: u64) -> i32 {
    world.send(client, 102, command::IOF_DEREGISTER, |out| {
        out.count(0);
        out.one();
        out.size(number);
    });
    world.status(client).unwrap().0
}

#[derive(Debug, PartialEq, Eq)]
struct Got {
    source: (String, u32),
    channel: u16,
    reference: u64,
    lost: u64,
    is_last: bool,
    bytes: Vec<u8>,
}

fn next(world: &mut World, client: Client) -> Option<Got> {
    let message = world.receive(client)?;
    assert_eq!(message.tag, frame::TAG_FORWARD);
    let mut reader = Reader::new(client.encoding, &message.payload);
    reader.one().unwrap();
    let source = reader.proc().unwrap();
    reader.one().unwrap();
    let channel = reader.u16().unwrap();
    reader.one().unwrap();
    let reference = reader.size().unwrap();
    let infos = reader.counted_infos().unwrap();
    let value = |key: &str| infos.iter().find(|info| info.key == key.as_bytes()).map(|info| info.value.clone());
    let lost = value(LOST).and_then(|value| value.number()).unwrap_or_default();
    let is_last = value(COMPLETE) == Some(Value::Bool(true));
    reader.one().unwrap();
    let bytes = reader.byte_object().unwrap().to_vec();
    assert!(reader.is_empty());
    let source = (String::from_utf8(source.namespace.to_vec()).unwrap(), source.rank);
    Some(Got { source, channel, reference, lost, is_last, bytes })
}

fn got(rank: u32, channel: u16, bytes: &[u8]) -> Option<Got> {
    let source = ("job0".to_owned(), rank);
    Some(Got { source, channel, reference: 7, lost: 0, is_last: false, bytes: bytes.to_vec() })
}

fn one(rank: u32) -> [Proc<'static>; 1] {
    [Proc { namespace: b"job0", rank }]
}

/// A pull of libpmix 4.2.2 for all ranks and both streams, with its identifier 1, and the messages that it then reads.
#[test]
fn a_recorded_pull_is_answered_and_brings_what_ranks_write() {
    let mut world = World::new(1, &[2]);
    let tool = tool(&mut world);
    let asked = b"\x02\x16\x02\x01\x02\x0ajob0\0\xfe\xff\xff\xff\x0f\x02\x00\x02\x06\x02\x01";
    world.send_raw(tool, &frame::message(103, asked));
    let answer = world.receive(tool).unwrap();
    assert_eq!((answer.tag, &answer.payload[..3]), (103, &b"\x02\0\x02"[..]));
    let number = answer.payload[3];
    world.write(0, 1, STDERR, b"oh\n");
    let brought = world.receive(tool).unwrap();
    assert_eq!(
        (brought.tag, &brought.payload[..]),
        (2, &b"\x02\x0ajob0\0\x01\x02\x04\x02\x01\x02\x00\x02\x03oh\n"[..])
    );
    world.send_raw(tool, &frame::message(104, &[2, 0x1d, 2, 0, 2, number]));
    assert_eq!(world.status(tool).unwrap().0, status::SUCCESS);
    world.write(0, 1, STDERR, b"late\n");
    assert_eq!((world.receive(tool), world.pulled[&0]), (None, false));
}

#[test]
fn tools_and_ranks_get_the_streams_that_they_asked_for() {
    let check = |encoding: Encoding| {
        let mut world = World::new(1, &[3]);
        let ranks = [0, 1].map(|rank| world.join(0, "job0", rank, encoding).unwrap());
        let tool = tool(&mut world);
        assert!(world.pulled.is_empty());
        pull(&mut world, ranks[0], &whole("job0"), STDOUT).unwrap();
        let number = pull(&mut world, tool, &one(1), STDOUT | STDERR).unwrap();
        pull_as(&mut world, tool, &[Proc { namespace: b"", rank: 2 }], (STDERR, 8), &[]).unwrap();
        assert!(world.pulled[&0]);
        world.write(0, 1, STDOUT, b"a");
        world.write(0, 1, STDERR, b"b");
        world.write(0, 0, STDOUT, b"own");
        world.write(0, 2, STDERR, b"c");
        world.write(0, 1, STDOUT, b"");
        assert_eq!(next(&mut world, ranks[0]), got(1, STDOUT, b"a"));
        assert_eq!(next(&mut world, ranks[0]).map(|got| got.is_last), Some(true));
        assert_eq!(next(&mut world, ranks[0]), None, "nobody gets its own output back");
        assert_eq!(next(&mut world, ranks[1]), None);
        assert_eq!(next(&mut world, tool), got(1, STDOUT, b"a"));
        assert_eq!(next(&mut world, tool), got(1, STDERR, b"b"));
        assert_eq!(next(&mut world, tool), Some(Got { reference: 8, ..got(2, STDERR, b"c").unwrap() }));
        assert_eq!(next(&mut world, tool).map(|got| got.is_last), Some(true));
        assert_eq!(end(&mut world, tool, number), status::SUCCESS);
        assert_eq!(end(&mut world, tool, number), status::NOT_FOUND);
        world.write(0, 1, STDERR, b"late");
        assert_eq!(next(&mut world, tool), None);
        world.hang_up(tool);
        world.send(ranks[0], 103, command::FINALIZE, |_| {});
        assert!(!world.pulled[&0], "nobody is left who wants any");
        assert!(world.end.is_none());
    };
    check(Flex);
    check(Fixed);
}

/// libpmix writes messages for an ended pull to the tool's own output.
#[test]
fn nothing_comes_of_a_pull_that_was_ended() {
    let mut world = World::new(1, &[1]);
    let tool = tool(&mut world);
    world.slow = Some(Vec::new());
    let number = pull(&mut world, tool, &whole("job0"), STDOUT).unwrap();
    let other = pull_as(&mut world, tool, &whole("job0"), (STDOUT, 8), &[]).unwrap();
    world.write(0, 0, STDOUT, b"a");
    world.write(0, 0, STDOUT, b"b");
    assert_eq!(next(&mut world, tool), got(0, STDOUT, b"a"), "it was on its way");
    assert_eq!(end(&mut world, tool, number), status::SUCCESS);
    world.read_all();
    for bytes in [b"a", b"b"] {
        assert_eq!(next(&mut world, tool), Some(Got { reference: 8, ..got(0, STDOUT, bytes).unwrap() }));
    }
    assert_eq!((next(&mut world, tool), end(&mut world, tool, other)), (None, status::SUCCESS));
}

#[test]
fn a_client_that_does_not_read_loses_output_and_is_told_how_much() {
    let mut world = World::new(1, &[2]);
    let [slow, quick] = [(); 2].map(|()| tool(&mut world));
    pull(&mut world, slow, &whole("job0"), STDOUT).unwrap();
    world.slow = Some(Vec::new());
    let piece = vec![b'x'; 64 * 1024];
    for _ in 0..100 {
        world.write(0, 0, STDOUT, &piece);
    }
    world.write(0, 1, STDOUT, b"");
    assert!(world.nodes[0].is_forwarding());
    world.read_all();
    assert!(!world.nodes[0].is_forwarding());
    let (mut received, mut lost, mut ends) = (0, 0, 0);
    while let Some(got) = next(&mut world, slow) {
        (received, lost, ends) = (received + got.bytes.len(), lost + got.lost, ends + usize::from(got.is_last));
    }
    assert!((900_000..1_200_000).contains(&received), "{received} bytes were kept");
    assert_eq!((received as u64 + lost, ends), (6_553_600, 1), "the end of a stream is never lost");
    world.write(0, 0, STDOUT, b"on\n");
    assert_eq!(next(&mut world, slow), got(0, STDOUT, b"on\n"), "told once");
    assert_eq!(next(&mut world, quick), None);
}

#[test]
fn output_of_ranks_on_other_nodes_comes_as_well() {
    for sources in [&whole("job0")[..], &[one(1), one(2)].concat(), &[Proc { namespace: b"", rank: RANK_WILDCARD }]] {
        let mut world = World::new(1, &[1, 1, 1]);
        let tool = tool(&mut world);
        let number = pull(&mut world, tool, sources, STDOUT).unwrap();
        assert_eq!((world.pulled[&0], world.pulled[&1], world.pulled[&2]), (true, true, true));
        for round in [&b"first\n"[..], b"second\n"] {
            for rank in [2, 1] {
                world.write(rank, 0, STDOUT, round);
                world.write(rank, 0, STDERR, b"not wanted\n");
                assert_eq!(next(&mut world, tool), got(rank as u32, STDOUT, round));
            }
            // Questions without an answer for a while are sent again.
            world.let_time_pass();
        }
        world.write(2, 0, STDOUT, b"");
        assert!(next(&mut world, tool).unwrap().is_last);
        assert_eq!(end(&mut world, tool, number), status::SUCCESS);
        assert_eq!((world.pulled[&0], world.pulled[&1], world.pulled[&2]), (false, false, false));
        world.write(1, 0, STDOUT, b"late\n");
        assert_eq!(next(&mut world, tool), None);
        let asked = world.questions;
        world.let_time_pass();
        assert_eq!(world.questions, asked, "nobody asks any more");
    }
}

#[test]
fn a_rank_of_another_node_alone_is_asked_for_there_alone() {
    let mut world = World::new(1, &[1, 2, 1]);
    let (tool, rank) = (tool(&mut world), world.join(0, "job0", 0, Fixed).unwrap());
    pull(&mut world, tool, &one(2), STDOUT).unwrap();
    assert_eq!((world.pulled.get(&1), world.pulled.get(&2)), (Some(&true), None));
    let asked = world.questions;
    pull(&mut world, rank, &one(2), STDOUT).unwrap();
    assert_eq!(world.questions, asked, "both are served by one question");
    pull(&mut world, rank, &one(1), STDERR).unwrap();
    world.write(1, 0, STDERR, b"one\n");
    world.write(1, 0, STDOUT, b"not wanted\n");
    world.write(1, 1, STDOUT, b"two\n");
    assert_eq!(next(&mut world, tool), got(2, STDOUT, b"two\n"));
    let brought = [next(&mut world, rank), next(&mut world, rank), next(&mut world, rank)];
    assert_eq!(brought, [got(1, STDERR, b"one\n"), got(2, STDOUT, b"two\n"), None]);
    world.hang_up(tool);
    assert!(world.pulled[&1]);
    world.hang_up(rank);
    assert!(!world.pulled[&1]);
}

#[test]
fn a_node_that_is_lost_is_not_asked_again() {
    let mut world = World::new(1, &[1, 1]);
    let tool = tool(&mut world);
    world.lost = Some(1);
    pull(&mut world, tool, &whole("job0"), STDOUT).unwrap();
    let asked = world.questions;
    world.let_time_pass();
    world.write(0, 0, STDOUT, b"here\n");
    assert_eq!((next(&mut world, tool), world.questions), (got(0, STDOUT, b"here\n"), asked));
}

#[test]
fn a_node_that_the_launch_does_not_have_is_told_nothing() {
    let mut world = World::new(1, &[1, 1]);
    let question = b"\x06\0\0\0\x02\0\x02\xff\xff\xff\xff\0\0\0\x04job0";
    let ticket = world.nodes[1].handle_question(&bytes::Bytes::from_static(question));
    let Some(Action::Reply { ticket: to, answer }) = world.nodes[1].poll_action() else { panic!("no answer") };
    assert_eq!((to, &answer[..]), (ticket, &status::BAD_PARAM.to_be_bytes()[..]));
    assert!(world.nodes[1].poll_action().is_none());
}

#[test]
fn pulls_that_cannot_be_served_are_refused() {
    let mut world = World::new(1, &[1, 1]);
    let tool = tool(&mut world);
    let required = Info { flags: INFO_REQUIRED, ..Info::new("pmix.iof.tag", Value::Bool(true)) };
    let optional = Info::new("pmix.iof.tag", Value::Bool(true));
    assert_eq!(pull_as(&mut world, tool, &one(0), (STDOUT, 1), &[required]), Err(status::NOT_SUPPORTED));
    assert!(pull_as(&mut world, tool, &one(0), (STDOUT, 1), &[optional]).is_ok());
    for (sources, channels, refusal) in [
        (&one(0)[..], STDIN | STDOUT, status::NOT_SUPPORTED),
        (&one(0), 0, status::BAD_PARAM),
        (&[], STDOUT, status::BAD_PARAM),
        (&one(2), STDOUT, status::NOT_FOUND),
        (&[Proc { namespace: b"lattice-tool-1", rank: RANK_WILDCARD }], STDOUT, status::NOT_FOUND),
        (&one(0).repeat(5000), STDOUT, status::OUT_OF_RESOURCE),
    ] {
        let rank = world.join(0, "job0", 0, Flex);
        let client = rank.unwrap_or(tool);
        assert_eq!(pull(&mut world, client, sources, channels), Err(refusal), "{channels} of {}", sources.len());
        if let Some(rank) = rank {
            world.send(rank, 103, command::FINALIZE, |_| {});
            world.receive(rank);
            world.hang_up(rank);
        }
    }
    for _ in 1..64 {
        pull(&mut world, tool, &one(0), STDOUT).unwrap();
    }
    assert_eq!(pull(&mut world, tool, &one(0), STDOUT), Err(status::OUT_OF_RESOURCE));
}

/// The end of a tool's own input is not the end of the launch's input. The host decides all other cases.
#[test]
fn input_goes_to_the_host_of_the_ranks_that_read() {
    let mut world = World::new(2, &[2]);
    let tool = tool(&mut world);
    let mut push = |targets: &[Proc<'_>], bytes: Option<&[u8]>| {
        world.send(tool, 101, command::IOF_PUSH, |out| {
            out.count(targets.len());
            out.group(targets.len());
            targets.iter().for_each(|&target| out.proc(target));
            out.count(0);
            if let Some(bytes) = bytes {
                out.one();
                out.byte_object(bytes);
            }
        });
        (world.status(tool).unwrap().0, world.calls.pop())
    };
    let asked = |ranks: Option<Vec<Rank>>| Some(Call::PushInput { ranks, bytes: "hello".into() });
    let hello = Some(&b"hello"[..]);
    assert_eq!(push(&[], hello), (status::NOT_SUPPORTED, asked(None)), "this host passes nothing on");
    assert_eq!(push(&whole("job0"), hello).1, asked(None));
    assert_eq!(push(&[one(0), one(1)].concat(), hello).1, asked(Some(vec![Rank(0), Rank(1)])));
    assert_eq!(push(&one(2), hello), (status::NOT_FOUND, None));
    assert_eq!(push(&whole("job1"), hello), (status::NOT_SUPPORTED, None), "its ranks were spawned");
    assert_eq!(push(&one(0), Some(b"")), (status::SUCCESS, None));
    assert_eq!(push(&one(0), None), (status::SUCCESS, None));
}
