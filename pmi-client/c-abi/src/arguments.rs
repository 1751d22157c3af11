//! Arguments of callers in C, as types that a parameter can have: they look like pointers to the caller, and cannot be made in Rust.
//!
//! So a value of these types comes from a caller in C, who promises what the header says: a pointer is NULL, or leads to what its
//! type names for as long as the call lasts, and a length counts what is there. Every `unsafe` block below rests on that.

use alloc::vec::Vec;
use core::ffi::{CStr, c_char, c_int};
use core::marker::PhantomData;
use core::ptr::{self, NonNull};

use pmi_client::Limits;

use crate::code::Code;

/// `const char *`: a text, or NULL.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Text<'c>(Option<NonNull<c_char>>, PhantomData<&'c CStr>);

impl<'c> Text<'c> {
    /// No text.
    pub const NULL: Self = Self(None, PhantomData);

    /// Bytes of the text; `None` for NULL.
    pub fn bytes(self) -> Option<&'c [u8]> {
        let text = self.0?;
        #[expect(unsafe_code, reason = "a C string is a pointer")]
        // SAFETY: the caller's text ends with a NUL, and lasts as long as the call.
        let text = unsafe { CStr::from_ptr(text.as_ptr()) };
        Some(text.to_bytes())
    }

    /// The text, if there is one and it is UTF-8.
    ///
    /// # Errors
    /// Returns `invalid` otherwise.
    pub fn or(self, invalid: Code) -> Result<&'c str, Code> {
        self.bytes().and_then(|bytes| str::from_utf8(bytes).ok()).ok_or(invalid)
    }

    /// A key that the launcher takes.
    ///
    /// # Errors
    /// [`Code::KEY`] for anything else.
    pub fn key(self, limits: &Limits) -> Result<&'c str, Code> {
        let key = self.or(Code::KEY)?;
        limits.check_key(key).map(|()| key).map_err(|_| Code::KEY)
    }

    /// A value that the launcher takes.
    ///
    /// # Errors
    /// [`Code::VALUE`] for anything else.
    pub fn value(self, limits: &Limits) -> Result<&'c [u8], Code> {
        let value = self.bytes().ok_or(Code::VALUE)?;
        limits.check_value(value).map(|()| value).map_err(|_| Code::VALUE)
    }
}

/// `T *`: a place for one value, or NULL.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Out<'c, T>(Option<NonNull<T>>, PhantomData<&'c mut T>);

impl<'c, T: Copy> Out<'c, T> {
    /// The place, if there is one.
    ///
    /// # Errors
    /// Returns `missing` for NULL.
    pub fn or(self, missing: Code) -> Result<Place<'c, T>, Code> {
        self.place().ok_or(missing)
    }

    /// The place; `None` for NULL.
    pub fn place(self) -> Option<Place<'c, T>> {
        self.0.map(|place| Place(place, self.1))
    }

    /// Writes a value; does nothing for NULL.
    pub fn set(self, value: T) {
        if let Some(place) = self.place() {
            place.set(value);
        }
    }
}

/// A place for one value.
#[derive(Clone, Copy, Debug)]
pub struct Place<'c, T>(NonNull<T>, PhantomData<&'c mut T>);

impl<T: Copy> Place<'_, T> {
    /// Writes a value.
    pub fn set(self, value: T) {
        #[expect(unsafe_code, reason = "a place of the caller is a pointer")]
        // SAFETY: the caller's place has room for a `T`, whatever is there now.
        unsafe {
            self.0.write(value);
        }
    }

    /// The value that the caller has put there, where the header says so.
    pub fn value(self) -> T {
        #[expect(unsafe_code, reason = "a place of the caller is a pointer")]
        // SAFETY: the caller has put a value there.
        unsafe {
            self.0.read()
        }
    }
}

/// `char *`: a buffer for a text, or NULL. Its size is another argument.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct TextOut<'c>(Option<NonNull<c_char>>, PhantomData<&'c mut [c_char]>);

impl<'c> TextOut<'c> {
    /// The buffer of a size that the caller states; none for NULL, and none without room for the NUL of a text.
    pub fn with_size(self, size: c_int) -> Option<Buffer<'c>> {
        let start = self.0?;
        let size = usize::try_from(size).ok().filter(|&size| size > 0)?;
        Some(Buffer { start, size, caller: self.1 })
    }

    /// Returns true for NULL.
    pub fn is_null(self) -> bool {
        self.0.is_none()
    }
}

/// Room for a text and its NUL.
#[derive(Clone, Copy, Debug)]
pub struct Buffer<'c> {
    start: NonNull<c_char>,
    /// Bytes, at least one.
    size: usize,
    caller: PhantomData<&'c mut [c_char]>,
}

/// A text that is longer than the buffer for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooShort;

impl Buffer<'_> {
    /// Writes the whole text, or nothing.
    ///
    /// # Errors
    /// Fails when the text and its NUL have no room.
    pub fn put_whole(self, text: &[u8]) -> Result<(), TooShort> {
        if text.len() < self.size { self.put_cut(text) } else { Err(TooShort) }
    }

    /// Writes as much of the text as there is room for, and a NUL.
    ///
    /// # Errors
    /// Fails when the text was cut.
    pub fn put_cut(self, text: &[u8]) -> Result<(), TooShort> {
        let fits = &text[..text.len().min(self.size - 1)];
        let start = self.start.cast::<u8>();
        #[expect(unsafe_code, reason = "a buffer of the caller is a pointer and a length")]
        // SAFETY: the caller's buffer has `size` bytes, of which these are the first `fits.len() + 1`. `fits` is memory of ours, or of
        // another argument; a caller who passes one buffer twice gets what `memmove` makes of it.
        unsafe {
            ptr::copy(fits.as_ptr(), start.as_ptr(), fits.len());
            start.add(fits.len()).write(0);
        }
        if fits.len() == text.len() { Ok(()) } else { Err(TooShort) }
    }
}

/// `const T []`: values, or NULL. Their number is another argument.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Array<'c, T>(Option<NonNull<T>>, PhantomData<&'c [T]>);

impl<'c, T: Copy> Array<'c, T> {
    /// No array.
    pub const NULL: Self = Self(None, PhantomData);

    /// The values, as many as the caller states; `None` for NULL and for a negative number.
    pub fn with_length(self, length: c_int) -> Option<&'c [T]> {
        let length = usize::try_from(length).ok()?;
        if length == 0 {
            return Some(&[]);
        }
        let first = self.0?;
        #[expect(unsafe_code, reason = "an array of the caller is a pointer and a length")]
        // SAFETY: the caller's array has so many values, and nobody changes them while the call lasts. A `T` is a number, a pointer or a
        // structure of them, which have no invalid values.
        Some(unsafe { core::slice::from_raw_parts(first.as_ptr(), length) })
    }

    /// The address, which some callers give a meaning of its own.
    pub fn address(self) -> usize {
        self.0.map_or(0, |first| first.addr().get())
    }

    /// The first value; `None` for NULL.
    pub fn first(self) -> Option<&'c T> {
        self.with_length(1)?.first()
    }

    /// The value so far behind the first one, which the caller has said to be there.
    fn at(self, index: usize) -> Option<T> {
        let first = self.0?;
        #[expect(unsafe_code, reason = "an array of the caller is a pointer")]
        // SAFETY: the array has a value there, as its users say where they ask.
        Some(unsafe { first.add(index).read() })
    }
}

impl<'c> Array<'c, Text<'c>> {
    /// Texts up to the first NULL, which such an array ends with; none for NULL itself.
    pub fn until_null(self) -> impl Iterator<Item = &'c [u8]> {
        // Not the end before, so there is a value here.
        (0..).map_while(move |index| self.at(index)?.bytes())
    }
}

/// `T []`: room for values, or NULL. Its length is another argument.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct ArrayOut<'c, T>(Option<NonNull<T>>, PhantomData<&'c mut [T]>);

impl<T: Copy> ArrayOut<'_, T> {
    /// Returns true for NULL.
    pub fn is_null(self) -> bool {
        self.0.is_none()
    }

    /// Values that the caller has put there, where the header says so, as many as he states; `None` for NULL and for a negative number.
    pub fn values(self, length: c_int) -> Option<Vec<T>> {
        Some(Array(self.0, PhantomData).with_length(length)?.to_vec())
    }

    /// Writes values from the first place on, as many as the caller has room for by `length`. Returns their number.
    pub fn fill(self, length: c_int, values: impl IntoIterator<Item = T>) -> usize {
        let Some(first) = self.0 else { return 0 };
        let room = usize::try_from(length).unwrap_or(0);
        let mut written = 0;
        for value in values.into_iter().take(room) {
            #[expect(unsafe_code, reason = "an array of the caller is a pointer and a length")]
            // SAFETY: the caller's array has `room` places, and this is one of them.
            unsafe {
                first.add(written).write(value);
            }
            written += 1;
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &CStr) -> Text<'_> {
        Text(NonNull::new(text.as_ptr().cast_mut()), PhantomData)
    }

    fn buffer(bytes: &mut [c_char], size: c_int) -> Option<Buffer<'_>> {
        TextOut(NonNull::new(bytes.as_mut_ptr()), PhantomData).with_size(size)
    }

    #[test]
    fn null_is_what_the_caller_of_the_method_says() {
        let null = Text(None, PhantomData);
        assert_eq!((null.bytes(), null.or(Code::KEY)), (None, Err(Code::KEY)));
        assert_eq!(text(c"a").or(Code::KEY), Ok("a"));
        assert_eq!(text(c"\xff").or(Code::KEY), Err(Code::KEY));
        assert!(Out::<c_int>(None, PhantomData).or(Code::SIZE).is_err());
        assert!(TextOut(None, PhantomData).with_size(8).is_none());
        assert!(Array::<c_int>(None, PhantomData).with_length(2).is_none());
        assert_eq!(Array::<c_int>(None, PhantomData).with_length(0), Some([].as_slice()));
        assert_eq!(ArrayOut(None, PhantomData).fill(4, [1, 2]), 0);
    }

    #[test]
    fn a_text_is_written_within_the_buffer_whatever_the_lengths() {
        for size in 0..8 {
            for length in 0..8 {
                let text = &b"abcdefg"[..length];
                let mut bytes = [b'#' as c_char; 8];
                let result = buffer(&mut bytes, size as c_int).map(|buffer| buffer.put_whole(text));
                let bytes = bytes.map(|byte| byte as u8);
                if length < size {
                    assert_eq!(result, Some(Ok(())));
                    assert_eq!((&bytes[..length], bytes[length]), (text, 0));
                    assert!(bytes[length + 1..].iter().all(|&byte| byte == b'#'));
                } else {
                    assert_eq!((result.is_none(), bytes), (size == 0, [b'#'; 8]), "{length} bytes in {size}");
                }
            }
        }
        let mut bytes = [b'#' as c_char; 4];
        assert_eq!(buffer(&mut bytes, 3).unwrap().put_cut(b"abc"), Err(TooShort));
        assert_eq!(bytes.map(|byte| byte as u8), *b"ab\0#");
        for size in [0, -1, c_int::MIN] {
            assert!(buffer(&mut bytes, size).is_none());
        }
    }

    #[test]
    fn arrays_end_at_their_length_or_at_null() {
        let texts = [text(c"a"), text(c"b"), Text(None, PhantomData)];
        let array = Array(NonNull::new(texts.as_ptr().cast_mut()), PhantomData);
        assert_eq!(array.until_null().collect::<Vec<_>>(), [b"a", b"b"]);
        assert_eq!(array.with_length(2).unwrap().len(), 2);
        assert!(array.with_length(-1).is_none());
        let mut room = [0; 3];
        let out = ArrayOut(NonNull::new(room.as_mut_ptr()), PhantomData);
        assert_eq!((out.fill(2, 7..), out.fill(-1, 7..)), (2, 0));
        assert_eq!(room, [7, 8, 0]);
    }
}
