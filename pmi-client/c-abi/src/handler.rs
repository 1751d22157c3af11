//! Functions of callers in C that are called later, with what they want to be given.

use core::ffi::c_void;
use core::fmt;
use core::ptr;

/// `void *(*)(void *)`: a function, or NULL.
pub type Function = Option<extern "C" fn(*mut c_void) -> *mut c_void>;

/// `void *`: what a function is given. It is never followed here.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Extra(*mut c_void);

/// A function and what it is given.
#[derive(Clone, Copy)]
pub struct Handler {
    function: extern "C" fn(*mut c_void) -> *mut c_void,
    /// Address of what the function is given: threads hand the handler on.
    extra: usize,
}

impl Handler {
    /// The handler of a function, if there is one.
    pub fn new(function: Function, extra: Extra) -> Option<Self> {
        Some(Self { function: function?, extra: extra.0.expose_provenance() })
    }

    /// Calls the function. What it returns means nothing.
    pub fn call(self) {
        (self.function)(ptr::with_exposed_provenance_mut(self.extra));
    }
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handler")
    }
}
