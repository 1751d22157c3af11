//! Resources that ranks have registered, pinned so that a later removal affects exactly the registered object.
//!
//! A number or a name may refer to another object before its rank ends. Each resource is therefore checked when it is registered: it must belong
//! to the user, and must not be older than the launch. For files the age check allows for the difference between clocks of file systems. The
//! registration stores the identity of the object. The removal checks it again, and leaves an object with another identity.
//!
//! | resource | stored at the registration | checked before the removal |
//! |---|---|---|
//! | System V | number, of shared memory also the maker | owner, creator, maker |
//! | a path, POSIX memory and semaphores | its directory, without links; device, inode and birth of both | the same, owner |
//! | POSIX message queues | device, inode and birth | the same, owner |
//! | a process | a pidfd | - |
//! | shared memory that a rank was about to make | the rank, and the segments that it had made before | `/proc/sysvipc/shm` |

mod path;

use std::fs::{self, Metadata};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::mqueue::{MQ_OFlag, MqdT, mq_close, mq_open, mq_unlink};
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::{Pid, getpid};
use pmi_core::resources::{Posix, Resource, ResourceError, ResourceStep, SystemV};

use self::path::{PathKind, PinnedPath};
use crate::emptying::{is_own, status_of};
use crate::launch_tag::{LaunchTag, value_of};
use crate::process_table::Process;
use crate::syscalls::{pidfd_open, pidfd_send_signal};
use crate::system_v::{self, Object};

/// Time by which clocks of file systems may lag this node's clock.
pub(crate) const CLOCK_SLACK: Duration = Duration::from_secs(2);

/// Limit on the generations between a process and its rank.
const GENERATIONS_MAX: usize = 64;

/// Rank that registers a resource.
#[derive(Clone, Debug)]
pub struct Claimant {
    /// Mark of its launch.
    pub tag: LaunchTag,
    /// Its process, which has not been reaped.
    pub rank: Pid,
    /// Processes of all ranks on this node. A rank is never a resource of another rank.
    pub ranks: Vec<Pid>,
    /// Start of the launch. A resource without a change since then is not a resource of the launch.
    pub since: SystemTime,
}

impl Claimant {
    /// Start of the launch in seconds since 1970, less the possible lag of file system clocks.
    fn since(&self) -> i64 {
        let began = self.since.checked_sub(CLOCK_SLACK).unwrap_or(UNIX_EPOCH);
        began.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs().cast_signed())
    }

    /// True for a process that has the mark of the launch, or descends from the rank.
    fn owns(&self, pid: Pid) -> bool {
        if self.ranks.contains(&pid) || pid == getpid() {
            return false;
        }
        if value_of(pid).is_some_and(|value| self.tag.is(&value)) {
            return true;
        }
        let mut above = Some(pid);
        for _ in 0..GENERATIONS_MAX {
            above = above.and_then(Process::read).map(|process| process.parent);
            if above == Some(self.rank) {
                return true;
            }
        }
        false
    }
}

/// Identity of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
    /// Creation time in nanoseconds since 1970, because inode numbers are reused; 0 if the file system does not report it.
    born: u64,
}

impl FileId {
    /// Encoding of a missing identity in a record.
    const NONE: Self = Self { device: 0, inode: 0, born: 0 };

    fn of(status: &Metadata) -> Self {
        let born = status.created().ok().and_then(|born| born.duration_since(UNIX_EPOCH).ok());
        let born = born.and_then(|born| u64::try_from(born.as_nanos()).ok()).unwrap_or_default();
        Self { device: status.dev(), inode: status.ino(), born }
    }

    /// Parses the numbers of a record; the inner value is `None` for a missing identity.
    fn from_record(mut number: impl FnMut() -> Option<u64>) -> Option<Option<Self>> {
        let id = Self { device: number()?, inode: number()?, born: number()? };
        Some((id != Self::NONE).then_some(id))
    }

    fn to_record(self) -> String {
        let Self { device, inode, born } = self;
        format!("{device} {inode} {born}")
    }
}

/// Resource of a rank, with its identity.
#[derive(Debug)]
pub struct Pinned(Kind);

#[derive(Debug)]
enum Kind {
    SystemV {
        kind: SystemV,
        id: i32,
        maker: Option<Pid>,
    },
    Path(PinnedPath),
    Queue {
        name: String,
        /// `None` for a queue that was about to be made.
        id: Option<FileId>,
    },
    Process(OwnedFd),
    /// Shared memory that the rank was about to make.
    Hunted {
        maker: Pid,
        since: i64,
        known: Vec<i32>,
    },
    /// An intent without a way to find the object, or with a name that existed before.
    Nothing,
}

impl Pinned {
    /// Checks a resource that a rank is about to make or has made.
    ///
    /// # Errors
    /// Fails if the resource does not exist, or does not belong to the launch.
    pub fn new(resource: &Resource, step: ResourceStep, claimant: &Claimant) -> Result<Self, ResourceError> {
        let intends = step == ResourceStep::Intend;
        Ok(Self(match resource {
            Resource::SystemV(SystemV::Memory, None) => {
                let since = claimant.since();
                let known = system_v::segments_made_by(claimant.rank, since);
                Kind::Hunted { maker: claimant.rank, since, known }
            }
            Resource::SystemV(_, None) | Resource::Process(None) => Kind::Nothing,
            Resource::SystemV(kind, Some(id)) => pin_system_v(*kind, *id, claimant)?,
            Resource::Process(Some(pid)) => pin_process(Pid::from_raw(*pid), claimant)?,
            Resource::Posix(Posix::Messages, name) => pin_queue(name, intends, claimant)?,
            Resource::Posix(Posix::Memory, name) => {
                pin_path(format!("/dev/shm/{name}").as_ref(), PathKind::File, intends, claimant)?
            }
            Resource::Posix(Posix::Semaphore, name) => {
                pin_path(format!("/dev/shm/sem.{name}").as_ref(), PathKind::File, intends, claimant)?
            }
            Resource::File(path) => pin_path(path, PathKind::File, intends, claimant)?,
            Resource::Directory(path) => pin_path(path, PathKind::Directory, intends, claimant)?,
        }))
    }

    /// Removes the resource if it exists and has the same identity. After a failure the resource stays.
    pub fn remove(self) {
        match self.0 {
            Kind::SystemV { kind, id, maker } => {
                if Object::read(kind, id).is_ok_and(|object| object.is_own() && object.maker == maker) {
                    let _ = system_v::remove(kind, id);
                }
            }
            Kind::Path(path) => path.remove(),
            Kind::Queue { name, id } => {
                let status = queue_status(&name);
                if status.is_ok_and(|status| is_own(&status) && id.is_none_or(|id| id == FileId::of(&status))) {
                    let _ = mq_unlink(queue_name(&name).as_str());
                }
            }
            Kind::Process(pidfd) => {
                // The process may have ended by itself.
                let _ = pidfd_send_signal(pidfd.as_fd(), Signal::SIGKILL);
            }
            Kind::Hunted { maker, since, known } => {
                let left = system_v::segments_made_by(maker, since);
                for id in left.into_iter().filter(|id| !known.contains(id)) {
                    Self(Kind::SystemV { kind: SystemV::Memory, id, maker: Some(maker) }).remove();
                }
            }
            Kind::Nothing => {}
        }
    }

    /// True for a process. It must end before the resources that it uses are removed.
    pub fn is_process(&self) -> bool {
        matches!(self.0, Kind::Process(_))
    }

    /// Record for a keeper; `None` for resources that need none, since a keeper kills processes of the launch in any case.
    pub(crate) fn to_record(&self) -> Option<Vec<u8>> {
        let text = match &self.0 {
            Kind::SystemV { kind: SystemV::Memory, id, maker } => {
                format!("shm {id} {}", maker.map_or(0, Pid::as_raw))
            }
            Kind::SystemV { kind: SystemV::Semaphores, id, .. } => format!("sem {id}"),
            Kind::SystemV { kind: SystemV::Messages, id, .. } => format!("msg {id}"),
            Kind::Path(path) => return Some([b"path ", &path.to_record()[..]].concat()),
            Kind::Queue { name, id } => {
                format!("mq {} {name}", id.unwrap_or(FileId::NONE).to_record())
            }
            Kind::Hunted { maker, since, known } => {
                let known: Vec<String> = known.iter().map(i32::to_string).collect();
                format!("hunt {maker} {since} {}", known.join(" "))
            }
            Kind::Process(_) | Kind::Nothing => return None,
        };
        Some(text.into_bytes())
    }

    /// Parses a record of [`Pinned::to_record`].
    pub(crate) fn from_record(record: &[u8]) -> Option<Self> {
        if let Some(path) = record.strip_prefix(b"path ") {
            return PinnedPath::from_record(path).map(|path| Self(Kind::Path(path)));
        }
        let (kind, rest) = str::from_utf8(record).ok()?.split_once(' ')?;
        let system_v = |kind| Some(Kind::SystemV { kind, id: rest.parse().ok()?, maker: None });
        Some(Self(match kind {
            "shm" => {
                let (id, maker) = rest.split_once(' ')?;
                let maker = Some(Pid::from_raw(maker.parse().ok()?));
                Kind::SystemV { kind: SystemV::Memory, id: id.parse().ok()?, maker }
            }
            "sem" => system_v(SystemV::Semaphores)?,
            "msg" => system_v(SystemV::Messages)?,
            "mq" => {
                let mut parts = rest.splitn(4, ' ');
                let id = FileId::from_record(|| parts.next()?.parse().ok())?;
                Kind::Queue { name: parts.next()?.to_owned(), id }
            }
            "hunt" => {
                let mut numbers = rest.split_ascii_whitespace();
                let (maker, since) = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
                let known = numbers.map(|number| number.parse().ok()).collect::<Option<_>>()?;
                Kind::Hunted { maker: Pid::from_raw(maker), since, known }
            }
            _ => return None,
        }))
    }
}

fn pin_system_v(kind: SystemV, id: i32, claimant: &Claimant) -> Result<Kind, ResourceError> {
    shares_namespace(claimant, "ipc")?;
    let object = Object::read(kind, id).map_err(|errno| refused(format!("cannot look at it: {errno}")))?;
    if !object.is_own() {
        return Err(refused("it is another user's"));
    }
    if object.changed < claimant.since() {
        return Err(refused("it is older than this launch"));
    }
    if object.maker.is_some_and(|maker| maker != claimant.rank && !claimant.owns(maker)) {
        return Err(refused("no running process of this rank has made it"));
    }
    Ok(Kind::SystemV { kind, id, maker: object.maker })
}

fn pin_process(pid: Pid, claimant: &Claimant) -> Result<Kind, ResourceError> {
    shares_namespace(claimant, "pid")?;
    let pidfd = pidfd_open(pid).map_err(|errno| refused(format!("cannot watch it: {errno}")))?;
    // Checked after the pidfd is open: if the process has ended meanwhile, a signal reaches no process.
    if claimant.owns(pid) {
        Ok(Kind::Process(pidfd))
    } else {
        Err(refused("it is no process of this launch, or a rank"))
    }
}

fn pin_path(path: &std::path::Path, kind: PathKind, intends: bool, claimant: &Claimant) -> Result<Kind, ResourceError> {
    shares_namespace(claimant, "mnt")?;
    let (pinned, status) = PinnedPath::new(path, kind)?;
    match status {
        None if intends => Ok(Kind::Path(pinned)),
        None => Err(refused("there is no such file")),
        Some(_) if intends => Ok(Kind::Nothing),
        Some(status) => {
            made_by_launch(&status, claimant)?;
            pinned.made(&status).map(Kind::Path)
        }
    }
}

fn pin_queue(name: &str, intends: bool, claimant: &Claimant) -> Result<Kind, ResourceError> {
    shares_namespace(claimant, "ipc")?;
    match queue_status(name) {
        Err(Errno::ENOENT) if intends => Ok(Kind::Queue { name: name.to_owned(), id: None }),
        Err(errno) => Err(refused(format!("cannot look at it: {errno}"))),
        Ok(_) if intends => Ok(Kind::Nothing),
        Ok(status) => {
            made_by_launch(&status, claimant)?;
            Ok(Kind::Queue { name: name.to_owned(), id: Some(FileId::of(&status)) })
        }
    }
}

fn queue_name(name: &str) -> String {
    format!("/{name}")
}

fn queue_status(name: &str) -> nix::Result<Metadata> {
    let queue: MqdT = mq_open(queue_name(name).as_str(), MQ_OFlag::O_RDONLY, Mode::empty(), None)?;
    let status = status_of(queue.as_fd());
    let _ = mq_close(queue);
    status
}

fn made_by_launch(status: &Metadata, claimant: &Claimant) -> Result<(), ResourceError> {
    if !is_own(status) {
        return Err(refused("it is another user's"));
    }
    if status.ctime() < claimant.since() {
        return Err(refused("it is older than this launch"));
    }
    Ok(())
}

/// Rejects names of a rank in another namespace, as in a container: they mean other objects there.
fn shares_namespace(claimant: &Claimant, kind: &str) -> Result<(), ResourceError> {
    let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/{kind}")).ok();
    if of(&claimant.rank.to_string()) == of("self") {
        Ok(())
    } else {
        Err(refused(format!("the rank is in another {kind} namespace than its session")))
    }
}

fn refused(reason: impl Into<String>) -> ResourceError {
    ResourceError::Refused { reason: reason.into() }
}
