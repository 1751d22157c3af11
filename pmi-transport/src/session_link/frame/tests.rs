use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::proto::v1::FenceScope;

const LAUNCH: &str = "launch";

fn key() -> impl Strategy<Value = FenceKey> {
    let members = prop_oneof![Just(0), any::<u64>()];
    ("[ab]", 0_i32..4, "[a-z]{0,2}", any::<u64>(), members).prop_map(|(job_id, kind, name, epoch, members)| {
        let scope = Some(FenceScope { kind, name, node_gaps: Vec::new() });
        FenceKey { launch_id: LAUNCH.into(), job_id, scope, epoch, members }
    })
}

fn run() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..40).prop_map(Bytes::from)
}

fn up() -> impl Strategy<Value = FenceUp> {
    let piece = (any::<u32>(), run(), any::<bool>());
    let piece = piece.prop_map(|(position, run, goes_on)| NodePiece { position, run, goes_on });
    (key(), vec(piece, 0..5), any::<[bool; 2]>(), any::<u32>(), any::<u64>()).prop_map(
        |(key, brought, [last, may_withhold], part, withheld)| FenceUp {
            key: Some(key),
            brought,
            last,
            part,
            may_withhold,
            withheld,
        },
    )
}

fn down() -> impl Strategy<Value = FenceDown> {
    (key(), run(), any::<[bool; 2]>(), any::<[u32; 2]>(), any::<u64>()).prop_map(
        |(key, run, [goes_on, last], [fan_out, part], withheld)| FenceDown {
            key: Some(key),
            run,
            goes_on,
            last,
            fan_out,
            part,
            withheld,
        },
    )
}

fn failed() -> impl Strategy<Value = FenceFailed> {
    (key(), option::of(any::<u32>()), "[a-zä ]{0,20}").prop_map(|(key, node, reason)| FenceFailed {
        key: Some(key),
        node,
        reason,
    })
}

fn request() -> impl Strategy<Value = DataRequest> {
    (any::<u64>(), any::<u32>(), run(), any::<bool>()).prop_map(|(request_id, from_node, content, is_question)| {
        let (question, to_session) = if is_question { (content, Bytes::new()) } else { (Bytes::new(), content) };
        DataRequest { launch_id: LAUNCH.into(), request_id, from_node, question, to_session }
    })
}

fn reply() -> impl Strategy<Value = DataReply> {
    let result = prop_oneof![run().prop_map(Reply::Data), "[a-zä ]{0,20}".prop_map(Reply::Error)];
    (any::<u64>(), option::of(result), any::<bool>()).prop_map(|(request_id, result, goes_on)| {
        let goes_on = goes_on && matches!(result, Some(Reply::Data(_)));
        DataReply { launch_id: LAUNCH.into(), request_id, result, goes_on }
    })
}

fn frame() -> impl Strategy<Value = LinkFrame> {
    let what = prop_oneof![
        up().prop_map(What::Up),
        down().prop_map(What::Down),
        failed().prop_map(What::Failed),
        request().prop_map(What::DataRequest),
        reply().prop_map(What::DataReply),
        key().prop_map(What::Awaited),
        Just(What::Left(LAUNCH.into())),
    ];
    what.prop_map(|what| LinkFrame { what: Some(what) })
}

fn written(frames: &[LinkFrame]) -> BytesMut {
    let (mut writer, mut stream) = (FrameWriter::new(LAUNCH.into()), BytesMut::new());
    for frame in frames {
        assert!(writer.append(frame, &mut stream), "{frame:?}");
    }
    stream
}

fn read(pieces: &[&[u8]]) -> Result<Vec<LinkFrame>, FrameError> {
    let (mut reader, mut stream, mut frames) = (FrameReader::new(LAUNCH.into()), BytesMut::new(), Vec::new());
    for piece in pieces {
        stream.extend_from_slice(piece);
        while let Some(frame) = reader.take(&mut stream)? {
            frames.push(frame);
        }
    }
    Ok(frames)
}

proptest! {
    #[test]
    fn frames_are_read_as_they_were_written_wherever_the_stream_is_cut(
        frames in vec(frame(), 0..12),
        cut in any::<prop::sample::Index>(),
    ) {
        let stream = written(&frames);
        let (head, tail) = stream.split_at(cut.index(stream.len() + 1));
        prop_assert_eq!(read(&[head, tail]), Ok(frames));
    }

    #[test]
    fn a_frame_that_lost_its_end_is_no_other_frame_of_a_fence(frame in up(), lost in 1_usize..8) {
        let frame = LinkFrame { what: Some(What::Up(frame)) };
        let mut stream = written(std::slice::from_ref(&frame));
        let len = stream.len().saturating_sub(lost).max(PREFIX);
        stream.truncate(len);
        stream[..PREFIX].copy_from_slice(&((len - PREFIX) as u32).to_be_bytes());
        prop_assert_ne!(read(&[&stream]), Ok(vec![frame]));
    }

    #[test]
    fn any_bytes_are_frames_or_refused(mut bytes in vec(any::<u8>(), 0..200), kind in 0_u8..9) {
        let _ = read(&[&bytes]);
        // The same bytes as one complete frame of this kind.
        bytes.splice(0..0, [0, 0, 0, bytes.len() as u8 + 1, kind]);
        let _ = read(&[&bytes]);
    }
}

#[test]
fn a_barrier_takes_a_few_bytes_once_its_fence_was_named() {
    let scope = Some(FenceScope::default());
    let key =
        |epoch| FenceKey { launch_id: LAUNCH.into(), job_id: "job".into(), scope: scope.clone(), epoch, members: 0 };
    let up =
        |epoch| LinkFrame { what: Some(What::Up(FenceUp { key: Some(key(epoch)), last: true, ..FenceUp::default() })) };
    let first = written(&[up(0)]).len();
    assert_eq!(written(&[up(0), up(1)]).len() - first, PREFIX + 6);
}

#[test]
fn what_no_session_writes_is_refused() {
    let of = |bytes: &[u8]| read(&[&(bytes.len() as u32).to_be_bytes(), bytes]);
    for (frame, fault) in [
        (&[][..], Malformed::Short),
        (&[0], Malformed::Kind(0)),
        (&[9], Malformed::Kind(9)),
        (&[LEFT, 1], Malformed::Long),
        (&[AWAITED, 0, 0], Malformed::Unnamed(0)),
        (&[AWAITED, 128, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 5], Malformed::Long),
        (&[UP, 128, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0], Malformed::Flags(8)),
        (&[UP, 128, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 4, 7], Malformed::Short),
        (&[DATA_REPLY, 1, 4], Malformed::Kind(4)),
        (&[DATA_REPLY, 1, 2, 0xff], Malformed::Text),
        (&[DATA_REQUEST, 1, 0xff, 0xff, 0xff, 0xff, 0x10], Malformed::Number),
    ] {
        assert_eq!(of(frame), Err(FrameError::Malformed(fault)), "{frame:?}");
    }
    assert_eq!(read(&[&[0xff; 4]]), Err(FrameError::TooLong { len: u32::MAX as usize }));
}

#[test]
fn what_is_of_no_launch_or_another_one_is_not_sent() {
    let mut writer = FrameWriter::new(LAUNCH.into());
    let mut stream = BytesMut::new();
    for what in [None, Some(What::Left("other".into())), Some(What::Up(FenceUp::default()))] {
        assert!(!writer.append(&LinkFrame { what }, &mut stream));
    }
    assert!(stream.is_empty());
}

#[test]
fn what_the_other_end_would_refuse_is_not_written_and_what_comes_after_it_is_read() {
    let (mut writer, mut stream) = (FrameWriter::new(LAUNCH.into()), BytesMut::new());
    let key = FenceKey { launch_id: LAUNCH.into(), job_id: "job".into(), ..FenceKey::default() };
    let down = |len| What::Down(FenceDown { key: Some(key.clone()), run: vec![7; len].into(), ..FenceDown::default() });
    let mut append = |what: What| writer.append(&LinkFrame { what: Some(what) }, &mut stream);
    assert!(!append(down(MESSAGE_MAX)), "its payload alone has the whole length");
    assert!(append(down(MESSAGE_MAX - 1024)) && append(down(1)));
    assert_eq!(read(&[&stream]).map(|frames| frames.len()), Ok(2));
}
