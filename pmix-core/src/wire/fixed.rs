//! Numbers of fixed width, high byte first (`v21`, `v3`).
//!
//! Types with a machine-dependent width (`size_t`, `int`, `pid_t`) follow the code of the type that represents them.

use super::cursor::Cursor;
use super::{WireError, types};

pub(super) fn read_unsigned(cursor: &mut Cursor<'_>, width: usize) -> Result<u64, WireError> {
    let bytes = cursor.take(width as u64)?;
    Ok(bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte)))
}

pub(super) fn read_signed(cursor: &mut Cursor<'_>, width: usize) -> Result<i64, WireError> {
    let unused = 64 - 8 * width as u32;
    let number = read_unsigned(cursor, width)?;
    Ok((number << unused) as i64 >> unused)
}

/// A number after the code of its type.
pub(super) fn read_typed(cursor: &mut Cursor<'_>) -> Result<i64, WireError> {
    let code = read_unsigned(cursor, 2)? as u16;
    match code {
        types::INT8 => read_signed(cursor, 1),
        types::INT16 => read_signed(cursor, 2),
        types::INT32 => read_signed(cursor, 4),
        types::INT64 => read_signed(cursor, 8),
        types::UINT8 => read_unsigned(cursor, 1).map(|number| number as i64),
        types::UINT16 => read_unsigned(cursor, 2).map(|number| number as i64),
        types::UINT32 => read_unsigned(cursor, 4).map(|number| number as i64),
        types::UINT64 => read_unsigned(cursor, 8).map(|number| number as i64),
        found => Err(WireError::WrongType { what: "a number", found }),
    }
}

pub(super) fn write(out: &mut Vec<u8>, number: u64, width: usize) {
    out.extend_from_slice(&number.to_be_bytes()[8 - width..]);
}

pub(super) fn write_typed(out: &mut Vec<u8>, code: u16, number: u64) {
    let width = match code {
        types::UINT64 => 8,
        _ => 4,
    };
    write(out, u64::from(code), 2);
    write(out, number, width);
}
