//! Functions of callers in C that are called later, with their arguments.

use core::ffi::c_void;
use core::fmt;
use core::ptr;

/// `void *(*)(void *)`: a function, or NULL.
pub type Function = Option<extern "C" fn(*mut c_void) -> *mut c_void>;

/// `void *`: the argument of a function. It is never dereferenced here.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Extra(*mut c_void);

/// A function and its argument.
#[derive(Clone, Copy)]
pub struct Handler {
    function: extern "C" fn(*mut c_void) -> *mut c_void,
    /// Address of the argument, as a number, because the handler moves between threads.
    extra: usize,
}

impl Handler {
    /// Returns the handler of a function; `None` for NULL.
    pub fn new(function: Function, extra: Extra) -> Option<Self> {
        Some(Self { function: function?, extra: extra.0.expose_provenance() })
    }

    /// Calls the function. Its result is ignored.
    pub fn call(self) {
        (self.function)(ptr::with_exposed_provenance_mut(self.extra));
    }
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handler")
    }
}
