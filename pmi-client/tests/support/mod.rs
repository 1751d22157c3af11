//! A server that sends recorded replies, and checks that the client sends the requests of a real MPI library.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// One rank's part of a recorded exchange.
pub(crate) struct Transcript {
    messages: Vec<Message>,
}

enum Message {
    Client(Vec<u8>),
    Server(Vec<u8>),
}

/// The way in which the server's bytes reach the client.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Delivery {
    Whole,
    ByteByByte,
}

impl Transcript {
    /// Reads the lines below `@rank <label>` of `testdata/<file>`, for any of the `labels`.
    pub(crate) fn load(file: &str, labels: &[&str]) -> Self {
        let path = format!("{}/testdata/{file}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let mut ours = false;
        let mut messages = Vec::new();
        for line in text.lines() {
            if let Some(label) = line.strip_prefix("@rank ") {
                ours = labels.contains(&label);
            }
            match line.split_at_checked(3) {
                Some((_, "<EOF>")) => {}
                Some(("C> ", payload)) if ours => messages.push(Message::Client(unescape(payload))),
                Some(("S> ", payload)) if ours => messages.push(Message::Server(unescape(payload))),
                _ => {}
            }
        }
        assert!(!messages.is_empty(), "{path} has nothing for {labels:?}");
        Self { messages }
    }

    /// Runs the server until the client closes. Panics if a request of the client differs from the recording.
    pub(crate) fn play(&self, mut stream: UnixStream, delivery: Delivery) {
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        for message in &self.messages {
            match message {
                Message::Client(expected) if expected.starts_with(b"cmd=") || expected.starts_with(b"mcmd=") => {
                    expect_exactly(&mut stream, expected);
                }
                Message::Client(expected) => expect_fields(&mut stream, expected),
                Message::Server(payload) => send(&mut stream, payload, delivery),
            }
        }
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert_eq!(rest.escape_ascii().to_string(), "", "the client said more than was recorded");
    }
}

fn send(stream: &mut UnixStream, payload: &[u8], delivery: Delivery) {
    let size = match delivery {
        Delivery::Whole => payload.len(),
        Delivery::ByteByByte => 1,
    };
    payload.chunks(size).for_each(|chunk| stream.write_all(chunk).unwrap());
}

/// PMI-1: the same bytes that MPICH 5 sends.
fn expect_exactly(stream: &mut UnixStream, expected: &[u8]) {
    let mut seen = vec![0; expected.len()];
    stream.read_exact(&mut seen).unwrap_or_else(|error| panic!("waiting for {}: {error}", expected.escape_ascii()));
    assert_eq!(seen.escape_ascii().to_string(), expected.escape_ascii().to_string());
}

/// Requests of this client that some libraries do not send, with the server's replies: the job's name, and after each
/// fence a get of a key that no rank puts.
const OWN_QUESTIONS: [(&[&str], &[u8]); 2] = [
    (&["cmd=job-getid"], b"    42cmd=job-getid-response;rc=0;jobid=unnamed;"),
    (&["cmd=kvs-get", "key=-NONEXIST-KEY"], b"    38cmd=kvs-get-response;rc=0;found=FALSE;"),
];

/// PMI-2: only the significant fields, because no two libraries send the same fields.
fn expect_fields(stream: &mut UnixStream, expected: &[u8]) {
    let expected = essence(&expected[6..]);
    loop {
        let seen = essence(&read_frame(stream));
        let own = OWN_QUESTIONS.iter().find(|(question, _)| seen == *question && expected != *question);
        let Some((_, answer)) = own else {
            assert_eq!(seen, expected);
            return;
        };
        stream.write_all(answer).unwrap();
    }
}

fn read_frame(stream: &mut UnixStream) -> Vec<u8> {
    let mut prefix = [0; 6];
    stream.read_exact(&mut prefix).expect("the client sends a length");
    let len = str::from_utf8(&prefix).unwrap().trim().parse().expect("a decimal length");
    let mut body = vec![0; len];
    stream.read_exact(&mut body).expect("the client sends as many bytes as it announced");
    body
}

/// Returns the fields of a request, without fields that some libraries send and no server requires.
fn essence(body: &[u8]) -> Vec<String> {
    let text = str::from_utf8(body).unwrap().replace(";;", "\u{1}");
    let fields: Vec<_> = text.split_terminator(';').map(|field| field.replace('\u{1}', ";")).collect();
    let spawn = fields[0] == "cmd=spawn";
    let optional = |field: &str| {
        let names = ["pmijobid=", "threaded=", "srcid=", "jobid="];
        !spawn
            && (names.iter().any(|name| field.starts_with(name)) || ["wait=FALSE", "infokeycount=0"].contains(&field))
    };
    fields.into_iter().filter(|field| !optional(field)).collect()
}

fn unescape(payload: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut chars = payload.bytes();
    while let Some(byte) = chars.next() {
        bytes.push(match byte {
            b'\\' => match chars.next() {
                Some(b'n') => b'\n',
                Some(b'r') => b'\r',
                Some(b'\\') => b'\\',
                other => panic!("unknown escape {other:?} in {payload}"),
            },
            byte => byte,
        });
    }
    bytes
}
