//! A lock for values that a process has one of, by the C library: `std`'s is not there in the small libraries.

use core::cell::UnsafeCell;
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};

/// A value that one thread looks at at a time. A fork copies it as it is, locked or not.
pub struct Lock<T> {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    value: UnsafeCell<T>,
}

#[expect(unsafe_code, reason = "a lock is shared by threads")]
// SAFETY: the mutex is made to be shared, and who has it locked has the value alone.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// A lock that nobody holds, for a static: it must not be moved once it was locked, so it is locked by `&'static` alone.
    pub const fn new(value: T) -> Self {
        Self { mutex: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER), value: UnsafeCell::new(value) }
    }

    /// Waits until no other thread has the value. A thread that has it must not ask again.
    pub fn lock(&'static self) -> Locked<T> {
        #[expect(unsafe_code, reason = "a call of the C library")]
        // SAFETY: the mutex was made by its initializer, and is never moved.
        unsafe {
            libc::pthread_mutex_lock(self.mutex.get());
        }
        Locked(self, PhantomData)
    }

    /// The value; `None` while another thread has it.
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

/// The value of a lock, which this thread alone has.
pub struct Locked<T: 'static>(&'static Lock<T>, PhantomData<*const T>);

impl<T> Deref for Locked<T> {
    type Target = T;

    fn deref(&self) -> &T {
        #[expect(unsafe_code, reason = "the lock says who has the value")]
        // SAFETY: this thread has the lock.
        unsafe {
            &*self.0.value.get()
        }
    }
}

impl<T> DerefMut for Locked<T> {
    fn deref_mut(&mut self) -> &mut T {
        #[expect(unsafe_code, reason = "the lock says who has the value")]
        // SAFETY: this thread has the lock.
        unsafe {
            &mut *self.0.value.get()
        }
    }
}

impl<T> Drop for Locked<T> {
    fn drop(&mut self) {
        #[expect(unsafe_code, reason = "a call of the C library")]
        // SAFETY: this thread has locked it: a `Locked` has a pointer among its fields, so that it cannot go to another one.
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
