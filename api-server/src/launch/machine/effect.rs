//! Orders of a machine to its runner, which does them in order; nothing comes back but by another input of the machine.

use std::sync::Arc;

use pmi_core::ids::JobId;
use pmi_core::services::SpawnError;

use super::attachments::Dismissal;
use super::checkpoint::Snapshot;
use super::event::{Completion, LogEvent, NodeCommand, Overview, StartProgress, Status};
use crate::launch::Part;
use crate::launch::fan_out::NotStarted;
use crate::launch::summary::Course;

/// One thing to do.
#[derive(Debug)]
pub(crate) enum Effect {
    /// Put a command behind those that wait for a node's stream.
    Command { node: u32, command: NodeCommand },
    /// Tell a node, on a stream that is not its first, which of its events have come; `None` if that is not known.
    Resume { node: u32, stream: u64, after: Option<u64> },
    /// Tell a node that its events up to this one were taken.
    Acknowledge { node: u32, through: u64 },
    /// End the node's stream, once and for all.
    CloseStream { node: u32 },
    /// Have the node's agent end its part, by a call of its own that begins with this signal.
    AbortNode { node: u32, reason: String, signal: i32 },
    /// Something of the launch may be left on the node, if its agent is there.
    MarkUnclean { node: u32 },
    /// Let others see what is expected of a node.
    PublishPart { node: u32, part: Part },
    /// Let others see the launch in short.
    Publish(Overview),
    /// Add an event, which has this number.
    Append { sequence: u64, node: u32, event: LogEvent },
    /// Events up to this one need not be kept for whoever settles.
    Settle { sequence: u64 },
    /// Events need not be kept for whoever settles, from now on.
    StopKeeping,
    /// Tell a client that it may send so much more input.
    GrantInput { client: u64, bytes: u64 },
    /// Tell all clients how far the start is.
    ReportStart(StartProgress),
    /// End a client's stream.
    Dismiss { client: u64, why: Dismissal },
    /// A client is gone: forget it.
    Forget { client: u64 },
    /// Make this durable; the answer goes to `on_stored`.
    Store(Snapshot),
    /// Answer who ordered the launch.
    AnswerStart(Result<(), NotStarted>),
    /// Answer who asked how far the ranks are.
    AnswerStatus { ticket: u64, status: Arc<Status> },
    /// Answer the rank that asked for a job.
    AnswerSpawn { ticket: u64, answer: Result<JobId, SpawnError> },
    /// The launch, which had so many ranks, is over: let others see that, before the events that say so are added.
    Finish { completion: Arc<Completion>, ranks: u32, course: Course },
    /// The end was written down, or could not be at once: what follows from it for others.
    Conclude(Arc<Completion>),
    /// A node was lost: count it, and tell the operator.
    CountLostNode { node: u32, reason: String },
}

/// Effects in the order in which they are to be carried out.
#[derive(Debug, Default)]
pub(crate) struct Effects(Vec<Effect>);

impl Effects {
    pub(crate) fn push(&mut self, effect: Effect) {
        self.0.push(effect);
    }

    pub(crate) fn extend(&mut self, effects: impl IntoIterator<Item = Effect>) {
        self.0.extend(effects);
    }

    pub(crate) fn command(&mut self, node: u32, command: NodeCommand) {
        self.push(Effect::Command { node, command });
    }

    /// All effects so far, which are then no more here.
    pub(crate) fn take(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.0)
    }
}
