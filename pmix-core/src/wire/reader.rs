//! Reads items of a payload, one after the other, in either encoding.
//!
//! Lengths and counts are checked against the remaining bytes before any allocation.

use super::cursor::Cursor;
use super::{Encoding, WireError, fixed, flex, types};

/// Maximum nesting of values: arrays of infos of arrays.
pub const DEPTH_MAX: usize = 16;

/// One rank, or every rank, of a namespace.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Proc<'a> {
    /// The namespace.
    pub namespace: &'a [u8],
    /// The rank, or [`super::types::RANK_WILDCARD`].
    pub rank: u32,
}

/// Reader of a client's payload.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    encoding: Encoding,
    cursor: Cursor<'a>,
}

impl<'a> Reader<'a> {
    /// Creates a reader at the beginning of `bytes`.
    pub fn new(encoding: Encoding, bytes: &'a [u8]) -> Self {
        Self { encoding, cursor: Cursor::new(bytes) }
    }

    /// Encoding of the payload.
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// Remaining bytes.
    pub fn rest(&self) -> &'a [u8] {
        self.cursor.rest()
    }

    /// Returns true if no bytes remain.
    pub fn is_empty(&self) -> bool {
        self.cursor.rest().is_empty()
    }

    /// The bytes from `earlier`, a copy of this reader, to here.
    pub(super) fn since(&self, earlier: Self) -> &'a [u8] {
        let start = earlier.cursor.rest();
        &start[..start.len() - self.cursor.rest().len()]
    }

    /// A number of one byte.
    pub fn byte(&mut self) -> Result<u8, WireError> {
        Ok(self.cursor.take(1)?[0])
    }

    /// A number of 16 bits, such as a type code.
    pub fn u16(&mut self) -> Result<u16, WireError> {
        let number = self.unsigned(2)?;
        u16::try_from(number).map_err(|_| out_of_range("a number of 16 bits", number as i64))
    }

    /// A number of 32 bits, such as a rank.
    pub fn u32(&mut self) -> Result<u32, WireError> {
        let number = self.unsigned(4)?;
        u32::try_from(number).map_err(|_| out_of_range("a number of 32 bits", number as i64))
    }

    /// A number of 64 bits.
    pub fn u64(&mut self) -> Result<u64, WireError> {
        self.unsigned(8)
    }

    /// A signed number of 16 bits.
    pub fn i16(&mut self) -> Result<i16, WireError> {
        let number = self.signed(2)?;
        i16::try_from(number).map_err(|_| out_of_range("a signed number of 16 bits", number))
    }

    /// A signed number of 32 bits, such as a status.
    pub fn i32(&mut self) -> Result<i32, WireError> {
        let number = self.signed(4)?;
        i32::try_from(number).map_err(|_| out_of_range("a signed number of 32 bits", number))
    }

    /// A signed number of 64 bits.
    pub fn i64(&mut self) -> Result<i64, WireError> {
        self.signed(8)
    }

    /// A `size_t`.
    pub fn size(&mut self) -> Result<u64, WireError> {
        match self.encoding {
            Encoding::Fixed => fixed::read_typed(&mut self.cursor).map(|number| number as u64),
            Encoding::Flex => flex::read_unsigned(&mut self.cursor),
        }
    }

    /// An `int`.
    pub fn int(&mut self) -> Result<i64, WireError> {
        match self.encoding {
            Encoding::Fixed => fixed::read_typed(&mut self.cursor),
            Encoding::Flex => flex::read_signed(&mut self.cursor),
        }
    }

    /// A process id, after the code of its type, in either encoding.
    pub fn pid(&mut self) -> Result<u32, WireError> {
        match self.u16()? {
            types::UINT32 => self.u32(),
            types::INT32 => {
                let number = self.i32()?;
                u32::try_from(number).map_err(|_| out_of_range("the number of a process", number.into()))
            }
            found => Err(WireError::WrongType { what: "the number of a process", found }),
        }
    }

    /// An `unsigned int`.
    pub fn uint(&mut self) -> Result<u64, WireError> {
        self.size()
    }

    /// A text without its NUL; `None` means a null pointer.
    pub fn text(&mut self) -> Result<Option<&'a [u8]>, WireError> {
        let announced = self.i32()?;
        let len = u64::try_from(announced).map_err(|_| out_of_range("the length of a text", announced.into()))?;
        if len == 0 {
            return Ok(None);
        }
        let bytes = self.cursor.take(len)?;
        match bytes.split_last() {
            Some((0, text)) if !text.contains(&0) => Ok(Some(text)),
            _ => Err(WireError::Text { len: bytes.len() }),
        }
    }

    /// A required text.
    pub fn required_text(&mut self, what: &'static str) -> Result<&'a [u8], WireError> {
        self.text()?.ok_or(WireError::Absent { what })
    }

    /// Bytes after their length.
    pub fn byte_object(&mut self) -> Result<&'a [u8], WireError> {
        let len = self.size()?;
        self.cursor.take(len)
    }

    /// A namespace and a rank in it.
    pub fn proc(&mut self) -> Result<Proc<'a>, WireError> {
        Ok(Proc { namespace: self.required_text("a namespace")?, rank: self.u32()? })
    }

    /// The number of items in the group that begins here. Every item has at least one byte.
    pub fn group(&mut self) -> Result<usize, WireError> {
        let count = i64::from(self.i32()?);
        self.checked_count(count)
    }

    /// Begins a group of one item.
    pub fn one(&mut self) -> Result<(), WireError> {
        self.group_of(1)
    }

    /// Begins a group of `expected` items; without items there is no group either.
    pub fn group_of(&mut self, expected: usize) -> Result<(), WireError> {
        if expected == 0 {
            return Ok(());
        }
        match self.i32()? {
            found if usize::try_from(found) == Ok(expected) => Ok(()),
            found => Err(WireError::Count { found: found.into(), expected: expected as u64 }),
        }
    }

    /// A group of one `size_t`, the number of the following items.
    pub fn count(&mut self) -> Result<usize, WireError> {
        self.one()?;
        let count = self.size()?;
        self.checked_count(i64::try_from(count).unwrap_or(i64::MAX))
    }

    /// A count of items with at least one byte each.
    pub(crate) fn checked_count(&self, count: i64) -> Result<usize, WireError> {
        let left = self.cursor.rest().len();
        match usize::try_from(count) {
            Ok(count) if count <= left => Ok(count),
            Ok(count) => Err(WireError::Truncated { wanted: count as u64, left }),
            Err(_) => Err(out_of_range("a count", count)),
        }
    }

    fn unsigned(&mut self, width: usize) -> Result<u64, WireError> {
        match self.encoding {
            Encoding::Fixed => fixed::read_unsigned(&mut self.cursor, width),
            Encoding::Flex => flex::read_unsigned(&mut self.cursor),
        }
    }

    fn signed(&mut self, width: usize) -> Result<i64, WireError> {
        match self.encoding {
            Encoding::Fixed => fixed::read_signed(&mut self.cursor, width),
            Encoding::Flex => flex::read_signed(&mut self.cursor),
        }
    }
}

fn out_of_range(what: &'static str, found: i64) -> WireError {
    WireError::Range { what, found }
}
