//! Bytes of a payload, consumed from the front and never beyond the end.

use super::WireError;

/// Bytes that are consumed from the front.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Remaining bytes.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Consumes `wanted` bytes; fails, and consumes nothing, when fewer are left.
    pub(super) fn take(&mut self, wanted: u64) -> Result<&'a [u8], WireError> {
        let left = self.rest.len();
        let taken = usize::try_from(wanted).ok().and_then(|len| self.rest.split_at_checked(len));
        let (taken, rest) = taken.ok_or(WireError::Truncated { wanted, left })?;
        self.rest = rest;
        Ok(taken)
    }
}
