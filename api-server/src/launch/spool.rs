//! The events of a launch without an owner, on disk. Viewers that attach later can read all events, and memory does not grow.
//!
//! ```text
//! EventLog ─batch─> write (a task) ──> segment, segment, segment   each is a file without a name, deleted when the server ends
//!   ^                │                  ^ dropped first            when one launch, or all launches together, exceed their limit
//!   └── settled ─────┘                    segments of ended launches first, then segments of the user with the most output
//! ```
//!
//! The disk can slow down the ranks, as an owner that reads slowly does. No other part of the server waits for the disk. A record consists of
//! its length (4 bytes), the bytes of output before it (8 bytes), both little-endian, and the event as encoded by
//! [`wire::entry`](crate::wire::entry).

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use parking_lot::Mutex;

use super::entry::Entry;
use crate::wire;

/// Number of files among which a launch's space is divided. The oldest file is dropped when the space is full.
const SEGMENTS: u64 = 16;
/// Largest number of bytes of one read, except for a longer record. Pieces of output have up to 64 KiB.
const READ: u64 = 80 << 10;
/// Length of a record before its message, in bytes.
const HEADER: usize = 12;

/// Limits on the output of launches without an owner that is stored on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpoolLimits {
    /// Limit for one launch, in bytes; 0 disables the spool.
    pub launch: u64,
    /// Limit for all launches together, in bytes.
    pub total: u64,
}

impl Default for SpoolLimits {
    fn default() -> Self {
        Self { launch: 64 << 20, total: 4 << 30 }
    }
}

/// The spools of all launches, and their shared space.
#[derive(Debug)]
pub(crate) struct Spools {
    directory: PathBuf,
    limits: SpoolLimits,
    used: AtomicU64,
    /// All existing spools.
    all: Mutex<Vec<Weak<Spool>>>,
    /// Spools of ended launches, in the order of their end.
    ended: Mutex<VecDeque<Weak<Spool>>>,
}

/// The output of one launch on disk.
#[derive(Debug)]
pub(crate) struct Spool {
    spools: Arc<Spools>,
    /// The user of the launch.
    uid: u32,
    segments: Mutex<VecDeque<Arc<Segment>>>,
}

/// A part of a spool. The file is deleted when its last reader drops it.
#[derive(Debug)]
struct Segment {
    spools: Arc<Spools>,
    /// The number of its first event.
    first: u64,
    file: File,
    /// End of the completely written part.
    end: Mutex<End>,
}

#[derive(Clone, Copy, Debug)]
struct End {
    bytes: u64,
    /// The number of its last event.
    last: u64,
}

/// Position of a reader in a spool. It saves a search for each read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bookmark {
    /// The number of the first event of the current segment.
    segment: u64,
    position: u64,
}

/// A piece of a spool to be read.
#[derive(Debug)]
pub(crate) struct Slice {
    segment: Arc<Segment>,
    position: u64,
    end: u64,
}

/// Reason why events were not written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SpoolError {
    #[error("all {total} bytes of room for output are taken, by what is being read at present; see spool_total")]
    Full { total: u64 },
    #[error("it cannot be written")]
    Io(#[from] io::Error),
}

impl Spools {
    /// Spools are files in `directory`, which must exist when the first file is created.
    pub(crate) fn new(directory: PathBuf, limits: SpoolLimits) -> Arc<Self> {
        Arc::new(Self { directory, limits, used: AtomicU64::new(0), all: Mutex::default(), ended: Mutex::default() })
    }

    /// Creates a spool for a launch of this user; `None` if spools are disabled.
    pub(crate) fn open(self: &Arc<Self>, uid: u32) -> Option<Arc<Spool>> {
        if self.limits.launch == 0 {
            return None;
        }
        let spool = Arc::new(Spool { spools: Arc::clone(self), uid, segments: Mutex::default() });
        let mut all = self.all.lock();
        all.retain(|spool| spool.strong_count() > 0);
        all.push(Arc::downgrade(&spool));
        Some(spool)
    }

    /// The largest spool of the user with the most output on disk; `None` if there is no output.
    fn largest(&self) -> Option<Arc<Spool>> {
        let all: Vec<Arc<Spool>> = self.all.lock().iter().filter_map(Weak::upgrade).collect();
        let mut users: HashMap<u32, u64> = HashMap::new();
        all.iter().for_each(|spool| *users.entry(spool.uid).or_default() += spool.bytes());
        let (&user, _) = users.iter().filter(|&(_, &bytes)| bytes > 0).max_by_key(|&(_, &bytes)| bytes)?;
        all.into_iter().filter(|spool| spool.uid == user).max_by_key(|spool| spool.bytes())
    }

    /// Allocates space. Returns false if there is not enough.
    fn take(&self, bytes: u64) -> bool {
        let more = |used: u64| used.checked_add(bytes).filter(|&used| used <= self.limits.total);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Drops the oldest output of the launch that ended first, among ended launches with output. Returns false if there is none.
    fn drop_of_ended(&self) -> bool {
        let mut ended = self.ended.lock();
        while let Some(first) = ended.front() {
            if first.upgrade().is_some_and(|spool| spool.drop_oldest()) {
                return true;
            }
            ended.pop_front();
        }
        false
    }

    /// Creates a file without a name (`O_TMPFILE`). No process can replace such a file, and it never remains on disk. On a file system without
    /// support for this, the file has a random name, which is removed at once.
    fn file(&self) -> io::Result<File> {
        tempfile::tempfile_in(&self.directory)
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        self.spools.used.fetch_sub(self.end.get_mut().bytes, Ordering::Relaxed);
    }
}

impl Spool {
    /// Returns the events after `after`, starting at the bookmark if it is in the right segment. `None` if there are none.
    pub(crate) fn after(&self, after: u64, bookmark: &Bookmark) -> Option<Slice> {
        let segments = self.segments.lock();
        let segment = segments.iter().find(|segment| segment.end.lock().last > after)?;
        let position = if bookmark.segment == segment.first { bookmark.position } else { 0 };
        let end = segment.end.lock().bytes;
        Some(Slice { segment: Arc::clone(segment), position, end })
    }

    /// The launch has ended: from now on, its output is dropped first when a running launch needs space.
    pub(crate) fn end(self: &Arc<Self>) {
        let mut ended = self.spools.ended.lock();
        ended.retain(|spool| spool.strong_count() > 0);
        ended.push_back(Arc::downgrade(self));
    }

    /// Adds entries, which must follow the previous entries. If space is missing, it drops output of ended launches, and then the oldest output
    /// of the user with the most output. Blocks.
    ///
    /// # Errors
    /// Fails if the disk fails, or if the dropped output is still being read. Then no entry was added.
    pub(crate) fn append(&self, entries: &[Entry]) -> Result<(), SpoolError> {
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else { return Ok(()) };
        let mut text = BytesMut::new();
        entries.iter().for_each(|entry| put(&mut text, entry));
        let segment = self.make_room(first.sequence, text.len() as u64)?;
        let end = *segment.end.lock();
        let written = segment.file.write_all_at(&text, end.bytes);
        let end = End { bytes: end.bytes + text.len() as u64, last: last.sequence };
        if written.is_ok() {
            *segment.end.lock() = end;
        } else {
            self.spools.used.fetch_sub(text.len() as u64, Ordering::Relaxed);
        }
        Ok(written?)
    }

    /// Bytes of all its segments.
    fn bytes(&self) -> u64 {
        self.segments.lock().iter().map(|segment| segment.end.lock().bytes).sum()
    }

    /// Drops the oldest output of the user with the most output. If that is the user of this spool, this spool is first. Returns false if there
    /// is no output.
    fn drop_for_room(&self) -> bool {
        match self.spools.largest() {
            Some(largest) if largest.uid == self.uid => self.drop_oldest() || largest.drop_oldest(),
            Some(largest) => largest.drop_oldest(),
            None => false,
        }
    }

    /// Drops its oldest segment. Returns false if it has none.
    fn drop_oldest(&self) -> bool {
        self.segments.lock().pop_front().is_some()
    }

    /// Allocates `bytes`. Returns the segment to write to. If the last segment is full, it is a new one that starts at the event `first`.
    fn make_room(&self, first: u64, bytes: u64) -> Result<Arc<Segment>, SpoolError> {
        let SpoolLimits { launch, total } = self.spools.limits;
        while self.bytes() + bytes > launch && self.drop_oldest() {}
        while !self.spools.take(bytes) {
            // Dropped output frees space, unless it is still being read.
            if bytes > total || !(self.spools.drop_of_ended() || self.drop_for_room()) {
                return Err(SpoolError::Full { total });
            }
        }
        let mut segments = self.segments.lock();
        match segments.back() {
            Some(last) if last.end.lock().bytes + bytes <= launch / SEGMENTS => Ok(Arc::clone(last)),
            _ => {
                let file = self.spools.file().inspect_err(|_| {
                    self.spools.used.fetch_sub(bytes, Ordering::Relaxed);
                })?;
                let end = Mutex::new(End { bytes: 0, last: first - 1 });
                let segment = Arc::new(Segment { spools: Arc::clone(&self.spools), first, file, end });
                segments.push_back(Arc::clone(&segment));
                Ok(segment)
            }
        }
    }
}

impl Slice {
    /// Reads the available events. Returns them with the bookmark for the following events. Blocks.
    ///
    /// # Errors
    /// Fails if the disk fails.
    pub(crate) fn read(&self) -> io::Result<(Vec<Entry>, Bookmark)> {
        let mut bytes = self.read_at(READ)?;
        if let Some(length) = record_length(&bytes).filter(|&length| length > bytes.len()) {
            bytes = self.read_at(length as u64)?;
        }
        let (mut entries, mut position) = (Vec::new(), self.position);
        while let Some(length) = record_length(&bytes).filter(|&length| length <= bytes.len()) {
            entries.push(get(bytes.split_to(length))?);
            position += length as u64;
        }
        if entries.is_empty() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "a record is cut short"));
        }
        Ok((entries, Bookmark { segment: self.segment.first, position }))
    }

    fn read_at(&self, bytes: u64) -> io::Result<Bytes> {
        let mut buffer = vec![0; bytes.min(self.end.saturating_sub(self.position)) as usize];
        self.segment.file.read_exact_at(&mut buffer, self.position)?;
        Ok(buffer.into())
    }
}

fn put(text: &mut BytesMut, entry: &Entry) {
    let start = text.len();
    text.put_u32_le(0);
    text.put_u64_le(entry.before);
    wire::entry::put(text, entry);
    let length = (text.len() - start - HEADER) as u32;
    text[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// Length of the first record; `None` if its header is incomplete.
fn record_length(bytes: &[u8]) -> Option<usize> {
    (bytes.len() >= HEADER).then(|| HEADER + (&bytes[..4]).get_u32_le() as usize)
}

fn get(mut record: Bytes) -> io::Result<Entry> {
    record.advance(4);
    let before = record.get_u64_le();
    wire::entry::get(record, before).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use lattice_session::event::{Event, Output, Stream};
    use pmi_core::ids::{NodeIndex, Rank};

    use super::super::event_log::tests::output;
    use super::*;
    use crate::launch::event::{LogEvent, NodeEvent};

    fn spools(launch: u64, total: u64) -> (tempfile::TempDir, Arc<Spools>) {
        let directory = tempfile::tempdir().unwrap();
        let spools = Spools::new(directory.path().to_owned(), SpoolLimits { launch, total });
        (directory, spools)
    }

    fn entry(sequence: u64, bytes: usize) -> Entry {
        let before = (sequence - 1) * bytes as u64;
        Entry { sequence, node: NodeIndex(0), event: output(bytes), before }
    }

    /// Asserts that both lists have the same entries in the same order.
    #[track_caller]
    fn assert_same(left: &[Entry], right: &[Entry]) {
        assert_eq!(left.len(), right.len());
        for (left, right) in left.iter().zip(right) {
            assert_eq!((wire::entry::encode(left), left.before), (wire::entry::encode(right), right.before));
        }
    }

    /// Reads all events after `after`, in the same way as a reader.
    fn read_all(spool: &Spool, mut after: u64) -> Vec<Entry> {
        let (mut all, mut bookmark) = (Vec::new(), Bookmark::default());
        while let Some(slice) = spool.after(after, &bookmark) {
            let (entries, next) = slice.read().unwrap();
            bookmark = next;
            all.extend(entries.into_iter().filter(|entry| entry.sequence > after));
            after = all.last().unwrap().sequence;
        }
        all
    }

    #[test]
    fn what_is_written_is_read_in_order() {
        let (directory, spools) = spools(1 << 20, 1 << 20);
        let spool = spools.open(1).unwrap();
        let entries: Vec<Entry> = (1..=500).map(|sequence| entry(sequence, 1000)).collect();
        entries.chunks(7).for_each(|batch| spool.append(batch).unwrap());
        assert!(spool.segments.lock().len() > 5);
        assert_same(&read_all(&spool, 0), &entries);
        assert_same(&read_all(&spool, 123), &entries[123..]);
        assert!(spool.after(500, &Bookmark::default()).is_none());
        assert_eq!(directory.path().read_dir().unwrap().count(), 0, "files have no names");
        drop(spool);
        assert_eq!(spools.used.load(Ordering::Relaxed), 0);
    }

    /// Fixes the bytes of a record, so that a change of the format fails.
    #[test]
    fn a_record_is_its_length_the_output_before_it_and_a_message() {
        let output = Output { rank: Rank(0), stream: Stream::Stdout, bytes: "hi\n".into() };
        let event = LogEvent::Node(NodeEvent::of_session(Event::Output(output)));
        let mut bytes = BytesMut::new();
        put(&mut bytes, &Entry { sequence: 5, node: NodeIndex(2), event, before: 7 });
        let message = b"\x08\x05\x10\x02\x1a\x07\x12\x05\x1a\x03hi\n";
        let expected = [&13_u32.to_le_bytes()[..], &7_u64.to_le_bytes(), message].concat();
        assert_eq!(bytes, expected);
        let record = get(bytes.freeze()).unwrap();
        assert_eq!((record.sequence, record.node, record.before, record.output()), (5, NodeIndex(2), 7, 3));
    }

    #[test]
    fn a_record_may_be_longer_than_what_is_read_at_once() {
        let (_directory, spools) = spools(16 << 20, 16 << 20);
        let spool = spools.open(1).unwrap();
        let entries = [entry(1, 3 * READ as usize), entry(2, 3 * READ as usize)];
        spool.append(&entries).unwrap();
        assert_same(&read_all(&spool, 0), &entries);
    }

    #[test]
    fn the_oldest_makes_room() {
        let (_directory, spools) = spools(100_000, 1 << 20);
        let spool = spools.open(1).unwrap();
        (1..=500).for_each(|sequence| spool.append(&[entry(sequence, 1000)]).unwrap());
        let left = read_all(&spool, 0);
        assert!(left.len() > 80 && left.len() < 100, "{}", left.len());
        assert_same(&left[left.len() - 1..], &[entry(500, 1000)]);
        assert!(spools.used.load(Ordering::Relaxed) <= 100_000);
    }

    #[test]
    fn all_launches_share_the_room() {
        let (_directory, spools) = spools(50_000, 60_000);
        let [one, two] = [spools.open(1).unwrap(), spools.open(1).unwrap()];
        (1..=40).for_each(|sequence| one.append(&[entry(sequence, 1000)]).unwrap());
        (1..=40).for_each(|sequence| two.append(&[entry(sequence, 1000)]).unwrap());
        assert!(spools.used.load(Ordering::Relaxed) <= 60_000);
        assert_eq!(read_all(&one, 0).len(), 40);
        assert_same(&read_all(&two, 39), &[entry(40, 1000)]);
        assert!(matches!(two.append(&[entry(41, 60_000)]), Err(SpoolError::Full { total: 60_000 })));
    }

    #[test]
    fn nobody_takes_the_room_of_others() {
        let (_directory, spools) = spools(50_000, 100_000);
        let greedy: Vec<_> = (0..3).map(|_| spools.open(1).unwrap()).collect();
        for spool in &greedy {
            (1..=45).for_each(|sequence| spool.append(&[entry(sequence, 1000)]).unwrap());
        }
        let modest = spools.open(2).unwrap();
        (1..=40).for_each(|sequence| modest.append(&[entry(sequence, 1000)]).unwrap());
        (46..=90).for_each(|sequence| greedy[0].append(&[entry(sequence, 1000)]).unwrap());
        assert_eq!(read_all(&modest, 0).len(), 40, "it has less than the other user");
        assert!(spools.used.load(Ordering::Relaxed) <= 100_000);
    }

    #[test]
    fn launches_that_ended_make_room_first_and_the_first_of_them_before_others() {
        let (_directory, spools) = spools(50_000, 100_000);
        let [one, two, three] = [spools.open(1).unwrap(), spools.open(1).unwrap(), spools.open(1).unwrap()];
        for spool in [&one, &two] {
            (1..=40).for_each(|sequence| spool.append(&[entry(sequence, 1000)]).unwrap());
            spool.end();
        }
        (1..=40).for_each(|sequence| three.append(&[entry(sequence, 1000)]).unwrap());
        assert_eq!(read_all(&three, 0).len(), 40);
        assert_eq!(read_all(&two, 0).len(), 40);
        assert!(read_all(&one, 0).len() < 25);
        (41..=48).for_each(|sequence| three.append(&[entry(sequence, 1000)]).unwrap());
        assert_eq!(read_all(&three, 0).len(), 48);
        // The last event of a launch may follow its end.
        two.append(&[entry(41, 1000)]).unwrap();
        assert!(spools.used.load(Ordering::Relaxed) <= 100_000);
    }

    #[test]
    fn a_launch_may_be_given_no_room() {
        let (_directory, spools) = spools(0, 1 << 20);
        assert!(spools.open(1).is_none());
    }
}
