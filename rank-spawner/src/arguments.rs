//! The argument list of a program, checked once and shared by all ranks that run it.

use std::ffi::{CString, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::sync::Arc;

use crate::exec_string::{StringError, exec_string};

/// An argument list, `argv[0]` included. Clones share the strings.
#[derive(Clone, Debug)]
pub struct Arguments(Arc<[CString]>);

/// Error for an argument that cannot be passed to a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("argument {position} {error}")]
#[non_exhaustive]
pub struct ArgumentError {
    /// Index in the list; 0 is the program's own name.
    pub position: usize,
    /// Reason.
    pub error: StringError,
}

impl Arguments {
    /// Takes the whole list. The first argument is the name that the program gets as its own.
    ///
    /// # Errors
    /// Fails for an argument that has a NUL byte or more than [`crate::MAX_STRING`] bytes.
    pub fn new<S: AsRef<OsStr>>(list: impl IntoIterator<Item = S>) -> Result<Self, ArgumentError> {
        let checked = |(position, argument): (usize, S)| {
            exec_string(argument.as_ref().as_bytes().to_vec()).map_err(|error| ArgumentError { position, error })
        };
        list.into_iter().enumerate().map(checked).collect::<Result<_, _>>().map(Self)
    }

    /// The arguments, the program's own name first.
    pub fn iter(&self) -> impl Iterator<Item = &OsStr> {
        self.0.iter().map(|argument| OsStr::from_bytes(argument.to_bytes()))
    }

    /// The null-terminated array for `execve`; it is valid as long as `self`.
    pub(crate) fn pointers(&self) -> Vec<*const c_char> {
        self.0.iter().map(|argument| argument.as_ptr()).chain([ptr::null()]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_argument_is_named_by_its_place() {
        let error = Arguments::new(["a", "b\0c"]).unwrap_err();
        assert_eq!(error.to_string(), "argument 1 holds a NUL byte at offset 1");
        let error = Arguments::new([&"x".repeat(131_072)]).unwrap_err();
        assert_eq!(error.to_string(), "argument 0 has 131072 bytes; the limit is 131071");
        assert_eq!(Arguments::new(["a", ""]).unwrap().pointers().len(), 3);
    }

    #[test]
    fn a_list_is_read_as_it_was_given() {
        assert!(Arguments::new(["a", "", "b c"]).unwrap().iter().eq(["a", "", "b c"]));
    }
}
