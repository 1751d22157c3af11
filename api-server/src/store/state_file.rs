//! The state file, open as a database, and opened anew after it failed: redb refuses everything after one I/O error, as of a disk
//! that was full for a moment, until that is done.

use parking_lot::{MappedRwLockReadGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use redb::Database;

use super::StoreError;

/// Bytes that may be free in the file before it is worth compacting.
const FREE_MUCH: u64 = 64 << 10;

/// A database that is shared by all who keep something in it.
pub(super) struct StateFile {
    open: Box<dyn Fn() -> Result<Database, StoreError> + Send + Sync>,
    /// `None` from an I/O error on, until it is open again.
    database: RwLock<Option<Database>>,
}

impl StateFile {
    /// Opens it; `open` does so now, and again whenever it has failed.
    pub(super) fn new(
        open: impl Fn() -> Result<Database, StoreError> + Send + Sync + 'static,
    ) -> Result<Self, StoreError> {
        let database = RwLock::new(Some(open()?));
        Ok(Self { open: Box::new(open), database })
    }

    /// Asks the database something.
    ///
    /// # Errors
    /// Fails if that does, or if a database that had failed cannot be opened again.
    pub(super) fn ask<T>(&self, ask: impl FnOnce(&Database) -> Result<T, redb::Error>) -> Result<T, StoreError> {
        let database = self.opened()?;
        let answer = ask(&database);
        drop(database);
        if matches!(answer, Err(redb::Error::Io(_) | redb::Error::PreviousIo)) {
            // Closed now, since the file is locked for as long as it is open.
            *self.database.write() = None;
        }
        Ok(answer?)
    }

    /// Compacts the file if most of it is free; who asks meanwhile waits.
    ///
    /// # Errors
    /// Fails if the database does; then it is opened again when it is asked next.
    pub(super) fn compact(&self) -> Result<(), StoreError> {
        let mut database = self.database.write();
        let compacted = database.as_mut().map_or(Ok(()), compact);
        if compacted.is_err() {
            *database = None;
        }
        Ok(compacted?)
    }

    fn opened(&self) -> Result<MappedRwLockReadGuard<'_, Database>, StoreError> {
        if let Ok(database) = RwLockReadGuard::try_map(self.database.read(), Option::as_ref) {
            return Ok(database);
        }
        let mut failed = self.database.write();
        if failed.is_none() {
            *failed = Some((self.open)()?);
            tracing::info!("the state file had failed, and is open again");
        }
        let opened = RwLockWriteGuard::downgrade(failed);
        Ok(RwLockReadGuard::map(opened, |database| database.as_ref().expect("it was opened under this lock")))
    }
}

/// Compacts a database that has more than [`FREE_MUCH`] bytes free, and more free than in use.
fn compact(database: &mut Database) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    let stats = transaction.stats()?;
    transaction.abort()?;
    let (free, used) = (stats.fragmented_bytes(), stats.stored_bytes() + stats.metadata_bytes());
    if free > FREE_MUCH && free > used {
        database.compact()?;
        tracing::debug!(free, used, "the state file was compacted");
    }
    Ok(())
}
