//! Requests of clients, and messages to them.

use lattice_session::wire::event;
use pmi_transport::proto::v1 as proto;
use proto::attach_request::What as Asked;
use proto::attach_response::What as Sent;
use tonic::Status;

use super::entry;
use crate::launch::attachments::{Dismissal, TooManyViewers};
use crate::launch::client_message::{ClientMessage, StreamEnd};
use crate::launch::event::{ClientRequest, NodeStatus, StartProgress};

/// The request that a message means.
pub(crate) fn decode_request(what: Asked) -> ClientRequest {
    match what {
        Asked::Attach(_) => ClientRequest::Attach,
        Asked::Acknowledge(sequence) => ClientRequest::Acknowledge(sequence),
        Asked::Stdin(bytes) => ClientRequest::Stdin(bytes),
        Asked::StdinEnd(_) => ClientRequest::StdinEnd,
        Asked::Signal(signal) => ClientRequest::Signal(signal),
        Asked::End(signal) => ClientRequest::End(signal),
        Asked::Kill(signal) => ClientRequest::Kill(signal),
    }
}

/// A message to one client.
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

/// The progress of a start in a message.
fn encode_start(progress: StartProgress) -> proto::StartProgress {
    let StartProgress { nodes, nodes_started, ranks, ranks_started, ranks_initialized } = progress;
    proto::StartProgress { nodes, nodes_started, ranks, ranks_started, ranks_initialized }
}

/// The progress of a node's ranks in a message.
pub(crate) fn encode_node_status(status: &NodeStatus) -> proto::NodeStatus {
    let rank = |(progress, program): &(lattice_session::event::RankProgress, bytes::Bytes)| proto::RankProgress {
        program: program.clone(),
        ..event::encode_progress(progress)
    };
    proto::NodeStatus {
        node_id: status.node.clone(),
        silent: status.silent,
        ranks: status.ranks.iter().map(rank).collect(),
        programs: status.ranks.iter().map(|(_, program)| program.clone()).collect(),
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
