//! A lock of the C library, for values that exist once per process. The lock of `std` is not available in the small
//! libraries.

use core::cell::UnsafeCell;
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};

/// A value that only one thread accesses at a time. A fork copies it in its present state, locked or not.
pub struct Lock<T> {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    value: UnsafeCell<T>,
}

#[expect(unsafe_code, reason = "a lock is shared by threads")]
// SAFETY: the mutex may be shared between threads, and only the thread that holds it accesses the value.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// Creates an open lock for a static. The lock must not move after it was locked. Therefore it can only be locked
    /// through `&'static`.
    pub const fn new(value: T) -> Self {
        Self { mutex: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER), value: UnsafeCell::new(value) }
    }

    /// Waits until no other thread has the value. A thread that has the value must not call this again.
    pub fn lock(&'static self) -> Locked<T> {
        #[expect(unsafe_code, reason = "a call of the C library")]
        // SAFETY: the mutex was created by its initializer, and never moves.
        unsafe {
            libc::pthread_mutex_lock(self.mutex.get());
        }
        Locked(self, PhantomData)
    }

    /// Returns the value; `None` while another thread has it.
    pub fn try_lock(&'static self) -> Option<Locked<T>> {
        #[expect(unsafe_code, reason = "a call of the C library")]
        // SAFETY: as for `lock`.
        let result = unsafe { libc::pthread_mutex_trylock(self.mutex.get()) };
        (result == 0).then(|| Locked(self, PhantomData))
    }
}

impl<T> fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lock")
    }
}

/// The value of a lock, to which only this thread has access.
pub struct Locked<T: 'static>(&'static Lock<T>, PhantomData<*const T>);

impl<T> Deref for Locked<T> {
    type Target = T;

    fn deref(&self) -> &T {
        #[expect(unsafe_code, reason = "the lock guards the value")]
        // SAFETY: this thread holds the lock.
        unsafe {
            &*self.0.value.get()
        }
    }
}

impl<T> DerefMut for Locked<T> {
    fn deref_mut(&mut self) -> &mut T {
        #[expect(unsafe_code, reason = "the lock guards the value")]
        // SAFETY: this thread holds the lock.
        unsafe {
            &mut *self.0.value.get()
        }
    }
}

impl<T> Drop for Locked<T> {
    fn drop(&mut self) {
        #[expect(unsafe_code, reason = "a call of the C library")]
        // SAFETY: this thread holds the lock. A `Locked` has a pointer field, so that it cannot move to another thread.
        unsafe {
            libc::pthread_mutex_unlock(self.0.mutex.get());
        }
    }
}

impl<T> fmt::Debug for Locked<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Locked")
    }
}
