//! The state file, open as a database, and opened anew after it failed: redb refuses everything after one I/O error, as of a disk
//! that was full for a moment, until that is done.

use parking_lot::{MappedRwLockReadGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use redb::Database;

use super::StoreError;

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
