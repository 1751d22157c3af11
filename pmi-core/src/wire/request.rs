//! Requests of ranks: one type for both protocols.

use std::borrow::Cow;
use std::str;
use std::time::Duration;

use super::dialect::Dialect;
use super::frame::Quoted;
use crate::ids::Rank;
use crate::services::SpawnRequest;

/// One decoded message. Borrows from the frame it was decoded from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Text format of the message and of its answer.
    pub dialect: Dialect,
    /// The command as sent; PMI-2 answers repeat it.
    pub command: &'a str,
    /// PMI-2's `thrid`, which the answer must repeat: an address in the client's memory.
    pub thread: Option<&'a [u8]>,
    /// The request, or its error.
    pub request: Result<Request<'a>, RequestError>,
}

/// A message without a command.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a message has no command: {}", Quoted(.0))]
pub struct NoCommand(pub(super) Vec<u8>);

impl NoCommand {
    pub(super) fn at(bytes: &[u8]) -> Self {
        Self(bytes[..bytes.len().min(64)].to_vec())
    }
}

/// Every request that a rank can send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// PMI-1's claim of a rank on a connection through `PMI_PORT`.
    InitAck {
        /// The client's `PMI_ID`: its rank, or its key. See [`crate::server::Server::require_keys`].
        id: u32,
    },
    /// PMI-1's answer to a server that adopts a program without a launcher (`singinit`).
    Adopted(Version),
    /// The greeting of both protocols, always a PMI-1 line.
    Init(Version),
    /// PMI-2's second greeting.
    FullInit {
        /// The client's `PMI_ID` or `PMI_RANK`, sent as `pmirank` or `srcid`.
        id: Option<u32>,
    },
    /// The limits on names, keys and values.
    Maxes,
    /// The index of the program that the rank runs.
    AppNum,
    /// The job's name.
    JobId,
    /// Value of `MPI_UNIVERSE_SIZE`.
    UniverseSize,
    /// Stores a pair, readable by all ranks after the next fence.
    Put {
        /// The target job; absent or empty for the rank's own.
        job: Option<&'a [u8]>,
        /// The key.
        key: Cow<'a, [u8]>,
        /// The value.
        value: Cow<'a, [u8]>,
    },
    /// Reads a pair; never waits.
    Get {
        /// The job that holds the pair; absent or empty for the rank's own.
        job: Option<&'a [u8]>,
        /// The key.
        key: Cow<'a, [u8]>,
    },
    /// Reads the pair at a position, for an iteration over all pairs.
    GetByIndex {
        /// The key-value space; absent or empty for the job's own.
        job: Option<&'a [u8]>,
        /// The position, from 0.
        index: usize,
    },
    /// Creates a key-value space in addition to the job's own (PMI-1).
    CreateSpace,
    /// Removes a created key-value space.
    DestroySpace {
        /// Its name.
        name: &'a [u8],
    },
    /// Registers a resource that outlives the rank's process, or releases it.
    Resource(ResourceRequest<'a>),
    /// Waits for all ranks of the job, and makes all earlier puts readable.
    Fence,
    /// Waits for the members of a group (PMI-1.2).
    GroupFence {
        /// The members.
        group: Group<'a>,
        /// Distinguishes fences of the same group.
        tag: u32,
        /// Group and tag as the client sent them.
        name: &'a str,
    },
    /// Reads a fact about the job; never waits.
    JobAttribute {
        /// The key.
        key: Cow<'a, [u8]>,
    },
    /// Stores a pair for the ranks of this job on this node.
    PutNodeAttribute {
        /// The key.
        key: Cow<'a, [u8]>,
        /// The value.
        value: Cow<'a, [u8]>,
    },
    /// Reads a pair of the node.
    GetNodeAttribute {
        /// The key.
        key: Cow<'a, [u8]>,
        /// True if the answer waits for the put of the pair.
        wait: bool,
    },
    /// Publishes a port under a name.
    Publish {
        /// The name; may hold spaces.
        service: Cow<'a, [u8]>,
        /// The port.
        port: Cow<'a, [u8]>,
    },
    /// Finds a published port.
    Lookup {
        /// The name.
        service: Cow<'a, [u8]>,
    },
    /// Withdraws a published name.
    Unpublish {
        /// The name.
        service: Cow<'a, [u8]>,
    },
    /// Exchanges values with the two neighbouring ranks (PMI-2, Slurm).
    Ring(RingValue),
    /// Starts a new job.
    Spawn(SpawnRequest),
    /// Ends the job.
    Abort {
        /// The code to end with; PMI-2 clients of Slurm send none.
        code: Option<i32>,
        /// True if the whole job ends; else only the rank.
        whole_job: bool,
        /// A text for the user.
        message: Cow<'a, [u8]>,
    },
    /// The last message of a rank.
    Finalize,
    /// A command of the standards without any implementation; it is refused with an error text.
    Unimplemented,
}

/// A request about a resource; see [`crate::resources`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceRequest<'a> {
    /// Its name.
    pub name: Cow<'a, [u8]>,
    /// Kind of the request.
    pub wish: ResourceWish,
}

/// Kind of a [`ResourceRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResourceWish {
    /// The rank is about to create the resource.
    Intend,
    /// The rank has created it.
    Hold,
    /// The rank is about to remove it.
    BeginRelease {
        /// Time limit of the rank; `None` for no limit.
        within: Option<Duration>,
    },
    /// The rank has removed it.
    EndRelease,
}

impl ResourceWish {
    /// Parses the phase of a registration.
    pub(super) fn registration(phase: &[u8]) -> Result<Self, RequestError> {
        match phase {
            b"intent" => Ok(Self::Intend),
            b"done" => Ok(Self::Hold),
            other => Err(RequestError::bad("phase", other, "`intent` or `done`")),
        }
    }

    /// Parses the seconds of a release; 0 for no limit.
    pub(super) fn release(timeout: &[u8]) -> Result<Self, RequestError> {
        let seconds: u32 = number("timeout", timeout)?;
        Ok(Self::BeginRelease { within: (seconds > 0).then(|| Duration::from_secs(seconds.into())) })
    }
}

/// A protocol version in an `init`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// 1 or 2.
    pub major: u32,
    /// 1 or 2 for PMI-1, 0 for PMI-2.
    pub minor: u32,
}

/// The members of a PMI-1.2 group fence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Group<'a> {
    /// All ranks of the job.
    World,
    /// All ranks on the node of the requesting rank.
    Node,
    /// The listed ranks.
    Ranks(RankSet<'a>),
}

impl<'a> Group<'a> {
    /// Parses the members and the tag of `WORLD:7`, `NODE:7` or `0,2,5:7`; `None` for any other form.
    pub fn parse(name: &'a str) -> Option<(Self, u32)> {
        let (members, tag) = name.split_once(':')?;
        let group = match members {
            "WORLD" => Self::World,
            "NODE" => Self::Node,
            ranks => Self::Ranks(RankSet::new(ranks)?),
        };
        Some((group, tag.parse().ok()?))
    }
}

/// The ranks of a group as the client listed them; all entries are numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankSet<'a>(&'a str);

impl<'a> RankSet<'a> {
    /// Parses a list such as `0,2,5`.
    fn new(list: &'a str) -> Option<Self> {
        list.split(',').all(|rank| rank.parse::<u32>().is_ok()).then_some(Self(list))
    }

    /// The ranks, in the order of the list.
    pub fn iter(self) -> impl Iterator<Item = Rank> + use<'a> {
        self.0.split(',').filter_map(|rank| rank.parse().ok()).map(Rank)
    }
}

/// Contribution of one rank to a PMI-2 ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingValue {
    /// Summed over all earlier ranks.
    pub count: u32,
    /// Right-hand value for the rank before this one.
    pub left: Vec<u8>,
    /// Left-hand value for the rank after this one.
    pub right: Vec<u8>,
}

/// Error in a request. The rank receives an error answer, and the job continues.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// No standard has such a command.
    #[error("unknown command")]
    UnknownCommand,
    /// A field that the command requires is missing.
    #[error("field {name} is missing")]
    MissingField {
        /// The field's name.
        name: &'static str,
    },
    /// A field has an invalid form.
    #[error("field {name} is {}, not {expected}", Quoted(found))]
    BadField {
        /// The field's name.
        name: &'static str,
        /// Content of the field, shortened.
        found: Vec<u8>,
        /// Description of the valid forms.
        expected: &'static str,
    },
}

impl RequestError {
    pub(super) fn bad(name: &'static str, found: &[u8], expected: &'static str) -> Self {
        Self::BadField { name, found: found[..found.len().min(64)].to_vec(), expected }
    }
}

/// Parses a field that holds a number.
pub(super) fn number<N: str::FromStr>(name: &'static str, text: &[u8]) -> Result<N, RequestError> {
    let parsed = str::from_utf8(text).ok().and_then(|text| text.trim().parse().ok());
    parsed.ok_or_else(|| RequestError::bad(name, text, "a number in range"))
}
