//! State in a file of its own format, by way of redb: tables of records in protobuf, by id. What a launch took while it ran is given
//! back when it is over: the file is compacted when most of it is free, as it begins and after so many bytes were freed.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pmi_transport::proto::v1 as proto;
use prost::Message;
use redb::{Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition};

use super::fabric_journal::{FABRIC, FabricJournal};
use super::state_file::StateFile;
use super::{Change, EndedLaunch, Kept, LaunchRecord, Store, StoreError};
use crate::allocations::{Allocation, AllocationState};
use crate::wire::{allocation, registry};

type Records = TableDefinition<'static, &'static str, &'static [u8]>;

const ALLOCATIONS: Records = TableDefinition::new("allocations");
/// Launches that are not over.
const LAUNCHES: Records = TableDefinition::new("launches");
/// Launches that are over, in short, and with all that is kept of them.
const ENDED_SUMMARIES: Records = TableDefinition::new("ended_summaries");
const ENDED_LAUNCHES: Records = TableDefinition::new("ended_launches");
/// Launch requests of batch jobs, by allocation.
const SCRIPTS: Records = TableDefinition::new("scripts");
/// By node.
const DRAINS: Records = TableDefinition::new("drains");

/// Ids of what ended, in the order in which it did; the oldest are forgotten first.
type Ends = TableDefinition<'static, u64, &'static str>;

const ENDED: Ends = TableDefinition::new("ended");
const RELEASED: Ends = TableDefinition::new("released");

/// Number of launches that have ended and are kept, and of allocations.
const ENDED_MAX: u64 = 1000;

/// Bytes of launches that have ended, after which the file may be worth being compacted.
const FREED_MUCH: u64 = 16 << 20;

/// A store in a file.
pub(crate) struct RedbStore {
    file: Arc<StateFile>,
    /// Bytes that launches gave back when they ended, since the file was looked at.
    freed: AtomicU64,
}

impl RedbStore {
    /// Opens the store at `path`; makes it, and its directory, if it is not there.
    ///
    /// # Errors
    /// Fails if another process has it open.
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        let path = path.to_owned();
        Self::with(move || {
            if let Some(directory) = path.parent() {
                // Records hold the environments of running launches.
                DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(StoreError::Directory)?;
            }
            let file = private_file(&path).map_err(StoreError::File)?;
            Ok(Database::builder().create_file(file).map_err(redb::Error::from)?)
        })
    }

    /// A store that ends with this process.
    #[cfg(test)]
    pub(crate) fn in_memory() -> Result<Self, StoreError> {
        Self::with(|| {
            let backend = redb::backends::InMemoryBackend::new();
            Ok(Database::builder().create_with_backend(backend).map_err(redb::Error::from)?)
        })
    }

    fn with(open: impl Fn() -> Result<Database, StoreError> + Send + Sync + 'static) -> Result<Self, StoreError> {
        let file = StateFile::new(move || {
            let database = open()?;
            make_tables(&database)?;
            Ok(database)
        })?;
        file.compact()?;
        Ok(Self { file: Arc::new(file), freed: AtomicU64::new(0) })
    }

    /// Counts what ended launches gave back, and has the file compacted when that is much. The change that freed it is durable already,
    /// so a failure is of no consequence but for the disk.
    fn give_back(&self, freed: u64) {
        if self.freed.fetch_add(freed, Ordering::Relaxed) + freed < FREED_MUCH {
            return;
        }
        self.freed.store(0, Ordering::Relaxed);
        if let Err(error) = self.file.compact() {
            tracing::warn!(error = pmi_transport::error_chain::chain(&error), "the state file is not compacted");
        }
    }

    /// The journal of fabric credentials, which is kept in the same file.
    pub(crate) fn fabric_journal(&self) -> FabricJournal {
        FabricJournal::new(Arc::clone(&self.file))
    }

    fn rows(&self, table: Records) -> Result<Vec<Vec<u8>>, StoreError> {
        self.file.ask(|database| {
            let table = database.begin_read()?.open_table(table)?;
            let rows = table.iter()?.map(|row| Ok(row?.1.value().to_vec()));
            rows.collect()
        })
    }

    fn row(&self, table: Records, id: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.file.ask(|database| {
            let table = database.begin_read()?.open_table(table)?;
            Ok(table.get(id)?.map(|row| row.value().to_vec()))
        })
    }
}

/// Readers need the tables to exist. Servers up to now kept whole records of launches that are over among the others.
fn make_tables(database: &Database) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    transaction.open_table(ALLOCATIONS)?;
    transaction.open_table(LAUNCHES)?;
    transaction.open_table(ENDED_SUMMARIES)?;
    transaction.open_table(ENDED_LAUNCHES)?;
    transaction.open_table(SCRIPTS)?;
    transaction.open_table(DRAINS)?;
    transaction.open_table(ENDED)?;
    transaction.open_table(RELEASED)?;
    transaction.open_table(FABRIC)?;
    for ended in whole_records_of_ended(&transaction)? {
        put_ended(&transaction, &ended)?;
    }
    Ok(transaction.commit()?)
}

fn whole_records_of_ended(transaction: &redb::WriteTransaction) -> Result<Vec<EndedLaunch>, redb::Error> {
    let launches = transaction.open_table(LAUNCHES)?;
    let mut all = Vec::new();
    for row in launches.iter()? {
        // One that cannot be read is told of when all are.
        let record = LaunchRecord::decode(row?.1.value()).ok().filter(|record| record.complete.is_some());
        all.extend(record.as_ref().map(EndedLaunch::of));
    }
    Ok(all)
}

/// Writes changes; returns the bytes that were freed by launches that are over and by batch jobs.
fn put(database: &Database, changes: &[Change]) -> Result<u64, redb::Error> {
    let transaction = database.begin_write()?;
    let mut freed = 0;
    for change in changes {
        match change {
            Change::Allocation(allocation) => freed += put_allocation(&transaction, allocation)?,
            Change::Script { allocation, request } => {
                transaction.open_table(SCRIPTS)?.insert(allocation.as_str(), request.as_slice())?;
            }
            Change::Launch(launch) => {
                let id = launch.summary.as_ref().map_or("", |summary| &summary.id);
                transaction.open_table(LAUNCHES)?.insert(id, launch.encode_to_vec().as_slice())?;
            }
            Change::Ended(launch) => {
                freed += put_ended(&transaction, launch)?;
                forget_oldest(&transaction, launch)?;
            }
            Change::Drain(drain) => {
                let record = registry::encode_drain(drain).encode_to_vec();
                transaction.open_table(DRAINS)?.insert(drain.node.as_str(), record.as_slice())?;
            }
            Change::Resume(node) => drop(transaction.open_table(DRAINS)?.remove(node.as_str())?),
        }
    }
    transaction.commit()?;
    Ok(freed)
}

/// Opens a file that nobody else may read, since it holds the environments of running launches; one that others may read is
/// taken from them.
fn private_file(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    if file.metadata()?.permissions().mode() & 0o077 != 0 {
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    Ok(file)
}

/// Keeps an allocation; returns the size of what is forgotten with its end.
fn put_allocation(transaction: &redb::WriteTransaction, changed: &Allocation) -> Result<u64, redb::Error> {
    let id = changed.id.as_str();
    let mut allocations = transaction.open_table(ALLOCATIONS)?;
    allocations.insert(id, allocation::keep(changed).encode_to_vec().as_slice())?;
    if changed.state != AllocationState::Released {
        return Ok(0);
    }
    let script = transaction.open_table(SCRIPTS)?.remove(id)?.map_or(0, |row| row.value().len());
    if let Some(oldest) = put_end(transaction, RELEASED, id)? {
        // An administrator may have given its id to another one, which lives.
        let record = allocations.get(oldest.as_str())?.and_then(|row| decode_allocation(row.value()).ok());
        if record.is_some_and(|record| record.state == AllocationState::Released) {
            allocations.remove(oldest.as_str())?;
        }
    }
    Ok(script as u64)
}

fn decode_allocation(row: &[u8]) -> Result<Allocation, StoreError> {
    Ok(allocation::decode(proto::Allocation::decode(row)?)?)
}

/// Keeps a launch that is over in place of its record; returns how long that was.
fn put_ended(transaction: &redb::WriteTransaction, launch: &EndedLaunch) -> Result<u64, redb::Error> {
    let summary = launch.summary.clone().unwrap_or_default();
    let id = summary.id.as_str();
    transaction.open_table(ENDED_SUMMARIES)?.insert(id, summary.encode_to_vec().as_slice())?;
    transaction.open_table(ENDED_LAUNCHES)?.insert(id, launch.encode_to_vec().as_slice())?;
    let before = transaction.open_table(LAUNCHES)?.remove(id)?.map_or(0, |row| row.value().len());
    Ok(before as u64)
}

/// Notes that a launch is over, and forgets the one for which that has been so longest, if there are too many.
fn forget_oldest(transaction: &redb::WriteTransaction, launch: &EndedLaunch) -> Result<(), redb::Error> {
    let id = launch.summary.as_ref().map_or("", |summary| &summary.id);
    if let Some(oldest) = put_end(transaction, ENDED, id)? {
        transaction.open_table(ENDED_SUMMARIES)?.remove(oldest.as_str())?;
        transaction.open_table(ENDED_LAUNCHES)?.remove(oldest.as_str())?;
    }
    Ok(())
}

/// Notes that `id` has ended; returns what is to be forgotten for it.
fn put_end(transaction: &redb::WriteTransaction, ends: Ends, id: &str) -> Result<Option<String>, redb::Error> {
    let mut ends = transaction.open_table(ends)?;
    let next = ends.last()?.map_or(0, |(number, _)| number.value() + 1);
    ends.insert(next, id)?;
    let excess = if ends.len()? > ENDED_MAX { ends.pop_first()? } else { None };
    Ok(excess.map(|(_, oldest)| oldest.value().to_owned()))
}

impl Store for RedbStore {
    fn write(&self, changes: &[Change]) -> Result<(), StoreError> {
        let freed = self.file.ask(|database| put(database, changes))?;
        self.give_back(freed);
        Ok(())
    }

    fn read(&self) -> Result<Kept, StoreError> {
        let decoded = |row: Vec<u8>| Ok(LaunchRecord::decode(row.as_slice())?);
        let launches: Result<_, StoreError> = self.rows(LAUNCHES)?.into_iter().map(decoded).collect();
        let decoded = |row: Vec<u8>| Ok(registry::decode_drain(proto::Drain::decode(row.as_slice())?));
        let drains: Result<_, StoreError> = self.rows(DRAINS)?.into_iter().map(decoded).collect();
        Ok(Kept { allocations: self.allocations()?, launches: launches?, drains: drains? })
    }

    fn allocations(&self) -> Result<Vec<Allocation>, StoreError> {
        self.rows(ALLOCATIONS)?.iter().map(|row| decode_allocation(row)).collect()
    }

    fn allocation(&self, id: &str) -> Result<Option<Allocation>, StoreError> {
        let row = self.row(ALLOCATIONS, id)?;
        row.map(|row| decode_allocation(&row)).transpose()
    }

    fn script(&self, allocation: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.row(SCRIPTS, allocation)
    }

    fn ended(&self) -> Result<Vec<proto::LaunchSummary>, StoreError> {
        let rows = self.rows(ENDED_SUMMARIES)?;
        Ok(rows.iter().map(|row| proto::LaunchSummary::decode(row.as_slice())).collect::<Result<_, _>>()?)
    }

    fn ended_launch(&self, id: &str) -> Result<Option<EndedLaunch>, StoreError> {
        let row = self.row(ENDED_LAUNCHES, id)?;
        Ok(row.map(|row| EndedLaunch::decode(row.as_slice())).transpose()?)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use bytes::Bytes;
    use parking_lot::Mutex;
    use pmi_transport::proto::v1::{AppSpec, LaunchCompleteNotification, LaunchSpec, LaunchSummary};
    use redb::StorageBackend;

    use super::*;
    use crate::allocations::allocation::RequeuePolicy;
    use crate::nodes::tests::drain;

    fn allocation(id: &str, state: AllocationState) -> Allocation {
        let nodes = vec!["node0".to_owned(), "node1".to_owned()];
        Allocation { state, requeue: RequeuePolicy::OnNodeFailure, ..Allocation::running(id, 1000, nodes) }
    }

    fn record(id: &str, argument: &[u8]) -> LaunchRecord {
        let app = AppSpec { args: vec![Bytes::copy_from_slice(argument)], ..Default::default() };
        LaunchRecord {
            summary: Some(LaunchSummary { id: id.to_owned(), ..Default::default() }),
            spec: Some(LaunchSpec { apps: vec![app], ..Default::default() }),
            ..Default::default()
        }
    }

    fn running(id: &str) -> Change {
        Change::Launch(Box::new(record(id, b"")))
    }

    fn ended(id: &str) -> Change {
        Change::Ended(Box::new(EndedLaunch::of(&record(id, b""))))
    }

    fn runs(store: &RedbStore, id: &str) -> bool {
        let launches = store.read().unwrap().launches;
        launches.iter().any(|record| record.summary.as_ref().is_some_and(|summary| summary.id == id))
    }

    #[test]
    fn what_was_written_is_there_after_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep/state.redb");
        let allocation = allocation("a", AllocationState::Running);
        let store = RedbStore::open(&path).unwrap();
        let drain = |node: &str| drain(node, "why");
        let drained = [Change::Drain(drain("a")), Change::Drain(drain("b")), Change::Resume("a".to_owned())];
        store.write(&[Change::Allocation(allocation.clone()), running("l")]).unwrap();
        store.write(&drained).unwrap();
        assert!(RedbStore::open(&path).is_err(), "it is open already");
        drop(store);

        let store = RedbStore::open(&path).unwrap();
        let kept = store.read().unwrap();
        assert_eq!((kept.allocations, kept.launches.len()), (vec![allocation.clone()], 1));
        assert_eq!(kept.drains, [drain("b")]);
        assert_eq!(store.allocation("a").unwrap(), Some(allocation));
        assert!(store.allocation("b").unwrap().is_none());
        assert!(runs(&store, "l") && !runs(&store, "m"));
    }

    /// A disk whose bytes outlive a database, and which may be full.
    #[derive(Clone, Debug, Default)]
    struct Disk {
        bytes: Arc<Mutex<Vec<u8>>>,
        full: Arc<AtomicBool>,
    }

    impl Disk {
        fn change<T>(&self, change: impl FnOnce(&mut Vec<u8>) -> T) -> io::Result<T> {
            match self.full.load(Ordering::Relaxed) {
                true => Err(io::ErrorKind::StorageFull.into()),
                false => Ok(change(&mut self.bytes.lock())),
            }
        }
    }

    impl StorageBackend for Disk {
        fn len(&self) -> io::Result<u64> {
            Ok(self.bytes.lock().len() as u64)
        }

        fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            out.copy_from_slice(&self.bytes.lock()[offset as usize..][..out.len()]);
            Ok(())
        }

        fn set_len(&self, len: u64) -> io::Result<()> {
            self.change(|bytes| bytes.resize(len as usize, 0))
        }

        fn sync_data(&self) -> io::Result<()> {
            Ok(())
        }

        fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            self.change(|bytes| bytes[offset as usize..][..data.len()].copy_from_slice(data))
        }
    }

    #[test]
    fn a_disk_that_was_full_for_a_while_is_written_to_again() {
        let disk = Disk::default();
        let full = Arc::clone(&disk.full);
        let open = move || Ok(Database::builder().create_with_backend(disk.clone()).map_err(redb::Error::from)?);
        let store = RedbStore::with(open).unwrap();
        store.write(&[running("before")]).unwrap();
        full.store(true, Ordering::Relaxed);
        for _ in 0..2 {
            assert!(matches!(store.write(&[running("lost")]), Err(StoreError::Database(_))));
        }
        full.store(false, Ordering::Relaxed);
        store.write(&[running("after")]).unwrap();
        assert!(runs(&store, "before") && runs(&store, "after") && !runs(&store, "lost"));
    }

    #[test]
    fn a_record_that_this_version_has_no_meaning_for_is_refused() {
        let refused = |record: proto::Allocation| {
            let store = RedbStore::in_memory().unwrap();
            let put = |database: &Database| {
                let transaction = database.begin_write()?;
                transaction.open_table(ALLOCATIONS)?.insert("a", record.encode_to_vec().as_slice())?;
                Ok(transaction.commit()?)
            };
            store.file.ask(put).unwrap();
            [store.read().map(drop), store.allocation("a").map(drop)].map(|answer| answer.unwrap_err().to_string())
        };
        let expected = "the state file holds a record that this version cannot read";
        let running = proto::AllocationState::Running.into();
        assert_eq!(refused(proto::Allocation { state: 77, ..Default::default() }), [expected; 2]);
        assert_eq!(refused(proto::Allocation { state: running, requeue: 9, ..Default::default() }), [expected; 2]);
    }

    #[test]
    fn nobody_else_reads_the_state() {
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.redb");
        drop(RedbStore::open(&path).unwrap());
        assert_eq!(mode(&path), 0o600);
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        drop(RedbStore::open(&path).unwrap());
        assert_eq!(mode(&path), 0o600, "a state that others could read so far");
    }

    #[test]
    fn the_oldest_of_many_released_allocations_is_forgotten() {
        let allocation = |id: &str, state| Change::Allocation(allocation(id, state));
        let store = RedbStore::in_memory().unwrap();
        // The second one's id was given again.
        let released = ["first", "again"].map(|id| allocation(id, AllocationState::Released));
        store.write(&released).unwrap();
        let more = (2..ENDED_MAX + 2).map(|number| allocation(&format!("a{number}"), AllocationState::Released));
        let lives = std::iter::once(allocation("again", AllocationState::Running));
        store.write(&lives.chain(more).collect::<Vec<_>>()).unwrap();
        assert!(store.allocation("first").unwrap().is_none() && store.allocation("a2").unwrap().is_some());
        assert_eq!(store.allocation("again").unwrap().unwrap().state, AllocationState::Running);
        assert_eq!(store.read().unwrap().allocations.len() as u64, ENDED_MAX + 1);
    }

    #[test]
    fn the_oldest_of_many_ended_launches_is_forgotten() {
        let store = RedbStore::in_memory().unwrap();
        let ended = (0..=ENDED_MAX).map(|number| ended(&format!("l{number}")));
        store.write(&std::iter::once(running("running")).chain(ended).collect::<Vec<_>>()).unwrap();
        assert!(store.ended_launch("l0").unwrap().is_none() && store.ended_launch("l1").unwrap().is_some());
        assert_eq!(store.ended().unwrap().len() as u64, ENDED_MAX);
        assert!(runs(&store, "running") && store.ended_launch("running").unwrap().is_none());
    }

    /// Launches of 1 MiB each go through a file that never becomes larger than a few that run take, and nothing of what they were given is
    /// in it in the end.
    #[test]
    fn the_file_stays_small_however_many_launches_have_ended() {
        const SECRET: &[u8] = b"TOKEN=0123456789abcdef";
        let disk = Disk::default();
        let bytes = Arc::clone(&disk.bytes);
        let open = move || Ok(Database::builder().create_with_backend(disk.clone()).map_err(redb::Error::from)?);
        let store = RedbStore::with(open).unwrap();
        let argument = SECRET.repeat((1 << 20) / SECRET.len());
        for number in 0..40 {
            let id = format!("l{number}");
            store.write(&[Change::Launch(Box::new(record(&id, &argument)))]).unwrap();
            store.write(&[ended(&id)]).unwrap();
        }
        assert!(bytes.lock().len() < 16 << 20, "{} bytes", bytes.lock().len());
        store.file.compact().unwrap();
        let left = bytes.lock().clone();
        assert!(left.len() < 2 << 20, "{} bytes", left.len());
        assert!(!left.windows(SECRET.len()).any(|window| window == SECRET));
        assert_eq!((store.ended().unwrap().len(), store.read().unwrap().launches.len()), (40, 0));
    }

    /// The server is killed, and another one begins with what it left.
    #[test]
    fn a_server_that_begins_gives_back_what_the_one_before_had_no_time_for() {
        let directory = tempfile::tempdir().unwrap();
        let [path, left] = ["state.redb", "left.redb"].map(|name| directory.path().join(name));
        let store = RedbStore::open(&path).unwrap();
        let argument = vec![0; 1 << 20];
        let ids: Vec<String> = (0..24).map(|number| format!("l{number}")).collect();
        ids.iter().for_each(|id| store.write(&[Change::Launch(Box::new(record(id, &argument)))]).unwrap());
        ids.iter().for_each(|id| store.write(&[ended(id)]).unwrap());
        std::fs::copy(&path, &left).unwrap();
        let store = RedbStore::open(&left).unwrap();
        assert_eq!(store.ended().unwrap().len(), ids.len());
        assert!(left.metadata().unwrap().len() < 1 << 20, "{} bytes", left.metadata().unwrap().len());
    }

    #[test]
    fn whole_records_of_launches_that_are_over_are_taken_over() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.redb");
        let store = RedbStore::open(&path).unwrap();
        let complete = Some(LaunchCompleteNotification { success: true, ..Default::default() });
        let over = LaunchRecord { complete, last_event: 7, ..record("over", b"long") };
        store.write(&[Change::Launch(Box::new(over)), running("running")]).unwrap();
        drop(store);
        let store = RedbStore::open(&path).unwrap();
        assert!(runs(&store, "running") && !runs(&store, "over"));
        let kept = store.ended_launch("over").unwrap().unwrap();
        assert_eq!((kept.last_event, kept.complete.unwrap().success), (7, true));
    }
}
