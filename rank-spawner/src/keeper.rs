//! The keeper: a tiny process that outlives the launcher by as long as it takes to kill what the launcher could not.
//!
//! When the launcher is killed, the kernel kills the ranks (`PR_SET_PDEATHSIG`), but not their children. The keeper waits at
//! a pipe for that moment. The launcher tells it the launch's marks through the pipe, in records:
//!
//! ```text
//! byte 0        kind: 1 = tag, 2 = rank, 3 = directory, 4 = file, 5 = resource, 6 = a resource that is its concern no more
//! bytes 1, 2    length of the rest in native byte order, as all numbers
//! bytes 3..     the tag, or process number (4 bytes), session (4) and start (8) of a rank, or a path, or a number (4) and what is pinned
//! ```

#![expect(unsafe_code, reason = "the call of `fork`, and of what follows it in the child")]

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr};
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getpid, pipe2, setsid, write};
use pmi_core::ids::JobId;

use crate::detach::{Stderr, close_all_but, ignore_signals};
use crate::kill::kill_until_gone;
use crate::launch_tag::{LaunchTag, value_of};
use crate::orphaned_memory::remove_orphaned_memory;
use crate::pinned::Pinned;
use crate::process::RankProcess;
use crate::process_table::{Process, ProcessTable};
use crate::syscalls::{self, Child, pidfd_open, pidfd_send_signal};

/// Bytes before the payload of a record.
const HEADER_LEN: usize = 3;

/// Greatest length of a payload. A record is written whole or not at all as long as it is shorter than `PIPE_BUF`, 4096.
const PAYLOAD_MAX: usize = 4000;

const KIND_TAG: u8 = 1;
const KIND_RANK: u8 = 2;
const KIND_DIRECTORY: u8 = 3;
const KIND_FILE: u8 = 4;
const KIND_RESOURCE: u8 = 5;
const KIND_FORGOTTEN: u8 = 6;

/// Greatest number of launches that a keeper remembers.
const TAGS_MAX: usize = 1 << 10;

/// Greatest number of ranks that a keeper remembers; processes of others are known by their tag alone.
const RANKS_MAX: usize = 1 << 16;

/// Greatest number of files that a keeper remembers, and of directories.
const FILES_MAX: usize = 1 << 12;

/// Greatest number of resources that a keeper remembers.
const RESOURCES_MAX: usize = 1 << 16;

/// Process name of a keeper.
const NAME: &CStr = c"lattice-keeper";

/// Time limit of the clean-up; a process that has not died by then hangs in the kernel.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// The launcher's hold on its keeper.
///
/// Dropping it, like any end of the launcher, lets the keeper kill all processes of the launch that are left.
#[derive(Debug)]
pub struct Keeper {
    pid: Pid,
    pidfd: OwnedFd,
    records: OwnedFd,
}

/// Error of [`Keeper::fork`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeeperError {
    /// A copy of a process with several threads has one thread, and whatever locks the others held.
    #[error("a keeper can be made only while the process has one thread; it has {threads}")]
    Threads {
        /// Number of threads that the process has.
        threads: usize,
    },
    /// The system refused something.
    #[error("cannot make a keeper: {0}")]
    System(#[from] io::Error),
}

impl Keeper {
    /// Forks the keeper. It is a session of its own, ignores signals, holds no descriptor but its pipe, and is called
    /// `lattice-keeper`. Call this early in `main`: the keeper is a copy of the process as it is then.
    ///
    /// # Errors
    /// Refuses to fork a process that has more than one thread; fails when the system has no process or descriptor left.
    pub fn fork() -> Result<Self, KeeperError> {
        let threads = fs::read_dir("/proc/self/task")?.count();
        if threads != 1 {
            return Err(KeeperError::Threads { threads });
        }
        let (reader, records) = pipe2(OFlag::O_CLOEXEC).map_err(io::Error::from)?;
        // The keeper must not be able to stop the launcher by not reading.
        fcntl(&records, FcntlArg::F_SETFL(OFlag::O_WRONLY | OFlag::O_NONBLOCK)).map_err(io::Error::from)?;
        // Room for 16,000 ranks at once; a system that grants less has room for 1,000.
        let _ = fcntl(&records, FcntlArg::F_SETPIPE_SZ(1 << 20));
        // The keeper is born with its name: another launch's keeper, which spares it for that, may look at it at once.
        let ours = prctl::get_name().map_err(io::Error::from)?;
        prctl::set_name(NAME).map_err(io::Error::from)?;
        // It makes no noise among the children: with no other child left, nothing of a launch is left (see `sweep`).
        // SAFETY: this process has one thread, as was just seen, and only that thread could make another; so no lock is held
        // by a thread that the child lacks. The child reads, opens files and sends signals, and never asks for its thread.
        match unsafe { syscalls::fork_quietly() }.map_err(io::Error::from)? {
            0 => {
                drop(records);
                let kept = catch_unwind(AssertUnwindSafe(|| keep(reader)));
                // SAFETY: leaves without running the launcher's exit handlers, whatever happened.
                unsafe { libc::_exit(i32::from(!matches!(kept, Ok(Ok(()))))) }
            }
            child => {
                let child = Pid::from_raw(child);
                prctl::set_name(&ours).map_err(io::Error::from)?;
                let pidfd = pidfd_open(child).map_err(io::Error::from)?;
                Ok(Self { pid: child, pidfd, records })
            }
        }
    }

    /// The number of the keeper's process, which belongs in [`crate::Orphans::Claim`].
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Names a launch of this launcher. Call it before its first rank starts.
    ///
    /// # Errors
    /// `EPIPE` if the keeper is gone, `EAGAIN` if it does not read.
    pub fn guard(&self, tag: &LaunchTag) -> nix::Result<()> {
        self.send(KIND_TAG, tag.value().as_bytes())
    }

    /// Names a rank. Its group then belongs to the launch, tag or no tag.
    ///
    /// # Errors
    /// `ESRCH` if the rank has been reaped already; otherwise as [`Keeper::guard`].
    pub fn guard_rank(&self, rank: &RankProcess) -> nix::Result<()> {
        let rank = Process::read(rank.pid()).ok_or(Errno::ESRCH)?;
        self.send(KIND_RANK, &RankRecord::of(&rank).encode())
    }

    /// Names a directory of the launcher's: it is removed with all that is in it, once no process is left.
    ///
    /// # Errors
    /// `ENAMETOOLONG` for a path of more than 4000 bytes; otherwise as [`Keeper::guard`].
    pub fn guard_directory(&self, path: &Path) -> nix::Result<()> {
        self.send_path(KIND_DIRECTORY, path)
    }

    /// Names a file that ranks may leave: it is removed if it is there, once no process is left.
    ///
    /// # Errors
    /// As [`Keeper::guard_directory`].
    pub fn guard_file(&self, path: &Path) -> nix::Result<()> {
        self.send_path(KIND_FILE, path)
    }

    /// Names a resource that a rank has registered, under a number: it is removed once no process is left.
    ///
    /// # Errors
    /// As [`Keeper::guard_directory`].
    pub fn guard_resource(&self, number: u32, resource: &Pinned) -> nix::Result<()> {
        match resource.to_record() {
            Some(record) => self.send(KIND_RESOURCE, &[&number.to_ne_bytes()[..], &record].concat()),
            None => Ok(()),
        }
    }

    /// A resource is the keeper's concern no more.
    ///
    /// # Errors
    /// As [`Keeper::guard`].
    pub fn forget_resource(&self, number: u32) -> nix::Result<()> {
        self.send(KIND_FORGOTTEN, &number.to_ne_bytes())
    }

    fn send_path(&self, kind: u8, path: &Path) -> nix::Result<()> {
        self.send(kind, path.as_os_str().as_bytes())
    }

    fn send(&self, kind: u8, payload: &[u8]) -> nix::Result<()> {
        if payload.len() > PAYLOAD_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        write(&self.records, &record(kind, payload)).map(drop)
    }

    /// Dismisses the keeper, once [`crate::sweep()`] has found nothing more, and reaps it.
    ///
    /// # Errors
    /// `ECHILD` if somebody else has reaped it.
    pub fn done(self) -> nix::Result<()> {
        // It cannot be late, or be asked while it is stopped, if it is simply killed before the pipe closes.
        match pidfd_send_signal(self.pidfd.as_fd(), Signal::SIGKILL) {
            Ok(()) | Err(Errno::ESRCH) => syscalls::reap(Child::Pidfd(self.pidfd.as_fd())),
            Err(errno) => Err(errno),
        }
    }
}

/// A record as it goes through the pipe; the payload has [`PAYLOAD_MAX`] bytes at most.
fn record(kind: u8, payload: &[u8]) -> Vec<u8> {
    let [low, high] = (payload.len() as u16).to_ne_bytes();
    [&[kind, low, high], payload].concat()
}

/// Reads the next record into `payload`, and returns its kind.
fn read_record(pipe: &mut impl Read, payload: &mut Vec<u8>) -> io::Result<u8> {
    let mut header = [0; HEADER_LEN];
    pipe.read_exact(&mut header)?;
    let [kind, low, high] = header;
    payload.resize(u16::from_ne_bytes([low, high]).into(), 0);
    pipe.read_exact(payload)?;
    Ok(kind)
}

/// Identity of a rank's process, as the launcher records it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct RankRecord {
    pid: Pid,
    session: Pid,
    start: u64,
}

impl RankRecord {
    const LEN: usize = 16;

    fn of(process: &Process) -> Self {
        Self { pid: process.pid, session: process.session, start: process.start }
    }

    fn encode(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&self.pid.as_raw().to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.session.as_raw().to_ne_bytes());
        bytes[8..].copy_from_slice(&self.start.to_ne_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (pid, rest) = bytes.split_first_chunk()?;
        let (session, rest) = rest.split_first_chunk()?;
        let (start, _) = rest.split_first_chunk()?;
        let pid_of = |bytes: &[u8; 4]| Pid::from_raw(i32::from_ne_bytes(*bytes));
        Some(Self { pid: pid_of(pid), session: pid_of(session), start: u64::from_ne_bytes(*start) })
    }
}

/// The launches of one launcher, as the keeper knows them.
#[derive(Default, Debug)]
struct Guarded {
    tags: Vec<LaunchTag>,
    ranks: BTreeMap<Pid, RankRecord>,
    directories: Vec<PathBuf>,
    files: Vec<PathBuf>,
    resources: BTreeMap<u32, Pinned>,
}

impl Guarded {
    /// Adds one record; an unknown or malformed one is ignored.
    fn add(&mut self, kind: u8, payload: &[u8]) {
        match kind {
            KIND_TAG if self.tags.len() < TAGS_MAX => {
                let id = std::str::from_utf8(payload).ok().and_then(|text| JobId::new(text).ok());
                self.tags.extend(id.map(LaunchTag::new));
            }
            KIND_RANK if self.ranks.len() < RANKS_MAX => {
                self.ranks.extend(RankRecord::decode(payload).map(|rank| (rank.pid, rank)));
            }
            KIND_DIRECTORY if self.directories.len() < FILES_MAX => {
                self.directories.push(OsStr::from_bytes(payload).into());
            }
            KIND_FILE if self.files.len() < FILES_MAX => self.files.push(OsStr::from_bytes(payload).into()),
            KIND_RESOURCE if self.resources.len() < RESOURCES_MAX => {
                let parts = payload.split_first_chunk();
                let named = parts
                    .and_then(|(number, pinned)| Some((u32::from_ne_bytes(*number), Pinned::from_record(pinned)?)));
                self.resources.extend(named);
            }
            KIND_FORGOTTEN => {
                if let Some((number, _)) = payload.split_first_chunk() {
                    self.resources.remove(&u32::from_ne_bytes(*number));
                }
            }
            _ => {}
        }
    }

    /// Processes of the launches, wherever they are: the launcher, below which they were, is gone.
    ///
    /// A rank may have been a launcher itself. Its keeper carries our mark and is spared: it alone knows the processes of
    /// its launch, and ends when it has ended them.
    fn find(&self, table: &ProcessTable) -> Vec<Pid> {
        let me = getpid();
        let marked = table.iter().filter(|process| process.pid != me && self.owns(table, process));
        let mut family = table.trees(marked.map(|process| process.pid));
        family.remove(&me);
        family.into_iter().filter(|&pid| !is_keeper(pid)).collect()
    }

    fn owns(&self, table: &ProcessTable, process: &Process) -> bool {
        if let Some(value) = value_of(process.pid) {
            return self.tags.iter().any(|tag| tag.is(&value));
        }
        let Some(rank) = self.ranks.get(&process.group) else {
            return false;
        };
        // The group's number may have been used again since: then its session or its leader is another.
        let leader_is_rank = table.get(rank.pid).is_none_or(|leader| leader.start == rank.start);
        process.session == rank.session && leader_is_rank
    }
}

fn is_keeper(pid: Pid) -> bool {
    fs::read(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_ascii_end() == NAME.to_bytes())
}

/// Main function of the keeper.
fn keep(pipe: OwnedFd) -> io::Result<()> {
    let mut pipe = detach(pipe)?;
    let began = SystemTime::now();
    let mut guarded = Guarded::default();
    let mut payload = Vec::new();
    while let Ok(kind) = read_record(&mut pipe, &mut payload) {
        guarded.add(kind, &payload);
    }
    kill_until_gone(TIME_LIMIT, |table| guarded.find(table))?;
    for (_, resource) in std::mem::take(&mut guarded.resources) {
        resource.remove();
    }
    for file in &guarded.files {
        let _ = fs::remove_file(file);
    }
    remove_orphaned_memory(began);
    for directory in &guarded.directories {
        // What cannot be removed stays, and hinders nothing else.
        let _ = fs::remove_dir_all(directory);
    }
    Ok(())
}

/// Detaches the keeper from the launcher; returns the pipe, the only descriptor that it keeps.
fn detach(pipe: OwnedFd) -> io::Result<fs::File> {
    setsid()?;
    ignore_signals()?;
    // SAFETY: no code of the launcher, which owns the other descriptors, runs in this process again.
    Ok(unsafe { close_all_but(pipe, Stderr::Null) }?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_say_what_was_meant_and_nonsense_says_nothing() {
        let rank = RankRecord { pid: Pid::from_raw(7), session: Pid::from_raw(5), start: 1 << 40 };
        let mut guarded = Guarded::default();
        let records = [
            record(KIND_TAG, "x".repeat(63).as_bytes()),
            record(KIND_RANK, &rank.encode()),
            record(KIND_RESOURCE, b"1234sem 7"),
            record(KIND_RESOURCE, b"1235shm 8 900"),
            record(KIND_FORGOTTEN, b"1234"),
        ]
        .concat();
        let nonsense = [
            record(0, b""),
            record(9, b"x"),
            record(KIND_TAG, b""),
            record(KIND_RANK, b"1234"),
            record(KIND_RESOURCE, b"12"),
            record(KIND_RESOURCE, b"1236nonsense"),
            record(KIND_FORGOTTEN, b"1"),
            vec![0xff; 20],
        ]
        .concat();
        let (records, mut payload) = ([records, nonsense].concat(), Vec::new());
        let mut pipe = &records[..];
        while let Ok(kind) = read_record(&mut pipe, &mut payload) {
            guarded.add(kind, &payload);
        }
        assert_eq!(guarded.resources.len(), 1, "{:?}", guarded.resources);
        assert_eq!(guarded.tags, [LaunchTag::new(JobId::new(&"x".repeat(63)).unwrap())]);
        assert_eq!(guarded.ranks, BTreeMap::from([(rank.pid, rank)]));
    }

    #[test]
    fn a_keeper_remembers_no_more_than_it_has_room_for() {
        let mut guarded = Guarded::default();
        for number in 0..2 * TAGS_MAX {
            guarded.add(KIND_TAG, format!("launch-{number}").as_bytes());
        }
        assert_eq!(guarded.tags.len(), TAGS_MAX);
        for number in 1..=RANKS_MAX as i32 + 10 {
            let rank = RankRecord { pid: Pid::from_raw(number), session: Pid::from_raw(1), start: 1 };
            guarded.add(KIND_RANK, &rank.encode());
        }
        assert_eq!(guarded.ranks.len(), RANKS_MAX);
        for number in 0..2 * FILES_MAX {
            guarded.add(KIND_DIRECTORY, format!("/tmp/{number}").as_bytes());
        }
        assert_eq!(guarded.directories.len(), FILES_MAX);
        for number in 0..=FILES_MAX {
            guarded.add(KIND_FILE, format!("/dev/shm/{number}").as_bytes());
        }
        assert_eq!((guarded.files.len(), &guarded.files[1]), (FILES_MAX, &PathBuf::from("/dev/shm/1")));
    }

    #[test]
    fn a_rank_is_recorded_as_it_is_read() {
        let rank = RankRecord { pid: Pid::from_raw(i32::MAX), session: Pid::from_raw(1), start: u64::MAX };
        assert_eq!(RankRecord::decode(&rank.encode()), Some(rank));
        assert_eq!(RankRecord::decode(&rank.encode()[..15]), None);
    }

    #[test]
    fn a_group_whose_number_was_used_again_is_nobodys() {
        let table = ProcessTable::read().unwrap();
        let me = *table.get(getpid()).unwrap();
        let leader = *table.get(me.group).unwrap_or(&me);
        let check = |rank: RankRecord, expected: bool| {
            let guarded = Guarded { tags: Vec::new(), ranks: BTreeMap::from([(me.group, rank)]), ..Guarded::default() };
            assert_eq!(guarded.owns(&table, &me), expected, "{rank:?}");
        };
        let rank = RankRecord { pid: leader.pid, session: me.session, start: leader.start };
        check(rank, true);
        check(RankRecord { start: rank.start - 1, ..rank }, false);
        check(RankRecord { session: Pid::from_raw(1 << 22), ..rank }, false);
    }

    #[test]
    fn a_process_with_threads_gets_no_keeper() {
        // The test runs on one thread and the harness waits on another.
        std::thread::scope(|scope| {
            let error = scope.spawn(Keeper::fork).join().unwrap().unwrap_err();
            assert!(matches!(error, KeeperError::Threads { threads } if threads > 1), "{error}");
        });
    }
}
