//! State in a file of its own format, by way of redb: tables of records in protobuf, by id.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;

use pmi_transport::proto::v1::Allocation;
use prost::Message;
use redb::{Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition};

use super::fabric_journal::{FABRIC, FabricJournal};
use super::{Change, Kept, LaunchRecord, Store, StoreError};

type Records = TableDefinition<'static, &'static str, &'static [u8]>;

const ALLOCATIONS: Records = TableDefinition::new("allocations");
const LAUNCHES: Records = TableDefinition::new("launches");
/// Ids of launches that ended, by when they did; the oldest are forgotten first.
const ENDED: TableDefinition<'static, u64, &'static str> = TableDefinition::new("ended");

/// How many launches that have ended are kept.
const ENDED_MAX: u64 = 1000;

/// A store in a file.
pub(crate) struct RedbStore {
    database: Arc<Database>,
}

impl RedbStore {
    /// Opens the store at `path`; makes it, and its directory, if it is not there.
    ///
    /// # Errors
    /// Fails if another process has it open.
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        if let Some(directory) = path.parent() {
            // Records hold the environments of running launches.
            DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(StoreError::Directory)?;
        }
        Ok(Self::with(Database::create(path).map_err(redb::Error::from)?)?)
    }

    /// A store that ends with this process.
    #[cfg(test)]
    pub(crate) fn in_memory() -> Result<Self, StoreError> {
        let backend = redb::backends::InMemoryBackend::new();
        Ok(Self::with(Database::builder().create_with_backend(backend).map_err(redb::Error::from)?)?)
    }

    fn with(database: Database) -> Result<Self, redb::Error> {
        // Readers need the tables to exist.
        let transaction = database.begin_write()?;
        transaction.open_table(ALLOCATIONS)?;
        transaction.open_table(LAUNCHES)?;
        transaction.open_table(ENDED)?;
        transaction.open_table(FABRIC)?;
        transaction.commit()?;
        Ok(Self { database: Arc::new(database) })
    }

    /// The journal of fabric credentials, which is kept in the same file.
    pub(crate) fn fabric_journal(&self) -> FabricJournal {
        FabricJournal::new(Arc::clone(&self.database))
    }

    fn put(&self, changes: &[Change]) -> Result<(), redb::Error> {
        let transaction = self.database.begin_write()?;
        for change in changes {
            match change {
                Change::Allocation(allocation) => {
                    let record = allocation.encode_to_vec();
                    transaction.open_table(ALLOCATIONS)?.insert(allocation.id.as_str(), record.as_slice())?;
                }
                Change::Launch(launch) => put_launch(&transaction, launch)?,
            }
        }
        Ok(transaction.commit()?)
    }

    fn rows(&self, table: Records) -> Result<Vec<Vec<u8>>, redb::Error> {
        let table = self.database.begin_read()?.open_table(table)?;
        let rows = table.iter()?.map(|row| Ok(row?.1.value().to_vec()));
        rows.collect()
    }

    fn row(&self, table: Records, id: &str) -> Result<Option<Vec<u8>>, redb::Error> {
        let table = self.database.begin_read()?.open_table(table)?;
        Ok(table.get(id)?.map(|row| row.value().to_vec()))
    }
}

fn put_launch(transaction: &redb::WriteTransaction, launch: &LaunchRecord) -> Result<(), redb::Error> {
    let id = launch.summary.as_ref().map_or("", |summary| &summary.id);
    let mut launches = transaction.open_table(LAUNCHES)?;
    launches.insert(id, launch.encode_to_vec().as_slice())?;
    if launch.complete.is_some() {
        let mut ended = transaction.open_table(ENDED)?;
        let next = ended.last()?.map_or(0, |(number, _)| number.value() + 1);
        ended.insert(next, id)?;
        if ended.len()? > ENDED_MAX
            && let Some((_, oldest)) = ended.pop_first()?
        {
            launches.remove(oldest.value())?;
        }
    }
    Ok(())
}

impl Store for RedbStore {
    fn write(&self, changes: &[Change]) -> Result<(), StoreError> {
        Ok(self.put(changes)?)
    }

    fn read(&self) -> Result<Kept, StoreError> {
        let decoded = |row: Vec<u8>| Ok(Allocation::decode(row.as_slice())?);
        let allocations: Result<_, StoreError> = self.rows(ALLOCATIONS)?.into_iter().map(decoded).collect();
        let decoded = |row: Vec<u8>| Ok(LaunchRecord::decode(row.as_slice())?);
        let launches: Result<_, StoreError> = self.rows(LAUNCHES)?.into_iter().map(decoded).collect();
        Ok(Kept { allocations: allocations?, launches: launches? })
    }

    fn launch(&self, id: &str) -> Result<Option<LaunchRecord>, StoreError> {
        let row = self.row(LAUNCHES, id)?;
        Ok(row.map(|row| LaunchRecord::decode(row.as_slice())).transpose()?)
    }
}

#[cfg(test)]
mod tests {
    use pmi_transport::proto::v1::{AllocationState, LaunchCompleteNotification, LaunchSummary};

    use super::*;

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
        let allocation = Allocation { id: "a".into(), state: AllocationState::Running.into(), ..Default::default() };
        let store = RedbStore::open(&path).unwrap();
        store.write(&[Change::Allocation(allocation.clone()), launch("l", false)]).unwrap();
        assert!(RedbStore::open(&path).is_err(), "it is open already");
        drop(store);

        let store = RedbStore::open(&path).unwrap();
        let kept = store.read().unwrap();
        assert_eq!((kept.allocations, kept.launches.len()), (vec![allocation], 1));
        assert!(store.launch("l").unwrap().is_some() && store.launch("m").unwrap().is_none());
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
