//! Messages to one client of a launch, and the end of their stream.

use std::io;

use tokio::sync::mpsc;

use super::attachments::Dismissal;
use super::entry::Entry;
use super::event::StartProgress;
use crate::wire::spec::ShownSpec;

/// Channel for messages to a client.
pub(crate) type ClientSender = mpsc::Sender<Result<ClientMessage, StreamEnd>>;

/// A message to one client.
#[derive(Clone, Debug)]
pub(crate) enum ClientMessage {
    /// The specification of the placed launch. It is the first message.
    Spec(ShownSpec),
    /// An event, as it is sent to all clients of the launch.
    Event(Entry),
    /// The client may send this many more bytes of input.
    InputCredit(u64),
    /// Progress of the launch's start.
    Start(StartProgress),
    /// This many bytes of output were dropped directly before the next event; `None` if the number is unknown.
    DroppedOutput(Option<u64>),
}

/// Reason why a client's stream ends before its launch.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StreamEnd {
    #[error(transparent)]
    Dismissed(#[from] Dismissal),
    #[error("what was kept of the launch's output cannot be read: {0}")]
    Unreadable(#[source] io::Error),
}
