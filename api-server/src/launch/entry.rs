//! One event of a launch as the event log and the spool keep it.

use lattice_session::event::Event;
use lattice_session::wire::event::{NodeHappening, happening_cost};
use pmi_transport::limits::kept_cost;

use super::event::{LogEvent, NodeEvent};

/// An event with its number, and its place in the launch's output. A clone shares the bytes of output.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub sequence: u64,
    /// The index of the node that it is of.
    pub node: u32,
    pub event: LogEvent,
    /// Bytes of output in all events before this one.
    pub before: u64,
}

impl Entry {
    /// The bytes of ranks' output in this event.
    pub(crate) fn output(&self) -> u64 {
        match &self.event {
            LogEvent::Node(NodeEvent::Happened(NodeHappening::Event(Event::Output(output)), _)) => {
                output.bytes.len() as u64
            }
            _ => 0,
        }
    }

    /// The charge for keeping this event, in bytes.
    pub(crate) fn cost(&self) -> usize {
        match &self.event {
            LogEvent::Node(NodeEvent::Happened(happening, _)) => happening_cost(happening).max(kept_cost(0)),
            _ => kept_cost(0),
        }
    }
}
