//! Requests of clients: the command and its arguments, still as the client's bytes.

use super::forwarding::{self, Pull, Push};
use super::reader::{Proc, Reader};
use super::value::Info;
use super::{Encoding, WireError, types};

/// One message of a client.
#[derive(Clone, PartialEq, Debug)]
pub enum Request<'a> {
    /// The facts about its job.
    JobInfo,
    /// Ends the job.
    Abort {
        /// The code to end with.
        code: i32,
        /// Text for the user.
        message: &'a [u8],
    },
    /// Values for other ranks.
    Commit(Vec<Committed<'a>>),
    /// Waits for all members.
    Fence {
        /// Members of the collective.
        procs: Vec<Proc<'a>>,
        /// True if the members' commits must be distributed to all.
        collect: bool,
    },
    /// Reads a value of a rank.
    Get {
        /// The rank.
        proc: Proc<'a>,
        /// Directives.
        infos: Vec<Info<'a>>,
        /// The key; `None` means all keys.
        key: Option<&'a [u8]>,
    },
    /// The client leaves PMIx.
    Finalize,
    /// Publishes values by name: infos that are not directives.
    Publish(Vec<Info<'a>>),
    /// Finds published values.
    Lookup {
        /// Their names.
        keys: Vec<&'a [u8]>,
        /// Directives.
        infos: Vec<Info<'a>>,
    },
    /// Withdraws published values.
    Unpublish {
        /// Their names; an empty list means all names of the client.
        keys: Vec<&'a [u8]>,
    },
    /// Starts a new job.
    Spawn {
        /// Directives for the job.
        infos: Vec<Info<'a>>,
        /// Its programs.
        apps: Vec<App<'a>>,
    },
    /// Waits for all members, and requests the facts about their jobs.
    Connect {
        /// Members of the collective.
        procs: Vec<Proc<'a>>,
    },
    /// Waits for all members, and drops the facts about their jobs.
    Disconnect {
        /// Members of the collective.
        procs: Vec<Proc<'a>>,
    },
    /// Sends an event to other ranks.
    Notify {
        /// Code of the event.
        status: i32,
        /// Range of the event.
        range: u8,
        /// Further facts about it.
        infos: Vec<Info<'a>>,
    },
    /// Registers for events; an empty list means all events.
    RegisterEvents(Vec<i32>),
    /// Ends a registration for events. Has no answer.
    DeregisterEvents(Vec<i32>),
    /// Text for a log or a stream.
    Log(Vec<Info<'a>>),
    /// Controls a job: sends a signal, or registers files to remove at the end.
    JobControl {
        /// Processes of the request; an empty list means all processes of the job.
        targets: Vec<Proc<'a>>,
        /// Directives.
        infos: Vec<Info<'a>>,
    },
    /// Requests resources, or returns some.
    Allocate {
        /// `pmix_alloc_directive_t`.
        directive: u8,
        /// The requested resources.
        infos: Vec<Info<'a>>,
    },
    /// Creates a group, together with all its other members.
    GroupConstruct {
        /// The group's name.
        name: &'a [u8],
        /// Its members; empty if other members add the caller.
        procs: Vec<Proc<'a>>,
        /// Directives.
        infos: Vec<Info<'a>>,
    },
    /// Leaves a group.
    GroupDestruct {
        /// The group's name.
        name: &'a [u8],
    },
    /// Queries about this server and its jobs.
    Query(Vec<Query<'a>>),
    /// Requests output of ranks as soon as they write it.
    PullOutput(Pull<'a>),
    /// Sends input for ranks.
    PushInput(Push<'a>),
    /// Ends a pull.
    EndPull {
        /// The server's number of the pull.
        number: u64,
    },
    /// Requests all current commits of a rank.
    Refresh {
        /// The rank.
        proc: Proc<'a>,
    },
    /// A command that is not served.
    Unsupported(u8),
}

/// Keys of a query, and their qualifiers.
#[derive(Clone, PartialEq, Debug)]
pub struct Query<'a> {
    /// The keys.
    pub keys: Vec<&'a [u8]>,
    /// The job, the process or the set of the query, and so on.
    pub qualifiers: Vec<Info<'a>>,
}

/// Values that a client commits for one scope.
#[derive(Clone, PartialEq, Debug)]
pub struct Committed<'a> {
    /// The receivers: see [`types::SCOPE_LOCAL`] and the other scopes.
    pub scope: u8,
    /// The values.
    pub pairs: Pairs<'a>,
}

/// Keys, each with its encoded type and value.
pub type Pairs<'a> = Vec<(&'a [u8], &'a [u8])>;

/// A program of a spawn.
#[derive(Clone, PartialEq, Debug)]
pub struct App<'a> {
    /// The program.
    pub program: &'a [u8],
    /// Its arguments, the program's name first.
    pub arguments: Vec<&'a [u8]>,
    /// Variables, as `NAME=value`.
    pub variables: Vec<&'a [u8]>,
    /// Working directory.
    pub directory: Option<&'a [u8]>,
    /// Number of ranks.
    pub ranks: u32,
    /// Directives.
    pub infos: Vec<Info<'a>>,
}

/// The codes of commands.
pub mod command {
    #![allow(missing_docs, reason = "each constant is the library's code for the command of that name")]
    pub const REQ: u8 = 0;
    pub const ABORT: u8 = 1;
    pub const COMMIT: u8 = 2;
    pub const FENCE: u8 = 3;
    pub const GET: u8 = 4;
    pub const FINALIZE: u8 = 5;
    pub const PUBLISH: u8 = 6;
    pub const LOOKUP: u8 = 7;
    pub const UNPUBLISH: u8 = 8;
    pub const SPAWN: u8 = 9;
    pub const CONNECT: u8 = 10;
    pub const DISCONNECT: u8 = 11;
    pub const NOTIFY: u8 = 12;
    pub const REGISTER_EVENTS: u8 = 13;
    pub const DEREGISTER_EVENTS: u8 = 14;
    pub const QUERY: u8 = 15;
    pub const LOG: u8 = 16;
    pub const ALLOC: u8 = 17;
    pub const JOB_CONTROL: u8 = 18;
    pub const IOF_PULL: u8 = 22;
    pub const IOF_PUSH: u8 = 23;
    pub const GROUP_CONSTRUCT: u8 = 24;
    pub const GROUP_DESTRUCT: u8 = 28;
    pub const IOF_DEREGISTER: u8 = 29;
    pub const REFRESH_CACHE: u8 = 33;
}

/// The name of a command, if it is known.
pub fn command_name(code: u8) -> &'static str {
    const NAMES: &[&str] = &[
        "REQ",
        "ABORT",
        "COMMIT",
        "FENCE",
        "GET",
        "FINALIZE",
        "PUBLISH",
        "LOOKUP",
        "UNPUBLISH",
        "SPAWN",
        "CONNECT",
        "DISCONNECT",
        "NOTIFY",
        "REGEVENTS",
        "DEREGEVENTS",
        "QUERY",
        "LOG",
        "ALLOC",
        "JOB_CONTROL",
        "MONITOR",
        "GET_CREDENTIAL",
        "VALIDATE_CRED",
        "IOF_PULL",
        "IOF_PUSH",
        "GROUP_CONSTRUCT",
        "GROUP_JOIN",
        "GROUP_INVITE",
        "GROUP_LEAVE",
        "GROUP_DESTRUCT",
        "IOF_DEREG",
        "FABRIC_REGISTER",
        "FABRIC_UPDATE",
        "DEVICE_DISTANCES",
        "REFRESH_CACHE",
        "RESBLK",
        "SESSION_CTRL",
        "SYSINFO",
        "RESOLVE_PEERS",
        "RESOLVE_NODE",
    ];
    NAMES.get(usize::from(code)).copied().unwrap_or("unknown")
}

/// The command of a message.
///
/// # Errors
/// Fails when the payload does not begin with a group of one command.
pub fn command_of(encoding: Encoding, payload: &[u8]) -> Result<u8, WireError> {
    let mut reader = Reader::new(encoding, payload);
    reader.one()?;
    reader.byte()
}

impl<'a> Request<'a> {
    /// Decodes the payload of a message.
    ///
    /// # Errors
    /// Fails when the payload does not match its command.
    pub fn decode(encoding: Encoding, payload: &'a [u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(encoding, payload);
        let reader = &mut reader;
        reader.one()?;
        Ok(match reader.byte()? {
            command::REQ => Self::JobInfo,
            command::ABORT => {
                reader.one()?;
                let code = reader.i32()?;
                reader.one()?;
                Self::Abort { code, message: reader.text()?.unwrap_or_default() }
            }
            command::COMMIT => Self::Commit(committed(reader)?),
            command::FENCE => fence(reader)?,
            command::GET => get(reader)?,
            command::FINALIZE => Self::Finalize,
            command::PUBLISH => {
                user(reader)?;
                Self::Publish(reader.counted_infos()?)
            }
            command::LOOKUP => {
                user(reader)?;
                Self::Lookup { keys: keys(reader)?, infos: reader.counted_infos()? }
            }
            command::UNPUBLISH => {
                user(reader)?;
                Self::Unpublish { keys: keys(reader)? }
            }
            command::SPAWN => Self::Spawn { infos: reader.counted_infos()?, apps: apps(reader)? },
            command::CONNECT => Self::Connect { procs: members(reader)? },
            command::DISCONNECT => Self::Disconnect { procs: members(reader)? },
            command::NOTIFY => {
                reader.one()?;
                let status = reader.i32()?;
                reader.one()?;
                Self::Notify { status, range: reader.byte()?, infos: reader.counted_infos()? }
            }
            command::REGISTER_EVENTS => {
                let count = reader.count()?;
                reader.group_of(count)?;
                Self::RegisterEvents((0..count).map(|_| reader.i32()).collect::<Result<_, _>>()?)
            }
            command::DEREGISTER_EVENTS => {
                let mut codes = Vec::new();
                while !reader.is_empty() {
                    reader.one()?;
                    codes.push(reader.i32()?);
                }
                Self::DeregisterEvents(codes)
            }
            command::LOG => {
                // The time of the text.
                reader.one()?;
                reader.u64()?;
                Self::Log(reader.counted_infos()?)
            }
            command::ALLOC => {
                reader.one()?;
                Self::Allocate { directive: reader.byte()?, infos: reader.counted_infos()? }
            }
            command::JOB_CONTROL => {
                Self::JobControl { targets: reader.counted_procs()?, infos: reader.counted_infos()? }
            }
            command::GROUP_CONSTRUCT => {
                let name = name(reader)?;
                Self::GroupConstruct { name, procs: reader.counted_procs()?, infos: reader.counted_infos()? }
            }
            command::GROUP_DESTRUCT => Self::GroupDestruct { name: name(reader)? },
            command::QUERY => Self::Query(queries(reader)?),
            command::IOF_PULL => Self::PullOutput(Pull::decode(reader)?),
            command::IOF_PUSH => Self::PushInput(Push::decode(reader)?),
            command::IOF_DEREGISTER => Self::EndPull { number: forwarding::decode_end(reader)? },
            command::REFRESH_CACHE => Self::Refresh { proc: separate_proc(reader)? },
            other => Self::Unsupported(other),
        })
    }
}

/// Decodes the members of a collective; there must be at least one.
fn members<'a>(reader: &mut Reader<'a>) -> Result<Vec<Proc<'a>>, WireError> {
    let procs = reader.counted_procs()?;
    if procs.is_empty() { Err(WireError::Absent { what: "the list of members" }) } else { Ok(procs) }
}

fn fence<'a>(reader: &mut Reader<'a>) -> Result<Request<'a>, WireError> {
    let procs = members(reader)?;
    let says_so = |info: &Info<'_>| info.key == b"pmix.collect" && info.value.is_true();
    // Malformed directives are not an error: the data is then distributed.
    let collect = reader.counted_infos().map_or(true, |infos| infos.iter().any(says_so));
    Ok(Request::Fence { procs, collect })
}

/// The caller's uid, which is unverified.
fn user(reader: &mut Reader<'_>) -> Result<(), WireError> {
    reader.one()?;
    reader.u32().map(drop)
}

fn name<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], WireError> {
    reader.one()?;
    reader.required_text("the group's name")
}

fn keys<'a>(reader: &mut Reader<'a>) -> Result<Vec<&'a [u8]>, WireError> {
    let count = reader.count()?;
    let key = |_| {
        reader.one()?;
        reader.required_text("a key")
    };
    (0..count).map(key).collect()
}

fn committed<'a>(reader: &mut Reader<'a>) -> Result<Vec<Committed<'a>>, WireError> {
    let mut scopes = Vec::new();
    while !reader.is_empty() {
        reader.one()?;
        let scope = reader.byte()?;
        reader.one()?;
        // The kind of buffer, as announced in the handshake.
        reader.byte()?;
        let mut buffer = Reader::new(reader.encoding(), reader.byte_object()?);
        scopes.push(Committed { scope, pairs: pairs(&mut buffer)? });
    }
    Ok(scopes)
}

/// Keys with their values, to the end.
fn pairs<'a>(reader: &mut Reader<'a>) -> Result<Pairs<'a>, WireError> {
    let mut pairs = Vec::new();
    while !reader.is_empty() {
        for _ in 0..reader.group()? {
            let key = reader.required_text("a key")?;
            pairs.push((key, reader.skip(types::VALUE)?));
        }
    }
    Ok(pairs)
}

fn get<'a>(reader: &mut Reader<'a>) -> Result<Request<'a>, WireError> {
    let proc = separate_proc(reader)?;
    let infos = reader.counted_infos()?;
    let key = if reader.is_empty() {
        None
    } else {
        reader.one()?;
        reader.text()?
    };
    Ok(Request::Get { proc, infos, key })
}

/// A namespace and a rank, each in a separate group.
fn separate_proc<'a>(reader: &mut Reader<'a>) -> Result<Proc<'a>, WireError> {
    reader.one()?;
    let namespace = reader.required_text("a namespace")?;
    reader.one()?;
    Ok(Proc { namespace, rank: reader.u32()? })
}

fn queries<'a>(reader: &mut Reader<'a>) -> Result<Vec<Query<'a>>, WireError> {
    let count = reader.count()?;
    reader.group_of(count)?;
    let query = |_| {
        let count = reader.i32()?;
        let keys = texts(reader, count.into())?;
        Ok(Query { keys, qualifiers: sized_infos(reader)? })
    };
    (0..count).map(query).collect()
}

fn apps<'a>(reader: &mut Reader<'a>) -> Result<Vec<App<'a>>, WireError> {
    let count = reader.count()?;
    reader.group_of(count)?;
    (0..count).map(|_| app(reader)).collect()
}

fn app<'a>(reader: &mut Reader<'a>) -> Result<App<'a>, WireError> {
    let program = reader.required_text("the program")?;
    let count = reader.int()?;
    let arguments = texts(reader, count)?;
    let count = reader.i32()?;
    let variables = texts(reader, count.into())?;
    let directory = reader.text()?;
    let ranks = reader.int()?;
    let ranks = u32::try_from(ranks).map_err(|_| WireError::Argument { what: "the number of ranks", found: ranks })?;
    Ok(App { program, arguments, variables, directory, ranks, infos: sized_infos(reader)? })
}

/// Infos after their number.
fn sized_infos<'a>(reader: &mut Reader<'a>) -> Result<Vec<Info<'a>>, WireError> {
    let count = reader.size()?;
    let count = reader.checked_count(i64::try_from(count).unwrap_or(i64::MAX))?;
    (0..count).map(|_| reader.info()).collect()
}

fn texts<'a>(reader: &mut Reader<'a>, count: i64) -> Result<Vec<&'a [u8]>, WireError> {
    (0..reader.checked_count(count)?).map(|_| reader.required_text("a word")).collect()
}
