//! One event of a launch, as stored in the event log and the spool.

use lattice_session::event::Event;
use lattice_session::wire::event::{NodeHappening, happening_cost};
use pmi_core::ids::NodeIndex;
use pmi_transport::limits::kept_cost;

use super::event::{LogEvent, NodeEvent};

/// An event with its number and its position in the launch's output. Clones share the bytes of output.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub sequence: u64,
    /// The index of the node that reported it.
    pub node: NodeIndex,
    pub event: LogEvent,
    /// Bytes of output in all events before this one.
    pub before: u64,
}

impl Entry {
    /// The bytes of output of ranks in this event.
    pub(crate) fn output(&self) -> u64 {
        match &self.event {
            LogEvent::Node(NodeEvent::Happened(NodeHappening::Event(Event::Output(output)), _)) => {
                output.bytes.len() as u64
            }
            _ => 0,
        }
    }

    /// The memory that this event is charged for, in bytes.
    pub(crate) fn cost(&self) -> usize {
        match &self.event {
            LogEvent::Node(NodeEvent::Happened(happening, _)) => happening_cost(happening).max(kept_cost(0)),
            _ => kept_cost(0),
        }
    }
}
