//! Messages of an attachment, the stream between a client and a launch, as plain types. [`crate::wire`] reads and writes them.

use bytes::Bytes;
use lattice_session::event::{Event, Report};
use lattice_session::settings::TerminalSize;
use pmi_core::ids::NodeIndex;

use crate::updates::StartProgress;

/// Relation of a client to a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The launch is the client's: its output waits for the client, and it ends when the client ends it, or vanishes.
    Owner,
    /// The client looks on; the launch goes on as if it did not.
    Viewer,
}

/// A message of a client to its launch. Numbers of signals are those of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ToLaunch {
    /// Everything up to the event of this number is dealt with.
    Acknowledge(u64),
    /// A piece of standard input.
    Stdin(Bytes),
    /// The end of standard input.
    StdinEnd,
    /// The ranks are to get this signal.
    Signal(i32),
    /// The client's terminal has this size now.
    ResizeTerminal(TerminalSize),
    /// The launch is to end in order, because of this signal.
    End(i32),
    /// The launch is to end at once, because of this signal.
    Kill(i32),
}

/// An answer of a launch to a client.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// Number of the event in the launch, from 1 up; `None` for what concerns one connection only.
    pub(crate) sequence: Option<u64>,
    /// Content of the answer.
    pub(crate) what: FromLaunch,
}

/// Content of an answer.
#[derive(Clone, Debug)]
pub(crate) enum FromLaunch {
    /// An event of the session on a node.
    Event(NodeIndex, Event),
    /// Lines of the PMI trace, from a node.
    Trace(NodeIndex, Bytes),
    /// Bytes of standard input that may be sent beyond those before.
    StdinCredit(u64),
    /// Progress of the start.
    Starting(StartProgress),
    /// Bytes of output that were dropped right before the next event; `None` if their number is not known.
    Dropped(Option<u64>),
    /// Nodes, as a hostlist, that have not said that their part of the launch has ended.
    Unended(String),
    /// End of the launch.
    Complete(Report),
    /// Something that clients have no use for, or that only a later version knows.
    Other,
}
