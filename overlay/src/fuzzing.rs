//! Entry points of the fuzz targets in `fuzz/`, as plain functions: they take arbitrary bytes, and panic if an invariant is broken.

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};

use crate::address::{Process, SetId, Uid};
use crate::directory::SetRecord;
use crate::frame::{BODY_MAX, Frame};
use crate::machine::{CallOptions, Effect, Machine, Membership, Neighbour, Opener};
use crate::method::Method;

/// Checks that frames are unchanged after they are written and read again, and never exceed their limit.
pub fn overlay_frame(data: &[u8]) {
    let mut stream = BytesMut::from(data);
    while let Ok(Some(frame)) = Frame::take(&mut stream) {
        assert!(frame.body.len() <= BODY_MAX);
        let mut written = BytesMut::new();
        frame.append(&mut written);
        assert_eq!(Frame::take(&mut written), Ok(Some(frame)));
        assert!(written.is_empty());
    }
}

/// Checks that the file of a set is unchanged after it is written and read again, or is refused.
pub fn set_file(data: &[u8]) {
    if let Some(record) = SetRecord::parse(data) {
        assert_eq!(SetRecord::parse(record.to_text().as_bytes()).as_ref(), Some(&record));
    }
}

/// Checks a member with arbitrary input from its neighbours: every call that it makes ends exactly once, and its memory is bounded. The
/// first byte selects the initial state. Then each piece of nine bytes is an event: the first byte is its kind, and the other bytes are
/// the content of its frame.
pub fn overlay_member(data: &[u8]) {
    let Some((&state, data)) = data.split_first() else { return };
    let set = SetId::new(1000, 7);
    let membership = Membership { set, node: 5, members: 16, homes: vec![0, 5, 9], launch: None };
    let mut member = Machine::new(membership);
    let mut now = Instant::now();
    let (mut called, mut ended, mut served) = (0, 0, Vec::new());
    let prepared = prepared(state);
    for piece in prepared.iter().map(|piece| &piece[..]).chain(data.chunks_exact(9)) {
        let rest: [u8; 8] = [piece[1], piece[2], piece[3], piece[4], piece[5], piece[6], piece[7], piece[8]];
        let neighbour = match rest[0] % 24 {
            index @ 0..16 => Neighbour::Member(index.into()),
            number => Neighbour::Set(SetId::new(1000, number.into())),
        };
        match piece[0] % 7 {
            0 => member.handle_frame(neighbour, frame(rest, set), now),
            1 => member.handle_opened(neighbour, Opener::Them, now),
            2 => member.handle_lost(neighbour, now),
            3 => {
                called += 1;
                let options =
                    CallOptions { timeout: Duration::from_secs(rest[2].into()), within: served.last().copied() };
                member.call(process(rest[1], set), Method(rest[3].into()), Bytes::copy_from_slice(&rest), options, now);
            }
            4 => {
                now += Duration::from_millis(u64::from(rest[1]) * 100);
                member.handle_time(now);
            }
            5 => member.handle_refused(neighbour, "why".to_owned(), now),
            _ => {
                if let Some(ticket) = served.pop() {
                    member.answer(ticket, Ok(Bytes::copy_from_slice(&rest)), now);
                }
            }
        }
        while let Some(effect) = member.poll_effect() {
            match effect {
                Effect::Ended(..) => ended += 1,
                Effect::Serve(request) => served.push(request.ticket),
                Effect::Open(_) | Effect::Close(_) | Effect::Send(..) => {}
            }
        }
        assert!(ended <= called);
    }
    assert!(member.connectivity().links.len() <= 32);
    while let Some(due) = member.next_wake().filter(|_| ended < called) {
        member.handle_time(due);
        while let Some(effect) = member.poll_effect() {
            ended += u32::from(matches!(effect, Effect::Ended(..)));
        }
    }
    assert_eq!(ended, called, "every call ends once");
}

/// Pieces that lead to a state: a new member, a member with a link to each other member, or one that has also called each of them.
fn prepared(state: u8) -> Vec<[u8; 9]> {
    let opened = (0..16).map(|member| [1, member, 0, 0, 0, 0, 0, 0, 0]);
    let called = (0..16).map(|member| [3, 0, member, 60, 7, 0, 0, 0, 0]);
    match state % 3 {
        0 => Vec::new(),
        1 => opened.collect(),
        _ => opened.chain(called).collect(),
    }
}

fn process(byte: u8, set: SetId) -> Uid {
    match byte % 32 {
        index @ 0..16 => Uid::new(set, Process::Node(index.into())),
        rank @ 16..20 => Uid::new(set, Process::Rank(u32::from(rank) - 16)),
        number => SetId::new(1000, number.into()).root(),
    }
}

fn frame([_, kind, ttl, method, source, destination, id, detours]: [u8; 8], set: SetId) -> Frame {
    use crate::frame::{DETOURS_MAX, Kind};
    let kinds = [Kind::Request, Kind::Response, Kind::Error, Kind::Echo, Kind::Echoed];
    Frame {
        kind: kinds[usize::from(kind) % kinds.len()],
        ttl,
        detours: detours % (DETOURS_MAX + 1),
        method: method.into(),
        source: process(source, set),
        destination: process(destination, set),
        id: id.into(),
        remaining_ms: 1000,
        body: Bytes::copy_from_slice(&[method, id]),
    }
}
