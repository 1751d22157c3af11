//! Numbers of seven bits per byte, low bits first (`v4`, `v41`, `v51`, `v61`).
//!
//! A set high bit means that more bytes follow. The ninth byte is the last and carries eight bits. Signed numbers alternate: 0, -1, 1,
//! -2.

use super::WireError;
use super::cursor::Cursor;

/// Length of the longest number in bytes.
const LONGEST: u32 = 9;

pub(super) fn read_unsigned(cursor: &mut Cursor<'_>) -> Result<u64, WireError> {
    let mut number = 0;
    for index in 0..LONGEST {
        let byte = u64::from(cursor.take(1)?[0]);
        if index == LONGEST - 1 {
            return Ok(number | byte << (7 * index));
        }
        number |= (byte & 0x7f) << (7 * index);
        if byte < 0x80 {
            break;
        }
    }
    Ok(number)
}

pub(super) fn read_signed(cursor: &mut Cursor<'_>) -> Result<i64, WireError> {
    let number = read_unsigned(cursor)?;
    Ok((number >> 1) as i64 ^ -((number & 1) as i64))
}

pub(super) fn write_unsigned(out: &mut Vec<u8>, mut number: u64) {
    for _ in 1..LONGEST {
        if number < 0x80 {
            break;
        }
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

pub(super) fn write_signed(out: &mut Vec<u8>, number: i64) {
    write_unsigned(out, (number << 1 ^ number >> 63) as u64);
}
