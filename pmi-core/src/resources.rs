//! Resources that outlive the process that created them. Ranks register them with their server, so that their host removes the remaining
//! ones.
//!
//! A name is `KIND:ID`:
//!
//! | kind | id |
//! |---|---|
//! | `shm`, `sem`, `msg` | number of a shared memory segment, a set of semaphores or a message queue of System V; none yet in an intent |
//! | `pshm`, `psem`, `mq` | name of a shared memory object, a semaphore or a message queue of POSIX, with or without a leading `/` |
//! | `file`, `dir` | absolute path |
//! | `pid` | process id; none yet in an intent |

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// The longest name of a resource, in bytes.
pub const NAME_MAX: usize = 1024;

/// The longest name of a POSIX object, in bytes: a file system adds the prefix `sem.`, and limits the sum to 255.
const POSIX_MAX: usize = 250;

/// The lowest process id that a rank can register.
const PID_MIN: i32 = 2;

/// A resource that a rank has created, or is about to create.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Resource {
    /// A System V object; without a number, it is about to be created.
    SystemV(SystemV, Option<i32>),
    /// A POSIX object, by its name without `/`.
    Posix(Posix, String),
    /// A file or any other object except a directory, by its absolute path.
    File(PathBuf),
    /// A directory with its contents, by its absolute path.
    Directory(PathBuf),
    /// A process; without an id, it is about to be created.
    Process(Option<i32>),
}

/// Kind of a System V object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SystemV {
    /// A shared memory segment (`shmget`).
    Memory,
    /// A set of semaphores (`semget`).
    Semaphores,
    /// A message queue (`msgget`).
    Messages,
}

/// Kind of a POSIX object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Posix {
    /// A shared memory object (`shm_open`).
    Memory,
    /// A named semaphore (`sem_open`).
    Semaphore,
    /// A message queue (`mq_open`).
    Messages,
}

/// Error of a text that is not the name of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResourceNameError {
    /// The text has no known kind before a colon.
    #[error("a resource is shm:ID, sem:ID, msg:ID, pshm:NAME, psem:NAME, mq:NAME, file:PATH, dir:PATH or pid:ID")]
    Kind,
    /// The number after the kind is invalid.
    #[error("the id after shm, sem, msg and pid is a number, or nothing in an intent")]
    Number,
    /// The name after the kind is not a valid name of a POSIX object.
    #[error("the name after pshm, psem and mq is one word of at most {POSIX_MAX} bytes without further /")]
    Posix,
    /// The path after the kind is not absolute, or has empty, `.` or `..` components.
    #[error("the path after file and dir is absolute, and has no part . or ..")]
    Path,
    /// The name is too long, or has control characters.
    #[error("a resource has a name of at most {NAME_MAX} bytes, without control characters")]
    Text,
}

impl Resource {
    /// Parses a name.
    ///
    /// # Errors
    /// Fails for a text that is not the name of a resource.
    pub fn parse(name: &[u8]) -> Result<Self, ResourceNameError> {
        if name.len() > NAME_MAX || name.iter().any(u8::is_ascii_control) {
            return Err(ResourceNameError::Text);
        }
        let colon = name.iter().position(|&byte| byte == b':').ok_or(ResourceNameError::Kind)?;
        let id = &name[colon + 1..];
        match &name[..colon] {
            b"shm" => Ok(Self::SystemV(SystemV::Memory, number(id, 0)?)),
            b"sem" => Ok(Self::SystemV(SystemV::Semaphores, number(id, 0)?)),
            b"msg" => Ok(Self::SystemV(SystemV::Messages, number(id, 0)?)),
            b"pshm" => Ok(Self::Posix(Posix::Memory, posix(id)?)),
            b"psem" => Ok(Self::Posix(Posix::Semaphore, posix(id)?)),
            b"mq" => Ok(Self::Posix(Posix::Messages, posix(id)?)),
            b"file" => Ok(Self::File(path(id)?)),
            b"dir" => Ok(Self::Directory(path(id)?)),
            b"pid" => Ok(Self::Process(number(id, PID_MIN)?)),
            _ => Err(ResourceNameError::Kind),
        }
    }

    /// Returns true if the name identifies an object. Otherwise the object is about to be created, and gets its number then.
    pub fn is_numbered(&self) -> bool {
        !matches!(self, Self::SystemV(_, None) | Self::Process(None))
    }

    /// Returns the name of a future resource of this kind, if the kind has numbers.
    pub fn unnumbered(&self) -> Option<Self> {
        match self {
            Self::SystemV(kind, _) => Some(Self::SystemV(*kind, None)),
            Self::Process(_) => Some(Self::Process(None)),
            Self::Posix(..) | Self::File(_) | Self::Directory(_) => None,
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = |id: &Option<i32>| id.map(|id| id.to_string()).unwrap_or_default();
        match self {
            Self::SystemV(SystemV::Memory, number) => write!(f, "shm:{}", id(number)),
            Self::SystemV(SystemV::Semaphores, number) => write!(f, "sem:{}", id(number)),
            Self::SystemV(SystemV::Messages, number) => write!(f, "msg:{}", id(number)),
            Self::Posix(Posix::Memory, name) => write!(f, "pshm:{name}"),
            Self::Posix(Posix::Semaphore, name) => write!(f, "psem:{name}"),
            Self::Posix(Posix::Messages, name) => write!(f, "mq:{name}"),
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::Directory(path) => write!(f, "dir:{}", path.display()),
            Self::Process(number) => write!(f, "pid:{}", id(number)),
        }
    }
}

fn number(id: &[u8], least: i32) -> Result<Option<i32>, ResourceNameError> {
    if id.is_empty() {
        return Ok(None);
    }
    // `parse` alone would accept a sign.
    let digits = str::from_utf8(id).ok().filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    let number = digits.and_then(|digits| digits.parse().ok()).filter(|&number| number >= least);
    number.map(Some).ok_or(ResourceNameError::Number)
}

fn posix(id: &[u8]) -> Result<String, ResourceNameError> {
    let name = str::from_utf8(id.strip_prefix(b"/").unwrap_or(id)).map_err(|_| ResourceNameError::Posix)?;
    let is_one = !matches!(name, "" | "." | "..") && name.len() <= POSIX_MAX && !name.contains('/');
    is_one.then(|| name.to_owned()).ok_or(ResourceNameError::Posix)
}

fn path(id: &[u8]) -> Result<PathBuf, ResourceNameError> {
    let parts = id.strip_prefix(b"/").ok_or(ResourceNameError::Path)?;
    let leads_on = |part: &[u8]| !matches!(part, b"" | b"." | b"..");
    let is_path = parts.split(|&byte| byte == b'/').all(leads_on);
    is_path.then(|| OsStr::from_bytes(id).into()).ok_or(ResourceNameError::Path)
}

/// A change of a rank's resource. The rank waits until its host has recorded the change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceChange {
    /// The resource.
    pub resource: Resource,
    /// The step.
    pub step: ResourceStep,
}

/// Kind of a [`ResourceChange`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResourceStep {
    /// The rank is about to create the resource.
    Intend,
    /// The rank has created the resource. If the kind has numbers, it replaces an intent of this kind.
    Hold,
    /// The host is no longer responsible: the rank has removed the resource, or cancels its intent.
    Release,
}

/// Reason why the host does not record a resource. The rank must then remove it itself.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResourceError {
    /// The host removes no resources.
    #[error("this host removes no resources")]
    Unserved,
    /// The resource does not exist, or the launch may not remove it.
    #[error("{reason}")]
    Refused {
        /// Reason of the refusal.
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written_alike() {
        let check = |name: &str, resource: Resource| {
            assert_eq!(Resource::parse(name.as_bytes()), Ok(resource.clone()), "{name}");
            assert_eq!(resource.to_string(), name);
        };
        check("shm:0", Resource::SystemV(SystemV::Memory, Some(0)));
        check("shm:", Resource::SystemV(SystemV::Memory, None));
        check("sem:65536", Resource::SystemV(SystemV::Semaphores, Some(65536)));
        check("msg:2147483647", Resource::SystemV(SystemV::Messages, Some(i32::MAX)));
        check("pshm:a b", Resource::Posix(Posix::Memory, "a b".into()));
        check("psem:x", Resource::Posix(Posix::Semaphore, "x".into()));
        check("mq:x", Resource::Posix(Posix::Messages, "x".into()));
        check("file:/tmp/a:b", Resource::File("/tmp/a:b".into()));
        check("dir:/tmp/a", Resource::Directory("/tmp/a".into()));
        check("pid:17", Resource::Process(Some(17)));
        check("pid:", Resource::Process(None));
        assert_eq!(Resource::parse(b"pshm:/x"), Resource::parse(b"pshm:x"));
    }

    #[test]
    fn what_names_nothing_is_refused_with_what_is_possible() {
        let check = |name: &[u8], error| assert_eq!(Resource::parse(name), Err(error), "{}", name.escape_ascii());
        for kind in [&b""[..], b"shm", b"SHM:1", b":1", b"socket:1", b"/tmp/x"] {
            check(kind, ResourceNameError::Kind);
        }
        for number in [&b"shm:-1"[..], b"sem:+1", b"msg:1 ", b"shm:2147483648", b"pid:1", b"pid:0", b"pid:x"] {
            check(number, ResourceNameError::Number);
        }
        let long = [&b"mq:"[..], &[b'x'; 251]].concat();
        for name in [&b"pshm:"[..], b"pshm:/", b"psem:..", b"pshm:.", b"mq:a/b", b"pshm://a", b"pshm:\xff", &long] {
            check(name, ResourceNameError::Posix);
        }
        for path in [&b"file:"[..], b"file:a", b"file:/", b"file:/a/../b", b"dir:/a/", b"dir:/./a", b"file://a"] {
            check(path, ResourceNameError::Path);
        }
        check(b"file:/a\nb", ResourceNameError::Text);
        check(&[&b"file:/"[..], &[b'x'; NAME_MAX]].concat(), ResourceNameError::Text);
    }
}
