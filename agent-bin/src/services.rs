//! The host services of a launch without daemons: names in memory, no new jobs.

use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use pmi_core::ids::{JobId, Rank};
use pmi_core::services::{NameError, Names, Services, SpawnError, SpawnRequest};

/// Publishes names for all jobs that share it, and refuses to spawn.
#[derive(Debug, Default)]
pub struct LocalServices {
    names: Mutex<Names>,
}

impl LocalServices {
    fn with_names<T>(&self, act: impl FnOnce(&mut Names) -> T) -> T {
        // A table is whole after every call, also one that panicked.
        act(&mut self.names.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[async_trait]
impl Services for LocalServices {
    async fn publish(&self, _: Rank, service: Bytes, port: Bytes) -> Result<(), NameError> {
        self.with_names(|names| names.publish(service, port))
    }

    async fn lookup(&self, _: Rank, service: Bytes) -> Result<Bytes, NameError> {
        self.with_names(|names| names.lookup(&service))
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
