//! Instructions of a machine to its runner, which carries them out in order. Results return to the machine only as further inputs.

use std::sync::Arc;

use pmi_core::ids::{JobId, NodeIndex};
use pmi_core::services::SpawnError;

use super::attachments::Dismissal;
use super::checkpoint::Snapshot;
use super::event::{Completion, LogEvent, NodeCommand, Overview, StartProgress, Status};
use crate::launch::Part;
use crate::launch::fan_out::NotStarted;
use crate::launch::summary::Course;

/// One action.
#[derive(Debug)]
pub(crate) enum Effect {
    /// Append a command to the queue for a node's stream.
    Command { node: NodeIndex, command: NodeCommand },
    /// Report to a node, on a stream after its first one, up to which number its events were received; `None` if unknown.
    Resume { node: NodeIndex, stream: u64, after: Option<u64> },
    /// Acknowledge a node's events up to this one.
    Acknowledge { node: NodeIndex, through: u64 },
    /// End the node's stream, permanently.
    CloseStream { node: NodeIndex },
    /// Make the node's agent end its part of the launch, through a separate call. The agent begins with this signal.
    AbortNode { node: NodeIndex, reason: String, signal: i32 },
    /// If the node's agent is online, mark the node as unclean: processes of the launch may be left on it.
    MarkUnclean { node: NodeIndex },
    /// Publish the state of a node's part.
    PublishPart { node: NodeIndex, part: Part },
    /// Publish the summary of the launch.
    Publish(Overview),
    /// Add the event with this number.
    Append { sequence: u64, node: NodeIndex, event: LogEvent },
    /// Settle events up to this one: they need not be kept for the party that settles.
    Settle { sequence: u64 },
    /// Stop keeping events for the party that settles.
    StopKeeping,
    /// Grant a client this many more bytes of input.
    GrantInput { client: u64, bytes: u64 },
    /// Send all clients the progress of the start.
    ReportStart(StartProgress),
    /// End a client's stream.
    Dismiss { client: u64, why: Dismissal },
    /// Remove a client that has disconnected.
    Forget { client: u64 },
    /// Store this state. The result goes to `on_stored`.
    Store(Snapshot),
    /// Answer the caller that ordered the launch.
    AnswerStart(Result<(), NotStarted>),
    /// Answer the caller that requested the progress of the ranks.
    AnswerStatus { ticket: u64, status: Arc<Status> },
    /// Answer the rank that requested a job.
    AnswerSpawn { ticket: u64, answer: Result<JobId, SpawnError> },
    /// The launch, which had this number of ranks, is over. Publish that before its final events are added.
    Finish { completion: Arc<Completion>, ranks: u32, course: Course },
    /// The end is stored, or the first attempt to store it has failed: carry out its consequences in the rest of the server.
    Conclude(Arc<Completion>),
    /// A node was lost: count it, and log it for the operator.
    CountLostNode { node: NodeIndex, reason: String },
}

/// Effects in the order in which they must be carried out.
#[derive(Debug, Default)]
pub(crate) struct Effects(Vec<Effect>);

impl Effects {
    pub(crate) fn push(&mut self, effect: Effect) {
        self.0.push(effect);
    }

    pub(crate) fn extend(&mut self, effects: impl IntoIterator<Item = Effect>) {
        self.0.extend(effects);
    }

    pub(crate) fn command(&mut self, node: NodeIndex, command: NodeCommand) {
        self.push(Effect::Command { node, command });
    }

    /// Removes and returns all effects.
    pub(crate) fn take(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.0)
    }
}
