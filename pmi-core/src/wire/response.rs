//! Answers to ranks: one type for both protocols, and the only table of `rc` codes.
//!
//! Rules that some clients need (each measured): `rc=0` in every PMI-1 answer; `value=` last; no spaces in `msg=`; no empty field that
//! can be omitted; upper-case booleans; `found=FALSE` with `rc=0` for a missing value in PMI-2; both `value` and `port` for a PMI-2
//! lookup.

use std::borrow::Cow;

use super::dialect::Dialect;
use super::limits::{KEY_MAX, KVSNAME_MAX_ANNOUNCED, PairError, VALUE_MAX_ANNOUNCED};
use super::request::Version;
use crate::ids::Rank;

/// The answer to one [`super::Request`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response<'a> {
    /// To `initack`: the rank is claimed.
    InitAck {
        /// The claimed rank.
        rank: Rank,
        /// The size of its job.
        size: u32,
    },
    /// To the answer of an adopted program.
    Adopted {
        /// True if its version is served.
        served: bool,
        /// The job that it now belongs to.
        job: &'a str,
    },
    /// To `init`: the version of all further messages.
    Init(Version),
    /// To `fullinit`.
    FullInit {
        /// The rank.
        rank: Rank,
        /// The size of its job.
        size: u32,
        /// The index of its program.
        appnum: i32,
        /// The job that spawned this one.
        spawner: Option<&'a str>,
    },
    /// To `get_maxes`.
    Maxes,
    /// To `get_appnum`; -1 for none.
    AppNum(i32),
    /// To `get_my_kvsname` and `job-getid`.
    JobId(&'a str),
    /// To `get_universe_size`. `None` is sent as -1 and never as an error: MPICH 4.3 and 5 crash on an error (measured).
    UniverseSize(Option<u32>),
    /// Done: puts, publish, unpublish, finalize.
    Done,
    /// To every get: the value, if any.
    Value(Option<&'a [u8]>),
    /// To `getbyidx`: a pair and the index of the next one; `None` after the last pair.
    Indexed(Option<(usize, &'a [u8], &'a [u8])>),
    /// To `create_kvs`: the name of the new key-value space.
    Space(String),
    /// To a fence; a PMI-1.2 client receives the tag.
    Fence {
        /// The tag, for clients of version 1.2.
        tag: Option<u32>,
    },
    /// To a refused fence of a group. The client may have further fences open, and distinguishes them by their tags.
    FenceRefused {
        /// The tag of the request.
        tag: u32,
        /// Error code.
        code: ErrorCode,
        /// A text for the user of the client.
        text: &'static str,
    },
    /// To `lookup_name` and `name-lookup`: the port.
    Port(&'a [u8]),
    /// To `ring`.
    Ring {
        /// The sum of the counts of all earlier ranks.
        count: u32,
        /// The right-hand value of the previous rank.
        left: &'a [u8],
        /// The left-hand value of the next rank.
        right: &'a [u8],
    },
    /// To `spawn`: the new job runs.
    Spawned {
        /// Its id.
        job: &'a str,
    },
    /// The request failed; the job continues.
    Error {
        /// Error code.
        code: ErrorCode,
        /// A text for the user of the client.
        text: Cow<'static, str>,
    },
}

/// The `rc` of a failed request, from PMI-2's table (`pmi2.h`); in PMI-1 it is 1 or -1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorCode {
    /// -1: failed.
    Failed,
    /// 1: not found, not initialized or already there, by command.
    NotThere,
    /// 2: out of the memory that one rank may use.
    NoMemory,
    /// 3: an invalid argument.
    InvalidArgument,
    /// 5: a key too long, or empty.
    KeyLength,
    /// 7: a value too long.
    ValueLength,
    /// 14: anything else, such as an unknown command.
    Other,
}

impl ErrorCode {
    /// PMI-1 has one code for failures, and 1 for some commands.
    fn pmi1_rc(self) -> i32 {
        if self == Self::NotThere { 1 } else { -1 }
    }

    fn pmi2_rc(self) -> i32 {
        match self {
            Self::Failed => -1,
            Self::NotThere => 1,
            Self::NoMemory => 2,
            Self::InvalidArgument => 3,
            Self::KeyLength => 5,
            Self::ValueLength => 7,
            Self::Other => 14,
        }
    }
}

impl From<PairError> for Response<'_> {
    fn from(error: PairError) -> Self {
        let code = match error {
            PairError::KeyLength { .. } => ErrorCode::KeyLength,
            PairError::ValueLength { .. } => ErrorCode::ValueLength,
        };
        Self::Error { code, text: error.to_string().into() }
    }
}

/// First message of a server to a program that it adopts (`singinit`).
pub(crate) const ADOPTION: &[u8] = b"cmd=singinit authtype=none\n";

/// Address of an answer: the parts of its request that it must repeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The format of the request.
    pub dialect: Dialect,
    /// The command of the request.
    pub command: Box<str>,
    /// The `thrid` of the request.
    pub thread: Option<Box<[u8]>>,
}

impl Response<'_> {
    /// Encodes the answer with its framing.
    pub fn encode(&self, dialect: Dialect, command: &str, thread: Option<&[u8]>) -> Vec<u8> {
        let command = shortened(command, COMMAND_ECHOED);
        match dialect {
            Dialect::Pmi1 if !self.fits_on_a_line() => {
                let text = "it holds a line end, which PMI-1 cannot carry".into();
                Response::Error { code: ErrorCode::Failed, text }.pmi1(command)
            }
            Dialect::Pmi1 => self.pmi1(command),
            Dialect::Pmi2 => self.pmi2(command, thread),
        }
    }

    /// Encodes the answer to the request with this `address`.
    pub fn encode_to(&self, address: &Address) -> Vec<u8> {
        self.encode(address.dialect, &address.command, address.thread.as_deref())
    }

    /// PMI-2 clients may store line ends, and PMI-1 clients may request the stored values.
    fn fits_on_a_line(&self) -> bool {
        let fits = |bytes: &[u8]| memchr::memchr(b'\n', bytes).is_none();
        match self {
            Response::Value(Some(value)) | Response::Port(value) => fits(value),
            Response::Indexed(Some((_, key, value))) => fits(key) && fits(value),
            Response::Ring { left, right, .. } => fits(left) && fits(right),
            _ => true,
        }
    }

    fn pmi1(&self, command: &str) -> Vec<u8> {
        let mut line = Line::new(pmi1_reply_name(command), command);
        match self {
            Response::InitAck { rank, size } => {
                let text = format!("cmd=initack rc=0\ncmd=set size={size}\ncmd=set rank={rank}\ncmd=set debug=0\n");
                return text.into_bytes();
            }
            Response::Adopted { served, job } => {
                let served = if *served { "yes" } else { "no" };
                line.field("versionok", served).field("stdio", "no").field("kvsname", job)
            }
            Response::Init(Version { major, minor }) => {
                line.rc(0).field("pmi_version", major).field("pmi_subversion", minor)
            }
            Response::FullInit { rank, size, appnum, .. } => {
                line.rc(0).field("rank", rank).field("size", size).field("appnum", appnum)
            }
            Response::Maxes => line
                .rc(0)
                .field("kvsname_max", KVSNAME_MAX_ANNOUNCED)
                .field("keylen_max", KEY_MAX)
                .field("vallen_max", VALUE_MAX_ANNOUNCED),
            Response::AppNum(appnum) => line.rc(0).field("appnum", appnum),
            Response::JobId(job) => line.rc(0).field("kvsname", job),
            Response::Space(name) => line.rc(0).field("kvsname", name),
            Response::UniverseSize(size) => line.rc(0).field("size", size.map_or(-1, i64::from)),
            Response::Done => line.rc(0),
            Response::Value(Some(value)) => line.rc(0).raw("value", value),
            Response::Value(None) => line.rc(1).field("msg", "key_not_found"),
            Response::Indexed(Some((next, key, value))) => {
                line.rc(0).field("nextidx", next).raw("key", key).raw("val", value)
            }
            Response::Indexed(None) => line.rc(-1).field("reason", "no_more_keyvals"),
            Response::Fence { tag: Some(tag) } => line.rc(0).field("tag", tag),
            Response::Fence { tag: None } => line.rc(0),
            Response::FenceRefused { tag, code, text } => {
                line.rc(code.pmi1_rc()).field("tag", tag).field("msg", one_word(text))
            }
            Response::Port(port) => line.rc(0).raw("port", port),
            Response::Ring { count, left, right } => {
                line.rc(0).field("ring-count", count).raw("ring-left", left).raw("ring-right", right)
            }
            // No `errcodes`: MPICH up to 4.0 has no room for many of them, and every client treats their absence as success.
            Response::Spawned { job } => line.rc(0).field("jobid", job),
            Response::Error { code, text } => line.rc(code.pmi1_rc()).field("msg", one_word(text)),
        };
        line.finish()
    }

    fn pmi2(&self, command: &str, thread: Option<&[u8]>) -> Vec<u8> {
        let mut block = Block::new(command, thread);
        match self {
            Response::FullInit { rank, size, appnum, spawner } => {
                block.rc(0).field("pmi-version", 2).field("pmi-subversion", 0);
                block.field("rank", rank).field("size", size).field("appnum", appnum);
                block.field("debugged", "FALSE").field("pmiverbose", "FALSE");
                if let Some(spawner) = spawner {
                    block.field("spawner-jobid", spawner);
                }
                &mut block
            }
            Response::JobId(job) => block.rc(0).field("jobid", job),
            Response::Value(Some(value)) => block.rc(0).field("found", "TRUE").raw("value", value),
            Response::Value(None) => block.rc(0).field("found", "FALSE"),
            Response::Port(port) => block.rc(0).raw("value", port).raw("port", port),
            Response::Ring { count, left, right } => {
                block.rc(0).field("ring-count", count).raw("ring-left", left).raw("ring-right", right)
            }
            Response::Spawned { job } => block.rc(0).field("jobid", job).field("nerrs", 0),
            Response::Error { code, text } => block.rc(code.pmi2_rc()).field("errmsg", one_word(text)),
            Response::Done | Response::Fence { .. } => block.rc(0),
            // PMI-2 has no such requests; an answer uses the dialect of its request.
            Response::InitAck { .. }
            | Response::Adopted { .. }
            | Response::Init(_)
            | Response::Maxes
            | Response::AppNum(_)
            | Response::UniverseSize(_)
            | Response::Indexed(_)
            | Response::FenceRefused { .. }
            | Response::Space(_) => block.rc(ErrorCode::Other.pmi2_rc()),
        };
        block.finish().unwrap_or_else(|| {
            let text = format!("the answer is longer than the {PMI2_MAX} bytes of a PMI-2 message");
            Response::Error { code: ErrorCode::ValueLength, text: text.into() }.pmi2(command, thread)
        })
    }
}

/// Maximum length of a PMI-2 message after its length field, which has six digits.
const PMI2_MAX: usize = 999_999;

/// Maximum length of a repeated command and of an error text, in characters. MPICH up to 4.0 reads an answer into 1024 bytes, and treats
/// the rest of a longer answer as the next one.
const COMMAND_ECHOED: usize = 64;
const ERROR_TEXT_MAX: usize = 160;

fn shortened(text: &str, chars: usize) -> &str {
    text.char_indices().nth(chars).map_or(text, |(end, _)| &text[..end])
}

/// An error text for both protocols and all clients: without spaces, ends of lines and fields, and not empty.
fn one_word(text: &str) -> String {
    if text.is_empty() {
        return "failed".into();
    }
    let harmful = |c: char| c.is_whitespace() || c.is_control() || c == ';';
    shortened(text, ERROR_TEXT_MAX).replace(harmful, "_")
}

/// Name of a PMI-1 answer; `None` means the request's name with the suffix `_result`.
fn pmi1_reply_name(command: &str) -> Option<&'static str> {
    Some(match command {
        "init" => "response_to_init",
        "singinit" => "singinit_info",
        "get_maxes" => "maxes",
        "get_appnum" => "appnum",
        "get_my_kvsname" => "my_kvsname",
        "get_universe_size" => "universe_size",
        "barrier_in" => "barrier_out",
        "publish_name" => "publish_result",
        "unpublish_name" => "unpublish_result",
        "lookup_name" => "lookup_result",
        "finalize" => "finalize_ack",
        "getbyidx" => "getbyidx_results",
        "create_kvs" => "newkvs",
        "destroy_kvs" => "kvs_destroyed",
        "initack" => "initack",
        _ => return None,
    })
}

/// A PMI-1 line under construction.
struct Line(Vec<u8>);

impl Line {
    fn new(reply: Option<&str>, command: &str) -> Self {
        let mut line = Self(Vec::with_capacity(96));
        line.0.extend_from_slice(b"cmd=");
        match reply {
            Some(reply) => line.0.extend_from_slice(reply.as_bytes()),
            None => {
                line.0.extend_from_slice(command.as_bytes());
                line.0.extend_from_slice(b"_result");
            }
        }
        line
    }

    fn rc(&mut self, rc: i32) -> &mut Self {
        self.field("rc", rc)
    }

    fn field(&mut self, name: &str, value: impl ToString) -> &mut Self {
        self.raw(name, value.to_string().as_bytes())
    }

    fn raw(&mut self, name: &str, value: &[u8]) -> &mut Self {
        self.0.push(b' ');
        self.0.extend_from_slice(name.as_bytes());
        self.0.push(b'=');
        self.0.extend_from_slice(value);
        self
    }

    fn finish(mut self) -> Vec<u8> {
        self.0.push(b'\n');
        self.0
    }
}

/// A PMI-2 message under construction; its first six bytes are reserved for its length.
struct Block(Vec<u8>);

impl Block {
    fn new(command: &str, thread: Option<&[u8]>) -> Self {
        let mut block = Self(Vec::with_capacity(96));
        block.0.extend_from_slice(b"      cmd=");
        block.0.extend_from_slice(command.as_bytes());
        block.0.extend_from_slice(b"-response;");
        if let Some(thread) = thread {
            block.raw("thrid", thread);
        }
        block
    }

    fn rc(&mut self, rc: i32) -> &mut Self {
        self.field("rc", rc)
    }

    fn field(&mut self, name: &str, value: impl ToString) -> &mut Self {
        self.raw(name, value.to_string().as_bytes())
    }

    /// Writes a field with doubled `;`: the form that Slurm's client and MPICH up to 4.0 decode.
    fn raw(&mut self, name: &str, value: &[u8]) -> &mut Self {
        self.0.extend_from_slice(name.as_bytes());
        self.0.push(b'=');
        let mut rest = value;
        while let Some(end) = memchr::memchr(b';', rest) {
            self.0.extend_from_slice(&rest[..=end]);
            self.0.push(b';');
            rest = &rest[end + 1..];
        }
        self.0.extend_from_slice(rest);
        self.0.push(b';');
        self
    }

    /// Returns the message, or `None` if it is longer than [`PMI2_MAX`].
    fn finish(mut self) -> Option<Vec<u8>> {
        let length = self.0.len() - 6;
        if length > PMI2_MAX {
            return None;
        }
        self.0[..6].copy_from_slice(format!("{length:>6}").as_bytes());
        Some(self.0)
    }
}
