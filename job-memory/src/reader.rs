//! A reader's end: a rank, or whatever a rank started.
//!
//! Nothing that the memory holds is believed: each offset and length is checked before it is used, and a reader that finds nonsense asks
//! the PMI server. It maps as much of the memory as is in use, and more when it meets something beyond.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use rustix::fd::{AsRawFd, OwnedFd, RawFd};
use rustix::fs::{self, OFlags};
use rustix::io::Errno;

use crate::index::{Search, search};
use crate::layout::{
    ATTRIBUTE_BYTES, HEADER_WORDS, IndexPlace, KeyWords, MAGIC, MAJOR, NODE_BYTES, ORDER_MARK, RANK_BYTES, State, WORD,
    at, split,
};
use crate::mapping::{self, NAME, ReaderMapping};
use crate::system_error::SystemError;
use crate::words::Words;

/// A reader of the memory of its job.
pub struct JobReader {
    file: OwnedFd,
    mapping: ReaderMapping,
    /// Bytes that the file can hold.
    capacity: usize,
}

/// Reason why a job's memory cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotReadable {
    /// A descriptor that is not open, or is something else.
    #[error("descriptor {fd} is no {wanted}: {seen}")]
    Descriptor {
        /// Number of the descriptor.
        fd: RawFd,
        /// Kind of memory that was looked for.
        wanted: &'static str,
        /// Observation, in words.
        seen: String,
    },
    /// Memory that others than the session may write to or cut short.
    #[error("the memory is not sealed")]
    NotSealed,
    /// Memory with another layout.
    #[error("the job memory has a layout of version {seen}; this reader knows version {MAJOR}")]
    Version {
        /// Major version of the layout.
        seen: u32,
    },
    /// Memory of another job.
    #[error("the job memory is of job {seen}, not of {expected}")]
    OtherJob {
        /// Job whose memory it is.
        seen: String,
        /// Job of this rank.
        expected: String,
    },
    /// An error of the system.
    #[error("the memory cannot be opened or mapped")]
    System(#[source] SystemError),
}

impl NotReadable {
    pub(crate) fn system(error: Errno) -> Self {
        Self::System(error.into())
    }
}

/// Result of a look for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// Value of the key, as of the last fence or newer.
    Found(Vec<u8>),
    /// No fence that this rank has left brought the key. The server may know more: a pair put on this node, a fact about the job.
    Absent,
    /// The memory cannot tell: no fence was published yet, or none is any more.
    AskServer,
}

/// Place of a rank of the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rank {
    /// Index of its node.
    pub node: u32,
    /// Position among the job's ranks on the node.
    pub local_rank: u32,
    /// Position among the launch's ranks on the node.
    pub node_rank: u32,
    /// Value of `MPI_APPNUM`; -1 without one.
    pub appnum: i32,
    /// CPUs that it is bound to; `None` for a rank that is not bound, and for one of another node.
    pub cpus: Option<String>,
}

/// A node of the launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Address by which its session is reached; `None` where no other node is there to reach it.
    pub address: Option<String>,
    /// Number of the job's ranks on it.
    pub ranks: u32,
}

impl JobReader {
    /// Bytes that are mapped at first, unless the memory is smaller.
    const FIRST_MAP: usize = 1 << 20;

    /// The memory behind the descriptor `fd`, which stays open and is not taken over. Anything may be behind the number, as the
    /// launcher's descriptor may have been closed and another one opened since.
    ///
    /// # Errors
    /// Refuses a descriptor that is no job memory, one that others may write to, another version and another job.
    pub fn inherited(fd: RawFd, job_id: &str) -> Result<Self, NotReadable> {
        check_name(fd, NAME, "job memory")?;
        Self::of(mapping::open_anew(fd, OFlags::RDONLY).map_err(NotReadable::system)?, job_id)
    }

    /// The memory of an open file.
    ///
    /// # Errors
    /// As [`JobReader::inherited`].
    pub fn of(file: impl Into<OwnedFd>, job_id: &str) -> Result<Self, NotReadable> {
        let file = file.into();
        if !mapping::is_sealed(&file) {
            return Err(NotReadable::NotSealed);
        }
        let capacity = mapping::length(&file).map_err(NotReadable::system)?;
        let mapping = ReaderMapping::of(&file, capacity.min(Self::FIRST_MAP)).map_err(NotReadable::system)?;
        let mut reader = Self { file, mapping, capacity };
        check(reader.view())?;
        // The facts of a large job are more than was mapped.
        reader.map_more();
        let seen = reader.job_id().unwrap_or_default();
        if seen != job_id {
            return Err(NotReadable::OtherJob { seen, expected: job_id.to_owned() });
        }
        Ok(reader)
    }

    /// Has pairs published from the next fence on. Without it there are none, unless another rank of the node asks.
    ///
    /// # Errors
    /// Fails when the system has no lock left.
    pub fn ask_for_pairs(&self) -> Result<(), NotReadable> {
        mapping::ask_for_pairs(&self.file).map_err(NotReadable::system)
    }

    /// The value of a key, as of the last fence that this rank has left.
    pub fn get(&mut self, key: &[u8]) -> Lookup {
        let Some(key) = KeyWords::new(key) else { return Lookup::Absent };
        match self.view().get(&key) {
            Err(Beyond) if self.map_more() => self.view().get(&key).unwrap_or(Lookup::AskServer),
            found => found.unwrap_or(Lookup::AskServer),
        }
    }

    /// Number of fences that are published; `None` if no pairs are.
    pub fn fences(&self) -> Option<u64> {
        self.view().is_live().then(|| self.view().0.load(at::FENCES)).flatten()
    }

    /// Id of the job.
    pub fn job_id(&self) -> Option<String> {
        self.view().text_named_by(at::JOB_ID)
    }

    /// Number of ranks of the job.
    pub fn size(&self) -> u32 {
        self.view().pair(at::RANKS_NODES).0
    }

    /// Number of nodes of the launch.
    pub fn nodes(&self) -> u32 {
        self.view().pair(at::RANKS_NODES).1
    }

    /// Index of this node.
    pub fn node_index(&self) -> u32 {
        self.view().pair(at::NODE_LOCALS).0
    }

    /// Number of the job's ranks on this node.
    pub fn local_size(&self) -> u32 {
        self.view().pair(at::NODE_LOCALS).1
    }

    /// Number of the job's programs.
    pub fn programs(&self) -> u32 {
        self.view().pair(at::PROGRAMS_UNIVERSE).0
    }

    /// Value of `MPI_UNIVERSE_SIZE`, if there is one.
    pub fn universe_size(&self) -> Option<u32> {
        Some(self.view().pair(at::PROGRAMS_UNIVERSE).1).filter(|&size| size > 0)
    }

    /// Place of a rank; `None` if the job has no such rank.
    pub fn rank(&self, rank: u32) -> Option<Rank> {
        self.view().rank(rank)
    }

    /// Value of `MPI_APPNUM` of a rank, -1 without one; `None` if the job has no such rank. As [`rank`](Self::rank) tells it, without the rest.
    pub fn appnum(&self, rank: u32) -> Option<i32> {
        self.view().appnum(rank)
    }

    /// A node of the launch; `None` if there is no such node.
    pub fn node(&self, node: u32) -> Option<Node> {
        self.view().node(node)
    }

    /// A fact about the job that PMI clients ask for by name.
    pub fn attribute(&self, name: &str) -> Option<Vec<u8>> {
        self.view().attribute(name)
    }

    fn view(&self) -> View<'_> {
        View(self.mapping.words())
    }

    /// Maps what has come into use; false if that is mapped already, or cannot be.
    fn map_more(&mut self) -> bool {
        let mapped = self.view().0.len() * WORD;
        let used = self.view().0.load_acquire(at::USED).and_then(|used| usize::try_from(used).ok());
        let Some(used) = used.filter(|&used| used > mapped && used <= self.capacity) else { return false };
        // As much again, so that few maps are made while the memory grows.
        match ReaderMapping::of(&self.file, used.saturating_mul(2).min(self.capacity)) {
            Ok(mapping) => self.mapping = mapping,
            Err(_) => return false,
        }
        true
    }
}

impl fmt::Debug for JobReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JobReader {{ descriptor: {} }}", self.file.as_raw_fd())
    }
}

/// Refuses a descriptor that is not of a memory file of this name: opening one of another kind may block, or do something.
pub(crate) fn check_name(fd: RawFd, name: &str, wanted: &'static str) -> Result<(), NotReadable> {
    let seen = |seen| NotReadable::Descriptor { fd, wanted, seen };
    let target = fs::readlink(format!("/proc/self/fd/{fd}"), Vec::new()).map_err(|error| seen(error.to_string()))?;
    let is_named = target.to_bytes().strip_prefix(b"/memfd:").is_some_and(|rest| rest.starts_with(name.as_bytes()));
    if is_named { Ok(()) } else { Err(seen(String::from_utf8_lossy(target.to_bytes()).into_owned())) }
}

/// Something lies beyond the words that are mapped, or is nonsense.
#[derive(Debug)]
pub(crate) struct Beyond;

/// The memory as far as it is mapped.
#[derive(Clone, Copy)]
pub(crate) struct View<'m>(pub(crate) Words<'m>);

/// Refuses memory whose header this reader cannot read.
pub(crate) fn check(view: View<'_>) -> Result<(), NotReadable> {
    let expected = u64::from_ne_bytes(MAGIC);
    let known = view.0.load(at::MAGIC) == Some(expected) && view.0.len() >= HEADER_WORDS;
    let (versions, order) = split(view.0.load(at::VERSION).unwrap_or_default());
    let [a, b, ..] = versions.to_ne_bytes();
    let seen = u16::from_ne_bytes([a, b]);
    if known && order == ORDER_MARK && seen == MAJOR { Ok(()) } else { Err(NotReadable::Version { seen: seen.into() }) }
}

impl View<'_> {
    pub(crate) fn is_live(self) -> bool {
        self.0.load_acquire(at::STATE) == Some(State::Live as u64)
    }

    pub(crate) fn get(self, key: &KeyWords) -> Result<Lookup, Beyond> {
        if !self.is_live() {
            return Ok(Lookup::AskServer);
        }
        let Some(index) = self.0.load_acquire(at::INDEX).and_then(IndexPlace::from_word) else {
            return Ok(Lookup::Absent);
        };
        match search(self.0, index, key) {
            Search::Found(record) => self.0.bytes(record.value, record.len).map(Lookup::Found).ok_or(Beyond),
            Search::Absent(_) => Ok(Lookup::Absent),
            Search::Crowded => Ok(Lookup::AskServer),
            Search::Outside => Err(Beyond),
        }
    }

    /// The two numbers of a word of the header.
    pub(crate) fn pair(self, at: usize) -> (u32, u32) {
        split(self.0.load(at).unwrap_or_default())
    }

    pub(crate) fn text_named_by(self, at: usize) -> Option<String> {
        String::from_utf8(self.0.text(self.0.load(at)?)?).ok()
    }

    pub(crate) fn rank(self, rank: u32) -> Option<Rank> {
        let entry = self.entry(at::RANK_TABLE, RANK_BYTES, rank)?;
        let (node, local_rank) = split(self.0.load(entry)?);
        let (node_rank, appnum) = split(self.0.load(entry + 1)?);
        let cpus = self.text_named_by(entry + 2);
        Some(Rank { node, local_rank, node_rank, appnum: appnum.cast_signed(), cpus })
    }

    pub(crate) fn appnum(self, rank: u32) -> Option<i32> {
        let entry = self.entry(at::RANK_TABLE, RANK_BYTES, rank)?;
        Some(split(self.0.load(entry + 1)?).1.cast_signed())
    }

    pub(crate) fn node(self, node: u32) -> Option<Node> {
        let entry = self.entry(at::NODE_TABLE, NODE_BYTES, node)?;
        let (ranks, _) = split(self.0.load(entry + 2)?);
        Some(Node { name: self.text_named_by(entry)?, address: self.text_named_by(entry + 1), ranks })
    }

    pub(crate) fn attribute(self, name: &str) -> Option<Vec<u8>> {
        let (_, count) = split(self.0.load(at::ATTRIBUTE_TABLE + 1)?);
        let entries = (0..count).map_while(|number| self.entry(at::ATTRIBUTE_TABLE, ATTRIBUTE_BYTES, number));
        let mut named = entries.filter(|&entry| self.text_named_by(entry).as_deref() == Some(name));
        self.0.text(self.0.load(named.next()? + 1)?)
    }

    /// First word of an entry of a table, whose entries have at least so many bytes.
    fn entry(self, table: usize, least: u32, number: u32) -> Option<usize> {
        let first = usize::try_from(self.0.load(table)?).ok()?;
        let (bytes, count) = split(self.0.load(table + 1)?);
        let is_table = first.is_multiple_of(WORD) && (bytes as usize).is_multiple_of(WORD) && bytes >= least;
        let offset = (number < count && is_table).then(|| (number as usize).checked_mul(bytes as usize))??;
        let entry = first.checked_add(offset)?.checked_div(WORD)?;
        // The whole entry is there.
        self.0.load(entry.checked_add(least as usize / WORD - 1)?).map(|_| entry)
    }
}
