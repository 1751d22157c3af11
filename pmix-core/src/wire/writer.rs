//! Writes items of a payload, one after the other, in either encoding.

use super::reader::Proc;
use super::{Encoding, fixed, flex, types};

/// A payload under construction.
#[derive(Clone, Debug)]
pub struct Writer {
    encoding: Encoding,
    bytes: Vec<u8>,
}

impl Writer {
    /// An empty payload.
    pub fn new(encoding: Encoding) -> Self {
        Self { encoding, bytes: Vec::new() }
    }

    /// Encoding of the payload.
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// Returns the payload.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Payload written so far.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Bytes that are already encoded.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// A number of one byte.
    pub fn byte(&mut self, number: u8) {
        self.bytes.push(number);
    }

    /// A number of 16 bits.
    pub fn u16(&mut self, number: u16) {
        self.unsigned(number.into(), 2);
    }

    /// A number of 32 bits.
    pub fn u32(&mut self, number: u32) {
        self.unsigned(number.into(), 4);
    }

    /// A number of 64 bits.
    pub fn u64(&mut self, number: u64) {
        self.unsigned(number, 8);
    }

    /// A signed number of 16 bits.
    pub fn i16(&mut self, number: i16) {
        self.signed(number.into(), 2);
    }

    /// A signed number of 32 bits.
    pub fn i32(&mut self, number: i32) {
        self.signed(number.into(), 4);
    }

    /// A signed number of 64 bits.
    pub fn i64(&mut self, number: i64) {
        self.signed(number, 8);
    }

    /// A `size_t`.
    pub fn size(&mut self, number: u64) {
        match self.encoding {
            Encoding::Fixed => fixed::write_typed(&mut self.bytes, types::UINT64, number),
            Encoding::Flex => flex::write_unsigned(&mut self.bytes, number),
        }
    }

    /// An `int`, of 32 bits.
    pub fn int(&mut self, number: i32) {
        match self.encoding {
            Encoding::Fixed => fixed::write_typed(&mut self.bytes, types::INT32, i64::from(number) as u64),
            Encoding::Flex => flex::write_signed(&mut self.bytes, number.into()),
        }
    }

    /// A process id, after the code of its type, in either encoding.
    pub fn pid(&mut self, number: u32) {
        self.u16(types::UINT32);
        self.u32(number);
    }

    /// An `unsigned int` of 32 bits.
    pub fn uint(&mut self, number: u32) {
        match self.encoding {
            Encoding::Fixed => fixed::write_typed(&mut self.bytes, types::UINT32, number.into()),
            Encoding::Flex => flex::write_unsigned(&mut self.bytes, number.into()),
        }
    }

    /// A text, which must hold no NUL; a NUL is appended here. `None` is a null pointer.
    pub fn text(&mut self, text: Option<&[u8]>) {
        match text {
            Some(text) => {
                // No payload reaches 2 GiB: frames are limited on arrival, job info by the number of ranks.
                self.i32(text.len() as i32 + 1);
                self.bytes.extend_from_slice(text);
                self.bytes.push(0);
            }
            None => self.i32(0),
        }
    }

    /// Bytes after their length.
    pub fn byte_object(&mut self, bytes: &[u8]) {
        self.size(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
    }

    /// A namespace and a rank in it.
    pub fn proc(&mut self, proc: Proc<'_>) {
        self.text(Some(proc.namespace));
        self.u32(proc.rank);
    }

    /// Begins a group of `count` items; without items there is no group.
    pub fn group(&mut self, count: usize) {
        if count > 0 {
            self.i32(count as i32);
        }
    }

    /// Begins a group of one item.
    pub fn one(&mut self) {
        self.i32(1);
    }

    /// A group of one `size_t`.
    pub fn count(&mut self, count: usize) {
        self.one();
        self.size(count as u64);
    }

    /// A group of one status.
    pub fn status(&mut self, status: i32) {
        self.one();
        self.i32(status);
    }

    fn unsigned(&mut self, number: u64, width: usize) {
        match self.encoding {
            Encoding::Fixed => fixed::write(&mut self.bytes, number, width),
            Encoding::Flex => flex::write_unsigned(&mut self.bytes, number),
        }
    }

    fn signed(&mut self, number: i64, width: usize) {
        match self.encoding {
            Encoding::Fixed => fixed::write(&mut self.bytes, number as u64, width),
            Encoding::Flex => flex::write_signed(&mut self.bytes, number),
        }
    }
}
