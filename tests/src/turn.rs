//! Whose turn it is: tests run side by side, but two that need the whole machine would only wait for each other.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Waits until no other test holds the whole machine; it is given back when the result is dropped.
pub fn heavy() -> MutexGuard<'static, ()> {
    static MACHINE: Mutex<()> = Mutex::new(());
    // A test that failed has given it back, too.
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}
