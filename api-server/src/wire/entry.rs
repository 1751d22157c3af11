//! Events of a launch in messages to clients, and in the spool on disk.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use lattice_session::wire::WireError;
use pmi_core::ids::NodeIndex;
use pmi_transport::proto::v1 as proto;
use prost::Message;
use proto::attach_response::What;

use super::completion;
use super::node::{decode_event, encode_event};
use crate::launch::entry::Entry;
use crate::launch::event::LogEvent;

/// Reason why an event of the spool cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EntryError {
    #[error(transparent)]
    Message(#[from] WireError),
    #[error("event {sequence} is none that this version keeps")]
    Unknown { sequence: u64 },
    #[error("the nodes of event {sequence} cannot be read")]
    Nodes {
        sequence: u64,
        #[source]
        source: hostlist::HostlistError,
    },
}

/// Encodes an event. Output is shared, not copied.
pub(crate) fn encode(entry: &Entry) -> proto::AttachResponse {
    let what = match &entry.event {
        LogEvent::Node(event) => What::Event(encode_event(event)),
        LogEvent::Unclean(nodes) => What::UnendedNodes(hostlist::fold(nodes)),
        LogEvent::Complete(completion) => What::Complete(completion::encode(completion)),
    };
    proto::AttachResponse { sequence: entry.sequence, node: entry.node.0, what: Some(what) }
}

/// Appends an event to `bytes`, without [`Entry::before`].
pub(crate) fn put(bytes: &mut BytesMut, entry: &Entry) {
    encode(entry).encode(bytes).expect("a BytesMut grows as far as there is memory");
}

/// Decodes an event that [`put`] encoded; `before` is the number of bytes of output before it. Output is shared with `bytes`.
///
/// # Errors
/// Fails if `bytes` is no event.
pub(crate) fn get(bytes: Bytes, before: u64) -> Result<Entry, EntryError> {
    let proto::AttachResponse { sequence, node, what } = Message::decode(bytes).map_err(WireError::from)?;
    let unknown = EntryError::Unknown { sequence };
    let event = match what {
        Some(What::Event(event)) => LogEvent::Node(decode_event(event).ok_or(unknown)?),
        Some(What::UnendedNodes(nodes)) => {
            LogEvent::Unclean(hostlist::expand(&nodes).map_err(|source| EntryError::Nodes { sequence, source })?)
        }
        Some(What::Complete(complete)) => LogEvent::Complete(Arc::new(completion::decode(complete)?)),
        _ => return Err(unknown),
    };
    Ok(Entry { sequence, node: NodeIndex(node), event, before })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lattice_session::cause::{Cause, CauseKind, RankExit};
    use lattice_session::event::{Event, MpiFamily, MpiLibrary, Notice, Output, Stream};
    use lattice_session::wire::event::NodeHappening;
    use pmi_core::ids::Rank;
    use pmi_core::{DialoguePoint, Phase};

    use super::*;
    use crate::launch::event::{Completion, NodeEvent, RankEnd};

    fn session(event: Event) -> LogEvent {
        LogEvent::Node(NodeEvent::of_session(event))
    }

    /// One event of each kind that a launch adds to its log.
    fn events() -> Vec<LogEvent> {
        let second = Duration::from_secs(1);
        let exit = RankExit::Signal { signal: 11, core_dumped: true };
        let cause = Cause { host: "node1".to_owned(), kind: CauseKind::Failed { rank: Rank(3), exit } };
        let library = MpiLibrary { name: "MPICH".to_owned(), file: "/l.so".to_owned(), family: MpiFamily::Pmi };
        let ranks = vec![Rank(0), Rank(1)];
        let missing = vec![(Rank(2), Some("put".to_owned())), (Rank(3), None)];
        let started = NodeHappening::Event(Event::Started { rank: Rank(1), pid: 7, at: Duration::ZERO });
        let completion = Completion {
            launch_id: "l".into(),
            allocation_id: "a".to_owned(),
            cause: Some(cause.clone()),
            message: "rank 3 failed; node[1-2] did not report".to_owned(),
            ends: vec![RankEnd { rank: Rank(3), exit, reached: Some(DialoguePoint { phase: Phase::Open, fences: 2 }) }],
            duration: 61 * second,
            usage: None,
            by_node: None,
        };
        vec![
            LogEvent::Node(NodeEvent::Happened(started, vec![(Rank(1), "/app".into())])),
            session(Event::Output(Output { rank: Rank(1), stream: Stream::Stderr, bytes: "words\n".into() })),
            session(Event::Exited {
                rank: Rank(3),
                exit,
                reached: Some(DialoguePoint { phase: Phase::Finalized, fences: 2 }),
                ran: second,
            }),
            session(Event::Notice(Notice::Silent {
                ranks,
                size: 4,
                ended: true,
                after: second,
                library: Some(library),
            })),
            session(Event::Notice(Notice::Stuck { after: second, waiting: 2, missing })),
            session(Event::Notice(Notice::Leftover { pids: vec![7, 8] })),
            session(Event::Notice(Notice::StdinClosed { rank: Rank(2) })),
            session(Event::Notice(Notice::ReleaseOverdue {
                rank: Rank(2),
                resource: "shm:7".to_owned(),
                within: Duration::from_secs(10),
                killed: true,
            })),
            session(Event::Notice(Notice::NotSpawned { rank: Rank(2), reason: "the launch is ending".to_owned() })),
            session(Event::Ending(cause)),
            LogEvent::Node(NodeEvent::Happened(NodeHappening::Trace("C: cmd=init\n".into()), Vec::new())),
            LogEvent::Unclean(vec!["node1".to_owned(), "node2".to_owned()]),
            LogEvent::Complete(Arc::new(completion)),
        ]
    }

    #[test]
    fn every_event_comes_back_from_disk_as_it_was() {
        for (sequence, event) in (1..).zip(events()) {
            let entry = Entry { sequence, node: NodeIndex(2), event, before: 40 };
            let mut bytes = BytesMut::new();
            put(&mut bytes, &entry);
            let back = get(bytes.freeze(), 40).unwrap();
            assert_eq!(back, entry);
            assert_eq!(encode(&back), encode(&entry));
        }
    }

    #[test]
    fn output_is_sent_and_read_back_without_a_copy() {
        let output = Bytes::from(vec![b'x'; 1000]);
        let of = |entry: &proto::AttachResponse| match &entry.what {
            Some(What::Event(proto::NodeEvent { what: Some(proto::node_event::What::Output(output)), .. })) => {
                output.data.clone()
            }
            other => panic!("{other:?}"),
        };
        let event = session(Event::Output(Output { rank: Rank(0), stream: Stream::Stdout, bytes: output.clone() }));
        let entry = Entry { sequence: 1, node: NodeIndex(0), event, before: 0 };
        assert_eq!(of(&encode(&entry.clone())).as_ptr(), output.as_ptr());
        let mut bytes = BytesMut::new();
        put(&mut bytes, &entry);
        let bytes = bytes.freeze();
        let back = of(&encode(&get(bytes.clone(), 0).unwrap()));
        assert!(bytes.as_ptr_range().contains(&back.as_ptr()), "it is a part of what was read");
    }

    #[test]
    fn a_message_that_is_no_event_of_a_log_is_refused() {
        let encoded = |what| proto::AttachResponse { sequence: 7, node: 0, what }.encode_to_vec().into();
        let check = |bytes: Bytes, expected: &str| {
            assert_eq!(get(bytes, 0).unwrap_err().to_string(), expected);
        };
        check(encoded(None), "event 7 is none that this version keeps");
        check(encoded(Some(What::StdinCredit(1))), "event 7 is none that this version keeps");
        check(encoded(Some(What::Event(proto::NodeEvent::default()))), "event 7 is none that this version keeps");
        check(encoded(Some(What::UnendedNodes("node[".to_owned()))), "the nodes of event 7 cannot be read");
        assert!(matches!(get(Bytes::from_static(b"\xff"), 0), Err(EntryError::Message(_))));
    }
}
