//! Checks of a state file. The whole file is checked when it is opened, because a damaged record that is found later ends the server. In
//! addition, redb panics on some kinds of damage.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::panic::{self, AssertUnwindSafe, catch_unwind};

use redb::Database;

use super::StoreError;

/// Opens a database and checks all of it.
///
/// # Errors
/// Fails as `open` does, and with [`StoreError::Damaged`] if the file is no database or a part of it is not as it was written.
pub(super) fn checked(open: impl FnOnce() -> Result<Database, StoreError>) -> Result<Database, StoreError> {
    let checked = catch_unwind(AssertUnwindSafe(|| {
        let mut database = open()?;
        if !database.check_integrity().map_err(redb::Error::from)? {
            tracing::warn!("the state file was damaged, and is repaired; what was written last may be missing");
        }
        Ok(database)
    }));
    match checked {
        Ok(Err(StoreError::Database(error))) if is_damage(&error) => {
            Err(StoreError::Damaged { what: error.to_string() })
        }
        Ok(result) => result,
        Err(_) => Err(StoreError::Damaged { what: "a part of it makes no sense".to_owned() }),
    }
}

fn is_damage(error: &redb::Error) -> bool {
    match error {
        redb::Error::Corrupted(_) => true,
        redb::Error::Io(error) => matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof),
        _ => false,
    }
}

/// Runs a step of the server's start without printing its panics, which are reported as errors instead.
pub(crate) fn quietly<T>(run: impl FnOnce() -> T) -> T {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let result = run();
    panic::set_hook(hook);
    result
}

/// Process that holds the lock of a file, if the kernel lists it.
pub(super) fn holder(file: &File) -> Option<u32> {
    let inode = format!(":{} ", file.metadata().ok()?.ino());
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let lock = locks.lines().find(|line| line.contains(" FLOCK ") && line.contains(&inode))?;
    lock.split_whitespace().nth(4)?.parse().ok()
}
