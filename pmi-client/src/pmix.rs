//! The rank's side of PMIx, without libpmix: a process of a launcher that serves PMIx finds its rank and connects to the other ranks.
//!
//! It works with the servers of libpmix 4 and 5 (orterun, prterun, Slurm) and with Lattice's. It has no events, groups and shared memory
//! of libpmix, and announces no feature that would make a server use them.
//!
//! ```no_run
//! use pmi_client::pmix::{Collect, PmixClient, PmixError, Value};
//!
//! # fn main() -> Result<(), PmixError> {
//! let mut client = PmixClient::from_env()?;
//! client.put("card", Value::Text(b"127.0.0.1:4000".to_vec()));
//! client.commit()?;
//! client.fence(Collect::Data)?;
//! let neighbour = client.get((client.rank() + 1) % client.size(), "card")?;
//! assert!(neighbour.is_some());
//! client.finalize()
//! # }
//! ```

mod answers;
mod connection;
mod entrance;
mod error;
mod spawn;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::env;
use std::ffi::OsString;

use pmix_core::wire::reader::Proc;
use pmix_core::wire::request::command;
use pmix_core::wire::value::{self as wire, Info};
use pmix_core::wire::writer::Writer;
use pmix_core::wire::{status, types};

use self::connection::Connection;
use self::entrance::Entrance;
pub use self::error::PmixError;

/// A value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Value {
    /// A text.
    Text(Vec<u8>),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A number that is not negative, of any width.
    Number(u64),
    /// A boolean.
    Bool(bool),
    /// A value of another type, which this client cannot send.
    Other {
        /// Code of the type, as in `pmix_common.h`.
        code: u16,
    },
}

/// Data that a fence exchanges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collect {
    /// None: the fence is a barrier.
    Nothing,
    /// All committed values of all ranks.
    Data,
}

/// Connection of a rank to its PMIx server.
///
/// Calls block until the server replies, some of them until other ranks arrive. If a client is dropped without
/// [`finalize`](Self::finalize), the launcher treats this rank as failed.
#[derive(Debug)]
pub struct PmixClient {
    connection: Connection,
    namespace: String,
    rank: u32,
    size: u32,
    /// Facts about the job.
    facts: BTreeMap<String, Value>,
    /// Values that are not committed yet, each after its key.
    staged: Vec<(String, Value)>,
    /// Values of ranks from earlier gets. A server sends all values of a rank at once.
    known: HashMap<u32, BTreeMap<String, Value>>,
}

impl PmixClient {
    /// Joins the job that the environment names: `PMIX_NAMESPACE`, `PMIX_RANK` and one of the `PMIX_SERVER_URI` variables.
    ///
    /// # Errors
    /// Fails if the environment names no PMIx server, if no server listens there, or if the server refuses this rank.
    pub fn from_env() -> Result<Self, PmixError> {
        Self::from_variables(|variable| env::var_os(variable))
    }

    /// Joins as [`from_env`](Self::from_env) does, with the variables that `lookup` returns.
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env).
    pub fn from_variables(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self, PmixError> {
        let entrance = Entrance::find(lookup)?;
        let mut connection = Connection::open(&entrance)?;
        let answer = connection.ask("job information", command::REQ, |_| {})?;
        let facts = answers::job_facts(&answer).map_err(|source| PmixError::malformed("job information", source))?;
        let size = match facts.get("pmix.job.size") {
            Some(&Value::Number(size)) => u32::try_from(size).ok().filter(|&size| entrance.rank < size),
            _ => None,
        };
        let Entrance { namespace, rank, .. } = entrance;
        let size = size.ok_or(PmixError::NoSize { rank })?;
        Ok(Self { connection, namespace, rank, size, facts, staged: Vec::new(), known: HashMap::new() })
    }

    /// The rank of this process in the job, from 0.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The number of ranks in the job.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// The job's name.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// A fact about the job, such as `pmix.univ.size`; `None` if the server does not have the key. Never waits for other ranks.
    ///
    /// # Errors
    /// Fails if the server is gone or sends an invalid reply.
    pub fn job_attribute(&mut self, key: &str) -> Result<Option<Value>, PmixError> {
        if let Some(value) = self.facts.get(key) {
            return Ok(Some(value.clone()));
        }
        let mut values = self.fetch(types::RANK_WILDCARD, key, true)?;
        Ok(values.remove(key))
    }

    /// Puts `value` under `key`. Other ranks can get it after the next [`commit`](Self::commit). A later put of the same key replaces it.
    pub fn put(&mut self, key: &str, value: Value) {
        self.staged.push((key.to_owned(), value));
    }

    /// Returns true if a value was put since the last [`commit`](Self::commit).
    pub fn has_staged(&self) -> bool {
        !self.staged.is_empty()
    }

    /// Sends all puts to the server.
    ///
    /// # Errors
    /// Fails if the server refuses them or is gone, and for a value of a type that this client cannot send.
    pub fn commit(&mut self) -> Result<(), PmixError> {
        let encoding = self.connection.encoding();
        let mut pairs = Writer::new(encoding);
        for (key, value) in &self.staged {
            let value = value.on_wire().ok_or_else(|| PmixError::Unsupported { key: key.clone() })?;
            pairs.kval(key, &value);
        }
        let answer = self.connection.ask("commit", command::COMMIT, |out| {
            for scope in [types::SCOPE_LOCAL, types::SCOPE_REMOTE] {
                out.one();
                out.byte(scope);
                out.one();
                out.byte(connection::NOT_DESCRIBED);
                out.byte_object(pairs.as_bytes());
            }
        })?;
        answers::success("commit", &answer)?;
        self.staged.clear();
        // The earlier values of this rank are outdated.
        self.known.remove(&self.rank);
        Ok(())
    }

    /// Waits until every rank of the job has called this the same number of times.
    ///
    /// # Errors
    /// Fails if the job is ending, for example because a rank is lost.
    pub fn fence(&mut self, collect: Collect) -> Result<(), PmixError> {
        let whole = Proc { namespace: self.namespace.as_bytes(), rank: types::RANK_WILDCARD };
        let answer = self.connection.ask("fence", command::FENCE, |out| {
            out.count(1);
            out.group(1);
            out.proc(whole);
            let infos = usize::from(collect == Collect::Data);
            out.count(infos);
            out.group(infos);
            if collect == Collect::Data {
                out.info(&Info::new("pmix.collect", wire::Value::Bool(true)));
            }
        })?;
        answers::success("fence", &answer)?;
        // After the fence a key may have a new value.
        self.known.clear();
        Ok(())
    }

    /// Returns the value that a rank has committed under `key`; `None` if there is none. The server decides how long it waits for the
    /// value.
    ///
    /// # Errors
    /// Fails if the server is gone or sends an invalid reply.
    pub fn get(&mut self, rank: u32, key: &str) -> Result<Option<Value>, PmixError> {
        if let Some(value) = self.known.get(&rank).and_then(|values| values.get(key)) {
            return Ok(Some(value.clone()));
        }
        let values = self.fetch(rank, key, false)?;
        let known = self.known.entry(rank).or_default();
        known.extend(values);
        Ok(known.get(key).cloned())
    }

    /// Queries the server for a value of `key` about the whole job, such as `pmix.qry.psets`; `None` if it has none.
    ///
    /// # Errors
    /// Fails if the server is gone or sends an invalid reply.
    pub fn query(&mut self, key: &str) -> Result<Option<Value>, PmixError> {
        let answer = self.connection.ask("query", command::QUERY, |out| {
            out.count(1);
            out.group(1);
            out.i32(1);
            out.text(Some(key.as_bytes()));
            out.size(0);
        })?;
        let mut found = answers::infos(&answer).map_err(|source| PmixError::malformed("query", source))?;
        Ok(found.remove(key))
    }

    /// Leaves the job in good order. The process may continue without PMIx.
    ///
    /// A server that closes the connection instead of replying has received the request. libpmix 3.2 below Open MPI 4.1.8's `mpirun`
    /// mostly does this (measured), and its own clients accept it.
    ///
    /// # Errors
    /// Fails if the server refuses, or if it was gone before.
    pub fn finalize(mut self) -> Result<(), PmixError> {
        match self.connection.ask("finalize", command::FINALIZE, |_| {}) {
            Ok(answer) => answers::success("finalize", &answer),
            Err(PmixError::Closed { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Requests that the launcher end the whole job with this exit code, and does not wait. The caller should exit.
    ///
    /// # Errors
    /// Fails if the server is gone, in which case the job is already ending.
    pub fn abort(mut self, code: i32, message: &str) -> Result<(), PmixError> {
        self.connection.tell("abort", command::ABORT, |out| {
            out.status(code);
            out.one();
            out.text(Some(message.replace('\0', " ").as_bytes()));
            out.count(0);
        })
    }

    /// Requests one value. Returns all values of the rank, or of the job, in the reply.
    fn fetch(&mut self, rank: u32, key: &str, at_once: bool) -> Result<BTreeMap<String, Value>, PmixError> {
        let namespace = self.namespace.as_bytes();
        let answer = self.connection.ask("get", command::GET, |out| {
            out.one();
            out.text(Some(namespace));
            out.one();
            out.u32(rank);
            out.count(at_once.into());
            out.group(at_once.into());
            if at_once {
                out.info(&Info::new("pmix.immediate", wire::Value::Bool(true)));
            }
            out.one();
            out.text(Some(key.as_bytes()));
        })?;
        match answers::status("get", &answer)? {
            status::SUCCESS => answers::values(&answer, rank).map_err(|source| PmixError::malformed("get", source)),
            status::NOT_FOUND | status::NOT_SUPPORTED | status::TIMEOUT => Ok(BTreeMap::new()),
            refused => Err(PmixError::Refused { request: "get", status: refused }),
        }
    }
}

impl Value {
    fn on_wire(&self) -> Option<wire::Value<'_>> {
        Some(match self {
            Self::Text(text) => wire::Value::Text(text),
            Self::Bytes(bytes) => wire::Value::Bytes(bytes),
            Self::Number(number) => wire::Value::Size(*number),
            Self::Bool(on) => wire::Value::Bool(*on),
            Self::Other { .. } => return None,
        })
    }

    pub(crate) fn read(value: &wire::Value<'_>) -> Self {
        match value {
            wire::Value::Text(text) => Self::Text(text.to_vec()),
            wire::Value::Bytes(bytes) => Self::Bytes(bytes.to_vec()),
            wire::Value::Bool(on) => Self::Bool(*on),
            value => match value.number() {
                Some(number) => Self::Number(number),
                None => Self::Other { code: value.code() },
            },
        }
    }
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Text(text) => f.write_str(&String::from_utf8_lossy(text)),
            Self::Bytes(bytes) => write!(f, "{}", bytes.escape_ascii()),
            Self::Number(number) => write!(f, "{number}"),
            Self::Bool(on) => write!(f, "{on}"),
            Self::Other { code } => write!(f, "(a value of type {code})"),
        }
    }
}
