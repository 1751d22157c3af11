//! Fuzz targets of links: input to a session or an agent before authentication, and frames of a session after it.

use std::sync::Arc;

use bytes::BytesMut;
use pmi_core::ids::NodeIndex;
use prost::Message;

use super::frame::{FrameReader, FrameWriter};
use super::greeting::Greeting;
use super::key::LinkKey;
use crate::noise::{Ciphers, HANDSHAKE_LEN, Handshake};
use crate::proto::v1::LinkFrame;

/// Launch of the links.
const LAUNCH: &str = "launch";

fn launch() -> Arc<str> {
    Arc::from(LAUNCH)
}

/// Checks that the frames of a stream do not depend on where it is cut, and that a received frame is unchanged after it is sent
/// again.
///
/// The first byte is the position of the cut.
pub fn link_stream(data: &[u8]) {
    let Some((&cut, stream)) = data.split_first() else { return };
    let whole = frames(&[stream]);
    assert_eq!(whole, frames(&[&stream[..stream.len().min(cut.into())], &stream[stream.len().min(cut.into())..]]));
    let (mut writer, mut again) = (FrameWriter::new(launch()), BytesMut::new());
    for frame in &whole.0 {
        assert!(writer.append(frame, &mut again), "it is of the launch: {frame:?}");
    }
    assert_eq!(frames(&[&again]), (whole.0, true));
}

/// Returns the frames in these pieces, and whether there was nothing else.
fn frames(pieces: &[&[u8]]) -> (Vec<LinkFrame>, bool) {
    let (mut reader, mut stream, mut frames) = (FrameReader::new(launch()), BytesMut::new(), Vec::new());
    for piece in pieces {
        stream.extend_from_slice(piece);
        loop {
            match reader.take(&mut stream) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(_) => return (frames, false),
            }
        }
    }
    (frames, stream.is_empty())
}

/// Encodes these frames as a stream for [`link_stream`]. Each frame is given in protobuf encoding, as in calls.
pub fn link_stream_of(frames: &[Vec<u8>]) -> Vec<u8> {
    let (mut writer, mut stream) = (FrameWriter::new(launch()), BytesMut::from(&[7][..]));
    for frame in frames {
        writer.append(&LinkFrame::decode(&**frame).unwrap_or_default(), &mut stream);
    }
    stream.to_vec()
}

/// Checks that input from a sender without the key is refused: it contains no valid MAC, no valid handshake of the launch, and no
/// valid message after a handshake.
pub fn link_opening(data: &[u8]) {
    let key = LinkKey::from_bytes([7; LinkKey::LEN]);
    let Some((greeting, rest)) = data.split_first_chunk::<{ Greeting::LEN }>() else { return };
    let Ok(greeting) = Greeting::from_bytes(*greeting) else { return };
    assert_eq!(greeting.as_bytes()[..], data[..Greeting::LEN]);
    let signed = Greeting::new(greeting.launch(), greeting.from(), greeting.to(), [0; 16], &key.gate_key());
    assert_eq!((signed.launch(), signed.from(), signed.to()), (greeting.launch(), greeting.from(), greeting.to()));
    assert!(!greeting.is_signed_by(&key.gate_key()), "a MAC was guessed");
    let Some((message, sealed)) = rest.split_first_chunk::<HANDSHAKE_LEN>() else { return };
    let mut called = Handshake::of_called(&key.handshake_key(), greeting.as_bytes()).expect("the pattern is known");
    called.read(message).expect_err("a handshake was guessed");
    let mut ciphers = ciphers(&key, &greeting);
    let (mut sealed, mut plain) = (BytesMut::from(sealed), BytesMut::new());
    let opened = ciphers.open(&mut sealed, &mut plain);
    assert!(opened.is_err() || plain.is_empty(), "a message was guessed");
}

/// Ciphers of a link without its other end.
fn ciphers(key: &LinkKey, greeting: &Greeting) -> Ciphers {
    let [mut caller, mut called] = [Handshake::of_caller, Handshake::of_called]
        .map(|of| of(&key.handshake_key(), greeting.as_bytes()).expect("known"));
    called.read(&caller.write(1).expect("its turn")).expect("of the launch");
    caller.read(&called.write(1).expect("its turn")).expect("of the launch");
    called.finish().expect("both have spoken")
}

/// An opening that [`link_opening`] examines in full: a greeting signed with another key, a handshake, a message.
pub fn link_opening_of_a_stranger() -> Vec<u8> {
    let key = LinkKey::from_bytes([8; LinkKey::LEN]);
    let launch = super::greeting::LaunchHash::of(LAUNCH);
    let greeting = Greeting::new(launch, NodeIndex(1), NodeIndex(2), [9; 16], &key.gate_key());
    let mut opening = greeting.as_bytes().to_vec();
    opening.extend([5; HANDSHAKE_LEN]);
    opening.extend([0, 20]);
    opening.extend([6; 20]);
    opening
}
