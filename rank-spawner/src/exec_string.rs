//! One string of an argument list or environment, checked before a rank is started rather than by a failing `execve`.

use std::ffi::CString;

/// Greatest length of an argument or a `NAME=value` that `execve` takes, in bytes without the final NUL.
///
/// The kernel's `MAX_ARG_STRLEN` for pages of 4 KiB, the smallest that Linux uses.
pub const MAX_STRING: usize = 131_071;

/// Error for a string that cannot be handed to a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StringError {
    /// The kernel takes no string of this length.
    #[error("has {len} bytes; the limit is {MAX_STRING}")]
    TooLong {
        /// The length seen, in bytes.
        len: usize,
    },
    /// A C string ends at its first NUL.
    #[error("holds a NUL byte at offset {offset}")]
    Nul {
        /// Index of the NUL byte.
        offset: usize,
    },
}

/// Turns `bytes` into the form that `execve` wants.
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
