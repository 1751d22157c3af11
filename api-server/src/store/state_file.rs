//! The state file, open as a database. After one I/O error, for example on a full disk, redb refuses all requests until the file is
//! reopened. This module reopens it.

use parking_lot::{MappedRwLockReadGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use redb::Database;

use super::StoreError;

/// Free bytes in the file up to which it is not compacted.
const FREE_MUCH: u64 = 64 << 10;

/// A database that the store and the fabric journal share.
pub(super) struct StateFile {
    open: Box<dyn Fn() -> Result<Database, StoreError> + Send + Sync>,
    /// `None` after an I/O error, until the file is open again.
    database: RwLock<Option<Database>>,
}

impl StateFile {
    /// Opens the file with `open`, which is called again after each failure.
    pub(super) fn new(
        open: impl Fn() -> Result<Database, StoreError> + Send + Sync + 'static,
    ) -> Result<Self, StoreError> {
        let database = RwLock::new(Some(open()?));
        Ok(Self { open: Box::new(open), database })
    }

    /// Runs a request on the database.
    ///
    /// # Errors
    /// Fails if the request fails, or if a failed database cannot be reopened.
    pub(super) fn ask<T>(&self, ask: impl FnOnce(&Database) -> Result<T, redb::Error>) -> Result<T, StoreError> {
        let database = self.opened()?;
        let answer = ask(&database);
        drop(database);
        if matches!(answer, Err(redb::Error::Io(_) | redb::Error::PreviousIo)) {
            // Closed at once, because the file is locked as long as it is open.
            *self.database.write() = None;
        }
        Ok(answer?)
    }

    /// Compacts the file if most of it is free; concurrent requests wait.
    ///
    /// # Errors
    /// Fails if the compaction fails; the next request then reopens the file.
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
