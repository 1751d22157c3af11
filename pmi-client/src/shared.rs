//! Gets without a message: the memory of the job that the launcher may provide to this rank in addition to its connection.
//!
//! The memory contains the pairs of fences. The server has more: later puts, and facts about the job. Therefore the client sends a request
//! to the server in these cases:
//!
//! - for a key that is not in the memory
//! - for a key that this rank has put since its last fence
//! - for all keys after a barrier of a group, until the next fence
//! - for all keys if there is no memory, which is no error

use alloc::borrow::ToOwned;
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;

use job_memory::{JobReader, Lookup};

use crate::system;

/// Fact of Lattice: the limits of its server for names, keys and values of PMI-1.
const LIMITS_KEY: &str = "lattice.limits";

/// A function that finds the memory of a job by the job's name.
pub(crate) type MemoryOf = fn(&str) -> SharedPairs;

/// Memory of a rank's job, if it exists.
#[derive(Debug, Default)]
pub(crate) struct SharedPairs {
    memory: Option<JobReader>,
    /// Keys that this rank has put since its last fence.
    unfenced: BTreeSet<String>,
    /// True if a barrier of a group has exchanged pairs since the last fence. The memory does not have these pairs.
    is_behind: bool,
}

impl SharedPairs {
    /// Returns the function for the memory that the environment names, if it names one.
    pub(crate) fn offered() -> Option<MemoryOf> {
        system::variable(job_memory::VARIABLE).map(|_| Self::from_env as MemoryOf)
    }

    /// Returns the memory of the job `job_id` that the environment names. It has pairs from the next fence on.
    fn from_env(job_id: &str) -> Self {
        let number = system::variable(job_memory::VARIABLE).and_then(|number| number.parse().ok());
        // A runtime may have closed the descriptor, or another launcher may have started this process.
        let memory = number.and_then(|number| JobReader::inherited(number, job_id).ok());
        let memory = memory.filter(|memory| memory.ask_for_pairs().is_ok());
        Self { memory, ..Self::default() }
    }

    /// Returns true if the memory exists, with or without pairs.
    pub(crate) fn is_there(&self) -> bool {
        self.memory.is_some()
    }

    pub(crate) fn get(&mut self, key: &str) -> Option<Vec<u8>> {
        if self.is_behind || self.unfenced.contains(key) {
            return None;
        }
        match self.memory.as_mut()?.get(key.as_bytes()) {
            Lookup::Found(value) => Some(value),
            Lookup::Absent | Lookup::AskServer => None,
        }
    }

    /// Returns facts that a server would send at the start: its limits for names, keys and values, and `MPI_APPNUM` of this rank, -1
    /// without one.
    pub(crate) fn introduction(&self, rank: u32) -> Option<([usize; 3], i64)> {
        let memory = self.memory.as_ref()?;
        let limits = memory.attribute(LIMITS_KEY)?;
        let mut limits = str::from_utf8(&limits).ok()?.split(',').map(|number| number.parse().ok());
        let mut next = || limits.next().flatten();
        Some(([next()?, next()?, next()?], memory.appnum(rank)?.into()))
    }

    pub(crate) fn attribute(&self, name: &str) -> Option<Vec<u8>> {
        self.memory.as_ref()?.attribute(name)
    }

    /// Returns the program of each rank of a job with `size` ranks.
    pub(crate) fn programs(&self, size: u32) -> Option<Vec<u32>> {
        let memory = self.memory.as_ref()?;
        (0..size).map(|rank| u32::try_from(memory.appnum(rank)?).ok()).collect()
    }

    /// Records that this rank has put `key`. The memory has its value only after the next fence.
    pub(crate) fn note_put(&mut self, key: &str) {
        if self.memory.is_some() && !self.unfenced.contains(key) {
            self.unfenced.insert(key.to_owned());
        }
    }

    /// Records that this rank has left a fence.
    pub(crate) fn note_fence(&mut self) {
        self.unfenced.clear();
        self.is_behind = false;
    }

    /// Records that this rank has left a barrier of a group.
    pub(crate) fn note_group_barrier(&mut self) {
        self.is_behind = true;
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use job_memory::{JobFacts, JobWriter};

    use super::*;

    #[test]
    fn a_key_that_was_put_since_the_last_fence_is_asked_for() {
        let facts = JobFacts { job_id: "j".into(), ..JobFacts::default() };
        let (mut writer, descriptor) = JobWriter::create(&facts).unwrap();
        let memory = Some(JobReader::of(File::from(descriptor), "j").unwrap());
        let mut shared = SharedPairs { memory, ..SharedPairs::default() };
        let fence = |writer: &mut JobWriter, shared: &mut SharedPairs, value: &[u8]| {
            writer.publish(b"k", value).unwrap();
            writer.complete(1);
            shared.note_fence();
        };
        assert_eq!(shared.get("k"), None, "there was no fence");
        fence(&mut writer, &mut shared, b"old");
        assert_eq!(shared.get("k").as_deref(), Some(b"old".as_slice()));
        shared.note_put("k");
        assert_eq!((shared.get("k"), shared.get("absent")), (None, None));
        fence(&mut writer, &mut shared, b"new");
        assert_eq!(shared.get("k").as_deref(), Some(b"new".as_slice()));
        shared.note_group_barrier();
        assert_eq!(shared.get("k"), None);
        fence(&mut writer, &mut shared, b"newest");
        assert_eq!(shared.get("k").as_deref(), Some(b"newest".as_slice()));
    }

    #[test]
    fn without_a_memory_everything_is_asked_for_and_nothing_kept() {
        let mut shared = SharedPairs::default();
        shared.note_put("k");
        assert_eq!((shared.get("k"), shared.attribute("universeSize"), shared.is_there()), (None, None, false));
        assert!(shared.unfenced.is_empty());
    }
}
