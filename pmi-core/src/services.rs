//! What a server asks of its host: names that outlive the job, new jobs, and meetings with other launches.
//!
//! A [`crate::server::Server`] decodes these requests whole and hands them out with a ticket; the host answers when it
//! can, and meanwhile every other rank goes on.

mod meeting;

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

pub use self::meeting::{MeetError, Meeting, Met, MetJob};
use crate::ids::{JobId, Rank};

/// A request to start a new job, as `MPI_Comm_spawn` and `MPI_Comm_spawn_multiple` make it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct SpawnRequest {
    /// The job whose rank asks, where that is not plain to the host: whoever hands the request on fills it in.
    pub parent: Option<JobId>,
    /// The programs, in the order of their `MPI_APPNUM`.
    pub apps: Vec<SpawnApp>,
    /// Pairs to be readable in the new job before its first rank starts.
    pub preput: Vec<(Bytes, Bytes)>,
}

/// One program of a [`SpawnRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct SpawnApp {
    /// The program as the caller wrote it.
    pub program: Bytes,
    /// The arguments after the program name.
    pub args: Vec<Bytes>,
    /// How many ranks of it.
    pub ranks: u32,
    /// The caller's hints, such as `wdir`, `host` or `path`.
    pub info: Vec<(Bytes, Bytes)>,
    /// Variables to set in its ranks, on top of the caller's environment.
    pub variables: Vec<(Bytes, Bytes)>,
    /// The directory to start in; `None` means the caller's.
    pub directory: Option<Bytes>,
}

/// How long a published name stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Lifetime {
    /// Until somebody withdraws it.
    #[default]
    Withdrawn,
    /// Until somebody has found it.
    FirstRead,
}

/// A name that cannot be published, found or withdrawn.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// Somebody published this name already.
    #[error("the name is already published")]
    AlreadyPublished,
    /// Nobody published this name.
    #[error("nobody published this name")]
    NotFound,
    /// Nobody published this name in time.
    #[error("nobody published this name in time")]
    TimedOut,
    /// The table is full.
    #[error("the name table is full: {limit} names")]
    Full {
        /// How many names it holds.
        limit: usize,
    },
    /// The service that holds the names cannot be reached.
    #[error("the name service does not answer: {reason}")]
    Unavailable {
        /// What was seen.
        reason: String,
    },
}

/// A spawn that did not happen; the caller's job lives on.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpawnError {
    /// This host does not start new jobs.
    #[error("this launch cannot start new processes: {reason}")]
    Refused {
        /// Why not.
        reason: String,
    },
    /// The new ranks could not be started.
    #[error("the new ranks did not start: {reason}")]
    Failed {
        /// What went wrong.
        reason: String,
    },
}

/// What the host answers; every call is made on behalf of `rank` of the server's job.
#[async_trait]
pub trait Services: Send + Sync {
    /// Makes `port` known under the name `service`, to every job of the user.
    async fn publish(&self, rank: Rank, service: Bytes, port: Bytes, lifetime: Lifetime) -> Result<(), NameError>;

    /// Finds the port published under `service`. Waits for somebody to publish it for as long as `patience` says, if it says so.
    async fn lookup(&self, rank: Rank, service: Bytes, patience: Option<Duration>) -> Result<Bytes, NameError>;

    /// Withdraws `service`; any rank may withdraw any name of its user.
    async fn unpublish(&self, rank: Rank, service: Bytes) -> Result<(), NameError>;

    /// Whether [`Services::spawn`] starts new jobs. Else whoever serves the ranks starts them, on its own node.
    fn starts_jobs(&self) -> bool {
        false
    }

    /// Starts a new job and returns its id once its ranks are running.
    async fn spawn(&self, rank: Rank, request: SpawnRequest) -> Result<JobId, SpawnError>;

    /// Comes to a meeting with other launches, and returns when everybody has. A host without other launches knows none.
    async fn meet(&self, _meeting: Meeting) -> Result<Met, MeetError> {
        Err(MeetError::NotFound)
    }
}

/// One question of a rank to the host, as a server hands it out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Call {
    /// See [`Services::publish`].
    Publish {
        /// The name.
        service: Bytes,
        /// The port.
        port: Bytes,
    },
    /// See [`Services::lookup`].
    Lookup {
        /// The name.
        service: Bytes,
    },
    /// See [`Services::unpublish`].
    Unpublish {
        /// The name.
        service: Bytes,
    },
    /// See [`Services::spawn`].
    Spawn(SpawnRequest),
}

/// The host's answer to a [`Call`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answer {
    /// To a publish or unpublish.
    Named(Result<(), NameError>),
    /// To a lookup.
    Port(Result<Bytes, NameError>),
    /// To a spawn.
    Spawned(Result<JobId, SpawnError>),
}

impl Call {
    /// Asks `services` on behalf of `rank`.
    pub async fn ask(self, services: &dyn Services, rank: Rank) -> Answer {
        match self {
            Self::Publish { service, port } => {
                Answer::Named(services.publish(rank, service, port, Lifetime::Withdrawn).await)
            }
            Self::Lookup { service } => Answer::Port(services.lookup(rank, service, None).await),
            Self::Unpublish { service } => Answer::Named(services.unpublish(rank, service).await),
            Self::Spawn(request) => Answer::Spawned(services.spawn(rank, request).await),
        }
    }
}

/// A table of published names, for hosts that keep it in memory.
#[derive(Debug, Default)]
pub struct Names {
    ports: HashMap<Bytes, (Bytes, Lifetime)>,
}

impl Names {
    /// The most names that one table holds.
    pub const LIMIT: usize = 4096;

    /// Publishes `port` under `service`.
    ///
    /// # Errors
    /// Refuses a name that is already there, as MPICH's Hydra does, and one name more than [`Names::LIMIT`].
    pub fn publish(&mut self, service: Bytes, port: Bytes, lifetime: Lifetime) -> Result<(), NameError> {
        if self.ports.contains_key(&service) {
            return Err(NameError::AlreadyPublished);
        }
        if self.ports.len() >= Self::LIMIT {
            return Err(NameError::Full { limit: Self::LIMIT });
        }
        self.ports.insert(service, (port, lifetime));
        Ok(())
    }

    /// The port published under `service`; gone with it if it was published for one reader.
    ///
    /// # Errors
    /// Fails when nobody published it.
    pub fn lookup(&mut self, service: &[u8]) -> Result<Bytes, NameError> {
        let (port, lifetime) = self.ports.get(service).cloned().ok_or(NameError::NotFound)?;
        if lifetime == Lifetime::FirstRead {
            self.ports.remove(service);
        }
        Ok(port)
    }

    /// Withdraws `service`.
    ///
    /// # Errors
    /// Fails when nobody published it.
    pub fn unpublish(&mut self, service: &[u8]) -> Result<(), NameError> {
        self.ports.remove(service).map(drop).ok_or(NameError::NotFound)
    }
}
