//! Reader of a job's memory: a rank, or a process that a rank started.
//!
//! The reader does not trust the content of the memory. It checks each offset and length before use, and queries the PMI server if it finds
//! invalid data. It maps the part of the memory that is in use, and more when it needs data beyond.

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

/// Reader of the memory of its job.
pub struct JobReader {
    file: OwnedFd,
    mapping: ReaderMapping,
    /// Size of the file in bytes.
    capacity: usize,
}

/// Error for a job's memory that cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotReadable {
    /// The descriptor is not open, or belongs to another kind of file.
    #[error("descriptor {fd} is no {wanted}: {seen}")]
    Descriptor {
        /// Number of the descriptor.
        fd: RawFd,
        /// Expected kind of memory.
        wanted: &'static str,
        /// Actual file, as text.
        seen: String,
    },
    /// Processes other than the session may write to the memory or cut it.
    #[error("the memory is not sealed")]
    NotSealed,
    /// The memory has another layout.
    #[error("the job memory has a layout of version {seen}; this reader knows version {MAJOR}")]
    Version {
        /// Major version of the layout.
        seen: u32,
    },
    /// The memory belongs to another job.
    #[error("the job memory is of job {seen}, not of {expected}")]
    OtherJob {
        /// Job of the memory.
        seen: String,
        /// Job of this rank.
        expected: String,
    },
    /// A system call failed.
    #[error("the memory cannot be opened or mapped")]
    System(#[source] SystemError),
}

impl NotReadable {
    pub(crate) fn system(error: Errno) -> Self {
        Self::System(error.into())
    }
}

/// Result of a search for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// Value of the key, as of the last fence or later.
    Found(Vec<u8>),
    /// No fence that this rank has left has the key. The server may have it: a pair put on this node, or a fact about the job.
    Absent,
    /// The memory has no answer: no fence has been published yet, or publishing has stopped.
    AskServer,
}

/// Location of a rank of the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rank {
    /// Index of the rank's node.
    pub node: u32,
    /// Position among the job's ranks on the node.
    pub local_rank: u32,
    /// Position among the launch's ranks on the node.
    pub node_rank: u32,
    /// Value of `MPI_APPNUM`; -1 without one.
    pub appnum: i32,
    /// CPUs that the rank is bound to; `None` for an unbound rank, and for a rank of another node.
    pub cpus: Option<String>,
}

/// Node of the launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Name of the node.
    pub name: String,
    /// Address of the node's session; `None` if no other node needs it.
    pub address: Option<String>,
    /// Number of the job's ranks on the node.
    pub ranks: u32,
}

impl JobReader {
    /// Number of bytes to map first, unless the memory is smaller.
    const FIRST_MAP: usize = 1 << 20;

    /// Opens the memory of descriptor `fd`. The descriptor stays open, and the caller keeps it. The number may belong to any file: the
    /// launcher's descriptor may have been closed and another file opened.
    ///
    /// # Errors
    /// Fails for a descriptor that is not job memory, for memory that another process may write to, for another version and for another job.
    pub fn inherited(fd: RawFd, job_id: &str) -> Result<Self, NotReadable> {
        check_name(fd, NAME, "job memory")?;
        Self::of(mapping::open_anew(fd, OFlags::RDONLY).map_err(NotReadable::system)?, job_id)
    }

    /// Opens the memory of an open file.
    ///
    /// # Errors
    /// See [`JobReader::inherited`].
    pub fn of(file: impl Into<OwnedFd>, job_id: &str) -> Result<Self, NotReadable> {
        let file = file.into();
        if !mapping::is_sealed(&file) {
            return Err(NotReadable::NotSealed);
        }
        let capacity = mapping::length(&file).map_err(NotReadable::system)?;
        let mapping = ReaderMapping::of(&file, capacity.min(Self::FIRST_MAP)).map_err(NotReadable::system)?;
        let mut reader = Self { file, mapping, capacity };
        check(reader.view())?;
        // The facts of a large job may exceed the first map.
        reader.map_more();
        let seen = reader.job_id().unwrap_or_default();
        if seen != job_id {
            return Err(NotReadable::OtherJob { seen, expected: job_id.to_owned() });
        }
        Ok(reader)
    }

    /// Requests pairs. The writer publishes them from the next fence on. Without a request by a rank of the node it publishes none.
    ///
    /// # Errors
    /// Fails if the system has no lock left.
    pub fn ask_for_pairs(&self) -> Result<(), NotReadable> {
        mapping::ask_for_pairs(&self.file).map_err(NotReadable::system)
    }

    /// Value of a key, as of the last fence that this rank has left.
    pub fn get(&mut self, key: &[u8]) -> Lookup {
        let Some(key) = KeyWords::new(key) else { return Lookup::Absent };
        match self.view().get(&key) {
            Err(Beyond) if self.map_more() => self.view().get(&key).unwrap_or(Lookup::AskServer),
            found => found.unwrap_or(Lookup::AskServer),
        }
    }

    /// Number of published fences; `None` if no pairs are published.
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

    /// Location of a rank; `None` if the job has no such rank.
    pub fn rank(&self, rank: u32) -> Option<Rank> {
        self.view().rank(rank)
    }

    /// Value of `MPI_APPNUM` of a rank, -1 without one; `None` if the job has no such rank. Equal to the field of [`rank`](Self::rank), without
    /// the cost of the other fields.
    pub fn appnum(&self, rank: u32) -> Option<i32> {
        self.view().appnum(rank)
    }

    /// Node of the launch; `None` if there is no such node.
    pub fn node(&self, node: u32) -> Option<Node> {
        self.view().node(node)
    }

    /// Value of a fact that PMI clients query by name.
    pub fn attribute(&self, name: &str) -> Option<Vec<u8>> {
        self.view().attribute(name)
    }

    fn view(&self) -> View<'_> {
        View(self.mapping.words())
    }

    /// Maps the part of the memory that is now in use; false if it is mapped already, or the map fails.
    fn map_more(&mut self) -> bool {
        let mapped = self.view().0.len() * WORD;
        let used = self.view().0.load_acquire(at::USED).and_then(|used| usize::try_from(used).ok());
        let Some(used) = used.filter(|&used| used > mapped && used <= self.capacity) else { return false };
        // Maps twice that size, to need few maps while the memory grows.
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

/// Fails for a descriptor that is not a memory file of this name: opening another kind of file may block or have an effect.
pub(crate) fn check_name(fd: RawFd, name: &str, wanted: &'static str) -> Result<(), NotReadable> {
    let seen = |seen| NotReadable::Descriptor { fd, wanted, seen };
    let target = fs::readlink(format!("/proc/self/fd/{fd}"), Vec::new()).map_err(|error| seen(error.to_string()))?;
    let is_named = target.to_bytes().strip_prefix(b"/memfd:").is_some_and(|rest| rest.starts_with(name.as_bytes()));
    if is_named { Ok(()) } else { Err(seen(String::from_utf8_lossy(target.to_bytes()).into_owned())) }
}

/// The data is beyond the mapped words, or is invalid.
#[derive(Debug)]
pub(crate) struct Beyond;

/// Mapped part of the memory.
#[derive(Clone, Copy)]
pub(crate) struct View<'m>(pub(crate) Words<'m>);

/// Fails for memory with an unsupported header.
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

    /// The two numbers of a header word.
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

    /// First word of an entry of a table with entries of at least `least` bytes.
    fn entry(self, table: usize, least: u32, number: u32) -> Option<usize> {
        let first = usize::try_from(self.0.load(table)?).ok()?;
        let (bytes, count) = split(self.0.load(table + 1)?);
        let is_table = first.is_multiple_of(WORD) && (bytes as usize).is_multiple_of(WORD) && bytes >= least;
        let offset = (number < count && is_table).then(|| (number as usize).checked_mul(bytes as usize))??;
        let entry = first.checked_add(offset)?.checked_div(WORD)?;
        // The whole entry must be mapped.
        self.0.load(entry.checked_add(least as usize / WORD - 1)?).map(|_| entry)
    }
}
