//! Servers that close, refuse, send false data or send too much. The client reports the received data, and never waits
//! for data that was only announced.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;

use pmix_core::wire::Encoding;
use pmix_core::wire::frame::message;
use pmix_core::wire::reader::Proc;
use pmix_core::wire::reply;
use pmix_core::wire::value::Value as WireValue;
use pmix_core::wire::writer::Writer;

use super::{Collect, PmixClient, PmixError, Value};
use crate::{SpawnApp, SpawnRequest};

/// A client of a server that sends these bytes in reply to any request, and closes.
fn join(answers: Vec<u8>) -> Result<PmixClient, PmixError> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut header = [0; 16];
        stream.read_exact(&mut header).unwrap();
        let length = u32::from_ne_bytes(header[8..12].try_into().unwrap());
        let mut greeting = vec![0; length as usize];
        stream.read_exact(&mut greeting).unwrap();
        // The client may close the connection before the end.
        let _ = stream.write_all(&answers);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
        greeting
    });
    let client = PmixClient::from_variables(|variable| {
        let value = match variable {
            "PMIX_NAMESPACE" => "job".to_owned(),
            "PMIX_RANK" => "1".to_owned(),
            "PMIX_SERVER_URI41" => format!("server.0;tcp4://{address}"),
            _ => return None,
        };
        Some(OsString::from(value))
    });
    if client.is_err() {
        let greeting = server.join().unwrap();
        assert!(greeting.starts_with(b"native\0\0\0\0\x08") && greeting.ends_with(b"4.2.2\0v41\0\x01hash\0"));
    }
    client
}

const WELCOME: [u8; 8] = [0, 0, 0, 0, 0, 0, 0, 7];

fn facts(size: u32) -> Vec<u8> {
    let mut out = Writer::new(Encoding::Flex);
    out.one();
    out.text(Some(b"job"));
    out.kval("pmix.job.size", &WireValue::U32(size));
    message(101, &out.into_bytes()).to_vec()
}

fn status(tag: u32, status: i32) -> Vec<u8> {
    let mut out = Writer::new(Encoding::Flex);
    out.status(status);
    message(tag, &out.into_bytes()).to_vec()
}

#[test]
fn servers_that_make_no_sense_are_left() {
    let check = |answers: &[&[u8]], expected: &str| {
        let error = join(answers.concat()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    check(&[], "closed the connection before it answered the greeting");
    check(&[&[0xff, 0xff, 0xff, 0xe5]], "does not take rank 1 in (status -27)");
    check(&[&WELCOME], "closed the connection before it answered the job information");
    check(&[&WELCOME, &facts(4)[..20]], "closed the connection before it answered the job information");
    check(&[&WELCOME, &message(101, &[2, 9])], "answer to the job information makes no sense");
    check(&[&WELCOME, &facts(1)], "gives rank 1 no job size above that");
    let announced = [&[0; 4][..], &101_u32.to_be_bytes(), &u32::MAX.to_be_bytes(), &[0; 4]].concat();
    check(&[&WELCOME, &announced], "announces 4294967295 bytes");
}

#[test]
fn a_spawn_brings_the_name_of_the_new_job_or_is_refused() {
    let mut begun = Writer::new(Encoding::Flex);
    begun.status(0);
    begun.one();
    begun.text(Some(b"job.1"));
    // Servers of libpmix may append facts about the new job.
    begun.kval("pmix.job.size", &WireValue::U32(2));
    let answers = [&WELCOME[..], &facts(4), &message(102, &begun.into_bytes()), &status(103, -181), &status(104, 0)];
    let mut client = join(answers.concat()).unwrap();
    let app = SpawnApp { program: "true".into(), ranks: 2, ..SpawnApp::default() };
    let request = SpawnRequest { apps: vec![app], preput: Vec::new() };
    assert_eq!(client.spawn(&request).unwrap(), "job.1");
    assert_eq!(client.spawn(&request).unwrap_err().to_string(), "the PMIx server refused the spawn: status -181");
    assert!(matches!(client.spawn(&request), Err(PmixError::Malformed { request: "spawn", .. })));
}

#[test]
fn events_are_passed_over_and_refusals_told() {
    let answers =
        [&WELCOME[..], &message(0, b"an event"), &facts(4), &status(102, 0), &status(103, -24), &status(104, -46)];
    let mut client = join(answers.concat()).unwrap();
    assert_eq!((client.rank(), client.size(), client.namespace()), (1, 4, "job"));
    assert_eq!(client.job_attribute("pmix.job.size").unwrap(), Some(Value::Number(4)));
    client.fence(Collect::Nothing).unwrap();
    let refused = client.fence(Collect::Data).unwrap_err();
    assert_eq!(refused.to_string(), "the PMIx server refused the fence: status -24");
    assert_eq!(client.get(2, "card").unwrap(), None);
    assert!(matches!(client.fence(Collect::Nothing), Err(PmixError::Closed { request: "fence" })));
}

/// libpmix 3.2 closes the connection at once when a rank finalizes.
#[test]
fn a_server_that_closes_at_the_end_has_heard_of_it() {
    let end = |last: &[u8]| join([&WELCOME[..], &facts(4), last].concat()).unwrap().finalize();
    end(&[]).unwrap();
    end(&status(102, 0)).unwrap();
    assert!(matches!(end(&status(102, -1)), Err(PmixError::Refused { request: "finalize", .. })));
}

#[test]
fn a_rank_gets_what_it_has_committed_last() {
    let value = |tag, card: &[u8]| {
        let mut object = reply::proc_heading(Encoding::Flex, Proc { namespace: b"job", rank: 1 });
        object.kval("card", &WireValue::Text(card));
        message(tag, &reply::objects(Encoding::Flex, [&object.into_bytes()[..]])).to_vec()
    };
    let answers =
        [&WELCOME[..], &facts(4), &status(102, 0), &value(103, b"old"), &status(104, 0), &value(105, b"new")].concat();
    let mut client = join(answers).unwrap();
    for card in ["old", "new"] {
        client.put("card", Value::Text(card.as_bytes().to_vec()));
        client.commit().unwrap();
        for _ in 0..2 {
            assert_eq!(client.get(1, "card").unwrap(), Some(Value::Text(card.as_bytes().to_vec())));
        }
    }
}

#[test]
fn nothing_is_asked_after_an_answer_that_was_not_read_to_its_end() {
    let announced = [&[0; 4][..], &102_u32.to_be_bytes(), &u32::MAX.to_be_bytes(), &[0; 4]].concat();
    let mut client = join([&WELCOME[..], &facts(4), &announced, &status(103, 0)].concat()).unwrap();
    assert!(matches!(client.fence(Collect::Nothing), Err(PmixError::TooLong { .. })));
    assert!(matches!(client.fence(Collect::Nothing), Err(PmixError::Closed { request: "fence" })));
}
