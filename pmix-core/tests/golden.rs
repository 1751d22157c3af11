//! Frames of real clients, byte for byte, in both encodings; and written payloads can be read again.

use pmix_core::wire::Encoding::{self, Fixed, Flex};
use pmix_core::wire::reader::{Proc, Reader};
use pmix_core::wire::reply::{self, Encoded};
use pmix_core::wire::request::Request;
use pmix_core::wire::types::{self, RANK_WILDCARD};
use pmix_core::wire::value::{Info, Value};
use pmix_core::wire::writer::Writer;
use pmix_core::wire::{WireError, status};
use proptest::prelude::*;

/// Hexadecimal digits, `{text}` with its NUL, `<n>` for n arbitrary bytes, `S0` and `S1` for a fixed size; `|` only separates.
fn bytes(written: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in written.split_whitespace() {
        let inner = |open, close| word.strip_prefix(open).and_then(|rest: &str| rest.strip_suffix(close));
        if let Some(text) = inner("{", "}") {
            bytes.extend(text.bytes().chain([0]));
        } else if let Some(count) = inner("<", ">") {
            bytes.extend(vec![0xab; count.parse().unwrap()]);
        } else if let Some(size) = word.strip_prefix('S') {
            bytes.extend([0, 15, 0, 0, 0, 0, 0, 0, 0, size.parse().unwrap()]);
        } else if word != "|" {
            bytes.push(u8::from_str_radix(word, 16).unwrap());
        }
    }
    bytes
}

fn check(encoding: Encoding, written: &str, expected: Request<'_>) {
    let payload = bytes(written);
    assert_eq!(Request::decode(encoding, &payload), Ok(expected), "{written}");
    for end in 1..payload.len() {
        // A truncated payload is another request, or none; it never panics.
        let _ = Request::decode(encoding, &payload[..end]);
    }
}

fn all_of_job1() -> Vec<Proc<'static>> {
    vec![Proc { namespace: b"job1", rank: RANK_WILDCARD }]
}

#[test]
fn requests_of_clients_with_flexible_numbers() {
    check(Flex, "02 00", Request::JobInfo);
    check(Flex, "02 0d | 02 00 | 02 00", Request::RegisterEvents(vec![]));
    check(Flex, "02 0d | 02 01 | 02 a5 02 | 02 00", Request::RegisterEvents(vec![-147]));
    let fence = |collect| Request::Fence { procs: all_of_job1(), collect };
    check(Flex, "02 03 | 02 01 | 02 0a {job1} fe ff ff ff 0f | 02 01 | 02 1a {pmix.collect} 00 01 01", fence(true));
    check(Flex, "02 03 | 02 01 | 02 0a {job1} fe ff ff ff 0f | 02 00", fence(false));
    let get = |rank, infos, key| Request::Get { proc: Proc { namespace: b"job1", rank }, infos, key: Some(key) };
    check(Flex, "02 04 | 02 0a {job1} | 02 01 | 02 00 | 02 18 {btl.tcp.4.1}", get(1, vec![], b"btl.tcp.4.1"));
    let immediate = Info { key: b"pmix.immediate", flags: 2, value: Value::Bool(true) };
    check(
        Flex,
        "02 04 | 02 0a {job1} | 02 fe ff ff ff 0f | 02 01 | 02 1e {pmix.immediate} 02 01 01 | 02 1e {pmix.hwlocxml2}",
        get(RANK_WILDCARD, vec![immediate], b"pmix.hwlocxml2"),
    );
    check(Flex, "02 0e", Request::DeregisterEvents(vec![]));
    check(Flex, "02 0e | 02 a5 02", Request::DeregisterEvents(vec![-147]));
    check(Flex, "02 05", Request::Finalize);
}

#[test]
fn a_group_of_two_infos_has_one_count() {
    let written = "02 12 | 02 01 | 02 0a {job1} 00 | 02 02 | 04 28 {pmix.reg.cleanupdir} 00 03 1a {/tmp/ompi.42} \
                   26 {pmix.clnup.recurse} 00 01 01";
    let infos = vec![
        Info::new("pmix.reg.cleanupdir", Value::Text(b"/tmp/ompi.42")),
        Info::new("pmix.clnup.recurse", Value::Bool(true)),
    ];
    let targets = vec![Proc { namespace: b"job1", rank: 0 }];
    check(Flex, written, Request::JobControl { targets, infos });
}

#[test]
fn requests_of_clients_with_fixed_numbers() {
    check(Fixed, "00 00 00 01 00", Request::JobInfo);
    check(Fixed, "00 00 00 01 0d | 00 00 00 01 S0 | 00 00 00 01 S0", Request::RegisterEvents(vec![]));
    let one_code = "00 00 00 01 0d | 00 00 00 01 S1 | 00 00 00 01 ff ff ff 6d | 00 00 00 01 S0";
    check(Fixed, one_code, Request::RegisterEvents(vec![-147]));
    let fence = "00 00 00 01 03 | 00 00 00 01 S1 | 00 00 00 01 00 00 00 05 {job1} ff ff ff fe | 00 00 00 01 S1 \
                 | 00 00 00 01 00 00 00 0d {pmix.collect} 00 00 00 00 00 01 01";
    check(Fixed, fence, Request::Fence { procs: all_of_job1(), collect: true });
    let get = "00 00 00 01 04 | 00 00 00 01 00 00 00 05 {job1} | 00 00 00 01 00 00 00 01 | 00 00 00 01 S0 \
               | 00 00 00 01 00 00 00 0c {btl.tcp.4.1}";
    let proc = Proc { namespace: b"job1", rank: 1 };
    check(Fixed, get, Request::Get { proc, infos: vec![], key: Some(b"btl.tcp.4.1") });
    check(Fixed, "00 00 00 01 05", Request::Finalize);
}

#[test]
fn a_commit_is_taken_apart_and_its_answer_put_together() {
    let buffer = "02 18 {btl.tcp.4.1} 1b 30 <48> | 02 1a {pml.base.2.0} 1b 04 <4>";
    let payload = bytes(&format!("02 02 | 02 01 | 02 01 55 {buffer} | 02 02 | 02 01 55 {buffer}"));
    let Ok(Request::Commit(scopes)) = Request::decode(Flex, &payload) else { panic!("no commit") };
    assert_eq!(scopes.iter().map(|committed| committed.scope).collect::<Vec<_>>(), [1, 2]);
    let (key, value) = scopes[0].pairs[0];
    assert_eq!((key, value), (&b"btl.tcp.4.1"[..], &bytes("1b 30 <48>")[..]));
    assert_eq!(scopes[1].pairs[1].0, b"pml.base.2.0");

    let answer = |encoding| {
        let mut object = reply::proc_heading(encoding, Proc { namespace: b"job1", rank: 1 });
        reply::push_pair(&mut object, key, Encoded { encoding: Flex, bytes: value });
        reply::objects(encoding, [&object.into_bytes()[..]])
    };
    assert_eq!(answer(Flex), bytes("02 00 | 02 48 | 02 0a {job1} 01 | 02 18 {btl.tcp.4.1} 1b 30 <48>"));
    let fixed = "00 00 00 01 00 00 00 00 | 00 00 00 01 00 0f 00 00 00 00 00 00 00 61 | 00 00 00 01 00 00 00 05 {job1} 00 00 \
                 00 01 | 00 00 00 01 00 00 00 0c {btl.tcp.4.1} 00 1b 00 0f 00 00 00 00 00 00 00 30 <48>";
    assert_eq!(answer(Fixed), bytes(fixed), "a value for a client of the other encoding");
}

#[test]
fn a_status_is_as_long_as_the_client_counts() {
    assert_eq!(reply::status(Flex, status::SUCCESS), [2, 0]);
    assert_eq!(reply::status(Fixed, status::SUCCESS), [0, 0, 0, 1, 0, 0, 0, 0]);
}

#[test]
fn announcements_are_held_against_what_is_there() {
    let check = |written: &str, expected: fn(&WireError) -> bool| {
        let payload = bytes(written);
        let error = Request::decode(Flex, &payload).unwrap_err();
        assert!(expected(&error), "{written}: {error}");
    };
    // two thousand million members, codes, infos
    check("02 03 | 02 ff ff ff ff 07", |error| matches!(error, WireError::Truncated { .. }));
    check("02 0d | 02 ff ff ff ff ff ff ff ff ff", |error| matches!(error, WireError::Truncated { .. }));
    check("02 06 | 02 00 | 02 ff ff ff ff 07", |error| matches!(error, WireError::Truncated { .. }));
    // a text of negative length; one without its NUL; a value of an unknown type
    check("02 04 | 02 09", |error| matches!(error, WireError::Range { .. }));
    check("02 04 | 02 04 61 61", |error| matches!(error, WireError::Text { .. }));
    check("02 02 | 02 01 | 02 01 06 | 02 04 {k} 7f 00", |error| matches!(error, WireError::UnknownType { code: 127 }));
}

#[test]
fn nesting_has_an_end() {
    let nested = |levels: usize| {
        let mut written = Writer::new(Flex);
        written.one();
        written.byte(6);
        written.one();
        written.u32(0);
        written.count(1);
        written.group(1);
        for _ in 0..levels {
            written.raw(&bytes("04 {k} 00 27 18 01"));
        }
        written.raw(&bytes("04 {k} 00 01 01"));
        written.into_bytes()
    };
    assert!(Request::decode(Flex, &nested(16)).is_ok());
    assert_eq!(Request::decode(Flex, &nested(17)), Err(WireError::TooDeep));
    assert_eq!(Request::decode(Flex, &nested(100_000)), Err(WireError::TooDeep));
}

fn value() -> impl Strategy<Value = OwnedValue> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(OwnedValue::Bool),
        "[a-z,]{0,20}".prop_map(OwnedValue::Text),
        any::<u64>().prop_map(OwnedValue::Size),
        any::<i32>().prop_map(OwnedValue::Int),
        any::<u16>().prop_map(OwnedValue::U16),
        any::<u32>().prop_map(OwnedValue::U32),
        any::<i32>().prop_map(OwnedValue::Status),
        ("[a-z]{1,8}", any::<u32>()).prop_map(|(namespace, rank)| OwnedValue::Proc(namespace, rank)),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(OwnedValue::Bytes),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop::collection::vec(("[a-z.]{1,12}", any::<u32>(), inner), 0..4).prop_map(OwnedValue::Infos)
    })
}

#[derive(Clone, Debug)]
enum OwnedValue {
    Bool(bool),
    Text(String),
    Size(u64),
    Int(i32),
    U16(u16),
    U32(u32),
    Status(i32),
    Proc(String, u32),
    Bytes(Vec<u8>),
    Infos(Vec<(String, u32, Self)>),
}

impl OwnedValue {
    fn borrowed(&self) -> Value<'_> {
        match self {
            Self::Bool(on) => Value::Bool(*on),
            Self::Text(text) => Value::Text(text.as_bytes()),
            Self::Size(number) => Value::Size(*number),
            Self::Int(number) => Value::Int(*number),
            Self::U16(number) => Value::U16(*number),
            Self::U32(number) => Value::U32(*number),
            Self::Status(status) => Value::Status(*status),
            Self::Proc(namespace, rank) => Value::Proc(Proc { namespace: namespace.as_bytes(), rank: *rank }),
            Self::Bytes(bytes) => Value::Bytes(bytes),
            Self::Infos(infos) => Value::Infos(
                infos
                    .iter()
                    .map(|(key, flags, value)| Info { key: key.as_bytes(), flags: *flags, value: value.borrowed() })
                    .collect(),
            ),
        }
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read(owned in value()) {
        let value = owned.borrowed();
        let written = Encoding::ALL.map(|encoding| {
            let mut out = Writer::new(encoding);
            out.value(&value);
            out.into_bytes()
        });
        for (encoding, written) in Encoding::ALL.into_iter().zip(&written) {
            let mut reader = Reader::new(encoding, written);
            prop_assert_eq!(reader.value(), Ok(value.clone()));
            prop_assert!(reader.is_empty());
            prop_assert_eq!(Reader::new(encoding, written).skip(types::VALUE), Ok(&written[..]));
        }
        // a copy from one encoding to the other equals the value written directly
        for (from, to) in [(0, 1), (1, 0)] {
            let mut out = Writer::new(Encoding::ALL[to]);
            Reader::new(Encoding::ALL[from], &written[from]).copy(types::VALUE, &mut out).unwrap();
            prop_assert_eq!(out.as_bytes(), &written[to][..]);
        }
    }

    #[test]
    fn no_bytes_panic(flex in any::<bool>(), command in 0_u8..40, rest in prop::collection::vec(any::<u8>(), 0..200)) {
        let encoding = if flex { Flex } else { Fixed };
        let mut payload = Writer::new(encoding);
        payload.one();
        payload.byte(command);
        payload.raw(&rest);
        let _ = Request::decode(encoding, &payload.into_bytes());
    }

    #[test]
    fn numbers_survive(number in any::<u64>(), signed in any::<i64>()) {
        for encoding in Encoding::ALL {
            let mut out = Writer::new(encoding);
            out.u64(number);
            out.i64(signed);
            out.size(number);
            let written = out.into_bytes();
            let mut reader = Reader::new(encoding, &written);
            prop_assert_eq!((reader.u64(), reader.i64(), reader.size()), (Ok(number), Ok(signed), Ok(number)));
        }
    }
}
