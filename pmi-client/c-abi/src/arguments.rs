//! Arguments of callers in C, as types for parameters. They have the layout of pointers to the caller's memory, and cannot be created in
//! Rust.
//!
//! A value of these types comes from a caller in C, which must follow the header. A pointer is NULL, or points to an object of its type
//! that is valid for the duration of the call. A length is the number of objects. Every `unsafe` block below relies on this.

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
        // SAFETY: the caller's text ends with a NUL, and is valid for the duration of the call.
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

    /// Returns a key that the launcher accepts.
    ///
    /// # Errors
    /// [`Code::KEY`] for any other text.
    pub fn key(self, limits: &Limits) -> Result<&'c str, Code> {
        let key = self.or(Code::KEY)?;
        limits.check_key(key).map(|()| key).map_err(|_| Code::KEY)
    }

    /// Returns a value that the launcher accepts.
    ///
    /// # Errors
    /// [`Code::VALUE`] for any other text.
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
        // SAFETY: the caller's place has room for a `T`. Its old content is never read here.
        unsafe {
            self.0.write(value);
        }
    }

    /// Returns the value that the caller has written there, if the header requires one.
    pub fn value(self) -> T {
        #[expect(unsafe_code, reason = "a place of the caller is a pointer")]
        // SAFETY: the caller has written a value there.
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
    /// Returns the buffer with the size from the caller; `None` for NULL, and for a buffer without room for the NUL of a text.
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

/// Buffer for a text and its NUL.
#[derive(Clone, Copy, Debug)]
pub struct Buffer<'c> {
    start: NonNull<c_char>,
    /// Size in bytes, at least one.
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
    /// Fails if the text and its NUL do not fit.
    pub fn put_whole(self, text: &[u8]) -> Result<(), TooShort> {
        if text.len() < self.size { self.put_cut(text) } else { Err(TooShort) }
    }

    /// Writes the text, cut to the size of the buffer, and a NUL.
    ///
    /// # Errors
    /// Fails if the text was cut.
    pub fn put_cut(self, text: &[u8]) -> Result<(), TooShort> {
        let fits = &text[..text.len().min(self.size - 1)];
        let start = self.start.cast::<u8>();
        #[expect(unsafe_code, reason = "a buffer of the caller is a pointer and a length")]
        // SAFETY: the caller's buffer has `size` bytes, and these are the first `fits.len() + 1` of them. `fits` is memory of this
        // library, or of another argument. If a caller passes one buffer twice, the result is that of `memmove`.
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

    /// Returns the values, with the number from the caller; `None` for NULL and for a negative number.
    pub fn with_length(self, length: c_int) -> Option<&'c [T]> {
        let length = usize::try_from(length).ok()?;
        if length == 0 {
            return Some(&[]);
        }
        let first = self.0?;
        #[expect(unsafe_code, reason = "an array of the caller is a pointer and a length")]
        // SAFETY: the caller's array has `length` values, and no thread changes them for the duration of the call. A `T` is a number, a
        // pointer or a structure of them, which have no invalid values.
        Some(unsafe { core::slice::from_raw_parts(first.as_ptr(), length) })
    }

    /// Returns the address, which some callers use as a name.
    pub fn address(self) -> usize {
        self.0.map_or(0, |first| first.addr().get())
    }

    /// The first value; `None` for NULL.
    pub fn first(self) -> Option<&'c T> {
        self.with_length(1)?.first()
    }

    /// Returns the value at this index. The users of this function must ensure that it exists.
    fn at(self, index: usize) -> Option<T> {
        let first = self.0?;
        #[expect(unsafe_code, reason = "an array of the caller is a pointer")]
        // SAFETY: the array has a value there, as the users of this function ensure.
        Some(unsafe { first.add(index).read() })
    }
}

impl<'c> Array<'c, Text<'c>> {
    /// Returns the texts up to the first NULL, which terminates such an array; no texts for NULL itself.
    pub fn until_null(self) -> impl Iterator<Item = &'c [u8]> {
        // The array has not ended before, so there is a value at this index.
        (0..).map_while(move |index| self.at(index)?.bytes())
    }
}

/// `T []`: buffer for values, or NULL. Its length is another argument.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct ArrayOut<'c, T>(Option<NonNull<T>>, PhantomData<&'c mut [T]>);

impl<T: Copy> ArrayOut<'_, T> {
    /// Returns true for NULL.
    pub fn is_null(self) -> bool {
        self.0.is_none()
    }

    /// Returns the values that the caller has written there, if the header requires them, with the number from the caller. Returns
    /// `None` for NULL and for a negative number.
    pub fn values(self, length: c_int) -> Option<Vec<T>> {
        Some(Array(self.0, PhantomData).with_length(length)?.to_vec())
    }

    /// Writes values from the first place on, at most `length`. Returns their number.
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
