//! State of a keeper: the launches of its launcher, received as records, and the search for their processes.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use nix::unistd::{Pid, getpid};
use pmi_core::ids::JobId;

use super::NAME;
use crate::launch_tag::{LaunchTag, value_of};
use crate::own_files::FileIdentity;
use crate::pinned::Pinned;
use crate::process_table::{Process, ProcessTable};

/// Length of a record's header, in bytes.
const HEADER_LEN: usize = 3;

/// Limit on the length of a payload. A record shorter than `PIPE_BUF` (4096) is written whole or not at all.
pub(super) const PAYLOAD_MAX: usize = 4000;

pub(super) const KIND_TAG: u8 = 1;
pub(super) const KIND_RANK: u8 = 2;
pub(super) const KIND_DIRECTORY: u8 = 3;
pub(super) const KIND_FILE: u8 = 4;
pub(super) const KIND_RESOURCE: u8 = 5;
pub(super) const KIND_FORGOTTEN: u8 = 6;
pub(super) const KIND_SOCKET: u8 = 7;

/// Limit on the launches that a keeper stores.
const TAGS_MAX: usize = 1 << 10;

/// Limit on the ranks that a keeper stores. Processes of further ranks are found by their tag only.
const RANKS_MAX: usize = 1 << 16;

/// Limit on the files, on the sockets, and on the directories that a keeper stores.
const FILES_MAX: usize = 1 << 12;

/// Limit on the resources that a keeper stores.
const RESOURCES_MAX: usize = 1 << 16;

/// Encodes a record for the pipe; the payload has [`PAYLOAD_MAX`] bytes at most.
pub(super) fn record(kind: u8, payload: &[u8]) -> Vec<u8> {
    let [low, high] = (payload.len() as u16).to_ne_bytes();
    [&[kind, low, high], payload].concat()
}

/// Reads the next record into `payload`, and returns its kind.
pub(super) fn read_record(pipe: &mut impl Read, payload: &mut Vec<u8>) -> io::Result<u8> {
    let mut header = [0; HEADER_LEN];
    pipe.read_exact(&mut header)?;
    let [kind, low, high] = header;
    payload.resize(u16::from_ne_bytes([low, high]).into(), 0);
    pipe.read_exact(payload)?;
    Ok(kind)
}

/// Identity of a rank's process, as recorded by the launcher.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RankRecord {
    pid: Pid,
    session: Pid,
    start: u64,
}

impl RankRecord {
    const LEN: usize = 16;

    pub(super) fn of(process: &Process) -> Self {
        Self { pid: process.pid, session: process.session, start: process.start }
    }

    pub(super) fn encode(self) -> [u8; Self::LEN] {
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

/// The launches of one launcher.
#[derive(Default, Debug)]
pub(super) struct Guarded {
    tags: Vec<LaunchTag>,
    ranks: BTreeMap<Pid, RankRecord>,
    /// By path; without an identity for directories that are only announced.
    pub(super) directories: BTreeMap<PathBuf, Option<FileIdentity>>,
    pub(super) files: Vec<PathBuf>,
    pub(super) sockets: Vec<PathBuf>,
    pub(super) resources: BTreeMap<u32, Pinned>,
}

impl Guarded {
    /// Adds one record; ignores an unknown or malformed one.
    pub(super) fn add(&mut self, kind: u8, payload: &[u8]) {
        match kind {
            KIND_TAG if self.tags.len() < TAGS_MAX => {
                let id = std::str::from_utf8(payload).ok().and_then(|text| JobId::new(text).ok());
                self.tags.extend(id.map(LaunchTag::new));
            }
            KIND_RANK if self.ranks.len() < RANKS_MAX => {
                self.ranks.extend(RankRecord::decode(payload).map(|rank| (rank.pid, rank)));
            }
            KIND_DIRECTORY if self.directories.len() < FILES_MAX => {
                let parts = payload.split_first_chunk();
                let named = parts.map(|(identity, path)| (OsStr::from_bytes(path), FileIdentity::decode(*identity)));
                self.directories.extend(named.map(|(path, identity)| (path.into(), identity)));
            }
            KIND_SOCKET if self.sockets.len() < FILES_MAX => self.sockets.push(OsStr::from_bytes(payload).into()),
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

    /// Processes of the launches, anywhere in the process tree: the launcher, their ancestor, is gone.
    ///
    /// A rank may itself have been a launcher. Its keeper has the mark of this launch, and is spared. Only that keeper can find
    /// the processes of its launch, and it ends after it has killed them.
    pub(super) fn find(&self, table: &ProcessTable) -> Vec<Pid> {
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
        // The group's number may have been reused; then its session or its leader differs.
        let leader_is_rank = table.get(rank.pid).is_none_or(|leader| leader.start == rank.start);
        process.session == rank.session && leader_is_rank
    }
}

fn is_keeper(pid: Pid) -> bool {
    fs::read(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_ascii_end() == NAME.to_bytes())
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
            guarded.add(KIND_DIRECTORY, &[&[0; FileIdentity::LEN], format!("/tmp/{number}").as_bytes()].concat());
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
}
