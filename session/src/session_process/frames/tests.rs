use std::io::Write;
use std::thread;

use proptest::prelude::*;
use tokio_util::codec::Decoder;

use super::*;

/// Reads one frame from a peer that sends `sent` and disconnects.
fn read_from_peer(sent: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let (mut socket, mut peer) = UnixStream::pair().unwrap();
    let sent = sent.to_vec();
    let sending = thread::spawn(move || peer.write_all(&sent));
    let frame = read_frame(&mut socket);
    drop(socket);
    // Fails if the frame was refused before its end.
    let _ = sending.join().unwrap();
    frame
}

fn framed(data: &[u8]) -> Vec<u8> {
    let length = u32::try_from(data.len()).unwrap().to_be_bytes();
    [&length[..], data].concat()
}

#[test]
fn a_peer_that_goes_away_at_any_byte_ends_the_stream() {
    let whole = framed(b"hello");
    for sent in 0..whole.len() {
        assert_eq!(read_from_peer(&whole[..sent]).unwrap(), None, "after {sent} bytes");
    }
    assert_eq!(read_from_peer(&whole).unwrap().unwrap(), b"hello");
    assert_eq!(read_from_peer(&framed(b"")).unwrap().unwrap(), b"");
}

#[test]
fn a_frame_that_is_too_long_is_refused_before_its_content() {
    let longest = u32::try_from(TO_SESSION_MAX).unwrap();
    let refused = read_from_peer(&(longest + 1).to_be_bytes()).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
    let error = read_from_peer(&longest.to_be_bytes());
    assert_eq!(error.unwrap(), None, "the longest frame is waited for");
}

#[test]
fn a_stream_refuses_a_frame_that_is_too_long() {
    let mut bytes = BytesMut::from(&framed(&[7; 11])[..]);
    let refused = codec(10).decode(&mut bytes).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
}

proptest! {
    #[test]
    fn messages_come_out_of_the_stream_as_they_were_appended(texts in proptest::collection::vec(".{0,200}", 0..8)) {
        let mut bytes = BytesMut::new();
        texts.iter().for_each(|text| ToAgent::warning(text.clone()).append_to(&mut bytes));
        let mut codec = codec(FROM_SESSION_MAX);
        for text in texts {
            let frame = codec.decode(&mut bytes).unwrap().unwrap();
            prop_assert_eq!(ToAgent(proto::FromSession::decode(frame).unwrap()), ToAgent::warning(text));
        }
        prop_assert!(codec.decode(&mut bytes).unwrap().is_none() && bytes.is_empty());
    }

    #[test]
    fn both_readers_cut_a_stream_into_the_same_frames(frames in proptest::collection::vec(any::<Vec<u8>>(), 1..4)) {
        let stream: Vec<u8> = frames.iter().flat_map(|frame| framed(frame)).collect();
        let (mut socket, mut peer) = UnixStream::pair().unwrap();
        peer.write_all(&stream).unwrap();
        let mut bytes = BytesMut::from(&stream[..]);
        for frame in frames {
            prop_assert_eq!(&codec(TO_SESSION_MAX).decode(&mut bytes).unwrap().unwrap()[..], &frame[..]);
            prop_assert_eq!(read_frame(&mut socket).unwrap().unwrap(), frame);
        }
    }
}
