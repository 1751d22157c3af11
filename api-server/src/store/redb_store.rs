//! State in a file of its own format, by way of redb: tables of records in protobuf, by id.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use pmi_transport::proto::v1 as proto;
use prost::Message;
use redb::{Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition};

use super::fabric_journal::{FABRIC, FabricJournal};
use super::state_file::StateFile;
use super::{Change, Kept, LaunchRecord, Store, StoreError};
use crate::allocations::{Allocation, AllocationState};
use crate::wire::{allocation, registry};

type Records = TableDefinition<'static, &'static str, &'static [u8]>;

const ALLOCATIONS: Records = TableDefinition::new("allocations");
const LAUNCHES: Records = TableDefinition::new("launches");
/// By node.
const DRAINS: Records = TableDefinition::new("drains");

/// Ids of what ended, in the order in which it did; the oldest are forgotten first.
type Ends = TableDefinition<'static, u64, &'static str>;

const ENDED: Ends = TableDefinition::new("ended");
const RELEASED: Ends = TableDefinition::new("released");

/// Number of launches that have ended and are kept, and of allocations.
const ENDED_MAX: u64 = 1000;

/// A store in a file.
pub(crate) struct RedbStore {
    file: Arc<StateFile>,
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
        Ok(Self { file: Arc::new(file) })
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

/// Readers need the tables to exist.
fn make_tables(database: &Database) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    transaction.open_table(ALLOCATIONS)?;
    transaction.open_table(LAUNCHES)?;
    transaction.open_table(DRAINS)?;
    transaction.open_table(ENDED)?;
    transaction.open_table(RELEASED)?;
    transaction.open_table(FABRIC)?;
    Ok(transaction.commit()?)
}

fn put(database: &Database, changes: &[Change]) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    for change in changes {
        match change {
            Change::Allocation(allocation) => put_allocation(&transaction, allocation)?,
            Change::Launch(launch) => put_launch(&transaction, launch)?,
            Change::Drain(drain) => {
                let record = registry::encode_drain(drain).encode_to_vec();
                transaction.open_table(DRAINS)?.insert(drain.node.as_str(), record.as_slice())?;
            }
            Change::Resume(node) => drop(transaction.open_table(DRAINS)?.remove(node.as_str())?),
        }
    }
    Ok(transaction.commit()?)
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

fn put_allocation(transaction: &redb::WriteTransaction, changed: &Allocation) -> Result<(), redb::Error> {
    let id = changed.id.as_str();
    let mut allocations = transaction.open_table(ALLOCATIONS)?;
    allocations.insert(id, allocation::encode(changed).encode_to_vec().as_slice())?;
    if changed.state == AllocationState::Released
        && let Some(oldest) = put_end(transaction, RELEASED, id)?
    {
        // An administrator may have given its id to another one, which lives.
        let record = allocations.get(oldest.as_str())?.and_then(|row| decode_allocation(row.value()).ok());
        if record.is_some_and(|record| record.state == AllocationState::Released) {
            allocations.remove(oldest.as_str())?;
        }
    }
    Ok(())
}

fn decode_allocation(row: &[u8]) -> Result<Allocation, StoreError> {
    Ok(allocation::decode(proto::Allocation::decode(row)?)?)
}

fn put_launch(transaction: &redb::WriteTransaction, launch: &LaunchRecord) -> Result<(), redb::Error> {
    let id = launch.summary.as_ref().map_or("", |summary| &summary.id);
    let mut launches = transaction.open_table(LAUNCHES)?;
    launches.insert(id, launch.encode_to_vec().as_slice())?;
    if launch.complete.is_some()
        && let Some(oldest) = put_end(transaction, ENDED, id)?
    {
        launches.remove(oldest.as_str())?;
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
        self.file.ask(|database| put(database, changes))
    }

    fn read(&self) -> Result<Kept, StoreError> {
        let decoded = |row: Vec<u8>| decode_allocation(&row);
        let allocations: Result<_, StoreError> = self.rows(ALLOCATIONS)?.into_iter().map(decoded).collect();
        let decoded = |row: Vec<u8>| Ok(LaunchRecord::decode(row.as_slice())?);
        let launches: Result<_, StoreError> = self.rows(LAUNCHES)?.into_iter().map(decoded).collect();
        let decoded = |row: Vec<u8>| Ok(registry::decode_drain(proto::Drain::decode(row.as_slice())?));
        let drains: Result<_, StoreError> = self.rows(DRAINS)?.into_iter().map(decoded).collect();
        Ok(Kept { allocations: allocations?, launches: launches?, drains: drains? })
    }

    fn allocation(&self, id: &str) -> Result<Option<Allocation>, StoreError> {
        let row = self.row(ALLOCATIONS, id)?;
        row.map(|row| decode_allocation(&row)).transpose()
    }

    fn launch(&self, id: &str) -> Result<Option<LaunchRecord>, StoreError> {
        let row = self.row(LAUNCHES, id)?;
        Ok(row.map(|row| LaunchRecord::decode(row.as_slice())).transpose()?)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use parking_lot::Mutex;
    use pmi_transport::proto::v1::{LaunchCompleteNotification, LaunchSummary};
    use redb::StorageBackend;

    use super::*;
    use crate::allocations::allocation::RequeuePolicy;
    use crate::nodes::tests::drain;

    fn allocation(id: &str, state: AllocationState) -> Allocation {
        Allocation {
            id: id.to_owned(),
            state,
            uid: 1000,
            nodes: vec!["node0".to_owned(), "node1".to_owned()],
            requeue: RequeuePolicy::OnNodeFailure,
            created_at: 1_700_000_000,
            requeues: 0,
        }
    }

    fn launch(id: &str, ended: bool) -> Change {
        Change::Launch(Box::new(LaunchRecord {
            summary: Some(LaunchSummary { id: id.to_owned(), ..Default::default() }),
            complete: ended.then(LaunchCompleteNotification::default),
            ..Default::default()
        }))
    }

    #[test]
    fn what_was_written_is_there_after_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep/state.redb");
        let allocation = allocation("a", AllocationState::Running);
        let store = RedbStore::open(&path).unwrap();
        let drain = |node: &str| drain(node, "why");
        let drained = [Change::Drain(drain("a")), Change::Drain(drain("b")), Change::Resume("a".to_owned())];
        store.write(&[Change::Allocation(allocation.clone()), launch("l", false)]).unwrap();
        store.write(&drained).unwrap();
        assert!(RedbStore::open(&path).is_err(), "it is open already");
        drop(store);

        let store = RedbStore::open(&path).unwrap();
        let kept = store.read().unwrap();
        assert_eq!((kept.allocations, kept.launches.len()), (vec![allocation.clone()], 1));
        assert_eq!(kept.drains, [drain("b")]);
        assert_eq!(store.allocation("a").unwrap(), Some(allocation));
        assert!(store.allocation("b").unwrap().is_none());
        assert!(store.launch("l").unwrap().is_some() && store.launch("m").unwrap().is_none());
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
        store.write(&[launch("before", false)]).unwrap();
        full.store(true, Ordering::Relaxed);
        for _ in 0..2 {
            assert!(matches!(store.write(&[launch("lost", false)]), Err(StoreError::Database(_))));
        }
        full.store(false, Ordering::Relaxed);
        store.write(&[launch("after", false)]).unwrap();
        assert!(store.launch("before").unwrap().is_some() && store.launch("after").unwrap().is_some());
        assert!(store.launch("lost").unwrap().is_none());
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
        let running = launch("running", false);
        let ended = (0..=ENDED_MAX).map(|number| launch(&format!("l{number}"), true));
        store.write(&std::iter::once(running).chain(ended).collect::<Vec<_>>()).unwrap();
        assert!(store.launch("l0").unwrap().is_none());
        assert!(store.launch("l1").unwrap().is_some() && store.launch("running").unwrap().is_some());
    }
}
