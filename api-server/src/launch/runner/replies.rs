//! Callers that wait for an answer of a launch, by the machine's number of the query.

use std::collections::HashMap;
use std::sync::Arc;

use pmi_core::ids::JobId;
use pmi_core::services::SpawnError;
use tokio::sync::oneshot;

use crate::launch::SpawnReply;
use crate::launch::event::Status;
use crate::launch::fan_out::NotStarted;

/// Channel for the answer to the order to start.
pub(super) type StartReply = oneshot::Sender<Result<(), NotStarted>>;

/// All waiting callers. An answer to a caller that has disconnected is dropped.
#[derive(Debug, Default)]
pub(super) struct Replies {
    /// User of the launch.
    uid: u32,
    start: Option<StartReply>,
    status: HashMap<u64, oneshot::Sender<Arc<Status>>>,
    spawns: HashMap<u64, SpawnReply>,
    last: u64,
}

impl Replies {
    pub(super) fn new(uid: u32, start: Option<StartReply>) -> Self {
        Self { uid, start, ..Self::default() }
    }

    /// Stores the channel for an answer. Returns the number of the query.
    pub(super) fn keep_status(&mut self, reply: oneshot::Sender<Arc<Status>>) -> u64 {
        self.last += 1;
        self.status.insert(self.last, reply);
        self.last
    }

    /// Stores the channel for an answer. Returns the number of the query.
    pub(super) fn keep_spawn(&mut self, reply: SpawnReply) -> u64 {
        self.last += 1;
        self.spawns.insert(self.last, reply);
        self.last
    }

    pub(super) fn answer_start(&mut self, result: Result<(), NotStarted>) {
        let _ = self.start.take().map(|reply| reply.send(result));
    }

    pub(super) fn answer_status(&mut self, ticket: u64, status: Arc<Status>) {
        if let Some(reply) = self.status.remove(&ticket) {
            let _ = reply.send(status);
        }
    }

    pub(super) fn answer_spawn(&mut self, ticket: u64, answer: Result<JobId, SpawnError>) {
        match &answer {
            Ok(_) => {}
            Err(SpawnError::Refused { reason }) => tracing::info!(uid = self.uid, reason, "a spawn is refused"),
            Err(error) => tracing::info!(uid = self.uid, %error, "a spawned job did not start"),
        }
        let _ = self.spawns.remove(&ticket).map(|reply| reply.send(answer));
    }
}
