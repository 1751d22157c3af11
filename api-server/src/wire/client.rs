//! Requests of clients, and messages to them.

use lattice_session::wire::{event, progress, terminal};
use pmi_transport::proto::v1 as proto;
use proto::attach_request::What as Asked;
use proto::attach_response::What as Sent;
use tonic::Status;

use super::entry;
use crate::launch::attachments::{Dismissal, TooManyViewers};
use crate::launch::client_message::{ClientMessage, StreamEnd};
use crate::launch::event::{ClientRequest, NodeStatus, SessionRole, StartProgress};

/// Decodes a request of a client.
pub(crate) fn decode_request(what: Asked) -> ClientRequest {
    match what {
        Asked::Attach(_) => ClientRequest::Attach,
        Asked::Acknowledge(sequence) => ClientRequest::Acknowledge(sequence),
        Asked::Stdin(bytes) => ClientRequest::Stdin(bytes),
        Asked::StdinEnd(_) => ClientRequest::StdinEnd,
        Asked::Signal(signal) => ClientRequest::Signal(signal),
        Asked::End(signal) => ClientRequest::End(signal),
        Asked::Kill(signal) => ClientRequest::Kill(signal),
        Asked::ResizeTerminal(size) => ClientRequest::ResizeTerminal(terminal::decode_size(&size)),
    }
}

/// Encodes a message to one client.
pub(crate) fn encode_message(message: ClientMessage) -> proto::AttachResponse {
    let what = match message {
        ClientMessage::Event(event) => return entry::encode(&event),
        ClientMessage::Spec(spec) => Sent::Spec(spec.into_message()),
        ClientMessage::InputCredit(bytes) => Sent::StdinCredit(bytes),
        ClientMessage::Start(progress) => Sent::Starting(encode_start(progress)),
        ClientMessage::DroppedOutput(bytes) => Sent::DroppedOutput(bytes.unwrap_or(0)),
    };
    proto::AttachResponse { sequence: 0, node: 0, what: Some(what) }
}

/// Encodes the progress of a start.
fn encode_start(progress: StartProgress) -> proto::StartProgress {
    let StartProgress { nodes, nodes_started, ranks, ranks_started, ranks_initialized } = progress;
    proto::StartProgress { nodes, nodes_started, ranks, ranks_started, ranks_initialized }
}

/// Encodes the progress of a node's ranks.
pub(crate) fn encode_node_status(status: &NodeStatus) -> proto::NodeStatus {
    let rank = |(told, program): &(lattice_session::event::RankProgress, bytes::Bytes)| proto::RankProgress {
        program: program.clone(),
        ..progress::encode(told)
    };
    proto::NodeStatus {
        node_id: status.node.clone(),
        silent: status.silent,
        ranks: status.ranks.iter().map(rank).collect(),
        programs: status.ranks.iter().map(|(_, program)| program.clone()).collect(),
        role: match status.role {
            None => proto::SessionRole::Unspecified,
            Some(SessionRole::Shepherd) => proto::SessionRole::Shepherd,
            Some(SessionRole::Lamb) => proto::SessionRole::Lamb,
        }
        .into(),
        stacks: event::encode_stacks(&status.stacks),
        left_out: status.left_out,
    }
}

impl From<Dismissal> for Status {
    fn from(why: Dismissal) -> Self {
        let text = why.to_string();
        match why {
            Dismissal::Replaced => Self::aborted(text),
            Dismissal::AttachedTwice | Dismissal::NoSignal(_) => Self::invalid_argument(text),
            Dismissal::OwnersOnly => Self::failed_precondition(text),
            Dismissal::TooMuchInput(_) => Self::resource_exhausted(text),
        }
    }
}

impl From<StreamEnd> for Status {
    fn from(end: StreamEnd) -> Self {
        match end {
            StreamEnd::Dismissed(why) => why.into(),
            StreamEnd::Unreadable(_) => Self::data_loss(end.to_string()),
        }
    }
}

impl From<TooManyViewers> for Status {
    fn from(error: TooManyViewers) -> Self {
        Self::resource_exhausted(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use pmi_core::ids::NodeIndex;
    use tonic::Code;

    use super::*;
    use crate::launch::entry::Entry;
    use crate::launch::event::LogEvent;
    use crate::wire::spec::ShownSpec;

    #[test]
    fn messages_of_one_connection_have_no_number() {
        let progress = StartProgress { nodes: 2, nodes_started: 1, ranks: 8, ranks_started: 4, ranks_initialized: 3 };
        let starting =
            proto::StartProgress { nodes: 2, nodes_started: 1, ranks: 8, ranks_started: 4, ranks_initialized: 3 };
        let cases = [
            (ClientMessage::Spec(ShownSpec::default()), Sent::Spec(proto::LaunchSpec::default())),
            (ClientMessage::InputCredit(7), Sent::StdinCredit(7)),
            (ClientMessage::Start(progress), Sent::Starting(starting)),
            (ClientMessage::DroppedOutput(Some(9)), Sent::DroppedOutput(9)),
            (ClientMessage::DroppedOutput(None), Sent::DroppedOutput(0)),
        ];
        for (message, what) in cases {
            assert_eq!(encode_message(message), proto::AttachResponse { sequence: 0, node: 0, what: Some(what) });
        }
    }

    #[test]
    fn an_event_has_its_number_and_its_node() {
        let event = LogEvent::Unclean(vec!["n1".to_owned(), "n2".to_owned()]);
        let entry = Entry { sequence: 5, node: NodeIndex(3), event, before: 40 };
        let what = Some(Sent::UnendedNodes("n[1-2]".to_owned()));
        let expected = proto::AttachResponse { sequence: 5, node: 3, what };
        assert_eq!(encode_message(ClientMessage::Event(entry)), expected);
    }

    #[test]
    fn the_code_of_a_stream_that_ends_tells_a_client_what_it_did() {
        let check = |end: StreamEnd, code: Code, words: &str| {
            let status = Status::from(end);
            assert_eq!((status.code(), status.message().contains(words)), (code, true), "{status:?}");
        };
        check(Dismissal::Replaced.into(), Code::Aborted, "another client follows");
        check(Dismissal::AttachedTwice.into(), Code::InvalidArgument, "already");
        check(Dismissal::NoSignal(99).into(), Code::InvalidArgument, "99 is no signal");
        check(Dismissal::OwnersOnly.into(), Code::FailedPrecondition, "only the owner");
        let unreadable = StreamEnd::Unreadable(std::io::Error::other("a record is cut short"));
        check(unreadable, Code::DataLoss, "cannot be read: a record is cut short");
        assert_eq!(Status::from(TooManyViewers).code(), Code::ResourceExhausted);
    }
}
