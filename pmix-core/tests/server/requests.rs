//! Every request of a client: the answer if it is complete, truncated, or contains unknown values; and that no other rank is affected.

use pmi_core::server::{EndReason, Offence};
use pmix_core::wire::forwarding::channel::STDOUT;
use pmix_core::wire::reader::Proc;
use pmix_core::wire::request::{command, command_name};
use pmix_core::wire::types::{self, RANK_WILDCARD};
use pmix_core::wire::value::{Info, Value};
use pmix_core::wire::writer::Writer;
use pmix_core::wire::{Encoding, status};

use super::world::{Client, World};

/// Outcome of a request of rank 0 while rank 1 sends nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// A status, possibly with data.
    Status(i32),
    /// Facts, without a status before them.
    Facts,
    /// The rank waits for another rank, or for the host.
    Waits,
    /// There is no answer.
    Nothing,
    /// The launch ends, because the rank broke the protocol.
    Offence,
}

/// Parts that can be cut off the end of a request and leave a valid request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tail {
    /// The whole request is required.
    Needed,
    /// Each list or group at its end is optional.
    Optional,
    /// The server ignores all bytes after the command.
    Ignored,
}

/// A request as its library sends it.
struct Case {
    command: u8,
    write: fn(&mut Writer),
    answer: Answer,
    tail: Tail,
}

fn text(out: &mut Writer, text: &str) {
    out.one();
    out.text(Some(text.as_bytes()));
}

fn infos(out: &mut Writer, infos: &[Info<'_>]) {
    out.count(infos.len());
    out.group(infos.len());
    infos.iter().for_each(|info| out.info(info));
}

fn members(out: &mut Writer) {
    out.count(1);
    out.group(1);
    out.proc(Proc { namespace: b"job0", rank: RANK_WILDCARD });
}

fn user(out: &mut Writer) {
    out.one();
    out.u32(1000);
}

fn names(out: &mut Writer) {
    user(out);
    out.count(2);
    text(out, "a");
    text(out, "b");
}

fn committed(out: &mut Writer) {
    let mut buffer = Writer::new(out.encoding());
    buffer.kval("card", &Value::Bytes(b"x"));
    out.one();
    out.byte(types::SCOPE_GLOBAL);
    out.one();
    out.byte(1);
    out.byte_object(&buffer.into_bytes());
}

fn get(out: &mut Writer) {
    text(out, "job0");
    out.one();
    out.u32(1);
    infos(out, &[Info::new("pmix.timeout", Value::Int(3))]);
    text(out, "card");
}

fn app(out: &mut Writer) {
    infos(out, &[Info::new("pmix.wdir", Value::Text(b"/work"))]);
    out.count(1);
    out.group(1);
    out.text(Some(b"./child"));
    out.int(0);
    out.i32(0);
    out.text(None);
    out.int(1);
    out.size(0);
}

fn event(out: &mut Writer) {
    out.status(-61);
    out.one();
    out.byte(3);
    infos(out, &[Info::new("k", Value::Bool(true))]);
}

fn query(out: &mut Writer) {
    out.count(1);
    out.group(1);
    out.i32(1);
    out.text(Some(b"nothing"));
    out.size(1);
    out.info(&Info::new("pmix.qry.rfsh", Value::Bool(true)));
}

fn log(out: &mut Writer) {
    out.one();
    out.u64(0);
    infos(out, &[Info::new("pmix.log.stdout", Value::Text(b"x"))]);
}

fn clean_up(out: &mut Writer) {
    members(out);
    infos(out, &[Info::new("pmix.reg.cleanup", Value::Text(b"/a"))]);
}

fn group(out: &mut Writer) {
    text(out, "group");
    members(out);
    infos(out, &[Info::new("pmix.grp.actxid", Value::Bool(true))]);
}

fn abort(out: &mut Writer) {
    out.status(3);
    text(out, "bye");
}

fn codes(out: &mut Writer) {
    out.count(1);
    out.group(1);
    out.i32(-61);
}

fn pull(out: &mut Writer) {
    members(out);
    out.count(0);
    out.one();
    out.u16(STDOUT);
    out.one();
    out.size(1);
}

fn push(out: &mut Writer) {
    members(out);
    out.count(0);
    out.one();
    out.byte_object(b"");
}

fn end_pull(out: &mut Writer) {
    out.count(0);
    out.one();
    out.size(1 << 40);
}

const CASES: [Case; 25] = {
    const fn case(command: u8, write: fn(&mut Writer), answer: Answer, tail: Tail) -> Case {
        Case { command, write, answer, tail }
    }
    const SUCCESS: Answer = Answer::Status(status::SUCCESS);
    const NOT_FOUND: Answer = Answer::Status(status::NOT_FOUND);
    const NOT_SUPPORTED: Answer = Answer::Status(status::NOT_SUPPORTED);
    [
        case(command::REQ, |_| {}, Answer::Facts, Tail::Ignored),
        case(command::ABORT, abort, SUCCESS, Tail::Needed),
        case(command::COMMIT, committed, SUCCESS, Tail::Optional),
        case(command::FENCE, members, Answer::Waits, Tail::Needed),
        case(command::GET, get, Answer::Waits, Tail::Optional),
        case(command::FINALIZE, |_| {}, SUCCESS, Tail::Ignored),
        case(
            command::PUBLISH,
            |out| {
                user(out);
                infos(out, &[Info::new("k", Value::U32(5))]);
            },
            SUCCESS,
            Tail::Needed,
        ),
        case(
            command::LOOKUP,
            |out| {
                names(out);
                infos(out, &[Info::new("k", Value::U32(5))]);
            },
            NOT_FOUND,
            Tail::Needed,
        ),
        case(command::UNPUBLISH, names, SUCCESS, Tail::Needed),
        case(command::SPAWN, app, Answer::Waits, Tail::Needed),
        case(command::CONNECT, members, Answer::Waits, Tail::Needed),
        case(command::DISCONNECT, members, Answer::Waits, Tail::Needed),
        case(command::NOTIFY, event, SUCCESS, Tail::Needed),
        case(command::REGISTER_EVENTS, codes, SUCCESS, Tail::Needed),
        case(command::DEREGISTER_EVENTS, |out| out.status(-61), Answer::Nothing, Tail::Optional),
        case(command::QUERY, query, NOT_SUPPORTED, Tail::Needed),
        case(command::LOG, log, SUCCESS, Tail::Needed),
        case(
            command::ALLOC,
            |out| {
                out.one();
                out.byte(1);
                infos(out, &[Info::new("pmix.alloc.nnodes", Value::U64(1))]);
            },
            SUCCESS,
            Tail::Needed,
        ),
        case(command::JOB_CONTROL, clean_up, SUCCESS, Tail::Needed),
        case(command::GROUP_CONSTRUCT, group, Answer::Waits, Tail::Needed),
        case(command::GROUP_DESTRUCT, |out| text(out, "group"), SUCCESS, Tail::Needed),
        case(command::IOF_PULL, pull, SUCCESS, Tail::Needed),
        case(command::IOF_PUSH, push, SUCCESS, Tail::Optional),
        case(command::IOF_DEREGISTER, end_pull, NOT_FOUND, Tail::Needed),
        case(
            command::REFRESH_CACHE,
            |out| {
                text(out, "job0");
                out.one();
                out.u32(1);
            },
            SUCCESS,
            Tail::Needed,
        ),
    ]
};

/// Two ranks of one node; the second one only listens.
struct Scene {
    world: World,
    asks: Client,
    listens: Client,
}

impl Scene {
    fn new(encoding: Encoding) -> Self {
        let mut world = World::new(1, &[2]);
        let [asks, listens] = [0, 1].map(|rank| world.join(0, "job0", rank, encoding).unwrap());
        Self { world, asks, listens }
    }

    /// Sends a payload, and asserts that the other rank receives nothing and stays connected.
    fn ask(&mut self, payload: &[u8], case: &str) -> Answer {
        self.world.send_raw(self.asks, &pmix_core::wire::frame::message(101, payload));
        assert_eq!(self.world.receive(self.listens), None, "{case}: another rank hears of it");
        assert!(!self.world.is_closed(self.listens), "{case}: another rank is closed");
        match &self.world.end {
            Some(EndReason::Offence { rank, offence: Offence::Foreign { .. } }) => {
                assert_eq!(rank.0, 0, "{case}");
                assert!(self.world.is_closed(self.asks), "{case}");
                return Answer::Offence;
            }
            Some(EndReason::Abort { .. }) | None => {}
            Some(other) => panic!("{case}: {other:?}"),
        }
        let command = payload[usize::from(self.asks.encoding == Encoding::Fixed) * 3 + 1];
        if command == command::REQ {
            return self.world.receive(self.asks).map_or(Answer::Nothing, |_| Answer::Facts);
        }
        match self.world.status(self.asks) {
            Some((code, _)) => Answer::Status(code),
            None if command == command::DEREGISTER_EVENTS => Answer::Nothing,
            None => Answer::Waits,
        }
    }
}

fn payload(encoding: Encoding, command: u8, write: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut out = Writer::new(encoding);
    out.one();
    out.byte(command);
    write(&mut out);
    out.into_bytes()
}

#[test]
fn every_request_gets_the_answer_of_its_kind_in_both_encodings() {
    for encoding in Encoding::ALL {
        for Case { command, write, answer, .. } in CASES {
            let case = command_name(command);
            let seen = Scene::new(encoding).ask(&payload(encoding, command, write), case);
            assert_eq!(seen, answer, "{case} {encoding:?}");
        }
    }
}

#[test]
fn a_request_that_is_cut_short_ends_the_launch_for_its_sender_and_is_never_taken_for_the_whole() {
    for encoding in Encoding::ALL {
        for Case { command, write, answer, tail } in CASES {
            let whole = payload(encoding, command, write);
            let begin = payload(encoding, command, |_| {}).len();
            for end in begin..whole.len() {
                let case = format!("{end} bytes of {} of {} {encoding:?}", whole.len(), command_name(command));
                let seen = Scene::new(encoding).ask(&whole[..end], &case);
                match tail {
                    Tail::Needed => assert_eq!(seen, Answer::Offence, "{case}"),
                    Tail::Optional => assert!([Answer::Offence, answer].contains(&seen), "{case}: {seen:?}"),
                    Tail::Ignored => assert_eq!(seen, answer, "{case}"),
                }
            }
        }
    }
}

#[test]
fn a_request_without_its_whole_command_ends_the_launch() {
    for encoding in Encoding::ALL {
        for end in 1..payload(encoding, command::FINALIZE, |_| {}).len() {
            let mut scene = Scene::new(encoding);
            let cut = payload(encoding, command::FINALIZE, |_| {})[..end].to_vec();
            scene.world.send_raw(scene.asks, &pmix_core::wire::frame::message(101, &cut));
            assert!(matches!(scene.world.end, Some(EndReason::Offence { .. })), "{end} bytes {encoding:?}");
        }
    }
}

#[test]
fn directives_behind_a_whole_request_that_has_none_are_not_looked_at() {
    let open = [command::COMMIT, command::DEREGISTER_EVENTS, command::GET];
    for encoding in Encoding::ALL {
        for Case { command, write, answer, .. } in CASES.into_iter().filter(|case| !open.contains(&case.command)) {
            let case = format!("{} with more behind it, {encoding:?}", command_name(command));
            let longer = payload(encoding, command, |out| {
                write(out);
                out.raw(&[0xff; 32]);
            });
            assert_eq!(Scene::new(encoding).ask(&longer, &case), answer, "{case}");
        }
    }
}

#[test]
fn a_directive_of_an_unknown_type_is_refused_by_a_status_wherever_it_stands() {
    type Head = fn(&mut Writer);
    let directive = |out: &mut Writer| {
        out.count(1);
        out.group(1);
        out.text(Some(b"key"));
        out.u32(0);
        out.u16(4000);
    };
    let heads: [(u8, Head); 7] = [
        (command::PUBLISH, user),
        (command::LOOKUP, names),
        (command::SPAWN, |_| {}),
        (command::NOTIFY, |out| {
            out.status(-61);
            out.one();
            out.byte(3);
        }),
        (command::LOG, |out| {
            out.one();
            out.u64(0);
        }),
        (command::JOB_CONTROL, members),
        (command::GROUP_CONSTRUCT, |out| {
            text(out, "group");
            members(out);
        }),
    ];
    for encoding in Encoding::ALL {
        for (command, head) in heads {
            let case = format!("{} {encoding:?}", command_name(command));
            let mut scene = Scene::new(encoding);
            let strange = payload(encoding, command, |out| {
                head(out);
                directive(out);
            });
            assert_eq!(scene.ask(&strange, &case), Answer::Status(status::UNPACK_FAILURE), "{case}");
            let finalize = payload(encoding, command::FINALIZE, |_| {});
            assert_eq!(scene.ask(&finalize, &case), Answer::Status(status::SUCCESS), "{case}: the rank lives on");
        }
    }
}

#[test]
fn every_other_command_is_refused_by_a_status_and_harms_nobody() {
    let served: Vec<u8> = CASES.iter().map(|case| case.command).collect();
    for encoding in Encoding::ALL {
        let mut scene = Scene::new(encoding);
        for command in (0..=u8::MAX).filter(|command| !served.contains(command)) {
            let request = payload(encoding, command, |out| out.raw(&[0x7f; 16]));
            let answer = scene.ask(&request, command_name(command));
            assert_eq!(answer, Answer::Status(status::NOT_SUPPORTED), "command {command} {encoding:?}");
        }
    }
}

#[test]
fn messages_below_the_tags_of_requests_are_not_looked_at() {
    for tag in [0, 1, 2, 99] {
        let mut scene = Scene::new(Encoding::Flex);
        scene.world.send_raw(scene.asks, &pmix_core::wire::frame::message(tag, &[0xff; 40]));
        assert_eq!(scene.world.receive(scene.asks), None, "tag {tag}");
        assert!(scene.world.end.is_none(), "tag {tag}");
    }
}
