//! Messages of an attachment, the stream between a client and a launch, as plain types. [`crate::wire`] encodes and decodes them.

use bytes::Bytes;
use lattice_render::updates::StartProgress;
use lattice_session::event::{Event, Report};
use lattice_session::settings::TerminalSize;
use pmi_core::ids::NodeIndex;

/// Relation of a client to a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The client owns the launch: output waits for the client, and the launch ends when the client ends it or disconnects.
    Owner,
    /// The client observes the launch, and does not affect it.
    Viewer,
}

/// A message from a client to its launch. Signal numbers are those of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToLaunch {
    /// All events up to this number are processed.
    Acknowledge(u64),
    /// A piece of standard input.
    Stdin(Bytes),
    /// The end of standard input.
    StdinEnd,
    /// Send this signal to the ranks.
    Signal(i32),
    /// The client's terminal has a new size.
    ResizeTerminal(TerminalSize),
    /// End the launch in order, because of this signal.
    End(i32),
    /// End the launch at once, because of this signal.
    Kill(i32),
}

/// An answer from a launch to a client.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Number of the event in the launch, from 1 up; `None` if the answer concerns one connection only.
    pub sequence: Option<u64>,
    /// Content of the answer.
    pub what: FromLaunch,
}

/// Content of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum FromLaunch {
    /// An event of the session on a node.
    Event(NodeIndex, Event),
    /// Lines of the PMI trace of a node.
    Trace(NodeIndex, Bytes),
    /// Number of further bytes of standard input that may be sent.
    StdinCredit(u64),
    /// Progress of the start.
    Starting(StartProgress),
    /// Bytes of output that were dropped directly before the next event; `None` if their number is unknown.
    Dropped(Option<u64>),
    /// Nodes, as a hostlist, that have not reported the end of their part of the launch.
    Unended(String),
    /// End of the launch.
    Complete(Report),
    /// A message that clients do not need, or that only a later version supports.
    Other,
}
