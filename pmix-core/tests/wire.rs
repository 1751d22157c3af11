//! The wire format as a property: a value written in either encoding can be read again and converted to the other encoding, and a
//! truncated one is refused.

use pmix_core::wire::Encoding;
use pmix_core::wire::WireError;
use pmix_core::wire::frame::{Frame, FrameBuffer, message};
use pmix_core::wire::handshake::{Claim, Handshake};
use pmix_core::wire::reader::{DEPTH_MAX, Proc, Reader};
use pmix_core::wire::request::{App, Query, Request, command};
use pmix_core::wire::types;
use pmix_core::wire::value::{Info, Value};
use pmix_core::wire::writer::Writer;
use proptest::prelude::*;

/// Valid bytes of a text: all except NUL.
fn text() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(1..=u8::MAX, 0..24)
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(1..=u8::MAX, 1..24)
}

/// A value that owns its bytes; `Value` borrows them.
#[derive(Clone, Debug)]
enum Owned {
    Bool(bool),
    Text(Vec<u8>),
    Size(u64),
    Int(i32),
    U16(u16),
    U32(u32),
    Status(i32),
    Persistence(u8),
    Rank(u32),
    Proc(Vec<u8>, u32),
    Bytes(Vec<u8>),
    Infos(Vec<(Vec<u8>, u32, Self)>),
    Variable(Vec<u8>, Vec<u8>),
    Procs(Vec<(Vec<u8>, u32)>),
}

impl Owned {
    fn borrow(&self) -> Value<'_> {
        match self {
            Self::Bool(on) => Value::Bool(*on),
            Self::Text(text) => Value::Text(text),
            Self::Size(number) => Value::Size(*number),
            Self::Int(number) => Value::Int(*number),
            Self::U16(number) => Value::U16(*number),
            Self::U32(number) => Value::U32(*number),
            Self::Status(status) => Value::Status(*status),
            Self::Persistence(persistence) => Value::Persistence(*persistence),
            Self::Rank(rank) => Value::Rank(*rank),
            Self::Proc(namespace, rank) => Value::Proc(Proc { namespace, rank: *rank }),
            Self::Bytes(bytes) => Value::Bytes(bytes),
            Self::Infos(infos) => Value::Infos(infos.iter().map(info).collect()),
            Self::Variable(name, value) => Value::Variable(name, value),
            Self::Procs(procs) => Value::Procs(procs.iter().map(proc).collect()),
        }
    }
}

fn info((key, flags, value): &(Vec<u8>, u32, Owned)) -> Info<'_> {
    Info { key, flags: *flags, value: value.borrow() }
}

fn proc((namespace, rank): &(Vec<u8>, u32)) -> Proc<'_> {
    Proc { namespace, rank: *rank }
}

fn value() -> impl Strategy<Value = Owned> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Owned::Bool),
        text().prop_map(Owned::Text),
        any::<u64>().prop_map(Owned::Size),
        any::<i32>().prop_map(Owned::Int),
        any::<u16>().prop_map(Owned::U16),
        any::<u32>().prop_map(Owned::U32),
        any::<i32>().prop_map(Owned::Status),
        any::<u8>().prop_map(Owned::Persistence),
        any::<u32>().prop_map(Owned::Rank),
        (name(), any::<u32>()).prop_map(|(namespace, rank)| Owned::Proc(namespace, rank)),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(Owned::Bytes),
        (text(), text()).prop_map(|(name, value)| Owned::Variable(name, value)),
        prop::collection::vec((name(), any::<u32>()), 0..4).prop_map(Owned::Procs),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop::collection::vec((name(), any::<u32>(), inner), 0..4).prop_map(Owned::Infos)
    })
}

fn infos() -> impl Strategy<Value = Vec<(Vec<u8>, u32, Owned)>> {
    prop::collection::vec((name(), any::<u32>(), value()), 0..4)
}

fn procs() -> impl Strategy<Value = Vec<(Vec<u8>, u32)>> {
    prop::collection::vec((name(), any::<u32>()), 1..5)
}

/// Writes a request in both encodings, and asserts that only the complete payload decodes to `expected`.
fn survives(code: u8, write: impl Fn(&mut Writer), expected: &Request<'_>) -> Result<(), TestCaseError> {
    for encoding in Encoding::ALL {
        let mut payload = Writer::new(encoding);
        payload.one();
        payload.byte(code);
        write(&mut payload);
        let payload = payload.into_bytes();
        prop_assert_eq!(&Request::decode(encoding, &payload), &Ok(expected.clone()));
        for end in 0..payload.len() {
            prop_assert_ne!(&Request::decode(encoding, &payload[..end]), &Ok(expected.clone()), "{} bytes of it", end);
        }
    }
    Ok(())
}

fn write_procs(out: &mut Writer, procs: &[(Vec<u8>, u32)]) {
    out.count(procs.len());
    out.group(procs.len());
    procs.iter().for_each(|member| out.proc(proc(member)));
}

fn write_infos(out: &mut Writer, infos: &[(Vec<u8>, u32, Owned)]) {
    out.count(infos.len());
    out.group(infos.len());
    infos.iter().for_each(|directive| out.info(&info(directive)));
}

proptest! {
    #[test]
    fn numbers_of_every_width_are_read_as_they_were_written(
        unsigned: u64, signed: i64, narrow: u32, short: u16, byte: u8, int: i32,
    ) {
        for encoding in Encoding::ALL {
            let mut out = Writer::new(encoding);
            out.u64(unsigned);
            out.i64(signed);
            out.u32(narrow);
            out.u16(short);
            out.byte(byte);
            out.size(unsigned);
            out.int(int);
            out.uint(narrow);
            out.i16(short as i16);
            out.i32(int);
            let bytes = out.into_bytes();
            let mut reader = Reader::new(encoding, &bytes);
            prop_assert_eq!((reader.u64(), reader.i64(), reader.u32()), (Ok(unsigned), Ok(signed), Ok(narrow)));
            prop_assert_eq!((reader.u16(), reader.byte(), reader.size()), (Ok(short), Ok(byte), Ok(unsigned)));
            prop_assert_eq!((reader.int(), reader.uint()), (Ok(int.into()), Ok(narrow.into())));
            prop_assert_eq!((reader.i16(), reader.i32()), (Ok(short as i16), Ok(int)));
            prop_assert!(reader.is_empty());
        }
    }

    #[test]
    fn a_value_is_read_as_it_was_written_and_can_be_passed_over(value in value()) {
        let expected = value.borrow();
        for encoding in Encoding::ALL {
            let mut out = Writer::new(encoding);
            out.value(&expected);
            out.byte(7);
            let bytes = out.into_bytes();
            let mut reader = Reader::new(encoding, &bytes);
            prop_assert_eq!(&reader.value(), &Ok(expected.clone()));
            prop_assert_eq!(reader.rest(), [7]);
            let mut over = Reader::new(encoding, &bytes);
            prop_assert_eq!(over.skip(types::VALUE).map(<[u8]>::len), Ok(bytes.len() - 1));
            for end in 0..bytes.len() - 1 {
                prop_assert!(Reader::new(encoding, &bytes[..end]).skip(types::VALUE).is_err(), "{} bytes are a value", end);
            }
        }
    }

    #[test]
    fn a_value_that_goes_into_the_other_encoding_and_back_is_the_same(value in value()) {
        for (from, to) in [(Encoding::Fixed, Encoding::Flex), (Encoding::Flex, Encoding::Fixed)] {
            let mut written = Writer::new(from);
            written.value(&value.borrow());
            let mut there = Writer::new(to);
            prop_assert_eq!(Reader::new(from, written.as_bytes()).copy(types::VALUE, &mut there), Ok(()));
            prop_assert_eq!(Reader::new(to, there.as_bytes()).value(), Ok(value.borrow()));
            let mut back = Writer::new(from);
            prop_assert_eq!(Reader::new(to, there.as_bytes()).copy(types::VALUE, &mut back), Ok(()));
            prop_assert_eq!(back.as_bytes(), written.as_bytes());
        }
    }

    #[test]
    fn requests_over_members_survive(members in procs()) {
        let procs: Vec<_> = members.iter().map(proc).collect();
        let write = |out: &mut Writer| write_procs(out, &members);
        survives(command::FENCE, write, &Request::Fence { procs: procs.clone(), collect: true })?;
        survives(command::CONNECT, write, &Request::Connect { procs: procs.clone() })?;
        survives(command::DISCONNECT, write, &Request::Disconnect { procs })?;
    }

    #[test]
    fn gets_survive_with_their_directives(namespace in name(), rank: u32, directives in infos(), key in name()) {
        let infos: Vec<_> = directives.iter().map(info).collect();
        let expected = Request::Get { proc: Proc { namespace: &namespace, rank }, infos, key: Some(&key) };
        let write = |out: &mut Writer| {
            out.one();
            out.text(Some(&namespace));
            out.one();
            out.u32(rank);
            write_infos(out, &directives);
            out.one();
            out.text(Some(&key));
        };
        survives(command::GET, write, &expected)?;
    }

    #[test]
    fn groups_and_controls_survive(group in name(), members in procs(), directives in infos()) {
        let (procs, infos): (Vec<_>, Vec<_>) = (members.iter().map(proc).collect(), directives.iter().map(info).collect());
        let construct = Request::GroupConstruct { name: &group, procs: procs.clone(), infos: infos.clone() };
        let write = |out: &mut Writer| {
            out.one();
            out.text(Some(&group));
            write_procs(out, &members);
            write_infos(out, &directives);
        };
        survives(command::GROUP_CONSTRUCT, write, &construct)?;
        let control = |out: &mut Writer| {
            write_procs(out, &members);
            write_infos(out, &directives);
        };
        let allocation = |out: &mut Writer| {
            out.one();
            out.byte(2);
            write_infos(out, &directives);
        };
        survives(command::ALLOC, allocation, &Request::Allocate { directive: 2, infos: infos.clone() })?;
        survives(command::JOB_CONTROL, control, &Request::JobControl { targets: procs, infos })?;
    }

    #[test]
    fn queries_survive(keys in prop::collection::vec(name(), 0..4), directives in infos()) {
        let names: Vec<_> = keys.iter().map(Vec::as_slice).collect();
        let query = Query { keys: names.clone(), qualifiers: directives.iter().map(info).collect() };
        let write = |out: &mut Writer| {
            out.count(2);
            out.group(2);
            for _ in 0..2 {
                out.i32(names.len() as i32);
                names.iter().for_each(|name| out.text(Some(name)));
                out.size(directives.len() as u64);
                directives.iter().for_each(|directive| out.info(&info(directive)));
            }
        };
        survives(command::QUERY, write, &Request::Query(vec![query.clone(), query]))?;
    }

    #[test]
    fn names_and_events_survive(directives in infos(), keys in prop::collection::vec(name(), 0..4), status: i32, range: u8, codes in prop::collection::vec(any::<i32>(), 0..5)) {
        let infos: Vec<_> = directives.iter().map(info).collect();
        let names: Vec<_> = keys.iter().map(Vec::as_slice).collect();
        let user = |out: &mut Writer| {
            out.one();
            out.u32(1000);
        };
        let write_keys = |out: &mut Writer| {
            out.count(names.len());
            for name in &names {
                out.one();
                out.text(Some(name));
            }
        };
        survives(command::PUBLISH, |out| { user(out); write_infos(out, &directives); }, &Request::Publish(infos.clone()))?;
        let look_up = |out: &mut Writer| { user(out); write_keys(out); write_infos(out, &directives); };
        survives(command::LOOKUP, look_up, &Request::Lookup { keys: names.clone(), infos: infos.clone() })?;
        survives(command::UNPUBLISH, |out| { user(out); write_keys(out); }, &Request::Unpublish { keys: names.clone() })?;
        let notify = |out: &mut Writer| {
            out.status(status);
            out.one();
            out.byte(range);
            write_infos(out, &directives);
        };
        survives(command::NOTIFY, notify, &Request::Notify { status, range, infos })?;
        let register = |out: &mut Writer| {
            out.count(codes.len());
            out.group(codes.len());
            codes.iter().for_each(|&code| out.i32(code));
        };
        survives(command::REGISTER_EVENTS, register, &Request::RegisterEvents(codes.clone()))?;
    }

    #[test]
    fn a_spawn_survives(program in name(), arguments in prop::collection::vec(text(), 0..4), variables in prop::collection::vec(name(), 0..4), directory in prop::option::of(name()), ranks in 0..=i32::MAX as u32, directives in infos()) {
        let app = App {
            program: &program,
            arguments: arguments.iter().map(Vec::as_slice).collect(),
            variables: variables.iter().map(Vec::as_slice).collect(),
            directory: directory.as_deref(),
            ranks,
            infos: directives.iter().map(info).collect(),
        };
        let write = |out: &mut Writer| {
            write_infos(out, &directives);
            out.count(1);
            out.group(1);
            out.text(Some(&program));
            out.int(arguments.len() as i32);
            arguments.iter().for_each(|argument| out.text(Some(argument)));
            out.i32(variables.len() as i32);
            variables.iter().for_each(|variable| out.text(Some(variable)));
            out.text(directory.as_deref());
            out.int(ranks as i32);
            out.size(directives.len() as u64);
            directives.iter().for_each(|directive| out.info(&info(directive)));
        };
        let infos = directives.iter().map(info).collect();
        survives(command::SPAWN, write, &Request::Spawn { infos, apps: vec![app] })?;
    }

    #[test]
    fn what_a_commit_holds_is_taken_apart_however_many_scopes_it_has(scopes in prop::collection::vec((1..=3_u8, prop::collection::vec((name(), value()), 0..4)), 0..4)) {
        for encoding in Encoding::ALL {
            let mut payload = Writer::new(encoding);
            payload.one();
            payload.byte(command::COMMIT);
            for (scope, pairs) in &scopes {
                let mut buffer = Writer::new(encoding);
                for (key, value) in pairs {
                    buffer.one();
                    buffer.text(Some(key));
                    buffer.value(&value.borrow());
                }
                payload.one();
                payload.byte(*scope);
                payload.one();
                payload.byte(1);
                payload.byte_object(&buffer.into_bytes());
            }
            let payload = payload.into_bytes();
            let Ok(Request::Commit(committed)) = Request::decode(encoding, &payload) else { panic!("no commit") };
            prop_assert_eq!(committed.len(), scopes.len());
            for (committed, (scope, pairs)) in committed.iter().zip(&scopes) {
                prop_assert_eq!((committed.scope, committed.pairs.len()), (*scope, pairs.len()));
                for (&(found, bytes), (key, value)) in committed.pairs.iter().zip(pairs) {
                    prop_assert_eq!(found, &key[..]);
                    prop_assert_eq!(Reader::new(encoding, bytes).value(), Ok(value.borrow()));
                }
            }
        }
    }

    #[test]
    fn frames_are_found_however_the_stream_is_cut(payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..60), 0..6), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6)) {
        let mut stream = vec![0xff; 8];
        stream.extend(5_u32.to_ne_bytes());
        stream.extend([0; 4]);
        stream.extend(b"hello");
        for (tag, payload) in (100..).zip(&payloads) {
            stream.extend(message(tag, payload));
        }
        let mut ends: Vec<_> = cuts.iter().map(|cut| cut.index(stream.len())).chain([stream.len()]).collect();
        ends.sort_unstable();
        let (mut frames, mut found, mut begin) = (FrameBuffer::default(), Vec::new(), 0);
        for end in ends {
            frames.push(&stream[begin..end]);
            begin = end;
            while let Some(frame) = frames.next_frame().unwrap() {
                found.push(frame);
            }
        }
        let messages = (100..).zip(payloads).map(|(tag, payload)| Frame::Message { tag, payload: payload.into() });
        let expected: Vec<_> = std::iter::once(Frame::Handshake((&b"hello"[..]).into())).chain(messages).collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn every_handshake_names_its_rank_or_is_refused(namespace in "[a-z0-9.]{1,20}", rank: u32, major in 0..9_u32, minor in 0..9_u32, module in 0..6_usize) {
        let module = ["v21", "v3", "v4", "v41", "v20", "v5"][module];
        let mut payload = b"native\0\0\0\0\0\0".to_vec();
        payload.extend(namespace.bytes().chain([0]));
        payload.extend(rank.to_be_bytes());
        payload.extend(format!("{major}.{minor}.1rc2\0{module}\0\u{1}hash\0").bytes());
        match Handshake::decode(&payload) {
            Ok(handshake) => {
                prop_assert_eq!(handshake.claim, Claim::Rank(Proc { namespace: namespace.as_bytes(), rank }));
                prop_assert_eq!((handshake.version.major, handshake.version.minor), (major, minor));
                prop_assert_eq!(handshake.module, module);
            }
            Err(error) => {
                prop_assert!(["v20", "v5"].contains(&module), "{error}");
                prop_assert!(error.to_string().contains(module), "{error}");
            }
        }
    }
}

#[test]
fn values_nest_as_deep_as_the_limit_and_no_deeper() {
    let nested =
        |depth: usize| (0..depth).fold(Value::Bool(true), |inner, _| Value::Infos(vec![Info::new("k", inner)]));
    for encoding in Encoding::ALL {
        for (depth, expected) in
            [(DEPTH_MAX, None), (DEPTH_MAX + 1, Some(WireError::TooDeep)), (400, Some(WireError::TooDeep))]
        {
            let mut out = Writer::new(encoding);
            out.value(&nested(depth));
            assert_eq!(Reader::new(encoding, out.as_bytes()).value().err(), expected, "{depth} arrays");
        }
    }
}

#[test]
fn what_is_no_request_is_refused_for_its_own_reason() {
    let check = |encoding, payload: &[u8], expected: WireError| {
        assert_eq!(Request::decode(encoding, payload), Err(expected), "{}", payload.escape_ascii());
    };
    let [fixed, flex] = Encoding::ALL;
    assert_eq!((fixed, flex), (Encoding::Fixed, Encoding::Flex));
    check(flex, b"", WireError::Truncated { wanted: 1, left: 0 });
    check(flex, b"\x04\x05", WireError::Count { found: 2, expected: 1 });
    check(fixed, b"\0\0\0\x02\x05", WireError::Count { found: 2, expected: 1 });
    check(flex, b"\x02\x03\x02\x00", WireError::Absent { what: "the list of members" });
    // a list of more members than there are bytes
    check(flex, b"\x02\x03\x02\x7f", WireError::Truncated { wanted: 127, left: 0 });
    // a text of negative length, one without its NUL, and one with a NUL inside
    check(flex, b"\x02\x1c\x02\x03", WireError::Range { what: "the length of a text", found: -2 });
    check(flex, b"\x02\x1c\x02\x04ab", WireError::Text { len: 2 });
    check(flex, b"\x02\x1c\x02\x06a\0\0", WireError::Text { len: 3 });
    // a value of an unknown type
    check(flex, b"\x02\x02\x02\x01\x02\x01\x07\x02\x04k\0\xff\x01\0", WireError::UnknownType { code: 255 });
}

#[test]
fn arrays_of_nothing_cannot_be_long() {
    // Elements of type UNDEFINED take no bytes; 2^40 of them would take an unlimited time.
    let mut out = Writer::new(Encoding::Flex);
    out.u16(types::DATA_ARRAY);
    out.u16(types::UNDEFINED);
    out.size(1);
    out.byte(0);
    let read = Reader::new(Encoding::Flex, out.as_bytes()).value();
    assert_eq!(read, Err(WireError::UnknownType { code: types::UNDEFINED }));
    let mut out = Writer::new(Encoding::Flex);
    out.u16(types::DATA_ARRAY);
    out.u16(types::BOOL);
    out.size(1 << 40);
    let read = Reader::new(Encoding::Flex, out.as_bytes()).value();
    assert_eq!(read, Err(WireError::Truncated { wanted: 1 << 40, left: 0 }));
}
