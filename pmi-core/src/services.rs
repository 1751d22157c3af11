//! Services of the host for the ranks of a server: names that outlive the job, new jobs, and meetings with other launches.
//!
//! A [`crate::server::Server`] decodes these requests completely and passes them to the host with a ticket. The host answers later, and
//! meanwhile all other ranks continue.

mod input;
mod meeting;
mod names;
mod processes;

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

pub use self::input::InputError;
pub use self::meeting::{MeetError, Meeting, Met, MetJob};
pub use self::names::{
    Lifetime, NameCall, NameError, NamePeer, NameRange, NameRequest, NameUser, Names, Program, Published, Publisher,
};
pub use self::processes::{JobProcesses, ProcessState, RankProcess, SignalError};
use crate::ids::{JobId, Rank};
use crate::resources::{Resource, ResourceChange, ResourceError};

/// A request to start a new job, from `MPI_Comm_spawn` or `MPI_Comm_spawn_multiple`.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct SpawnRequest {
    /// The job of the requesting rank, if the host cannot derive it. The component that forwards the request sets it.
    pub parent: Option<JobId>,
    /// The programs, in the order of their `MPI_APPNUM`.
    pub apps: Vec<SpawnApp>,
    /// Pairs that are readable in the new job before its first rank starts.
    pub preput: Vec<(Bytes, Bytes)>,
}

/// One program of a [`SpawnRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct SpawnApp {
    /// The program as the caller specified it.
    pub program: Bytes,
    /// The arguments after the program name.
    pub args: Vec<Bytes>,
    /// Number of ranks.
    pub ranks: u32,
    /// The caller's hints, such as `wdir`, `host` or `path`.
    pub info: Vec<(Bytes, Bytes)>,
    /// Variables to set in its ranks, in addition to the caller's environment.
    pub variables: Vec<(Bytes, Bytes)>,
    /// Working directory; `None` means the caller's.
    pub directory: Option<Bytes>,
}

/// Reason of a failed spawn; the caller's job continues.
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
    /// Returns the reason without the kind of error.
    pub fn reason(&self) -> &str {
        let (Self::Refused { reason } | Self::Failed { reason }) = self;
        reason
    }
}

/// The host's services for a server. Each call is made on behalf of `rank` of the server's job. A host implements the services that it
/// offers; each default method refuses.
#[async_trait]
pub trait Services: Send + Sync {
    /// Returns false if names cannot be published; `hasNameServ` reports this to ranks.
    fn has_names(&self) -> bool {
        true
    }

    /// Publishes, finds or withdraws a name. Returns the port for a lookup, else an empty value.
    ///
    /// # Errors
    /// Fails when the name cannot be published, found or withdrawn; a host without names finds none.
    async fn name(&self, request: NameRequest) -> Result<Bytes, NameError> {
        match request.call {
            NameCall::Publish { .. } => Err(NameError::Unavailable { reason: "this host has no names".into() }),
            NameCall::Leave => Ok(Bytes::new()),
            NameCall::Lookup { .. } | NameCall::Unpublish { .. } => Err(NameError::NotFound),
        }
    }

    /// Returns true if [`Services::spawn`] starts new jobs. Otherwise a session starts them on its own node, and a driver refuses
    /// them.
    fn starts_jobs(&self) -> bool {
        false
    }

    /// Starts a new job, and returns its id once its ranks run.
    ///
    /// # Errors
    /// Fails when the ranks do not start; the caller's job continues.
    async fn spawn(&self, _rank: Rank, _request: SpawnRequest) -> Result<JobId, SpawnError> {
        Err(SpawnError::Refused { reason: "this host starts no further jobs".into() })
    }

    /// Joins a meeting with other launches, and returns when all participants have joined.
    ///
    /// # Errors
    /// Fails when another participant is unknown: a host without other launches has none.
    async fn meet(&self, _meeting: Meeting) -> Result<Met, MeetError> {
        Err(MeetError::NotFound)
    }

    /// Records a step of a resource that the rank registers. When the rank ends, the host removes resources that it holds or intended to
    /// create.
    ///
    /// # Errors
    /// Fails when the resource does not exist, or the rank may not remove it. A host without this service removes nothing.
    async fn resource(&self, _rank: Rank, _change: ResourceChange) -> Result<(), ResourceError> {
        Err(ResourceError::Unserved)
    }

    /// The rank has not released a resource within its own time limit.
    async fn release_overdue(&self, _rank: Rank, _resource: Resource, _within: Duration) {}

    /// A second process sends messages as the rank, which has not finalized. Its process id is known if it uses the rank's own socket.
    async fn second_process(&self, _rank: Rank, _pid: Option<u32>) {}

    /// Returns the processes of the job's ranks on this node; none if the host cannot inspect them.
    async fn processes(&self) -> JobProcesses {
        JobProcesses::default()
    }

    /// Sends a signal to the processes of these ranks of the job on this node; ended processes are skipped.
    ///
    /// # Errors
    /// Fails when the signal does not exist.
    async fn signal(&self, _ranks: Vec<Rank>, _signal: i32) -> Result<(), SignalError> {
        Err(SignalError::Refused)
    }

    /// Passes input to the ranks of this node that read the input of the launch; returns when the input is stored for them. `ranks` are
    /// the intended ranks; `None` means all ranks that read.
    ///
    /// # Errors
    /// Fails when other ranks read, when no rank reads, and when the input is at its end.
    async fn push_input(&self, _ranks: Option<Vec<Rank>>, _bytes: Bytes) -> Result<(), InputError> {
        Err(InputError::NotPassedOn)
    }
}

/// A host that offers only fences.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoServices;

impl Services for NoServices {
    fn has_names(&self) -> bool {
        false
    }
}

/// One question of a rank to the host, from a server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Call {
    /// A name; see [`Services::name`].
    Name(NameCall),
    /// See [`Services::spawn`].
    Spawn(SpawnRequest),
    /// See [`Services::resource`].
    Resource(ResourceChange),
}

/// The host's answer to a [`Call`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answer {
    /// Answer to the publication or withdrawal of a name.
    Named(Result<(), NameError>),
    /// Answer to a lookup.
    Port(Result<Bytes, NameError>),
    /// Answer to a spawn.
    Spawned(Result<JobId, SpawnError>),
    /// Answer to a step of a resource.
    Resource(ResourceChange, Result<(), ResourceError>),
}

impl Call {
    /// Passes the call to `services` on behalf of `rank`.
    pub async fn ask(self, services: &dyn Services, rank: Rank) -> Answer {
        match self {
            Self::Name(call) => {
                let is_lookup = matches!(call, NameCall::Lookup { .. });
                let answer = services.name(NameRequest::of(rank, call)).await;
                if is_lookup { Answer::Port(answer) } else { Answer::Named(answer.map(drop)) }
            }
            Self::Spawn(request) => Answer::Spawned(services.spawn(rank, request).await),
            Self::Resource(change) => {
                let result = services.resource(rank, change.clone()).await;
                Answer::Resource(change, result)
            }
        }
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
            let (lifetime, range) = (Lifetime::Withdrawn, NameRange::User);
            let publish = NameCall::Publish { service: name(), port: name(), lifetime, range: range.clone() };
            let ask = async |call| host.name(NameRequest::of(rank, call)).await;
            let published = ask(publish).await;
            assert!(matches!(published, Err(NameError::Unavailable { .. })), "{published:?}");
            let lookup = NameCall::Lookup { service: name(), timeout: Some(Duration::MAX), range };
            assert_eq!(ask(lookup).await, Err(NameError::NotFound));
            let unpublish = NameCall::Unpublish { service: name(), publisher: Publisher::Itself };
            assert_eq!(ask(unpublish).await, Err(NameError::NotFound));
            assert_eq!(ask(NameCall::Leave).await, Ok(Bytes::new()));
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
}
