//! Resources that outlive the process that made them: what ranks register with their server, so that their host removes what they leave.
//!
//! A name is `KIND:ID`:
//!
//! | kind | id |
//! |---|---|
//! | `shm`, `sem`, `msg` | number of a shared memory segment, a set of semaphores or a message queue of System V; none yet in an intent |
//! | `pshm`, `psem`, `mq` | name of a shared memory object, a semaphore or a message queue of POSIX, with `/` before it or without |
//! | `file`, `dir` | absolute path |
//! | `pid` | number of a process; none yet in an intent |

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// The longest name of a resource, in bytes.
pub const NAME_MAX: usize = 1024;

/// The longest name of a POSIX object, in bytes: a file system adds `sem.` before it, and has 255 for all.
const POSIX_MAX: usize = 250;

/// The lowest process number that a rank can have made.
const PID_MIN: i32 = 2;

/// A resource that a rank has made, or is about to make.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Resource {
    /// An object of System V; without its number, one that is about to be made.
    SystemV(SystemV, Option<i32>),
    /// An object of POSIX, by its name without `/`.
    Posix(Posix, String),
    /// A file, or whatever is no directory, by its absolute path.
    File(PathBuf),
    /// A directory with all that is in it, by its absolute path.
    Directory(PathBuf),
    /// A process; without its number, one that is about to be made.
    Process(Option<i32>),
}

/// Kind of an object of System V.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SystemV {
    /// A shared memory segment (`shmget`).
    Memory,
    /// A set of semaphores (`semget`).
    Semaphores,
    /// A message queue (`msgget`).
    Messages,
}

/// Kind of an object of POSIX.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Posix {
    /// A shared memory object (`shm_open`).
    Memory,
    /// A named semaphore (`sem_open`).
    Semaphore,
    /// A message queue (`mq_open`).
    Messages,
}

/// A text that names no resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResourceNameError {
    /// The text has no known kind before a colon.
    #[error("a resource is shm:ID, sem:ID, msg:ID, pshm:NAME, psem:NAME, mq:NAME, file:PATH, dir:PATH or pid:ID")]
    Kind,
    /// The number behind the kind is none.
    #[error("the id behind shm, sem, msg and pid is a number, or nothing in an intent")]
    Number,
    /// The name behind the kind cannot be one of an object of POSIX.
    #[error("the name behind pshm, psem and mq is one word of at most {POSIX_MAX} bytes without further /")]
    Posix,
    /// The path behind the kind is not absolute, or has parts that lead back.
    #[error("the path behind file and dir is absolute, and has no part . or ..")]
    Path,
    /// The name is very long, or has signs that cannot be shown.
    #[error("a resource has a name of at most {NAME_MAX} bytes, without control characters")]
    Text,
}

impl Resource {
    /// Reads a name.
    ///
    /// # Errors
    /// Fails for a text that names no resource.
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

    /// Returns true if the resource is there by its name; else it is about to be made, and its maker learns its number then.
    pub fn is_numbered(&self) -> bool {
        !matches!(self, Self::SystemV(_, None) | Self::Process(None))
    }

    /// Returns the name of a resource of this kind that is about to be made, where that has no number yet.
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
    // `parse` alone would take a sign.
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

/// A step of a rank's resource, for which it waits until its host has taken note.
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
    /// The rank is about to make it.
    Intend,
    /// The rank has made it. One that has a number only now takes the place of an intent of its kind.
    Hold,
    /// It is the host's concern no more: the rank has removed it, or gives up its intent.
    Release,
}

/// A resource that the host does not take note of; the rank must see to it itself.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResourceError {
    /// The host removes nothing.
    #[error("this host removes no resources")]
    Unserved,
    /// The resource is not there, or not the launch's to remove.
    #[error("{reason}")]
    Refused {
        /// What was seen.
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
