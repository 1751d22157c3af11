//! The client as a program sees it: the calls, and which protocol serves them.

mod resources;

use std::env;
use std::net::TcpStream;
use std::os::fd::OwnedFd;

use job_memory::NodeMemory;

use crate::connection::Connection;
use crate::descriptor::{self, Admission};
use crate::environment::{self, Door};
use crate::error::ClientError;
use crate::limits::Limits;
use crate::membership::{IndexedPair, Membership, RingNeighbours};
use crate::pmi1::{self, Pmi1};
use crate::pmi2::{self, Absent, Pmi2};
use crate::process_mapping;
use crate::shared::SharedPairs;
use crate::singleton::{self, Singleton};
use crate::spawn::SpawnRequest;

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
        let lookup = |variable: &str| env::var_os(variable);
        let mut client = match Door::find(lookup)? {
            Door::Descriptor { fd, rank, size } => {
                let socket = match descriptor {
                    Descriptor::Take => Admission::take()?.into_inherited(fd)?,
                    Descriptor::Share => descriptor::share(fd)?,
                };
                Self::over(socket, protocol, rank, size)?
            }
            Door::Port { address, id } => {
                Admission::take()?;
                Self::connect(&address, protocol, id)?
            }
            Door::None => return Ok(Self::alone()),
        };
        if let Wire::Pmi1(wire) = &mut client.wire {
            wire.membership.spawned = environment::is_spawned(lookup);
        }
        Ok(Self { shared: SharedPairs::from_env(client.job_id()), ..client })
    }

    /// Talks over `stream`, any connected stream socket in blocking mode, to a server that knows this end as `rank`.
    ///
    /// PMI-1 does not say on the wire how many ranks there are, so `size` must; PMI-2 asks the server.
    ///
    /// # Errors
    /// Fails when the server does not speak `protocol`, or not properly.
    pub fn over(stream: impl Into<OwnedFd>, protocol: Protocol, rank: u32, size: u32) -> Result<Self, ClientError> {
        let connection = Connection::new(stream.into());
        let wire = match protocol {
            Protocol::Auto | Protocol::Pmi1 => Wire::Pmi1(Pmi1::init(connection, rank, size)?),
            Protocol::Pmi2 => Wire::Pmi2(Pmi2::init(connection, rank)?),
        };
        Ok(wire.into())
    }

    /// Connects to a server at `address` (`host:port`) and claims the rank `id` there.
    ///
    /// # Errors
    /// Fails when nobody listens, when the rank is refused, and as [`over`](Self::over) does.
    pub fn connect(address: &str, protocol: Protocol, id: u32) -> Result<Self, ClientError> {
        let failed = |source| ClientError::Connect { address: address.to_owned(), source };
        let stream = TcpStream::connect(address).map_err(failed)?;
        // requests are small, and the next one waits for the reply
        stream.set_nodelay(true).map_err(failed)?;
        let mut connection = Connection::new(stream.into());
        let wire = match protocol {
            Protocol::Auto | Protocol::Pmi1 => {
                let (rank, size) = pmi1::claim(&mut connection, id)?;
                Wire::Pmi1(Pmi1::init(connection, rank, size)?)
            }
            Protocol::Pmi2 => Wire::Pmi2(Pmi2::init(connection, id)?),
        };
        Ok(wire.into())
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
        let mapping = self.job_attribute("PMI_process_mapping")?;
        let (rank, size) = (self.rank(), self.size());
        let local = mapping.and_then(|mapping| process_mapping::local_ranks(&mapping, rank, size));
        Ok(local.unwrap_or_else(|| vec![rank]))
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

/// Exchanging pairs: put, fence, get.
impl Client {
    /// Puts `value` under `key`, for every rank to get after the next [`fence`](Self::fence). A later put of the same key
    /// replaces it.
    ///
    /// Keys that every server takes are one word without `=` and `;`; values are any bytes without line feed and NUL. How long they may
    /// be is the server's to say ([`limits`](Self::limits)): usually 63 and 1023 bytes in PMI-1, always 64 and 1024 in PMI-2.
    ///
    /// # Errors
    /// Refuses what cannot be carried; fails when the server refuses it or is gone.
    pub fn put(&mut self, key: &str, value: impl AsRef<[u8]>) -> Result<(), ClientError> {
        self.put_to(None, key, value.as_ref())?;
        self.shared.note_put(key);
        Ok(())
    }

    /// Waits until every rank of the job has called this as often; then all that was put before can be got everywhere.
    ///
    /// # Errors
    /// Fails when the job is ending, for example because a rank is lost.
    pub fn fence(&mut self) -> Result<(), ClientError> {
        match &mut self.wire {
            Wire::Pmi1(wire) => wire.fence(),
            Wire::Pmi2(wire) => wire.fence(),
            Wire::Alone(_) => Ok(()),
        }?;
        self.shared.note_fence();
        Ok(())
    }

    /// The value under `key`; `None` if no rank had put it before the last fence.
    ///
    /// Under Lattice it is read in memory that the ranks of a node share, without a message, if a fence has brought it.
    ///
    /// Under Hydra's PMI-2 the `None` comes only when every rank has fenced as often as this one.
    ///
    /// # Errors
    /// Refuses a malformed key; fails when the server is gone or answers nonsense.
    pub fn get(&mut self, key: &str) -> Result<Option<Vec<u8>>, ClientError> {
        if let Some(value) = self.shared.get(key) {
            return Ok(Some(value));
        }
        self.get_from(None, key)
    }

    /// The pair with an index, the first being 0; `None` behind the last one. A key keeps its index, so a walk meets every pair that was
    /// there when it began. `space` is one of [`create_space`](Self::create_space), or the job's own. PMI-1 under Lattice only.
    ///
    /// # Errors
    /// [`ClientError::Unsupported`] in PMI-2 and under other launchers, else as [`get`](Self::get).
    pub fn pair_at(&mut self, space: Option<&str>, index: u64) -> Result<Option<IndexedPair>, ClientError> {
        match &mut self.wire {
            Wire::Pmi1(wire) => wire.pair_at(space, index),
            Wire::Pmi2(_) => Err(ClientError::Unsupported { call: "pair_at", place: "in PMI-2" }),
            Wire::Alone(wire) => wire.pair_at(space, index),
        }
    }

    /// Makes a key-value space beside the job's own, and returns its name. Other ranks may use it once they know that, those of other nodes
    /// after the next [`fence`](Self::fence). PMI-1 under Lattice only, and without a launcher.
    ///
    /// # Errors
    /// [`ClientError::Unsupported`] in PMI-2 and under other launchers; [`ClientError::Refused`] when this rank has made very many.
    pub fn create_space(&mut self) -> Result<String, ClientError> {
        match &mut self.wire {
            Wire::Pmi1(wire) => wire.create_space(),
            Wire::Pmi2(_) => Err(ClientError::Unsupported { call: "create_space", place: "in PMI-2" }),
            Wire::Alone(wire) => Ok(wire.create_space()),
        }
    }

    /// Removes a space that some rank has made: nothing of it is read any more, on other nodes from the next fence on.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when there is none of that name; else as [`create_space`](Self::create_space).
    pub fn destroy_space(&mut self, name: &str) -> Result<(), ClientError> {
        match &mut self.wire {
            Wire::Pmi1(wire) => wire.destroy_space(name),
            Wire::Pmi2(_) => Err(ClientError::Unsupported { call: "destroy_space", place: "in PMI-2" }),
            Wire::Alone(wire) => wire.destroy_space(name),
        }
    }

    /// Puts a pair as [`put`](Self::put) does, into a space of [`create_space`](Self::create_space), or the job's own.
    ///
    /// # Errors
    /// As [`put`](Self::put); [`ClientError::Unsupported`] for other spaces in PMI-2.
    pub fn put_to(&mut self, space: Option<&str>, key: &str, value: &[u8]) -> Result<(), ClientError> {
        match (&mut self.wire, space) {
            (Wire::Pmi1(wire), space) => wire.put(space, key, value),
            (Wire::Pmi2(wire), None) => wire.put(key, value),
            (Wire::Pmi2(_), Some(_)) => Err(ClientError::Unsupported { call: "put_to", place: "in PMI-2" }),
            (Wire::Alone(wire), space) => wire.put(space, key, value),
        }
    }

    /// Gets a value as [`get`](Self::get) does, but always from the server, of a space of [`create_space`](Self::create_space), or the
    /// job's own.
    ///
    /// # Errors
    /// As [`get`](Self::get); [`ClientError::Unsupported`] for other spaces in PMI-2.
    pub fn get_from(&mut self, space: Option<&str>, key: &str) -> Result<Option<Vec<u8>>, ClientError> {
        match (&mut self.wire, space) {
            (Wire::Pmi1(wire), space) => wire.get(space, key),
            (Wire::Pmi2(wire), None) => wire.get(key),
            (Wire::Pmi2(_), Some(_)) => Err(ClientError::Unsupported { call: "get_from", place: "in PMI-2" }),
            (Wire::Alone(wire), space) => wire.get(space, key),
        }
    }

    /// Puts `value` under `key` for the job's ranks on this node, at once and without a fence. PMI-2 only.
    ///
    /// # Errors
    /// [`ClientError::Unsupported`] in PMI-1, else as [`put`](Self::put).
    pub fn put_node_attribute(&mut self, key: &str, value: impl AsRef<[u8]>) -> Result<(), ClientError> {
        match &mut self.wire {
            Wire::Pmi1(_) => Err(missing_in_pmi1("put_node_attribute")),
            Wire::Pmi2(wire) => wire.put_node_attribute(key, value.as_ref()),
            Wire::Alone(wire) => wire.put_node_attribute(key, value.as_ref()),
        }
    }

    /// The node attribute `key` if it is there by now. PMI-2 only.
    ///
    /// # Errors
    /// [`ClientError::Unsupported`] in PMI-1, else as [`get`](Self::get).
    pub fn node_attribute(&mut self, key: &str) -> Result<Option<Vec<u8>>, ClientError> {
        match &mut self.wire {
            Wire::Pmi1(_) => Err(missing_in_pmi1("node_attribute")),
            Wire::Pmi2(wire) => wire.node_attribute(key, Absent::Say),
            Wire::Alone(wire) => wire.node_attribute(key),
        }
    }

    /// Waits until a rank of this node has put the node attribute `key`. PMI-2 only.
    ///
    /// # Errors
    /// [`ClientError::Unsupported`] in PMI-1; [`ClientError::NotFound`] when nobody is left to put it; else as
    /// [`get`](Self::get).
    pub fn await_node_attribute(&mut self, key: &str) -> Result<Vec<u8>, ClientError> {
        let found = match &mut self.wire {
            Wire::Pmi1(_) => Err(missing_in_pmi1("await_node_attribute")),
            Wire::Pmi2(wire) => wire.node_attribute(key, Absent::Wait),
            Wire::Alone(wire) => wire.node_attribute(key),
        };
        found?.ok_or_else(|| ClientError::NotFound { key: key.to_owned() })
    }

    /// Gives `value` to both neighbours in rank order, the last rank being the first one's neighbour, and waits for
    /// theirs. Every rank takes part. PMI-2 only; Hydra ends the job when it meets this call.
    ///
    /// # Errors
    /// [`ClientError::Unsupported`] in PMI-1, else as [`put`](Self::put).
    pub fn ring(&mut self, value: impl AsRef<[u8]>) -> Result<RingNeighbours, ClientError> {
        let value = value.as_ref();
        match &mut self.wire {
            Wire::Pmi1(_) => Err(missing_in_pmi1("ring")),
            Wire::Pmi2(wire) => wire.ring(value),
            Wire::Alone(_) => Ok(RingNeighbours { position: 0, left: value.to_vec(), right: value.to_vec() }),
        }
    }
}

/// Meeting other jobs.
impl Client {
    /// Makes `port` known as `service` to every job that the launcher's name service reaches.
    ///
    /// # Errors
    /// Fails when the name is taken, where the launcher refuses that.
    pub fn publish(&mut self, service: &str, port: impl AsRef<[u8]>) -> Result<(), ClientError> {
        on_wire!(self, wire => wire.publish(service, port.as_ref()))
    }

    /// The port published as `service`; `None` if nobody published it.
    ///
    /// # Errors
    /// Fails when the name service cannot be asked.
    pub fn lookup(&mut self, service: &str) -> Result<Option<Vec<u8>>, ClientError> {
        match &mut self.wire {
            Wire::Pmi1(wire) => wire.lookup(service),
            Wire::Pmi2(wire) => wire.lookup(service),
            Wire::Alone(wire) => Ok(wire.lookup(service)),
        }
    }

    /// Withdraws `service`.
    ///
    /// # Errors
    /// Fails when nobody published it.
    pub fn unpublish(&mut self, service: &str) -> Result<(), ClientError> {
        on_wire!(self, wire => wire.unpublish(service))
    }

    /// Starts a new job and returns its name, if the server tells, once its ranks are starting.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when the launcher cannot start it, and the caller's job goes on;
    /// [`ClientError::Unsupported`] without a launcher.
    pub fn spawn(&mut self, request: &SpawnRequest) -> Result<Option<String>, ClientError> {
        if request.apps.is_empty() {
            return Err(ClientError::NothingToSpawn);
        }
        match &mut self.wire {
            Wire::Pmi1(wire) => wire.spawn(request),
            Wire::Pmi2(wire) => wire.spawn(request),
            Wire::Alone(_) => Err(ClientError::Unsupported { call: "spawn", place: "without a launcher" }),
        }
    }
}

fn missing_in_pmi1(call: &'static str) -> ClientError {
    ClientError::Unsupported { call, place: "in PMI-1" }
}
