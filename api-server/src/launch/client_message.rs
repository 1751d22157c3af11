//! Messages to one client of a launch, and the end of their stream.

use std::io;

use tokio::sync::mpsc;

use super::attachments::Dismissal;
use super::entry::Entry;
use super::event::StartProgress;
use crate::wire::spec::ShownSpec;

/// The way of messages to a client.
pub(crate) type ClientSender = mpsc::Sender<Result<ClientMessage, StreamEnd>>;

/// A message to one client.
#[derive(Clone, Debug)]
pub(crate) enum ClientMessage {
    /// The launch as it was placed; the first message.
    Spec(ShownSpec),
    /// An event, as all who follow the launch are sent it.
    Event(Entry),
    /// So many bytes more of input may be sent.
    InputCredit(u64),
    /// Progress of the launch's start.
    Start(StartProgress),
    /// So many bytes of output were dropped just before the next event; `None` if their number is not known.
    DroppedOutput(Option<u64>),
}

/// Reason for which a client's stream ends before its launch does.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StreamEnd {
    #[error(transparent)]
    Dismissed(#[from] Dismissal),
    #[error("what was kept of the launch's output cannot be read: {0}")]
    Unreadable(#[source] io::Error),
}
