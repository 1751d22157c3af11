//! Every limit at its value, one above it, and a hundred times above it: the refusals, and that the job and the memory of the server
//! survive.

mod transcript;
mod world;

use pmi_core::Offer;
use pmi_core::fence::Merged;
use pmi_core::ids::{JobId, NodeIndex, Rank};
use pmi_core::job::{Job, Placement};
use pmi_core::server::{Action, EndReason, Offence, Server, Settings};
use pmi_core::services::{Answer, SpawnError};
use pmi_core::wire::{
    Dialect, FrameBuffer, FrameError, KEY_MAX, KVSNAME_MAX_ANNOUNCED, Response, VALUE_MAX, VALUE_MAX_ANNOUNCED,
};
use transcript::field;
use world::{JobIndex, World};

const INIT: &str = "cmd=init pmi_version=1 pmi_subversion=1\n";

fn initialized(ranks: u32, settings: Settings) -> (World, JobIndex) {
    let mut world = World::kind();
    let job = world.start(Job::on_one_node(JobId::new("j").unwrap(), ranks), settings);
    for rank in 0..ranks {
        world.ask(job, rank, INIT);
    }
    (world, job)
}

fn pmi2(body: &str) -> String {
    format!("{:>6}{body}", body.len())
}

fn rc(answer: &str) -> String {
    field(answer.as_bytes(), "rc").unwrap_or_else(|| panic!("{answer:?} has no rc"))
}

/// PMI-1's code for a code of PMI-2 that PMI-1 does not have.
fn pmi1(code: &str) -> &str {
    if code == "0" { "0" } else { "-1" }
}

fn offence(world: &World, job: JobIndex) -> &FrameError {
    match world.ended(job) {
        Some(EndReason::Offence { rank: Rank(0), offence: Offence::Frame(error) }) => error,
        other => panic!("no offence: {other:?}"),
    }
}

#[test]
fn keys() {
    let (mut world, job) = initialized(1, Settings::default());
    for (len, code) in [(1, "0"), (KEY_MAX, "0"), (KEY_MAX + 1, "5"), (100 * KEY_MAX, "5"), (0, "5")] {
        let key = "k".repeat(len);
        assert_eq!(
            rc(&world.ask(job, 0, &format!("cmd=put kvsname=j key={key} value=v\n"))),
            pmi1(code),
            "{len} bytes"
        );
        assert_eq!(rc(&world.ask(job, 0, &pmi2(&format!("cmd=kvs-put;key={key};value=v;")))), code, "{len} bytes");
        assert_eq!(rc(&world.ask(job, 0, &pmi2(&format!("cmd=info-putnodeattr;key={key};value=v;")))), code);
        let found = if code == "0" { "0" } else { "1" };
        assert_eq!(rc(&world.ask(job, 0, &format!("cmd=get kvsname=j key={key}\n"))), found, "{len} bytes");
    }
}

#[test]
fn values() {
    let (mut world, job) = initialized(1, Settings::default());
    for (len, code) in [(0, "0"), (1023, "0"), (VALUE_MAX, "0"), (VALUE_MAX + 1, "7")] {
        let value = "v".repeat(len);
        assert_eq!(
            rc(&world.ask(job, 0, &format!("cmd=put kvsname=j key=a value={value}\n"))),
            pmi1(code),
            "{len} bytes"
        );
        assert_eq!(rc(&world.ask(job, 0, &pmi2(&format!("cmd=kvs-put;key=b;value={value};")))), code, "{len} bytes");
        if code == "0" {
            assert_eq!(world.ask(job, 0, "cmd=get kvsname=j key=a\n"), format!("cmd=get_result rc=0 value={value}\n"));
            let answer = pmi2(&format!("cmd=kvs-get-response;rc=0;found=TRUE;value={value};"));
            assert_eq!(world.ask(job, 0, &pmi2("cmd=kvs-get;key=b;")), answer);
        }
    }
    world.ask(job, 0, &format!("cmd=put kvsname=j key=a value={}\n", "v".repeat(100 * VALUE_MAX)));
    assert!(matches!(offence(&world, job), FrameError::TooLong { .. }));
}

#[test]
fn preput_pairs_of_a_spawn() {
    let (mut world, job) = initialized(1, Settings::default());
    let spawn = |key: usize, value: usize| {
        let pair = format!("preput_key_0={}\npreput_val_0={}\n", "k".repeat(key), "v".repeat(value));
        format!(
            "mcmd=spawn\nnprocs=1\nexecname=a\ntotspawns=1\nspawnssofar=1\nargcnt=0\npreput_num=1\n{pair}info_num=0\nendcmd\n"
        )
    };
    for (key, value) in [(0, 1), (KEY_MAX + 1, 1), (1, VALUE_MAX + 1), (1, 1_000_000)] {
        assert_eq!(rc(&world.ask(job, 0, &spawn(key, value))), "-1", "{key} and {value} bytes");
    }
    assert!(world.spawns.is_empty());
    assert_eq!(world.ask(job, 0, &spawn(KEY_MAX, VALUE_MAX)), "");
    assert_eq!(world.spawns.len(), 1);
}

/// No rank stores such a value, but a host that ignores the limits may return one.
#[test]
fn answers_of_pmi_2() {
    let value = "v".repeat(2_000_000);
    let frame = "cmd=kvs-get-response;rc=0;found=TRUE;value=;".len();
    for (len, code) in [(999_999 - frame, "0"), (1_000_000 - frame, "7"), (value.len(), "7")] {
        let answer = Response::Value(Some(&value.as_bytes()[..len])).encode(Dialect::Pmi2, "kvs-get", None);
        assert_eq!(answer.len() - 6, str::from_utf8(&answer[..6]).unwrap().trim().parse::<usize>().unwrap());
        assert_eq!(rc(str::from_utf8(&answer).unwrap()), code, "a value of {len} bytes");
    }
}

/// Lattice's own clients read the limits in memory, and other clients request them.
#[test]
fn limits_are_told_alike_by_both_ways() {
    let (mut world, job) = initialized(1, Settings::default());
    let [name, key, value] = [KVSNAME_MAX_ANNOUNCED, KEY_MAX, VALUE_MAX_ANNOUNCED];
    let maxes = format!("cmd=maxes rc=0 kvsname_max={name} keylen_max={key} vallen_max={value}\n");
    assert_eq!(world.ask(job, 0, "cmd=get_maxes\n"), maxes);
    let fact = format!("cmd=get_result rc=0 value={name},{key},{value}\n");
    assert_eq!(world.ask(job, 0, "cmd=get kvsname=j key=lattice.limits\n"), fact);
}

#[test]
fn messages() {
    const MAX: usize = FrameBuffer::MESSAGE_MAX;
    let line = |len: usize| format!("cmd=strange {}\n", "x".repeat(len - 12));
    let block = |len: usize| format!("{len:>6}cmd=strange;{}", "x".repeat(len - 12));
    for (message, code) in [(line(MAX), "-1"), (block(MAX), "14")] {
        let (mut world, job) = initialized(1, Settings::default());
        assert_eq!(rc(&world.ask(job, 0, &message)), code);
        assert_eq!(rc(&world.ask(job, 0, "cmd=get_maxes\n")), "0");
    }
    for message in [line(MAX + 1), line(100 * MAX), block(MAX + 1), "999999cmd=".to_owned()] {
        let (mut world, job) = initialized(1, Settings::default());
        assert_eq!(world.ask(job, 0, &message), "");
        assert_eq!(offence(&world, job), &FrameError::TooLong { max: MAX });
    }
}

#[test]
fn an_endless_line_is_noticed_before_it_is_held() {
    let mut buffer = FrameBuffer::default();
    let mut given = 0;
    let error = loop {
        buffer.push(if given == 0 { b"cmd=" } else { &[b'x'; 4096] });
        given += 4096;
        match buffer.next() {
            Ok(None) => assert!(buffer.pending() <= FrameBuffer::MESSAGE_MAX),
            other => break other.map(|_| ()),
        }
    };
    assert_eq!(error, Err(FrameError::TooLong { max: FrameBuffer::MESSAGE_MAX }));
}

/// A spawn of `blocks` blocks, with a text of exactly `len` bytes without the last line end.
fn spawn(blocks: usize, len: Option<usize>) -> String {
    let block =
        |arg: &str| format!("mcmd=spawn\nnprocs=1\nexecname=a\ntotspawns={blocks}\nargcnt=1\narg1={arg}\nendcmd\n");
    let rest = block("").repeat(blocks - 1);
    let room = len.map_or(0, |len| len + 1 - rest.len() - block("").len());
    rest + &block(&"x".repeat(room))
}

#[test]
fn spawns() {
    const MAX: usize = FrameBuffer::SPAWN_MAX;
    const BLOCKS: usize = FrameBuffer::SPAWN_BLOCKS_MAX;
    for (blocks, len) in [(1, None), (BLOCKS, None), (1, Some(MAX)), (BLOCKS, Some(MAX))] {
        let (mut world, job) = initialized(1, Settings::default());
        assert_eq!(world.ask(job, 0, &spawn(blocks, len)), "");
        assert_eq!(world.spawns.pop_front().expect("it is allowed").request.apps.len(), blocks);
    }
    for len in [MAX + 1, 100 * MAX] {
        let (mut world, job) = initialized(1, Settings::default());
        world.ask(job, 0, &spawn(1, Some(len)));
        assert_eq!(offence(&world, job), &FrameError::TooLong { max: MAX });
    }
    for blocks in [BLOCKS + 1, 100 * BLOCKS] {
        let (mut world, job) = initialized(1, Settings::default());
        world.ask(job, 0, &spawn(blocks, None));
        assert_eq!(offence(&world, job), &FrameError::SpawnWithoutTotal { block: 1 });
    }
    // a list with a claimed length above the length of the message
    let (mut world, job) = initialized(1, Settings::default());
    let lie = "mcmd=spawn\nnprocs=1\nexecname=a\ntotspawns=1\nargcnt=18446744073709551615\nendcmd\n";
    assert_ne!(rc(&world.ask(job, 0, lie)), "0");
}

#[test]
fn bytes_per_rank() {
    const LIMIT: usize = 64 * 1024;
    let (mut world, job) = initialized(2, Settings { bytes_per_rank: LIMIT, ..Settings::default() });
    let put = |key: usize, len: usize| format!("cmd=put kvsname=j key={key:08} value={}\n", "v".repeat(len));
    // A pair counts 64 bytes more than its key and value.
    let at_limit = (0..LIMIT / 1024).map(|key| put(key, 1024 - 8 - 64));
    for message in at_limit {
        assert_eq!(rc(&world.ask(job, 0, &message)), "0");
    }
    assert_eq!(rc(&world.ask(job, 0, "cmd=put kvsname=j key=k value=\n")), "-1", "one pair above");
    let memory = world.server_of(job, Rank(0)).memory();
    for key in 0..100 * LIMIT / 1024 {
        assert_eq!(rc(&world.ask(job, 0, &put(key, 952))), "-1");
        assert_eq!(rc(&world.ask(job, 0, &pmi2("cmd=info-putnodeattr;key=k;value=v;"))), "2");
    }
    assert_eq!(world.server_of(job, Rank(0)).memory(), memory);
    assert_eq!(rc(&world.ask(job, 1, &put(0, 952))), "0", "the other rank has its own bytes");
}

#[test]
fn questions_per_rank() {
    let (mut world, job) = initialized(2, Settings { questions_per_rank: 3, ..Settings::default() });
    let wait = pmi2("cmd=info-getnodeattr;key=a;wait=TRUE;thrid=7;");
    for _ in 0..3 {
        assert_eq!(world.ask(job, 0, &wait), "");
    }
    for _ in 0..300 {
        assert_eq!(rc(&world.ask(job, 0, &wait)), "2");
        assert_eq!(rc(&world.ask(job, 0, "cmd=lookup_name service=s\n")), "-1");
    }
    assert_eq!(world.ask(job, 1, &wait), "", "the other rank has its own questions");
    world.ask(job, 1, &pmi2("cmd=info-putnodeattr;key=a;value=v;"));
    let answer = pmi2("cmd=info-getnodeattr-response;thrid=7;rc=0;found=TRUE;value=v;");
    assert_eq!(world.told(job, 0), answer.repeat(3));
    assert_eq!(rc(&world.ask(job, 0, "cmd=lookup_name service=s\n")), "1", "there is room again");
}

#[test]
fn questions_count_by_their_bytes() {
    let (mut world, job) = initialized(1, Settings::default());
    let long = spawn(1, Some(FrameBuffer::SPAWN_MAX));
    // A spawn of one mebibyte counts as 17 of 64 questions.
    for _ in 0..3 {
        assert_eq!(world.ask(job, 0, &long), "");
    }
    for _ in 0..100 {
        assert_eq!(rc(&world.ask(job, 0, &long)), "-1");
    }
    assert_eq!(world.ask(job, 0, &spawn(1, None)), "", "a short one has room");
    let refused = Answer::Spawned(Err(SpawnError::Refused { reason: "no room".into() }));
    for asked in std::mem::take(&mut world.spawns) {
        world.answer(&asked, refused.clone());
    }
    world.told(job, 0);
    for _ in 0..3 {
        assert_eq!(world.ask(job, 0, &long), "", "answered ones make room");
    }
}

#[test]
fn fences_begun_at_once() {
    const QUEUE: usize = 256;
    let (mut world, job) = initialized(2, Settings::default());
    for _ in 0..QUEUE {
        assert_eq!(world.ask(job, 0, "cmd=barrier_in\n"), "");
    }
    for _ in 0..100 * QUEUE {
        assert_eq!(rc(&world.ask(job, 0, "cmd=barrier_in\n")), "-1");
    }
    for _ in 0..QUEUE {
        assert_eq!(world.ask(job, 1, "cmd=barrier_in\n"), "cmd=barrier_out rc=0\n");
        assert_eq!(world.told(job, 0), "cmd=barrier_out rc=0\n");
    }
    let ring = pmi2("cmd=ring;ring-count=1;ring-left=l;ring-right=r;");
    for _ in 0..QUEUE {
        assert_eq!(world.ask(job, 0, &ring), "");
    }
    assert_eq!(rc(&world.ask(job, 0, &ring)), "2");
}

#[test]
fn groups() {
    const GROUPS: u32 = 1024;
    let offer = Offer { group_barriers: true, ..Offer::default() };
    let mut world = World::kind();
    let placement = Placement::block(&[2, 1]);
    let job = Job { placement, ..Job::on_one_node(JobId::new("j").unwrap(), 3) };
    let job = world.start(job, Settings { offer, ..Settings::default() });
    for rank in 0..3 {
        world.ask(job, rank, INIT);
    }
    let group = |members: &str, tag| format!("cmd=barrier_in group={members}:{tag}\n");
    // Complete groups take no room, and neither do groups without the requesting rank.
    for tag in 0..10 * GROUPS {
        world.send(job, Rank(2), group("0,2", tag).as_bytes());
        assert_eq!(world.ask(job, 0, &group("0,2", tag)), format!("cmd=barrier_out rc=0 tag={tag}\n"));
        assert_eq!(rc(&world.ask(job, 0, &group("1,2", tag))), "-1");
    }
    for tag in 0..GROUPS {
        assert_eq!(world.ask(job, 0, &group("0,1", tag)), "");
    }
    for tag in GROUPS..100 * GROUPS {
        assert_eq!(rc(&world.ask(job, 0, &group("0,1", tag))), "-1");
    }
    assert_eq!(world.ask(job, 1, &group("0,1", 5)), "cmd=barrier_out rc=0 tag=5\n");
    assert_eq!(world.told(job, 0), "cmd=barrier_out rc=0 tag=5\n");
    assert_eq!(world.ask(job, 0, &group("0,1", GROUPS)), "", "there is a place again");
    assert!(world.ended(job).is_none());
}

#[test]
fn strangers_one_after_the_other_take_the_place_of_one() {
    let mut server = Server::new(Job::on_one_node(JobId::new("j").unwrap(), 1), NodeIndex(0), Settings::default());
    let first = server.accept();
    server.handle_disconnect(first);
    for _ in 0..10_000 {
        let stranger = server.accept();
        assert_eq!(stranger, first);
        server.handle_bytes(stranger, b"GET /");
        assert!(matches!(server.poll_action(), Some(Action::Close { connection }) if connection == stranger));
        server.handle_disconnect(stranger);
    }
}

#[test]
fn the_number_of_a_connection_is_not_given_out_while_a_fence_owes_it_an_answer() {
    for fence in
        ["cmd=barrier_in\n", "cmd=barrier_in group=0,1:3\n", &pmi2("cmd=ring;ring-count=1;ring-left=a;ring-right=b;")]
    {
        let settings = Settings { offer: Offer { group_barriers: true, ..Offer::default() }, ..Settings::default() };
        let mut server = Server::new(Job::on_one_node(JobId::new("j").unwrap(), 2), NodeIndex(0), settings);
        let mut come = |rank: u32| {
            let connection = server.accept();
            server.handle_bytes(
                connection,
                format!("cmd=initack pmiid={rank}\ncmd=init pmi_version=1 pmi_subversion=2\n").as_bytes(),
            );
            connection
        };
        let [gone, other] = [0, 1].map(&mut come);
        server.handle_bytes(gone, format!("{fence}cmd=finalize\n").as_bytes());
        server.handle_disconnect(gone);
        let stranger = server.accept();
        server.handle_bytes(other, fence.as_bytes());
        let actions: Vec<Action> = std::iter::from_fn(|| server.poll_action()).collect();
        let to_stranger =
            |action: &&Action| matches!(action, Action::Send { connection, .. } if *connection == stranger);
        assert_ne!(stranger, gone, "{fence}");
        assert!(!actions.iter().any(|action| to_stranger(&action)), "{fence}");
        assert!(!actions.iter().any(|action| matches!(action, Action::End(_))), "{fence}: {actions:?}");
    }
}

#[test]
fn a_fence_result_for_a_node_without_ranks_begins_nothing() {
    let mut server = Server::new(Job::on_one_node(JobId::new("j").unwrap(), 1), NodeIndex(7), Settings::default());
    assert_eq!(server.ranks().len(), 0);
    let mut other = Server::new(Job::on_one_node(JobId::new("j").unwrap(), 1), NodeIndex(0), Settings::default());
    let connection = other.connect(pmi_core::ids::LocalRank(0)).unwrap();
    other.handle_bytes(connection, format!("{INIT}cmd=barrier_in\n").as_bytes());
    let fence = std::iter::from_fn(|| other.poll_action()).find_map(|action| match action {
        Action::Fence { id, contribution } => Some((id, Merged::from(contribution.segments))),
        _ => None,
    });
    let (id, merged) = fence.expect("the only rank has arrived");
    server.handle_fence(&id, Ok(merged));
    assert!(server.poll_action().is_none());
}
