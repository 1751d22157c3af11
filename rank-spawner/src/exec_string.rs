//! One string of an argument list or environment, checked before a rank starts, so that `execve` does not fail on it.

use std::ffi::CString;

/// Limit of `execve` on the length of an argument or a `NAME=value`, in bytes without the final NUL.
///
/// The kernel's `MAX_ARG_STRLEN` for pages of 4 KiB, the smallest that Linux uses.
pub const MAX_STRING: usize = 131_071;

/// Error for a string that cannot be passed to a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StringError {
    /// The string is longer than the kernel's limit.
    #[error("has {len} bytes; the limit is {MAX_STRING}")]
    TooLong {
        /// Length of the string, in bytes.
        len: usize,
    },
    /// The string has a NUL byte, which would end a C string.
    #[error("holds a NUL byte at offset {offset}")]
    Nul {
        /// Index of the NUL byte.
        offset: usize,
    },
}

/// Converts `bytes` to the form that `execve` needs.
pub(crate) fn exec_string(bytes: Vec<u8>) -> Result<CString, StringError> {
    if bytes.len() > MAX_STRING {
        return Err(StringError::TooLong { len: bytes.len() });
    }
    CString::new(bytes).map_err(|error| StringError::Nul { offset: error.nul_position() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_the_kernels() {
        assert!(exec_string(vec![b'x'; MAX_STRING]).is_ok());
        assert_eq!(exec_string(vec![b'x'; MAX_STRING + 1]), Err(StringError::TooLong { len: MAX_STRING + 1 }));
        assert_eq!(exec_string(b"a\0b".to_vec()), Err(StringError::Nul { offset: 1 }));
    }
}
