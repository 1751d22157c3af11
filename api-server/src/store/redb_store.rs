//! State in a redb file: tables of protobuf records, by id. Records that hold an environment are sealed. The file is compacted when most of
//! it is free. This is checked when the server starts, and each time that ended launches have freed 16 MiB.

mod inventories;
mod published;

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pmi_transport::proto::v1 as proto;
use pmi_transport::signature::Serial;
use prost::Message;
use redb::{Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition};

use super::fabric_journal::{FABRIC, FabricJournal};
use super::sealing::{Keys, Slot, Unsealed, slot_of};
use super::soundness;
use super::state_file::StateFile;
use super::{Change, ENDED_MAX, EndedLaunch, LaunchRecord, Store, StoreError, StoredState};
use crate::allocations::{Allocation, AllocationState};
use crate::wire::{allocation, registry};

type Records = TableDefinition<'static, &'static str, &'static [u8]>;

const ALLOCATIONS: Records = TableDefinition::new("allocations");
/// Launches that are not over; sealed.
const LAUNCHES: Records = TableDefinition::new("launches");
/// Launches that are over: their summaries, and their full records.
const ENDED_SUMMARIES: Records = TableDefinition::new("ended_summaries");
const ENDED_LAUNCHES: Records = TableDefinition::new("ended_launches");
/// Launch requests of batch jobs, by allocation; sealed.
const SCRIPTS: Records = TableDefinition::new("scripts");
/// By node.
const DRAINS: Records = TableDefinition::new("drains");
/// Nodes that have registered, by name.
const NODES: TableDefinition<'static, &'static str, ()> = TableDefinition::new("nodes");
/// The greatest number of a launch, by [`SERIAL`].
const SERIALS: TableDefinition<'static, &'static str, u64> = TableDefinition::new("serials");
const SERIAL: &str = "launch";

/// Ids of ended launches or allocations, in the order of their ends. The oldest are removed first.
type Ends = TableDefinition<'static, u64, &'static str>;

const ENDED: Ends = TableDefinition::new("ended");
const RELEASED: Ends = TableDefinition::new("released");

/// Bytes that ended launches free before the file is checked for compaction.
const FREED_MUCH: u64 = 16 << 20;

/// Bytes of the file that are cached in memory. Written data is read again only at a restart, and the system has a cache as well.
const CACHE: usize = 16 << 20;

/// A store in a file.
pub(crate) struct RedbStore {
    file: Arc<StateFile>,
    keys: Arc<Keys>,
    /// Bytes that ended launches have freed since the last check of the file.
    freed: AtomicU64,
}

impl RedbStore {
    /// Opens the store at `path`. Creates the file and its directory if they do not exist.
    ///
    /// # Errors
    /// Fails if another process has the file open, and if the file is damaged.
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        let path = path.to_owned();
        if let Some(directory) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(StoreError::Directory)?;
        }
        let keys = private_file(&keys_path(&path)).map_err(StoreError::Keys)?;
        Self::with(keys, move || {
            let is_empty = fs::metadata(&path).is_ok_and(|file| file.len() == 0);
            let file = private_file(&path).map_err(StoreError::File)?;
            let same = file.try_clone().map_err(StoreError::File)?;
            if is_empty {
                tracing::warn!(path = %path.display(), "the state file is empty: a new state begins, without the allocations, launches and queue that there may have been");
            }
            builder().create_file(file).map_err(|error| match error {
                redb::DatabaseError::DatabaseAlreadyOpen => StoreError::InUse { holder: soundness::holder(&same) },
                other => redb::Error::from(other).into(),
            })
        })
    }

    /// A store that exists only as long as this process.
    #[cfg(test)]
    pub(crate) fn in_memory() -> Result<Self, StoreError> {
        let keys = tempfile::tempfile().map_err(StoreError::Keys)?;
        Self::with(keys, || {
            let backend = redb::backends::InMemoryBackend::new();
            Ok(builder().create_with_backend(backend).map_err(redb::Error::from)?)
        })
    }

    fn with(
        keys: File,
        open: impl Fn() -> Result<Database, StoreError> + Send + Sync + 'static,
    ) -> Result<Self, StoreError> {
        let keys = Arc::new(Keys::new(keys));
        let kept = Arc::clone(&keys);
        let file = StateFile::new(move || {
            let database = soundness::checked(&open)?;
            make_tables(&database)?;
            // No change is in progress. A failed change may have left keys without a record.
            kept.keep(&slots(&database, &kept)?).map_err(StoreError::Keys)?;
            Ok(database)
        })?;
        file.compact()?;
        Ok(Self { file: Arc::new(file), keys, freed: AtomicU64::new(0) })
    }

    /// Adds the bytes that ended launches freed, and compacts the file if they are many. The change that freed them is already durable, so
    /// that a failure only costs disk space.
    fn give_back(&self, freed: u64) {
        if self.freed.fetch_add(freed, Ordering::Relaxed) + freed < FREED_MUCH {
            return;
        }
        self.freed.store(0, Ordering::Relaxed);
        if let Err(error) = self.file.compact() {
            tracing::warn!(error = pmi_transport::error_chain::chain(&error), "the state file is not compacted");
        }
    }

    /// The journal of fabric credentials, which is stored in the same file.
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

    /// Rows of a table of sealed records.
    fn unsealed_rows(&self, table: Records) -> Result<Vec<Vec<u8>>, StoreError> {
        let sealed = self.file.ask(|database| {
            let table = database.begin_read()?.open_table(table)?;
            let rows =
                table.iter()?.map(|row| row.map(|(id, sealed)| (id.value().to_owned(), sealed.value().to_vec())));
            Ok(rows.collect::<Result<Vec<_>, _>>()?)
        })?;
        Ok(sealed.iter().map(|(id, sealed)| self.keys.unseal(id, sealed)).collect::<Result<_, Unsealed>>()?)
    }

    fn row(&self, table: Records, id: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.file.ask(|database| {
            let table = database.begin_read()?.open_table(table)?;
            Ok(table.get(id)?.map(|row| row.value().to_vec()))
        })
    }
}

/// Settings of a database. The default cache of redb grows to 1 GiB, which launches with large environments fill.
fn builder() -> redb::Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE);
    builder
}

/// Creates the tables, because readers require them. Earlier servers kept whole records of ended launches among the other launches.
fn make_tables(database: &Database) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    transaction.open_table(ALLOCATIONS)?;
    transaction.open_table(LAUNCHES)?;
    transaction.open_table(ENDED_SUMMARIES)?;
    transaction.open_table(ENDED_LAUNCHES)?;
    transaction.open_table(SCRIPTS)?;
    transaction.open_table(DRAINS)?;
    transaction.open_table(NODES)?;
    published::make_table(&transaction)?;
    inventories::make_tables(&transaction)?;
    transaction.open_table(SERIALS)?;
    transaction.open_table(ENDED)?;
    transaction.open_table(RELEASED)?;
    transaction.open_table(FABRIC)?;
    Ok(transaction.commit()?)
}

/// The slots of the keys under which records are sealed. Records that a repair of the file restored have no key, and are removed again.
fn slots(database: &Database, keys: &Keys) -> Result<HashSet<Slot>, redb::Error> {
    let transaction = database.begin_write()?;
    let mut slots = HashSet::new();
    for table in [LAUNCHES, SCRIPTS] {
        transaction.open_table(table)?.retain(|_, row| {
            let slot = slot_of(row).filter(|&slot| !keys.is_erased(slot));
            slots.extend(slot);
            slot.is_some()
        })?;
    }
    transaction.commit()?;
    Ok(slots)
}

/// A change during its transaction.
struct Writing<'a> {
    transaction: redb::WriteTransaction,
    keys: &'a Keys,
    /// Keys of the sealed records that it removes.
    removed: Vec<Slot>,
    /// Size of these records, in bytes.
    freed: u64,
}

impl Writing<'_> {
    /// Writes a sealed record under the key of the record that it replaces, or under a new key.
    fn seal(&self, table: Records, id: &str, record: &[u8]) -> Result<(), redb::Error> {
        let mut table = self.transaction.open_table(table)?;
        let slot = table.get(id)?.and_then(|row| slot_of(row.value()));
        let slot = slot.map_or_else(|| self.keys.create(), Ok)?;
        table.insert(id, self.keys.seal(slot, id, record)?.as_slice())?;
        Ok(())
    }

    /// Removes a sealed record, if it exists.
    fn remove(&mut self, table: Records, id: &str) -> Result<(), redb::Error> {
        if let Some(row) = self.transaction.open_table(table)?.remove(id)? {
            self.removed.extend(slot_of(row.value()));
            self.freed += row.value().len() as u64;
        }
        Ok(())
    }
}

/// Writes changes, and overwrites the keys of the sealed records that they remove. Returns the size of these records, in bytes.
fn put(database: &Database, keys: &Keys, changes: &[Change]) -> Result<u64, redb::Error> {
    let mut writing = Writing { transaction: database.begin_write()?, keys, removed: Vec::new(), freed: 0 };
    for change in changes {
        let transaction = &writing.transaction;
        match change {
            Change::Allocation(allocation) => put_allocation(&mut writing, allocation)?,
            Change::Script { allocation, request } => writing.seal(SCRIPTS, allocation, request)?,
            Change::Launch(launch) => {
                let id = launch.summary.as_ref().map_or("", |summary| &summary.id);
                writing.seal(LAUNCHES, id, &launch.encode_to_vec())?;
            }
            Change::Ended(launch) => {
                forget_oldest(transaction, launch)?;
                put_ended(&mut writing, launch)?;
            }
            Change::Name { launch, service, names } => published::put(transaction, launch, service, names)?,
            Change::Forgotten(id) => writing.remove(LAUNCHES, id)?,
            Change::Drain(drain) => {
                let record = registry::encode_drain(drain).encode_to_vec();
                transaction.open_table(DRAINS)?.insert(drain.node.as_str(), record.as_slice())?;
            }
            Change::Serial(serial) => put_serial(transaction, *serial)?,
            Change::Registered(nodes) => {
                let mut table = transaction.open_table(NODES)?;
                nodes.iter().try_for_each(|node| table.insert(node.as_str(), ()).map(drop))?;
            }
            Change::Missing(nodes) => {
                let mut table = transaction.open_table(NODES)?;
                nodes.iter().try_for_each(|node| table.remove(node.as_str()).map(drop))?;
            }
            Change::Inventories(changes) => inventories::put(transaction, changes)?,
            Change::Resume(node) => drop(transaction.open_table(DRAINS)?.remove(node.as_str())?),
        }
    }
    writing.transaction.commit()?;
    if let Err(error) = keys.erase(&writing.removed) {
        tracing::warn!(%error, "keys of removed records are not overwritten before the next start of this server");
    }
    Ok(writing.freed)
}

/// Stores the number of a launch, unless the stored number is greater.
fn put_serial(transaction: &redb::WriteTransaction, serial: Serial) -> Result<(), redb::Error> {
    let mut serials = transaction.open_table(SERIALS)?;
    let before = serials.get(SERIAL)?.map_or(0, |row| row.value());
    serials.insert(SERIAL, before.max(serial.0))?;
    Ok(())
}

/// Opens or creates a file with mode 0600. Removes the access of other users from an existing file.
fn private_file(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    if file.metadata()?.permissions().mode() & 0o077 != 0 {
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    Ok(file)
}

/// Path of the key file of a state file.
fn keys_path(state: &Path) -> PathBuf {
    let mut path = OsString::from(state);
    path.push(".keys");
    path.into()
}

/// Stores an allocation. On its release the request of its batch job is removed.
fn put_allocation(writing: &mut Writing<'_>, changed: &Allocation) -> Result<(), redb::Error> {
    let id = changed.id.as_str();
    let is_released = changed.state == AllocationState::Released;
    if is_released {
        writing.remove(SCRIPTS, id)?;
    }
    let mut allocations = writing.transaction.open_table(ALLOCATIONS)?;
    allocations.insert(id, allocation::keep(changed).encode_to_vec().as_slice())?;
    if !is_released {
        return Ok(());
    }
    if let Some(oldest) = put_end(&writing.transaction, RELEASED, id)? {
        // An administrator may have reused the id for an allocation that is not released.
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

/// Stores a launch that is over in place of its sealed record.
fn put_ended(writing: &mut Writing<'_>, launch: &EndedLaunch) -> Result<(), redb::Error> {
    let transaction = &writing.transaction;
    let summary = launch.summary.clone().unwrap_or_default();
    let id = summary.id.as_str();
    transaction.open_table(ENDED_SUMMARIES)?.insert(id, summary.encode_to_vec().as_slice())?;
    transaction.open_table(ENDED_LAUNCHES)?.insert(id, launch.encode_to_vec().as_slice())?;
    published::forget(transaction, id)?;
    writing.remove(LAUNCHES, id)
}

/// Records that a launch is over. If there are more than [`ENDED_MAX`], the launch that ended first is removed.
fn forget_oldest(transaction: &redb::WriteTransaction, launch: &EndedLaunch) -> Result<(), redb::Error> {
    let id = launch.summary.as_ref().map_or("", |summary| &summary.id);
    if let Some(oldest) = put_end(transaction, ENDED, id)? {
        transaction.open_table(ENDED_SUMMARIES)?.remove(oldest.as_str())?;
        transaction.open_table(ENDED_LAUNCHES)?.remove(oldest.as_str())?;
    }
    Ok(())
}

/// Records that `id` has ended. Returns the id that must be removed in exchange, if any.
fn put_end(transaction: &redb::WriteTransaction, ends: Ends, id: &str) -> Result<Option<String>, redb::Error> {
    let mut ends = transaction.open_table(ends)?;
    let next = ends.last()?.map_or(0, |(number, _)| number.value() + 1);
    ends.insert(next, id)?;
    let excess = if ends.len()? > ENDED_MAX { ends.pop_first()? } else { None };
    Ok(excess.map(|(_, oldest)| oldest.value().to_owned()))
}

impl Store for RedbStore {
    fn write(&self, changes: &[Change]) -> Result<(), StoreError> {
        let freed = self.file.ask(|database| put(database, &self.keys, changes))?;
        self.give_back(freed);
        Ok(())
    }

    fn read(&self) -> Result<StoredState, StoreError> {
        let decoded = |row: Vec<u8>| Ok(LaunchRecord::decode(row.as_slice())?);
        let launches: Result<_, StoreError> = self.unsealed_rows(LAUNCHES)?.into_iter().map(decoded).collect();
        let decoded = |row: Vec<u8>| Ok(registry::decode_drain(proto::Drain::decode(row.as_slice())?));
        let drains: Result<_, StoreError> = self.rows(DRAINS)?.into_iter().map(decoded).collect();
        let names = self.file.ask(|database| published::rows(&database.begin_read()?))?;
        let inventories = self.file.ask(|database| inventories::rows(&database.begin_read()?))?;
        let nodes = self.file.ask(|database| {
            let table = database.begin_read()?.open_table(NODES)?;
            let rows = table.iter()?.map(|row| row.map(|(node, _)| node.value().to_owned()));
            Ok(rows.collect::<Result<Vec<_>, _>>()?)
        })?;
        let serial = self.file.ask(|database| {
            let table = database.begin_read()?.open_table(SERIALS)?;
            Ok(Serial(table.get(SERIAL)?.map_or(0, |row| row.value())))
        })?;
        Ok(StoredState {
            allocations: self.allocations()?,
            launches: launches?,
            drains: drains?,
            names: published::by_launch(names)?,
            nodes,
            serial,
            inventories,
        })
    }

    fn allocations(&self) -> Result<Vec<Allocation>, StoreError> {
        self.rows(ALLOCATIONS)?.iter().map(|row| decode_allocation(row)).collect()
    }

    fn allocation(&self, id: &str) -> Result<Option<Allocation>, StoreError> {
        let row = self.row(ALLOCATIONS, id)?;
        row.map(|row| decode_allocation(&row)).transpose()
    }

    fn script(&self, allocation: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let sealed = self.row(SCRIPTS, allocation)?;
        Ok(sealed.map(|sealed| self.keys.unseal(allocation, &sealed)).transpose()?)
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
mod tests;
