//! The host services of a launch without daemons: names in memory, no new jobs.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use pmi_core::ids::{JobId, Rank};
use pmi_core::services::{Lifetime, NameError, Names, Services, SpawnError, SpawnRequest};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// Publishes names for all jobs that share it, and refuses to spawn.
#[derive(Debug, Default)]
pub struct LocalServices {
    names: Mutex<Names>,
    /// Wakes those who wait for a name.
    published: Notify,
}

impl LocalServices {
    fn with_names<T>(&self, act: impl FnOnce(&mut Names) -> T) -> T {
        // A table is whole after every call, also one that panicked.
        act(&mut self.names.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn await_name(&self, service: &[u8]) -> Result<Bytes, NameError> {
        loop {
            let mut published = std::pin::pin!(self.published.notified());
            // What is published after the look counts as well.
            published.as_mut().enable();
            match self.with_names(|names| names.lookup(service)) {
                Err(NameError::NotFound) => published.await,
                result => return result,
            }
        }
    }
}

#[async_trait]
impl Services for LocalServices {
    async fn publish(&self, _: Rank, service: Bytes, port: Bytes, lifetime: Lifetime) -> Result<(), NameError> {
        self.with_names(|names| names.publish(service, port, lifetime))?;
        self.published.notify_waiters();
        Ok(())
    }

    async fn lookup(&self, _: Rank, service: Bytes, timeout: Option<Duration>) -> Result<Bytes, NameError> {
        match timeout {
            None => self.with_names(|names| names.lookup(&service)),
            Some(timeout) => {
                let deadline = Instant::now() + timeout;
                timeout_at(deadline, self.await_name(&service)).await.unwrap_or(Err(NameError::TimedOut))
            }
        }
    }

    async fn unpublish(&self, _: Rank, service: Bytes) -> Result<(), NameError> {
        self.with_names(|names| names.unpublish(&service))
    }

    async fn spawn(&self, rank: Rank, request: SpawnRequest) -> Result<JobId, SpawnError> {
        let programs = request.apps.len();
        let reason = format!("rank {rank} asked for {programs} more, and this launch has the ranks it was given");
        Err(SpawnError::Refused { reason })
    }
}
