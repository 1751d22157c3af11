//! Whose turn it is: tests run side by side, but more than one for each processor of those that compute much would only wait for each
//! other.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::available_parallelism;

/// Number of tests that hold a processor.
static HELD: Mutex<usize> = Mutex::new(0);
static GIVEN_BACK: Condvar = Condvar::new();

/// A processor that a test holds as long as it has this value.
pub struct Turn(());

/// Waits until fewer tests hold a processor than there are.
pub fn heavy() -> Turn {
    let processors = available_parallelism().map_or(1, usize::from);
    let mut held = GIVEN_BACK.wait_while(held(), |held| *held >= processors).unwrap_or_else(PoisonError::into_inner);
    *held += 1;
    Turn(())
}

impl Drop for Turn {
    fn drop(&mut self) {
        *held() -= 1;
        GIVEN_BACK.notify_one();
    }
}

fn held() -> MutexGuard<'static, usize> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}
