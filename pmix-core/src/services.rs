//! Calls of a PMIx server to its host: names that outlive the job, new jobs, and meetings with other launches. The host's side is
//! [`pmi_core::services`].
//!
//! Published values have types here, and are texts in PMI, so the names of both are kept apart.

use std::time::Duration;

use async_trait::async_trait;
use bytes::{BufMut, Bytes, BytesMut};
use pmi_core::ids::{JobId, NodeIndex, Rank};
use pmi_core::services::{
    InputError, JobProcesses, Lifetime, MeetError, Meeting, Met, NameCall, NameError, NameRange, NameRequest,
    Publisher, Services, SignalError, SpawnError, SpawnRequest,
};

use crate::wire::Encoding;
use crate::wire::reader::{Proc, Reader};
use crate::wire::reply::Encoded;
use crate::wire::writer::Writer;

/// The PMIx servers of the same launch on other nodes.
#[async_trait]
pub trait Peers: Send + Sync {
    /// Passes a question to [`crate::driver::Driver::question`] of another node and returns its answer; `None` if there is none, because
    /// that node is lost or has finished its part.
    async fn ask(&self, node: NodeIndex, question: Bytes) -> Option<Bytes>;
}

/// A launch without other nodes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

#[async_trait]
impl Peers for Alone {
    async fn ask(&self, _: NodeIndex, _: Bytes) -> Option<Bytes> {
        None
    }
}

/// One question to the host, from one rank or several.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Call {
    /// Publishes values by name.
    Publish {
        /// Names with values.
        values: Vec<(Bytes, Published)>,
        /// Lifetime of the values.
        lifetime: Lifetime,
        /// Processes that may find them.
        range: NameRange,
    },
    /// Finds published values.
    Lookup {
        /// Their names.
        names: Vec<Bytes>,
        /// Time to wait for all of them; `None` does not wait.
        timeout: Option<Duration>,
        /// Publishers to search.
        range: NameRange,
    },
    /// Withdraws published values.
    Unpublish {
        /// Their names.
        names: Vec<Bytes>,
    },
    /// The process of a rank has ended: withdraws values with the lifetime of the process. The answer is ignored.
    Leave,
    /// Starts a new job.
    Spawn(SpawnRequest),
    /// Joins a collective with ranks of other launches.
    Meet(Meeting),
    /// Returns the processes of the job on this node.
    Look,
    /// Sends a signal to ranks of the job on this node.
    Signal {
        /// The ranks.
        ranks: Vec<Rank>,
        /// Number of the signal.
        signal: i32,
    },
    /// Passes input to the ranks of this node that read the input of the launch.
    PushInput {
        /// Intended ranks; `None` means all ranks that read it.
        ranks: Option<Vec<Rank>>,
        /// The input.
        bytes: Bytes,
    },
}

/// The host's answer to a [`Call`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answer {
    /// To a publish or unpublish.
    Named(Result<(), NameError>),
    /// To a lookup: the found values, by name.
    Found(Result<Vec<(Bytes, Published)>, NameError>),
    /// To a spawn.
    Spawned(Result<JobId, SpawnError>),
    /// To a meeting.
    Met(Result<Met, MeetError>),
    /// To a request for processes.
    Seen(JobProcesses),
    /// To a signal.
    Signalled(Result<(), SignalError>),
    /// To input.
    Pushed(Result<(), InputError>),
}

/// A published value in the host's format: its publisher, and the value in its encoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published(Bytes);

impl Published {
    /// Packs a value of `publisher`.
    pub(crate) fn new(publisher: Proc<'_>, value: Encoded<'_>) -> Self {
        let mut packed = Writer::new(Encoding::Flex);
        packed.proc(publisher);
        packed.byte(value.encoding as u8);
        packed.raw(value.bytes);
        Self(packed.into_bytes().into())
    }

    /// Returns its size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the publisher and the value; `None` if the host returned another format.
    pub(crate) fn open(&self) -> Option<(Proc<'_>, Encoded<'_>)> {
        let mut packed = Reader::new(Encoding::Flex, &self.0);
        let publisher = packed.proc().ok()?;
        let tag = packed.byte().ok()?;
        let encoding = Encoding::ALL.into_iter().find(|&encoding| encoding as u8 == tag)?;
        // It may come from another server, so it is checked once before any use.
        Reader::new(encoding, packed.rest()).skip(crate::wire::types::VALUE).ok()?;
        Some((publisher, Encoded { encoding, bytes: packed.rest() }))
    }
}

impl Call {
    /// Passes the call to `services` on behalf of `rank`.
    pub async fn ask(self, services: &dyn Services, rank: Rank) -> Answer {
        match self {
            Self::Publish { values, lifetime, range } => {
                Answer::Named(publish(services, rank, values, lifetime, range).await)
            }
            Self::Lookup { names, timeout, range } => {
                Answer::Found(look_up(services, rank, names, timeout, range).await)
            }
            Self::Unpublish { names } => Answer::Named(unpublish(services, rank, names).await),
            Self::Leave => Answer::Named(services.name(NameRequest::of(rank, NameCall::Leave)).await.map(drop)),
            Self::Spawn(request) => Answer::Spawned(services.spawn(rank, request).await),
            Self::Meet(meeting) => Answer::Met(services.meet(meeting).await),
            Self::Look => Answer::Seen(services.processes().await),
            Self::PushInput { ranks, bytes } => Answer::Pushed(services.push_input(ranks, bytes).await),
            Self::Signal { ranks, signal } => Answer::Signalled(services.signal(ranks, signal).await),
        }
    }
}

/// Publishes all names or none: if one fails, the earlier ones are withdrawn.
async fn publish(
    services: &dyn Services,
    rank: Rank,
    values: Vec<(Bytes, Published)>,
    lifetime: Lifetime,
    range: NameRange,
) -> Result<(), NameError> {
    let mut published = Vec::with_capacity(values.len());
    for (name, value) in values {
        let service = apart(&name);
        let call = NameCall::Publish { service: service.clone(), port: value.0, lifetime, range: range.clone() };
        if let Err(error) = services.name(NameRequest::of(rank, call)).await {
            for name in published {
                // It may already have been read, and thereby removed.
                let _ = services.name(withdrawal(rank, name)).await;
            }
            return Err(error);
        }
        published.push(service);
    }
    Ok(())
}

/// Finds all names. A lookup that does not wait returns the existing ones, if there are any.
async fn look_up(
    services: &dyn Services,
    rank: Rank,
    names: Vec<Bytes>,
    timeout: Option<Duration>,
    range: NameRange,
) -> Result<Vec<(Bytes, Published)>, NameError> {
    let mut found = Vec::new();
    for name in names {
        let call = NameCall::Lookup { service: apart(&name), timeout, range: range.clone() };
        match services.name(NameRequest::of(rank, call)).await {
            Ok(value) => found.push((name, Published(value))),
            Err(NameError::NotFound) if timeout.is_none() => {}
            Err(error) => return Err(error),
        }
    }
    if found.is_empty() { Err(NameError::NotFound) } else { Ok(found) }
}

async fn unpublish(services: &dyn Services, rank: Rank, names: Vec<Bytes>) -> Result<(), NameError> {
    for name in names {
        match services.name(withdrawal(rank, apart(&name))).await {
            // A value for one reader may already be gone.
            Ok(_) | Err(NameError::NotFound) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn withdrawal(rank: Rank, service: Bytes) -> NameRequest {
    NameRequest::of(rank, NameCall::Unpublish { service, publisher: Publisher::Itself })
}

/// Names of PMI-1 and PMI-2 hold no NUL.
fn apart(name: &[u8]) -> Bytes {
    let mut apart = BytesMut::with_capacity(name.len() + 5);
    apart.put_slice(b"pmix\0");
    apart.put_slice(name);
    apart.freeze()
}
