//! The fuzz targets as plain functions: every build compiles them, and a test runs them on arbitrary bytes.

use pmi_core::ids::{JobId, LocalRank, NodeIndex, Rank};
use pmi_core::job::Job;

use crate::namespace::{JobIndex, Namespace, Seat};
use crate::node_facts::NodeFacts;
use crate::process_set::ProcessSet;
use crate::server::{Action, Server, Settings};
use crate::wire::Encoding;
use crate::wire::forwarding::channel;
use crate::wire::frame::FrameBuffer;
use crate::wire::handshake::Handshake;
use crate::wire::reader::Reader;
use crate::wire::request::Request;
use crate::wire::types;
use crate::wire::writer::Writer;

/// Splits a stream into frames, in pieces with lengths from the stream itself.
pub fn frames(data: &[u8]) {
    let mut frames = FrameBuffer::default();
    let mut rest = data;
    while let Some((&length, tail)) = rest.split_first() {
        let (piece, left) = tail.split_at(usize::from(length).min(tail.len()));
        frames.push(piece);
        while let Ok(Some(_)) = frames.next_frame() {}
        rest = left;
    }
    let _ = Handshake::decode(data);
}

/// Decodes a request, and a value that must survive the conversion to the other encoding and back.
///
/// # Panics
/// Panics if the value changes.
pub fn payload(data: &[u8]) {
    for (from, to) in [(Encoding::Fixed, Encoding::Flex), (Encoding::Flex, Encoding::Fixed)] {
        let _ = Request::decode(from, data);
        let mut there = Writer::new(to);
        if Reader::new(from, data).copy(types::VALUE, &mut there).is_ok() {
            let mut back = Writer::new(from);
            let copied = Reader::new(to, there.as_bytes()).copy(types::VALUE, &mut back);
            assert!(copied.is_ok(), "what was copied cannot be read: {copied:?}");
            let mut again = Writer::new(to);
            let copied = Reader::new(from, back.as_bytes()).copy(types::VALUE, &mut again);
            assert!(copied.is_ok() && again.as_bytes() == there.as_bytes(), "a value changed on its way");
        }
    }
}

/// Two ranks and a tool send the given bytes in turns, after their handshakes.
pub fn server(data: &[u8]) {
    let Ok(id) = JobId::new("job") else { return };
    let mut server = Server::new(Settings::default());
    server.add(Namespace {
        name: "job".to_owned(),
        job: Job::on_one_node(id, 2),
        node: NodeIndex(0),
        hosts: vec!["n0".to_owned()],
        allocation: None,
        directory: None,
        parent: Some(("other".to_owned(), Rank(0))),
        here: NodeFacts { topology: Some("<topology/>".into()), places: Vec::new() },
        command: bytes::Bytes::new(),
        sets: vec![ProcessSet { name: "app://a".to_owned(), ranks: vec![0..1, 1..2] }],
    });
    let peers: [(&[u8], &str); 3] =
        [(b"\0job\0\0\0\0\0", "v3"), (b"\0job\0\0\0\0\x01", "v41"), (b"\x03\0\0\0\0\0\0\0\0", "v41")];
    let connections = peers.map(|(claim, module)| {
        let connection = server.accept();
        let mut greeting = b"native\0\0\0\0\0".to_vec();
        greeting.extend(claim);
        greeting.extend(format!("5.0.0\0{module}\0\u{1}hash\0").bytes());
        let mut frame = vec![0xff; 8];
        frame.extend((greeting.len() as u32).to_ne_bytes());
        frame.extend([0; 4]);
        frame.extend(greeting);
        server.handle_bytes(connection, &frame);
        connection
    });
    let mut rest = data;
    let mut turn = connections.into_iter().cycle();
    while let (Some((&length, tail)), Some(connection)) = (rest.split_first(), turn.next()) {
        let (payload, left) = tail.split_at(usize::from(length).min(tail.len()));
        if !payload.is_empty() {
            server.handle_bytes(connection, &crate::wire::frame::message(101, payload));
        }
        server.handle_output(Seat { job: JobIndex(0), local: LocalRank(0) }, channel::STDOUT, payload);
        while let Some(action) = server.poll_action() {
            match action {
                Action::SetTimer { ticket, .. } => server.handle_timer(ticket),
                Action::SendAndTell { connection, .. } => server.handle_sent(connection),
                _ => {}
            }
        }
        rest = left;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn anything_goes(data in prop::collection::vec(any::<u8>(), 0..400)) {
            super::frames(&data);
            super::payload(&data);
            super::server(&data);
        }

        #[test]
        fn requests_that_begin_well_go_too(pieces in prop::collection::vec((0_u8..40, prop::collection::vec(any::<u8>(), 0..40)), 0..12)) {
            let mut data = Vec::new();
            for (turn, (command, rest)) in pieces.into_iter().enumerate() {
                let begin: &[u8] = if turn % 2 == 0 { &[0, 0, 0, 1] } else { &[2] };
                data.push((begin.len() + 1 + rest.len()) as u8);
                data.extend(begin);
                data.push(command);
                data.extend(rest);
            }
            super::server(&data);
        }
    }
}
