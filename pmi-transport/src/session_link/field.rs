//! Fields of a frame: numbers of variable length, and byte strings after their length.
//!
//! A number is encoded in groups of seven bits, the lowest first. Every byte but the last has its highest bit set
//! (LEB128).

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Maximum length of an encoded 64-bit number, in bytes.
const NUMBER_LEN_MAX: usize = 10;

/// Error of a frame that no session of this version sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Malformed {
    #[error("it ends inside a field")]
    Short,
    #[error("bytes are left over after its last field")]
    Long,
    #[error("a number is too large")]
    Number,
    #[error("a text is not UTF-8")]
    Text,
    #[error("its kind is {0}, which is none")]
    Kind(u8),
    #[error("its flags are {0:#04x}, which mean nothing")]
    Flags(u8),
    #[error("it is of fence {0}, which was not named before")]
    Unnamed(u8),
    #[error("the name of a fence has {0} bytes, more than are remembered")]
    LongName(usize),
}

/// Appends fields to a buffer.
pub(super) trait PutField {
    fn put_number(&mut self, number: u64);
    /// Writes bytes after their length, so that further fields can follow.
    fn put_run(&mut self, run: &[u8]);
}

impl PutField for BytesMut {
    fn put_number(&mut self, mut number: u64) {
        while number > 0x7f {
            self.put_u8(number as u8 | 0x80);
            number >>= 7;
        }
        self.put_u8(number as u8);
    }

    fn put_run(&mut self, run: &[u8]) {
        self.put_number(run.len() as u64);
        self.put_slice(run);
    }
}

/// Unread fields of one frame.
pub(super) struct Fields(Bytes);

impl Fields {
    pub(super) fn new(frame: Bytes) -> Self {
        Self(frame)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn byte(&mut self) -> Result<u8, Malformed> {
        if self.0.is_empty() { Err(Malformed::Short) } else { Ok(self.0.get_u8()) }
    }

    /// Reads flags, of which only those in `known` may be set.
    pub(super) fn flags(&mut self, known: u8) -> Result<u8, Malformed> {
        let flags = self.byte()?;
        if flags & !known == 0 { Ok(flags) } else { Err(Malformed::Flags(flags)) }
    }

    pub(super) fn number(&mut self) -> Result<u64, Malformed> {
        let mut number = 0;
        for (at, &byte) in self.0.iter().take(NUMBER_LEN_MAX).enumerate() {
            let bits = u64::from(byte & 0x7f);
            let shifted = bits << (7 * at);
            if shifted >> (7 * at) != bits {
                return Err(Malformed::Number);
            }
            number |= shifted;
            if byte & 0x80 == 0 {
                self.0.advance(at + 1);
                return Ok(number);
            }
        }
        Err(if self.0.len() < NUMBER_LEN_MAX { Malformed::Short } else { Malformed::Number })
    }

    /// Reads a number of at most 32 bits.
    pub(super) fn small(&mut self) -> Result<u32, Malformed> {
        u32::try_from(self.number()?).map_err(|_| Malformed::Number)
    }

    /// Takes `len` bytes without copying.
    pub(super) fn bytes(&mut self, len: u64) -> Result<Bytes, Malformed> {
        match usize::try_from(len) {
            Ok(len) if len <= self.0.len() => Ok(self.0.split_to(len)),
            _ => Err(Malformed::Short),
        }
    }

    /// Reads a number of eight bytes, big-endian.
    pub(super) fn fixed(&mut self) -> Result<u64, Malformed> {
        Ok(self.bytes(8)?.get_u64())
    }

    /// Reads a text that further fields follow.
    pub(super) fn text(&mut self) -> Result<String, Malformed> {
        let len = self.number()?;
        in_utf8(&self.bytes(len)?)
    }

    /// Takes all remaining bytes without copying.
    pub(super) fn rest(&mut self) -> Bytes {
        std::mem::take(&mut self.0)
    }

    pub(super) fn rest_in_utf8(&mut self) -> Result<String, Malformed> {
        in_utf8(&self.rest())
    }

    /// Checks that the frame ends here.
    pub(super) fn end(&self) -> Result<(), Malformed> {
        if self.is_empty() { Ok(()) } else { Err(Malformed::Long) }
    }
}

fn in_utf8(bytes: &[u8]) -> Result<String, Malformed> {
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| Malformed::Text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(bytes: &[u8]) -> Result<u64, Malformed> {
        Fields::new(Bytes::copy_from_slice(bytes)).number()
    }

    #[test]
    fn a_number_that_ends_late_or_never_is_refused() {
        assert_eq!(read(&[]), Err(Malformed::Short));
        assert_eq!(read(&[0x80]), Err(Malformed::Short));
        assert_eq!(read(&[0xff; 9]), Err(Malformed::Short));
        assert_eq!(read(&[0xff; 20]), Err(Malformed::Number));
        assert_eq!(read(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]), Err(Malformed::Number));
        assert_eq!(read(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]), Ok(u64::MAX));
    }

    #[test]
    fn a_run_does_not_reach_beyond_its_frame() {
        let mut fields = Fields::new(Bytes::from_static(&[4, 1, 2, 3]));
        let len = fields.number().unwrap();
        assert_eq!(fields.bytes(len), Err(Malformed::Short));
        assert_eq!(fields.bytes(u64::MAX), Err(Malformed::Short));
        assert_eq!(fields.bytes(3).unwrap(), [1, 2, 3][..]);
    }

    proptest! {
        #[test]
        fn a_number_is_read_as_it_was_written(number: u64, shift in 0_u32..64) {
            let number = number >> shift;
            let mut written = BytesMut::new();
            written.put_number(number);
            prop_assert!(written.len() <= NUMBER_LEN_MAX);
            written.put_u8(0x7f);
            let mut fields = Fields::new(written.freeze());
            prop_assert_eq!(fields.number(), Ok(number));
            prop_assert_eq!(fields.byte(), Ok(0x7f));
        }
    }
}
