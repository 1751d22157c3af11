//! One event of a launch as the event log and the spool keep it.

use pmi_transport::proto::v1::AttachResponse;

/// An event, and its place in the launch's output.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub response: AttachResponse,
    /// Bytes of output in all events before this one.
    pub before: u64,
}
