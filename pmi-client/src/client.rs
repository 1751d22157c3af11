//! The public interface of the client: its calls, and the protocol that serves them.

mod exchange;
mod groups;
mod other_jobs;
mod resources;

use alloc::borrow::ToOwned;
use alloc::vec;
use alloc::vec::Vec;

use job_memory::NodeMemory;
use rustix::fd::OwnedFd;

use crate::connection::Connection;
use crate::descriptor::{self, Admission};
use crate::environment::{self, Door};
use crate::error::ClientError;
use crate::limits::Limits;
use crate::membership::Membership;
use crate::pmi1::{self, Pmi1};
use crate::pmi2::{self, Pmi2};
use crate::process_mapping;
use crate::shared::{MemoryOf, SharedPairs};
use crate::singleton::{self, Singleton};
use crate::system;

pub use self::groups::{PendingBarrier, RankGroup};

/// The protocol of a client. The server cannot report its protocol: it learns the protocol from the client's first line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// PMI-1, which every launcher serves.
    #[default]
    Auto,
    /// PMI-1: without node attributes and ring.
    Pmi1,
    /// PMI-2.
    Pmi2,
}

/// Connection of a rank to its launcher.
///
/// Calls block until the server replies. Some calls block until other ranks arrive, and end early only if the server closes the connection.
/// If a client is dropped without [`finalize`](Self::finalize), the launcher treats this rank as failed.
#[derive(Debug)]
pub struct Client {
    wire: Wire,
    shared: SharedPairs,
}

#[derive(Debug)]
enum Wire {
    Pmi1(Pmi1),
    Pmi2(Pmi2),
    Alone(Singleton),
}

impl From<Wire> for Client {
    fn from(wire: Wire) -> Self {
        Self { wire, shared: SharedPairs::default() }
    }
}

/// Variable with the name of the job, which Slurm sets in addition to `PMI_FD`.
const JOB_VARIABLE: &str = "PMI_JOBID";

/// Treatment of the descriptor that `PMI_FD` names.
#[derive(Clone, Copy, Debug)]
enum Descriptor {
    /// The client takes ownership.
    Take,
    /// The descriptor stays open for other parts of this process.
    Share,
}

/// Makes the same call with the protocol of the client.
macro_rules! on_wire {
    ($client:ident, $wire:ident => $call:expr) => {
        match &mut $client.wire {
            Wire::Pmi1($wire) => $call,
            Wire::Pmi2($wire) => $call,
            Wire::Alone($wire) => $call,
        }
    };
}

use on_wire;

/// Creation and end of a client.
impl Client {
    /// Joins the job that the environment names: through the socket in `PMI_FD`, or else at the address in `PMI_PORT`. If neither is set, the
    /// process is a job by itself, see [`is_singleton`](Self::is_singleton).
    ///
    /// A process can call this once, and not together with an MPI library, because each rank has one connection.
    ///
    /// # Errors
    /// Fails if the environment is incomplete, if `PMI_FD` is not an inherited socket, or if the server does not serve `protocol`.
    pub fn from_env(protocol: Protocol) -> Result<Self, ClientError> {
        Self::join(protocol, Descriptor::Take)
    }

    /// Joins as [`from_env`](Self::from_env) does, but leaves `PMI_FD` open and unchanged. It can be called again after this client is
    /// dropped. Clients that exist at the same time must take turns, because each client takes the next reply, even if it belongs to another
    /// client.
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env). A process can claim a rank at `PMI_PORT` only once.
    pub fn sharing_env(protocol: Protocol) -> Result<Self, ClientError> {
        Self::join(protocol, Descriptor::Share)
    }

    fn join(protocol: Protocol, descriptor: Descriptor) -> Result<Self, ClientError> {
        let memory = SharedPairs::offered();
        let mut client = match Door::find(system::variable)? {
            Door::Descriptor { fd, rank, size } => {
                let socket = match descriptor {
                    Descriptor::Take => Admission::take()?.into_inherited(fd)?,
                    Descriptor::Share => descriptor::share(fd)?,
                };
                let job = system::variable(JOB_VARIABLE);
                Self::speak(socket, protocol, (rank, size), job.as_deref(), memory)?
            }
            Door::Port { address, id } => {
                Admission::take()?;
                Self::connect_with(&address, protocol, id, memory)?
            }
            Door::None => return Ok(Self::alone()),
        };
        if let Wire::Pmi1(wire) = &mut client.wire {
            wire.membership.spawned = environment::is_spawned(system::variable);
        }
        Ok(client)
    }

    /// Connects over `stream`, any connected stream socket in blocking mode, to a server that expects `rank` at this end.
    ///
    /// In PMI-1 the number of ranks is not part of the protocol, so that `size` must provide it. In PMI-2 the server provides it.
    ///
    /// # Errors
    /// Fails if the server does not serve `protocol`, or violates it.
    pub fn over(stream: impl Into<OwnedFd>, protocol: Protocol, rank: u32, size: u32) -> Result<Self, ClientError> {
        Self::speak(stream.into(), protocol, (rank, size), None, None)
    }

    fn speak(
        stream: OwnedFd,
        protocol: Protocol,
        (rank, size): (u32, u32),
        job: Option<&str>,
        memory: Option<MemoryOf>,
    ) -> Result<Self, ClientError> {
        let connection = Connection::new(stream);
        match protocol {
            Protocol::Auto | Protocol::Pmi1 => Self::in_pmi1(connection, (rank, size), memory),
            Protocol::Pmi2 => Self::in_pmi2(connection, rank, job, memory),
        }
    }

    fn in_pmi1(
        connection: Connection,
        (rank, size): (u32, u32),
        memory: Option<MemoryOf>,
    ) -> Result<Self, ClientError> {
        let (wire, shared) = Pmi1::init(connection, (rank, size), memory)?;
        Ok(Self { wire: Wire::Pmi1(wire), shared })
    }

    fn in_pmi2(
        connection: Connection,
        rank: u32,
        job: Option<&str>,
        memory: Option<MemoryOf>,
    ) -> Result<Self, ClientError> {
        let wire = Pmi2::init(connection, rank, job)?;
        let shared = memory.map(|memory| memory(&wire.membership.job_id)).unwrap_or_default();
        Ok(Self { wire: Wire::Pmi2(wire), shared })
    }

    /// Connects to a server at `address` (`host:port`) and claims the rank `id` there.
    ///
    /// # Errors
    /// Fails if no process listens at the address, if the server refuses the rank, and as [`over`](Self::over) does.
    pub fn connect(address: &str, protocol: Protocol, id: u32) -> Result<Self, ClientError> {
        Self::connect_with(address, protocol, id, None)
    }

    fn connect_with(address: &str, protocol: Protocol, id: u32, memory: Option<MemoryOf>) -> Result<Self, ClientError> {
        let failed = |source| ClientError::Connect { address: address.to_owned(), source };
        let mut connection = Connection::new(system::connect(address).map_err(failed)?);
        match protocol {
            Protocol::Auto | Protocol::Pmi1 => {
                let place = pmi1::claim(&mut connection, id)?;
                Self::in_pmi1(connection, place, memory)
            }
            Protocol::Pmi2 => Self::in_pmi2(connection, id, None, memory),
        }
    }

    /// Creates a job of one rank without a launcher. Gets return the values of earlier puts, and fences do nothing.
    pub fn alone() -> Self {
        Wire::Alone(Singleton::new()).into()
    }

    /// Leaves the job in good order. The process may continue without PMI.
    ///
    /// # Errors
    /// Fails if the server is gone.
    pub fn finalize(mut self) -> Result<(), ClientError> {
        match &mut self.wire {
            Wire::Pmi1(wire) => wire.finalize(),
            Wire::Pmi2(wire) => wire.finalize(),
            Wire::Alone(_) => Ok(()),
        }
    }

    /// Requests that the launcher end the whole job with the exit code `code`, and does not wait. There is no reply, and the caller should
    /// exit. The user receives `message`, in which spaces replace line feeds. Without a code Lattice uses the code that MPI libraries write
    /// into the message.
    ///
    /// # Errors
    /// Fails if the server is gone, in which case the job is already ending.
    pub fn abort(mut self, code: impl Into<Option<i32>>, message: &str) -> Result<(), ClientError> {
        let code = code.into();
        match &mut self.wire {
            Wire::Pmi1(wire) => wire.abort(code, message),
            Wire::Pmi2(wire) => wire.abort(code, message),
            Wire::Alone(_) => Ok(()),
        }
    }
}

/// Place of this rank in its job.
impl Client {
    /// The rank of this process in the job, from 0.
    pub fn rank(&self) -> u32 {
        self.membership().rank
    }

    /// The number of ranks in the job.
    pub fn size(&self) -> u32 {
        self.membership().size
    }

    /// Number of the program in a multi-program job (`MPI_APPNUM`); `None` if the launcher does not provide it.
    pub fn appnum(&self) -> Option<u64> {
        self.membership().appnum
    }

    /// The job's name: PMI-1's `kvsname`, PMI-2's `jobid`.
    pub fn job_id(&self) -> &str {
        &self.membership().job_id
    }

    /// Returns true if another job started this one. In PMI-1 only the environment contains this fact.
    pub fn is_spawned(&self) -> bool {
        self.membership().spawned
    }

    /// Maximum lengths of texts that the server accepts.
    pub fn limits(&self) -> Limits {
        match &self.wire {
            Wire::Pmi1(wire) => wire.limits,
            Wire::Pmi2(_) => pmi2::LIMITS,
            Wire::Alone(_) => singleton::LIMITS,
        }
    }

    /// Ranks of the job on this rank's node, including this rank, in order. If the launcher does not provide the placement, returns only this
    /// rank.
    ///
    /// # Errors
    /// Fails if the server is gone or sends an invalid reply.
    pub fn local_ranks(&mut self) -> Result<Vec<u32>, ClientError> {
        let rank = self.rank();
        let local = self.nodes()?.and_then(|nodes| process_mapping::local_ranks(&nodes, rank));
        Ok(local.unwrap_or_else(|| vec![rank]))
    }

    /// Node of each rank, by the numbers of `PMI_process_mapping`; `None` if the launcher does not provide the placement.
    ///
    /// # Errors
    /// Fails if the server is gone or sends an invalid reply.
    pub fn nodes(&mut self) -> Result<Option<Vec<u32>>, ClientError> {
        let mapping = self.job_attribute("PMI_process_mapping")?;
        Ok(mapping.and_then(|mapping| process_mapping::nodes(&mapping, self.size())))
    }

    /// Program of each rank, by the numbers of [`appnum`](Self::appnum). Returns `None` under launchers other than Lattice, and under Lattice
    /// if ranks have no memory of their job.
    pub fn programs(&self) -> Option<Vec<u32>> {
        match self.wire {
            Wire::Alone(_) => Some(vec![0]),
            _ => self.shared.programs(self.size()),
        }
    }

    /// Returns true if no launcher started this process.
    pub fn is_singleton(&self) -> bool {
        matches!(self.wire, Wire::Alone(_))
    }

    /// Returns true if the launcher provides the pairs of fences in shared memory, so that most gets need no message.
    pub fn has_shared_memory(&self) -> bool {
        self.shared.is_there()
    }

    /// Maximum number of ranks of the job (`MPI_UNIVERSE_SIZE`); `None` if the launcher does not provide it.
    ///
    /// # Errors
    /// Fails if the server is gone or sends an invalid reply.
    pub fn universe_size(&mut self) -> Result<Option<u32>, ClientError> {
        match &mut self.wire {
            Wire::Pmi1(wire) => wire.universe_size(),
            Wire::Pmi2(wire) => wire.universe_size(),
            Wire::Alone(_) => Ok(None),
        }
    }

    /// A fact about the job, such as `PMI_process_mapping`; `None` if the launcher does not have the key. Never waits for other ranks. In
    /// PMI-1 these facts are in the job's key-value space.
    ///
    /// # Errors
    /// Fails if the key is malformed, or if the server is gone or sends an invalid reply.
    pub fn job_attribute(&mut self, key: &str) -> Result<Option<Vec<u8>>, ClientError> {
        if let Some(value) = self.shared.attribute(key) {
            return Ok(Some(value));
        }
        match &mut self.wire {
            Wire::Pmi1(wire) => wire.get(None, key),
            Wire::Pmi2(wire) => wire.job_attribute(key),
            Wire::Alone(wire) => wire.job_attribute(key),
        }
    }

    /// Memory that all ranks of the job on this node share from their start; `None` unless the launch requests it (`lattice launch
    /// --node-memory`). Each call creates a new mapping.
    ///
    /// # Errors
    /// Fails if the server is gone or sends an invalid reply, or if the descriptor was closed.
    pub fn node_memory(&mut self) -> Result<Option<NodeMemory>, ClientError> {
        let Some(number) = self.lattice_fact("memory", "lattice.memory")? else { return Ok(None) };
        let number = str::from_utf8(&number).ok().and_then(|number| number.parse().ok()).unwrap_or(-1);
        Ok(Some(NodeMemory::inherited(number)?))
    }

    /// A fact that only Lattice provides, under a key of its own. The request is not sent to other launchers.
    pub(crate) fn lattice_fact(&mut self, extension: &str, key: &str) -> Result<Option<Vec<u8>>, ClientError> {
        let is_there = match &mut self.wire {
            Wire::Pmi1(wire) => wire.has_extension(extension)?,
            Wire::Pmi2(wire) => wire.has_extension(extension)?,
            Wire::Alone(_) => false,
        };
        if is_there { self.job_attribute(key) } else { Ok(None) }
    }

    fn membership(&self) -> &Membership {
        match &self.wire {
            Wire::Pmi1(wire) => &wire.membership,
            Wire::Pmi2(wire) => &wire.membership,
            Wire::Alone(wire) => &wire.membership,
        }
    }
}
