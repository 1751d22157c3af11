//! The client as a program sees it: the calls, and which protocol serves them.

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

/// The protocol to speak. The server cannot be asked: it learns the protocol from the client's first line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// PMI-1, which every launcher speaks.
    #[default]
    Auto,
    /// PMI-1: no node attributes, no ring.
    Pmi1,
    /// PMI-2.
    Pmi2,
}

/// A rank's conversation with its launcher.
///
/// Calls block until the server answers, some of them until other ranks arrive; only a server that goes away ends the
/// wait early. Dropping a client without [`finalize`](Self::finalize) tells the launcher that this rank failed.
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

/// Variable with the name of the job, which Slurm sets beside `PMI_FD`.
const JOB_VARIABLE: &str = "PMI_JOBID";

/// Treatment of the descriptor that `PMI_FD` names.
#[derive(Clone, Copy, Debug)]
enum Descriptor {
    /// It becomes this client's own.
    Take,
    /// It stays open for others of this process.
    Share,
}

/// Makes the same call on whichever protocol the client speaks.
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

/// Getting hold of a client, and letting go of it.
impl Client {
    /// Joins the job that the environment names: through the socket in `PMI_FD`, else at the address in `PMI_PORT`. With
    /// neither the process is a job of its own, see [`is_singleton`](Self::is_singleton).
    ///
    /// A process can do this once, and not beside an MPI library: there is one connection per rank.
    ///
    /// # Errors
    /// Fails on a half-set environment, on a `PMI_FD` that is no inherited socket, and when the server does not speak
    /// `protocol`.
    pub fn from_env(protocol: Protocol) -> Result<Self, ClientError> {
        Self::join(protocol, Descriptor::Take)
    }

    /// Joins as [`from_env`](Self::from_env) does, but leaves `PMI_FD` open and as it is, so that it can be called again when this
    /// client is gone. Clients that are alive at a time must take turns: each waits for the next reply, whoever asked.
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env). A rank at `PMI_PORT` is claimed once in a process.
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

    /// Talks over `stream`, any connected stream socket in blocking mode, to a server that knows this end as `rank`.
    ///
    /// PMI-1 does not say on the wire how many ranks there are, so `size` must; PMI-2 asks the server.
    ///
    /// # Errors
    /// Fails when the server does not speak `protocol`, or not properly.
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
    /// Fails when nobody listens, when the rank is refused, and as [`over`](Self::over) does.
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

    /// A job of one rank without a launcher: what is put can be got, and fences are free.
    pub fn alone() -> Self {
        Wire::Alone(Singleton::new()).into()
    }

    /// Takes leave in good order. The process may go on without PMI.
    ///
    /// # Errors
    /// Fails when the server is gone.
    pub fn finalize(mut self) -> Result<(), ClientError> {
        match &mut self.wire {
            Wire::Pmi1(wire) => wire.finalize(),
            Wire::Pmi2(wire) => wire.finalize(),
            Wire::Alone(_) => Ok(()),
        }
    }

    /// Asks the launcher to end the whole job with the exit code `code`, and does not wait: there is no reply, and the
    /// caller should exit. `message` goes to the user; line feeds in it become spaces. Without a code Lattice takes the one that MPI
    /// libraries write into the message.
    ///
    /// # Errors
    /// Fails when the server is gone, so that the job is ending anyway.
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
    /// This process's position in the job, from 0.
    pub fn rank(&self) -> u32 {
        self.membership().rank
    }

    /// The number of ranks in the job.
    pub fn size(&self) -> u32 {
        self.membership().size
    }

    /// Number of the program in a multi-program job (`MPI_APPNUM`), if the launcher says.
    pub fn appnum(&self) -> Option<u64> {
        self.membership().appnum
    }

    /// The job's name: PMI-1's `kvsname`, PMI-2's `jobid`.
    pub fn job_id(&self) -> &str {
        &self.membership().job_id
    }

    /// Returns true if another job started this one. In PMI-1 only the environment says so.
    pub fn is_spawned(&self) -> bool {
        self.membership().spawned
    }

    /// Lengths of texts that the server takes.
    pub fn limits(&self) -> Limits {
        match &self.wire {
            Wire::Pmi1(wire) => wire.limits,
            Wire::Pmi2(_) => pmi2::LIMITS,
            Wire::Alone(_) => singleton::LIMITS,
        }
    }

    /// Ranks of the job on this rank's node, itself included, in order; this one alone if the launcher does not say where ranks are.
    ///
    /// # Errors
    /// Fails when the server is gone or answers nonsense.
    pub fn local_ranks(&mut self) -> Result<Vec<u32>, ClientError> {
        let rank = self.rank();
        let local = self.nodes()?.and_then(|nodes| process_mapping::local_ranks(&nodes, rank));
        Ok(local.unwrap_or_else(|| vec![rank]))
    }

    /// Node of each rank, by the numbers of `PMI_process_mapping`; `None` if the launcher does not say where ranks are.
    ///
    /// # Errors
    /// Fails when the server is gone or answers nonsense.
    pub fn nodes(&mut self) -> Result<Option<Vec<u32>>, ClientError> {
        let mapping = self.job_attribute("PMI_process_mapping")?;
        Ok(mapping.and_then(|mapping| process_mapping::nodes(&mapping, self.size())))
    }

    /// Program of each rank, by the numbers of [`appnum`](Self::appnum); `None` where it is not told: under launchers other than Lattice, and
    /// under that where it gives ranks no memory of their job.
    pub fn programs(&self) -> Option<Vec<u32>> {
        match self.wire {
            Wire::Alone(_) => Some(vec![0]),
            _ => self.shared.programs(self.size()),
        }
    }

    /// Returns true if nobody launched this process.
    pub fn is_singleton(&self) -> bool {
        matches!(self.wire, Wire::Alone(_))
    }

    /// Returns true if the launcher shares what fences bring in memory, so that most gets need no message.
    pub fn has_shared_memory(&self) -> bool {
        self.shared.is_there()
    }

    /// Number of ranks that the job could grow to (`MPI_UNIVERSE_SIZE`), if the launcher says.
    ///
    /// # Errors
    /// Fails when the server is gone or answers nonsense.
    pub fn universe_size(&mut self) -> Result<Option<u32>, ClientError> {
        match &mut self.wire {
            Wire::Pmi1(wire) => wire.universe_size(),
            Wire::Pmi2(wire) => wire.universe_size(),
            Wire::Alone(_) => Ok(None),
        }
    }

    /// A fact about the job, such as `PMI_process_mapping`; `None` if the launcher does not know the key. Never waits for
    /// other ranks. In PMI-1 these facts share the key-value space.
    ///
    /// # Errors
    /// Refuses a malformed key; fails when the server is gone or answers nonsense.
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

    /// Memory that all ranks of the job on this node share since before they started; `None` unless the launch asked for it
    /// (`lattice launch --node-memory`). Each call maps it anew.
    ///
    /// # Errors
    /// Fails when the server is gone or answers nonsense, and when the descriptor was closed.
    pub fn node_memory(&mut self) -> Result<Option<NodeMemory>, ClientError> {
        let Some(number) = self.lattice_fact("memory", "lattice.memory")? else { return Ok(None) };
        let number = str::from_utf8(&number).ok().and_then(|number| number.parse().ok()).unwrap_or(-1);
        Ok(Some(NodeMemory::inherited(number)?))
    }

    /// A fact that Lattice alone tells, under a key of its own; no other launcher is asked for it.
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
