//! Calls of a PMIx server to its host: names that outlive the job, new jobs, and meetings with other launches. The host's side is
//! [`pmi_core::services`].
//!
//! Published values are typed here and texts elsewhere, so the names of both are kept apart.

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
    /// Hands a question to [`crate::driver::Driver::question`] of another node and returns its answer; `None` if there is none, because
    /// that node is lost or through with its part.
    async fn ask(&self, node: NodeIndex, question: Bytes) -> Option<Bytes>;
}

/// No other nodes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

#[async_trait]
impl Peers for Alone {
    async fn ask(&self, _: NodeIndex, _: Bytes) -> Option<Bytes> {
        None
    }
}

/// One question to the host, of a rank or of several.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Call {
    /// Makes values known by name.
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
        /// Publishers that are searched.
        range: NameRange,
    },
    /// Withdraws published values.
    Unpublish {
        /// Their names.
        names: Vec<Bytes>,
    },
    /// The process of a rank has ended: values that live as long as it are withdrawn. The answer is ignored.
    Leave,
    /// Starts a new job.
    Spawn(SpawnRequest),
    /// Comes to a collective with ranks of other launches.
    Meet(Meeting),
    /// Looks at the processes of the job on this node.
    Look,
    /// Sends a signal to ranks of the job on this node.
    Signal {
        /// The ranks.
        ranks: Vec<Rank>,
        /// Number of the signal.
        signal: i32,
    },
    /// Brings input to the ranks of this node that read the input of the launch.
    PushInput {
        /// Ranks that are meant; `None` stands for all that read it.
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
    /// To a look-up: what was found, by name.
    Found(Result<Vec<(Bytes, Published)>, NameError>),
    /// To a spawn.
    Spawned(Result<JobId, SpawnError>),
    /// To a meeting.
    Met(Result<Met, MeetError>),
    /// To a look at processes.
    Seen(JobProcesses),
    /// To a signal.
    Signalled(Result<(), SignalError>),
    /// To input.
    Pushed(Result<(), InputError>),
}

/// A published value as the host carries it: who published it, and the value as it was encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published(Bytes);

impl Published {
    /// Packs a value that `publisher` publishes.
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

    /// Returns the publisher and the value; `None` if the host brings something else.
    pub(crate) fn open(&self) -> Option<(Proc<'_>, Encoded<'_>)> {
        let mut packed = Reader::new(Encoding::Flex, &self.0);
        let publisher = packed.proc().ok()?;
        let tag = packed.byte().ok()?;
        let encoding = Encoding::ALL.into_iter().find(|&encoding| encoding as u8 == tag)?;
        // It may come from another server: it is read once before anybody relies on it.
        Reader::new(encoding, packed.rest()).skip(crate::wire::types::VALUE).ok()?;
        Some((publisher, Encoded { encoding, bytes: packed.rest() }))
    }
}

impl Call {
    /// Asks `services` on behalf of `rank`.
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

/// Publishes all names or none: those published before one that cannot be are withdrawn.
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
                // It may have been read, and is gone then.
                let _ = services.name(withdrawal(rank, name)).await;
            }
            return Err(error);
        }
        published.push(service);
    }
    Ok(())
}

/// All names, or those that are there for a lookup that does not wait, if one is.
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
            // A value that was read once is gone already.
            Ok(_) | Err(NameError::NotFound) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn withdrawal(rank: Rank, service: Bytes) -> NameRequest {
    NameRequest::of(rank, NameCall::Unpublish { service, publisher: Publisher::Itself })
}

/// No name of PMI-1 or PMI-2 holds a NUL.
fn apart(name: &[u8]) -> Bytes {
    let mut apart = BytesMut::with_capacity(name.len() + 5);
    apart.put_slice(b"pmix\0");
    apart.put_slice(name);
    apart.freeze()
}
