//! Calls that exchange values between the ranks of a job.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;

use super::{Client, Wire};
use crate::error::ClientError;
use crate::membership::{IndexedPair, RingNeighbours};
use crate::pmi2::Absent;
use crate::shared::SharedPairs;

/// Exchange of pairs: put, fence, get.
impl Client {
    /// Puts `value` under `key`. Every rank can get it after the next [`fence`](Self::fence). A later put of the same key replaces it.
    ///
    /// Every server accepts keys of one word without `=` and `;`. Values are any bytes without line feed and NUL. The server sets the
    /// maximum lengths ([`limits`](Self::limits)): usually 63 and 1023 bytes in PMI-1, always in PMI-2.
    ///
    /// # Errors
    /// Fails if the protocol cannot carry the pair, or if the server refuses it or is gone.
    pub fn put(&mut self, key: &str, value: impl AsRef<[u8]>) -> Result<(), ClientError> {
        self.put_to(None, key, value.as_ref())
    }

    /// Waits until every rank of the job has called this the same number of times. Then every rank can get all earlier puts.
    ///
    /// # Errors
    /// Fails if the job is ending, for example because a rank is lost.
    pub fn fence(&mut self) -> Result<(), ClientError> {
        match &mut self.wire {
            Wire::Pmi1(wire) => wire.fence(),
            Wire::Pmi2(wire) => wire.fence(),
            Wire::Alone(_) => Ok(()),
        }?;
        self.shared.note_fence();
        Ok(())
    }

    /// Returns the value under `key`; `None` if no rank had put it before the last fence.
    ///
    /// Under Lattice a value that a fence has exchanged is read from memory that the ranks of a node share, without a message.
    ///
    /// Under Hydra's PMI-2 the result `None` is delayed until every rank has fenced as often as this one.
    ///
    /// # Errors
    /// Fails if the key is malformed, or if the server is gone or sends an invalid reply.
    pub fn get(&mut self, key: &str) -> Result<Option<Vec<u8>>, ClientError> {
        let is_pmi1 = matches!(self.wire, Wire::Pmi1(_));
        // In PMI-1 facts about the job are in its space, under names that puts cannot replace.
        let fact = |shared: &SharedPairs| shared.attribute(key).filter(|_| is_pmi1);
        match self.shared.get(key).or_else(|| fact(&self.shared)) {
            Some(value) => Ok(Some(value)),
            None => self.get_from(None, key),
        }
    }

    /// Returns the pair with an index, from 0; `None` after the last pair. A key keeps its index, so that an iteration returns every pair
    /// that existed at its start. `space` is a space of [`create_space`](Self::create_space), or the job's own space. Only in PMI-1 under
    /// Lattice.
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

    /// Creates a key-value space in addition to the job's own space, and returns its name. Other ranks need the name to use it. Ranks of
    /// other nodes can use it after the next [`fence`](Self::fence). Only in PMI-1 under Lattice, and without a launcher.
    ///
    /// # Errors
    /// [`ClientError::Unsupported`] in PMI-2 and under other launchers; [`ClientError::Refused`] if this rank has created very many spaces.
    pub fn create_space(&mut self) -> Result<String, ClientError> {
        match &mut self.wire {
            Wire::Pmi1(wire) => wire.create_space(),
            Wire::Pmi2(_) => Err(ClientError::Unsupported { call: "create_space", place: "in PMI-2" }),
            Wire::Alone(wire) => Ok(wire.create_space()),
        }
    }

    /// Removes a space that a rank has created. Gets no longer return its pairs; on other nodes this takes effect at the next fence.
    ///
    /// # Errors
    /// [`ClientError::Refused`] if there is no space with this name; else as [`create_space`](Self::create_space).
    pub fn destroy_space(&mut self, name: &str) -> Result<(), ClientError> {
        match &mut self.wire {
            Wire::Pmi1(wire) => wire.destroy_space(name),
            Wire::Pmi2(_) => Err(ClientError::Unsupported { call: "destroy_space", place: "in PMI-2" }),
            Wire::Alone(wire) => wire.destroy_space(name),
        }
    }

    /// Puts a pair as [`put`](Self::put) does, into a space of [`create_space`](Self::create_space), or into the job's own space.
    ///
    /// # Errors
    /// As [`put`](Self::put); [`ClientError::Unsupported`] for other spaces in PMI-2.
    pub fn put_to(&mut self, space: Option<&str>, key: &str, value: &[u8]) -> Result<(), ClientError> {
        match (&mut self.wire, space) {
            (Wire::Pmi1(wire), space) => wire.put(space, key, value),
            (Wire::Pmi2(wire), None) => wire.put(key, value),
            (Wire::Pmi2(_), Some(_)) => Err(ClientError::Unsupported { call: "put_to", place: "in PMI-2" }),
            (Wire::Alone(wire), space) => wire.put(space, key, value),
        }?;
        // The value of the last fence in the shared memory is no longer the value that this rank must get.
        if space.is_none_or(|space| space == self.job_id()) {
            self.shared.note_put(key);
        }
        Ok(())
    }

    /// Gets a value as [`get`](Self::get) does, but always from the server, from a space of [`create_space`](Self::create_space), or from
    /// the job's own space.
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

    /// Puts `value` under `key` for the job's ranks on this node, at once and without a fence. Only in PMI-2.
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

    /// Returns the node attribute `key` if it has been put; `None` otherwise. Only in PMI-2.
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

    /// Waits until a rank of this node has put the node attribute `key`. Only in PMI-2.
    ///
    /// # Errors
    /// [`ClientError::Unsupported`] in PMI-1; [`ClientError::NotFound`] if no rank is left that could put it; else as [`get`](Self::get).
    pub fn await_node_attribute(&mut self, key: &str) -> Result<Vec<u8>, ClientError> {
        let found = match &mut self.wire {
            Wire::Pmi1(_) => Err(missing_in_pmi1("await_node_attribute")),
            Wire::Pmi2(wire) => wire.node_attribute(key, Absent::Wait),
            Wire::Alone(wire) => wire.node_attribute(key),
        };
        found?.ok_or_else(|| ClientError::NotFound { key: key.to_owned() })
    }

    /// Sends `value` to both neighbours in rank order, and waits for their values. The last rank and the first rank are neighbours. Every
    /// rank must call this. Only in PMI-2; Hydra ends the job when it receives this request.
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

fn missing_in_pmi1(call: &'static str) -> ClientError {
    ClientError::Unsupported { call, place: "in PMI-1" }
}
