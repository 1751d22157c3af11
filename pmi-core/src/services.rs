//! Services of the host for the ranks of a server: names that outlive the job, new jobs, and meetings with other launches.
//!
//! A [`crate::server::Server`] decodes these requests whole and hands them out with a ticket; the host answers when it
//! can, and meanwhile every other rank goes on.

mod input;
mod meeting;
mod processes;

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

pub use self::input::InputError;
pub use self::meeting::{MeetError, Meeting, Met, MetJob};
pub use self::processes::{JobProcesses, ProcessState, RankProcess, SignalError};
use crate::ids::{JobId, Rank};
use crate::resources::{Resource, ResourceChange, ResourceError};

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
    /// Number of ranks.
    pub ranks: u32,
    /// The caller's hints, such as `wdir`, `host` or `path`.
    pub info: Vec<(Bytes, Bytes)>,
    /// Variables to set in its ranks, on top of the caller's environment.
    pub variables: Vec<(Bytes, Bytes)>,
    /// The directory to start in; `None` means the caller's.
    pub directory: Option<Bytes>,
}

/// Lifetime of a published name.
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
        /// Number of names it holds.
        limit: usize,
    },
    /// The service that holds the names cannot be reached.
    #[error("the name service does not answer: {reason}")]
    Unavailable {
        /// Cause of the failure.
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
        /// Reason of the refusal.
        reason: String,
    },
    /// The new ranks could not be started.
    #[error("the new ranks did not start: {reason}")]
    Failed {
        /// Cause of the failure.
        reason: String,
    },
}

impl SpawnError {
    /// The reason of either, without what it is the reason of.
    pub fn reason(&self) -> &str {
        let (Self::Refused { reason } | Self::Failed { reason }) = self;
        reason
    }
}

/// The host's part of a server: each call is made on behalf of `rank` of the server's job. A host implements what it offers; each
/// method refuses unless it is implemented.
#[async_trait]
pub trait Services: Send + Sync {
    /// Returns false if no names can be published; ranks that ask for `hasNameServ` are told so.
    fn has_names(&self) -> bool {
        true
    }

    /// Makes `port` known under the name `service`, to every job of the user.
    ///
    /// # Errors
    /// Fails when the name is published already, or cannot be.
    async fn publish(&self, _rank: Rank, _service: Bytes, _port: Bytes, _lifetime: Lifetime) -> Result<(), NameError> {
        Err(NameError::Unavailable { reason: "this host has no names".into() })
    }

    /// Returns the port published under `service`. Waits up to `timeout` for somebody to publish it; `None` does not wait.
    ///
    /// # Errors
    /// Fails when nobody published it, or not in time.
    async fn lookup(&self, _rank: Rank, _service: Bytes, _timeout: Option<Duration>) -> Result<Bytes, NameError> {
        Err(NameError::NotFound)
    }

    /// Withdraws `service`; any rank may withdraw any name of its user.
    ///
    /// # Errors
    /// Fails when nobody published it.
    async fn unpublish(&self, _rank: Rank, _service: Bytes) -> Result<(), NameError> {
        Err(NameError::NotFound)
    }

    /// Returns true if [`Services::spawn`] starts new jobs. Else whoever serves the ranks starts them, on its own node.
    fn starts_jobs(&self) -> bool {
        false
    }

    /// Starts a new job and returns its id once its ranks are running.
    ///
    /// # Errors
    /// Fails when the ranks do not start; the caller's job lives on.
    async fn spawn(&self, _rank: Rank, _request: SpawnRequest) -> Result<JobId, SpawnError> {
        Err(SpawnError::Refused { reason: "this host starts no further jobs".into() })
    }

    /// Comes to a meeting with other launches, and returns when everybody has.
    ///
    /// # Errors
    /// Fails when one of the others is not known: a host without other launches knows none.
    async fn meet(&self, _meeting: Meeting) -> Result<Met, MeetError> {
        Err(MeetError::NotFound)
    }

    /// Takes note of a step of a resource that the rank registers: what it holds, or was about to make, is removed when it ends.
    ///
    /// # Errors
    /// Fails when the resource is not there, or is not the rank's to remove. A host without this service removes nothing.
    async fn resource(&self, _rank: Rank, _change: ResourceChange) -> Result<(), ResourceError> {
        Err(ResourceError::Unserved)
    }

    /// The rank has not released a resource within the time that it gave itself.
    async fn release_overdue(&self, _rank: Rank, _resource: Resource, _within: Duration) {}

    /// Looks at the processes of the job's ranks on this node. A host that cannot has none.
    async fn processes(&self) -> JobProcesses {
        JobProcesses::default()
    }

    /// Sends a signal to the processes of these ranks of the job on this node; those that have ended are passed over.
    ///
    /// # Errors
    /// Fails when there is no such signal.
    async fn signal(&self, _ranks: Vec<Rank>, _signal: i32) -> Result<(), SignalError> {
        Err(SignalError::Refused)
    }

    /// Brings input to the ranks of this node that read the input of the launch; returns when it is kept for them. `ranks` are those that
    /// are meant; `None` stands for all that read.
    ///
    /// # Errors
    /// Fails when other ranks read, when nobody does, and when the input is at its end.
    async fn push_input(&self, _ranks: Option<Vec<Rank>>, _bytes: Bytes) -> Result<(), InputError> {
        Err(InputError::NotPassedOn)
    }
}

/// A host that offers nothing beyond fences.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoServices;

impl Services for NoServices {
    fn has_names(&self) -> bool {
        false
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
    /// See [`Services::resource`].
    Resource(ResourceChange),
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
    /// To a step of a resource.
    Resource(ResourceChange, Result<(), ResourceError>),
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
            Self::Resource(change) => {
                let result = services.resource(rank, change.clone()).await;
                Answer::Resource(change, result)
            }
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

    /// The port published under `service`, which stays.
    pub fn port(&self, service: &[u8]) -> Option<&Bytes> {
        self.ports.get(service).map(|(port, _)| port)
    }

    /// Withdraws `service`.
    ///
    /// # Errors
    /// Fails when nobody published it.
    pub fn unpublish(&mut self, service: &[u8]) -> Result<(), NameError> {
        self.ports.remove(service).map(drop).ok_or(NameError::NotFound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_implements_nothing_refuses_everything() {
        let name = || Bytes::from_static(b"name");
        pollster::block_on(async {
            let (host, rank) = (NoServices, Rank(0));
            let published = host.publish(rank, name(), name(), Lifetime::Withdrawn).await;
            assert!(matches!(published, Err(NameError::Unavailable { .. })), "{published:?}");
            assert_eq!(host.lookup(rank, name(), Some(Duration::MAX)).await, Err(NameError::NotFound));
            assert_eq!(host.unpublish(rank, name()).await, Err(NameError::NotFound));
            let spawned = host.spawn(rank, SpawnRequest::default()).await;
            assert!(matches!(spawned, Err(SpawnError::Refused { .. })), "{spawned:?}");
            assert!(!host.starts_jobs());
            let change =
                ResourceChange { resource: Resource::Process(None), step: crate::resources::ResourceStep::Intend };
            assert_eq!(host.resource(rank, change).await, Err(ResourceError::Unserved));
            assert_eq!(host.processes().await, JobProcesses::default());
            assert_eq!(host.signal(vec![rank], 9).await, Err(SignalError::Refused));
        });
    }

    #[test]
    fn a_name_has_one_port_until_it_is_withdrawn_or_read_once() {
        let mut names = Names::default();
        let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
        assert_eq!(names.lookup(b"a"), Err(NameError::NotFound));
        names.publish(bytes("a"), bytes("1"), Lifetime::Withdrawn).unwrap();
        assert_eq!(names.publish(bytes("a"), bytes("2"), Lifetime::FirstRead), Err(NameError::AlreadyPublished));
        assert_eq!([names.lookup(b"a"), names.lookup(b"a")], [Ok(bytes("1")), Ok(bytes("1"))]);
        assert_eq!([names.unpublish(b"a"), names.unpublish(b"a")], [Ok(()), Err(NameError::NotFound)]);
        names.publish(bytes("a"), bytes("3"), Lifetime::FirstRead).unwrap();
        assert_eq!([names.lookup(b"a"), names.lookup(b"a")], [Ok(bytes("3")), Err(NameError::NotFound)]);
    }

    #[test]
    fn a_full_table_says_its_limit_and_takes_again_what_has_room() {
        let mut names = Names::default();
        let name = |number: usize| Bytes::from(number.to_string());
        for number in 0..Names::LIMIT {
            names.publish(name(number), Bytes::new(), Lifetime::Withdrawn).unwrap();
        }
        let refused = names.publish(name(Names::LIMIT), Bytes::new(), Lifetime::Withdrawn);
        assert_eq!(refused, Err(NameError::Full { limit: Names::LIMIT }));
        names.unpublish(b"7").unwrap();
        names.publish(name(Names::LIMIT), Bytes::new(), Lifetime::Withdrawn).unwrap();
    }
}
