//! Fuzz targets of links: what reaches a session or an agent before anything of it is proved, and what a session sends after that.

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

/// A stream of frames is the same wherever it is cut, and a frame that was read is the same after it was sent on.
///
/// The first byte says where the stream is cut.
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

/// Frames that come in these pieces, and whether nothing else came.
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

/// The stream in which these frames are sent, for [`link_stream`]; frames are written as calls carry them.
pub fn link_stream_of(frames: &[Vec<u8>]) -> Vec<u8> {
    let (mut writer, mut stream) = (FrameWriter::new(launch()), BytesMut::from(&[7][..]));
    for frame in frames {
        writer.append(&LinkFrame::decode(&**frame).unwrap_or_default(), &mut stream);
    }
    stream.to_vec()
}

/// Whoever does not have the key is told from who has: no greeting is taken for signed, no handshake for one of the launch, and
/// nothing behind a handshake for a message.
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

/// Ciphers of a link whose other end has gone.
fn ciphers(key: &LinkKey, greeting: &Greeting) -> Ciphers {
    let [mut caller, mut called] = [Handshake::of_caller, Handshake::of_called]
        .map(|of| of(&key.handshake_key(), greeting.as_bytes()).expect("known"));
    called.read(&caller.write(1).expect("its turn")).expect("of the launch");
    caller.read(&called.write(1).expect("its turn")).expect("of the launch");
    called.finish().expect("both have spoken")
}

/// An opening that [`link_opening`] looks at in full: the greeting of a stranger, a handshake, a message.
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
