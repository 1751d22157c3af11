//! Layout of the values of each type: enough to skip any value, and to convert it to the other encoding.
//!
//! Values in a commit carry no length, so a reader that cannot skip a value cannot read the next one.

use super::reader::{DEPTH_MAX, Reader};
use super::writer::Writer;
use super::{WireError, types};

/// A part of a value.
#[derive(Clone, Copy, Debug)]
enum Part {
    Byte,
    U16,
    U32,
    U64,
    I16,
    I32,
    I64,
    Size,
    Int,
    Uint,
    Pid,
    Text,
    /// Bytes after their length.
    Bytes,
    /// A type code and a value of that type.
    Value,
    /// The code of the elements' type, their number, the elements.
    Array,
    /// Items of this type after their number, a `size_t`.
    Sized(u16),
    /// Texts after their number, an `int`.
    IntTexts,
    /// Texts after their number, of 32 bits.
    Texts,
}

/// The parts of a value of type `code`.
fn parts(code: u16) -> Result<&'static [Part], WireError> {
    use Part::*;
    Ok(match code {
        types::UNDEFINED => &[],
        types::BOOL | types::BYTE | types::INT8 | types::UINT8 | types::PERSISTENCE | types::POINTER => &[Byte],
        types::SCOPE | types::DATA_RANGE | types::COMMAND | types::PROC_STATE | types::ALLOC_DIRECTIVE => &[Byte],
        types::JOB_STATE | types::LINK_STATE => &[Byte],
        types::STRING | types::FLOAT | types::DOUBLE | types::NAMESPACE => &[Text],
        types::SIZE => &[Size],
        types::INT => &[Int],
        types::UINT => &[Uint],
        types::PID => &[Pid],
        types::INT16 => &[I16],
        types::INT32 | types::STATUS => &[I32],
        types::INT64 => &[I64],
        types::UINT16 | types::DATA_TYPE | types::IOF_CHANNEL | types::LOCALITY => &[U16],
        types::UINT32 | types::PROC_RANK | types::INFO_DIRECTIVES => &[U32],
        types::UINT64 | types::TIME | types::DEVICE_TYPE => &[U64],
        types::TIMEVAL => &[I64, I64],
        types::VALUE => &[Value],
        types::PROC => &[Text, U32],
        types::APP => &[Text, IntTexts, Texts, Text, Int, Sized(types::INFO)],
        types::INFO => &[Text, U32, Value],
        types::PDATA => &[Text, U32, Text, Value],
        types::KVAL => &[Text, Value],
        types::BYTE_OBJECT | types::COMPRESSED_STRING | types::COMPRESSED_BYTE_OBJECT | types::DATA_BUFFER => &[Bytes],
        types::PROC_INFO => &[Text, U32, Text, Text, Pid, Byte],
        types::DATA_ARRAY => &[Array],
        types::QUERY => &[Texts, Sized(types::INFO)],
        types::ENVAR => &[Text, Text, Byte],
        types::COORD => &[Byte, Sized(types::UINT32)],
        types::REGATTR => &[Text, Text, U16, Texts],
        types::GEOMETRY => &[Size, Text, Text, Sized(types::COORD)],
        types::DEVICE_DISTANCE => &[Text, Text, U64, U16, U16],
        types::ENDPOINT => &[Text, Text, Bytes],
        code => return Err(WireError::UnknownType { code }),
    })
}

impl<'a> Reader<'a> {
    /// Skips a value of type `code`, and returns its bytes.
    pub fn skip(&mut self, code: u16) -> Result<&'a [u8], WireError> {
        let before = *self;
        self.pass(code, 0, None)?;
        Ok(self.since(before))
    }

    /// Skips a value of type `code`, and writes it to `out` in the encoding of `out`.
    pub fn copy(&mut self, code: u16, out: &mut Writer) -> Result<(), WireError> {
        self.pass(code, 0, Some(out))
    }

    fn pass(&mut self, code: u16, depth: usize, mut out: Option<&mut Writer>) -> Result<(), WireError> {
        if depth > DEPTH_MAX {
            return Err(WireError::TooDeep);
        }
        for &part in parts(code)? {
            self.pass_part(part, depth, out.as_deref_mut())?;
        }
        Ok(())
    }

    fn pass_part(&mut self, part: Part, depth: usize, mut out: Option<&mut Writer>) -> Result<(), WireError> {
        macro_rules! number {
            ($read:ident) => {{
                let number = self.$read()?;
                if let Some(out) = out {
                    out.$read(number);
                }
            }};
        }
        match part {
            Part::Byte => number!(byte),
            Part::U16 => number!(u16),
            Part::U32 => number!(u32),
            Part::U64 => number!(u64),
            Part::I16 => number!(i16),
            Part::I32 => number!(i32),
            Part::I64 => number!(i64),
            Part::Size => number!(size),
            Part::Pid => number!(pid),
            Part::Text => number!(text),
            Part::Bytes => {
                let bytes = self.byte_object()?;
                if let Some(out) = out {
                    out.byte_object(bytes);
                }
            }
            Part::Int => drop(self.pass_int(out)?),
            Part::Uint => {
                let number = self.uint()?;
                let found = i64::try_from(number).unwrap_or(i64::MAX);
                let narrow = u32::try_from(number).map_err(|_| WireError::Range { what: "an unsigned int", found })?;
                if let Some(out) = out {
                    out.uint(narrow);
                }
            }
            Part::Value => {
                let code = self.u16()?;
                if let Some(out) = out.as_deref_mut() {
                    out.u16(code);
                }
                self.pass(code, depth + 1, out)?;
            }
            Part::Array => {
                let code = self.u16()?;
                if let Some(out) = out.as_deref_mut() {
                    out.u16(code);
                }
                self.pass_sized(code, depth, out)?;
            }
            Part::Sized(code) => self.pass_sized(code, depth, out)?,
            Part::IntTexts => {
                let count = self.pass_int(out.as_deref_mut())?;
                self.pass_texts(count, out)?;
            }
            Part::Texts => {
                let count = self.i32()?;
                if let Some(out) = out.as_deref_mut() {
                    out.i32(count);
                }
                self.pass_texts(count.into(), out)?;
            }
        }
        Ok(())
    }

    fn pass_int(&mut self, out: Option<&mut Writer>) -> Result<i64, WireError> {
        let number = self.int()?;
        let narrow = i32::try_from(number).map_err(|_| WireError::Range { what: "an int", found: number })?;
        if let Some(out) = out {
            out.int(narrow);
        }
        Ok(number)
    }

    fn pass_texts(&mut self, count: i64, mut out: Option<&mut Writer>) -> Result<(), WireError> {
        for _ in 0..self.checked_count(count)? {
            self.pass_part(Part::Text, 0, out.as_deref_mut())?;
        }
        Ok(())
    }

    fn pass_sized(&mut self, code: u16, depth: usize, mut out: Option<&mut Writer>) -> Result<(), WireError> {
        let count = self.size()?;
        if let Some(out) = out.as_deref_mut() {
            out.size(count);
        }
        let count = self.checked_count(i64::try_from(count).unwrap_or(i64::MAX))?;
        // Elements of a type without parts take no bytes, so their number would be unbounded.
        if parts(code)?.is_empty() && count > 0 {
            return Err(WireError::UnknownType { code });
        }
        for _ in 0..count {
            self.pass(code, depth + 1, out.as_deref_mut())?;
        }
        Ok(())
    }
}
