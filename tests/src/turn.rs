//! Mutual exclusion of heavy tests. Tests run concurrently, but two tests that use the whole machine would only
//! delay each other.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Waits until no other test holds the whole machine. The lock is released when the result is dropped.
pub fn heavy() -> MutexGuard<'static, ()> {
    static MACHINE: Mutex<()> = Mutex::new(());
    // A failed test has released the lock, too.
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}
