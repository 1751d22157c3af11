//! Pairs that a caller in C receives and returns: `PMI_keyval_t` arrays of `PMI_Parse_option` and `PMI_Args_to_keyval`.
//!
//! The memory is from `malloc`, because some callers free it directly.

use core::ffi::c_char;
use core::ptr::{self, NonNull};

/// `PMI_keyval_t` as the caller receives it; both parts may be NULL.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HandedOutPair {
    key: Option<NonNull<c_char>>,
    value: Option<NonNull<c_char>>,
}

/// `PMI_keyval_t *`: an array of pairs that belongs to the caller, or NULL.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct HandedOut(Option<NonNull<HandedOutPair>>);

/// A key and a value; either may be missing.
pub type PairOfBytes<'a> = (Option<&'a [u8]>, Option<&'a [u8]>);

impl HandedOut {
    /// Returns an array of these pairs, NULL if there are none; `None` if memory is exhausted.
    pub fn new(pairs: &[PairOfBytes<'_>]) -> Option<Self> {
        if pairs.is_empty() {
            return Some(Self(None));
        }
        let array: NonNull<HandedOutPair> = allocate(size_of::<HandedOutPair>().checked_mul(pairs.len())?)?.cast();
        for (number, (key, value)) in pairs.iter().enumerate() {
            let pair = HandedOutPair { key: copied(*key)?, value: copied(*value)? };
            #[expect(unsafe_code, reason = "the array is for a caller in C")]
            // SAFETY: the array was allocated for this number of pairs. `malloc` aligns it for all types.
            unsafe {
                array.add(number).write(pair);
            }
        }
        Some(Self(Some(array)))
    }

    /// Returns true for NULL.
    pub fn is_null(self) -> bool {
        self.0.is_none()
    }

    /// Frees the array with the texts of its first `count` pairs. The caller must ensure that they exist, and must not use them
    /// any more.
    pub fn free(self, count: usize) {
        let Some(array) = self.0 else { return };
        for number in 0..count {
            #[expect(unsafe_code, reason = "the array belongs to a caller in C")]
            // SAFETY: the caller's array has `count` pairs. Each text is NULL or memory of `malloc`, which `free` accepts.
            unsafe {
                let HandedOutPair { key, value } = array.add(number).read();
                [key, value].into_iter().flatten().for_each(|text| libc::free(text.as_ptr().cast()));
            }
        }
        #[expect(unsafe_code, reason = "the array belongs to a caller in C")]
        // SAFETY: as for the texts.
        unsafe {
            libc::free(array.as_ptr().cast());
        }
    }
}

/// Returns a copy with a NUL at its end; `None` if memory is exhausted.
#[expect(clippy::option_option, reason = "a text that is missing is no failure")]
fn copied(text: Option<&[u8]>) -> Option<Option<NonNull<c_char>>> {
    let Some(text) = text else { return Some(None) };
    let copy: NonNull<u8> = allocate(text.len() + 1)?.cast();
    #[expect(unsafe_code, reason = "the text is for a caller in C")]
    // SAFETY: the new copy has room for the text and one more byte.
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr(), copy.as_ptr(), text.len());
        copy.add(text.len()).write(0);
    }
    Some(Some(copy.cast()))
}

fn allocate(bytes: usize) -> Option<NonNull<libc::c_void>> {
    #[expect(unsafe_code, reason = "callers free it with `free`")]
    // SAFETY: `malloc` has no preconditions.
    NonNull::new(unsafe { libc::malloc(bytes) })
}

#[cfg(test)]
#[expect(unsafe_code, reason = "as a caller in C")]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn text(text: Option<NonNull<c_char>>) -> Option<&'static CStr> {
        // SAFETY: the text was created by `copied`, and is freed after its last use below.
        text.map(|text| unsafe { CStr::from_ptr(text.as_ptr()) })
    }

    #[test]
    fn pairs_are_handed_out_with_what_is_missing_as_null() {
        assert!(HandedOut::new(&[]).unwrap().is_null());
        let handed_out = HandedOut::new(&[(Some(b"-k"), Some(b"v")), (None, Some(b"")), (Some(b"-x"), None)]).unwrap();
        let array = handed_out.0.unwrap();
        let seen = [0, 1, 2].map(|number| {
            // SAFETY: there are three pairs.
            let pair = unsafe { array.add(number).read() };
            (text(pair.key), text(pair.value))
        });
        assert_eq!(seen, [(Some(c"-k"), Some(c"v")), (None, Some(c"")), (Some(c"-x"), None)]);
        handed_out.free(3);
    }
}
