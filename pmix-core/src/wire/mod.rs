//! Conversion between bytes and requests or replies. Only this module distinguishes the encodings of PMIx clients.
//!
//! PMIx has no specification of its wire format; the layouts were measured on clients of libpmix 3.2.5, 4.2.2 and 5.0. A payload is a
//! sequence of *groups*: a count, then that many items of one type, without a type code. Nearly every group has one item.

mod cursor;
pub(crate) mod describe;
mod fixed;
mod flex;
pub mod forwarding;
pub mod frame;
pub mod handshake;
mod layout;
pub mod reader;
pub mod reply;
pub mod request;
pub mod status;
pub mod types;
pub mod value;
pub mod writer;

/// Encoding of numbers. A client declares it in its handshake, and receives answers in it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Encoding {
    /// Fixed widths, high byte first: the modules `v21` and `v3`.
    Fixed,
    /// Seven bits per byte, low bits first: the modules `v4`, `v41`, `v51` and `v61`.
    Flex,
}

impl Encoding {
    /// Both encodings.
    pub const ALL: [Self; 2] = [Self::Fixed, Self::Flex];
}

/// Reason why bytes are not valid PMIx.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The bytes end too early.
    #[error("{wanted} more bytes are announced, {left} are there")]
    Truncated {
        /// Number of bytes that must follow.
        wanted: u64,
        /// Number of remaining bytes.
        left: usize,
    },
    /// A group or list does not have the expected number of items.
    #[error("a group of {found} items where {expected} belong")]
    Count {
        /// The count found.
        found: i64,
        /// The expected count.
        expected: u64,
    },
    /// A number is out of the range of its purpose.
    #[error("the number {found} is out of range for {what}")]
    Range {
        /// Meaning of the number.
        what: &'static str,
        /// The number.
        found: i64,
    },
    /// A text does not end with a NUL, or contains one.
    #[error("a text of {len} bytes is not closed by its only NUL")]
    Text {
        /// Its length, as announced.
        len: usize,
    },
    /// A required text is absent.
    #[error("{what} is absent")]
    Absent {
        /// The missing text.
        what: &'static str,
    },
    /// An argument is well formed but invalid.
    #[error("{what} cannot be {found}")]
    Argument {
        /// Meaning of the argument.
        what: &'static str,
        /// Its value.
        found: i64,
    },
    /// A value has a type with an unknown layout: nothing after it can be read.
    #[error("a value of type {code}, a layout that is not known")]
    UnknownType {
        /// The type code.
        code: u16,
    },
    /// A value has another type than the expected one.
    #[error("{what} has type {found}")]
    WrongType {
        /// The value.
        what: &'static str,
        /// Its type code.
        found: u16,
    },
    /// Arrays are nested too deep.
    #[error("values are nested deeper than {max} levels", max = reader::DEPTH_MAX)]
    TooDeep,
}

impl WireError {
    /// Returns the status for a well-formed request with an invalid argument or an unknown type: a library forwards the arguments of its
    /// program unchecked. Returns `None` if the request breaks the protocol.
    pub(crate) fn status(&self) -> Option<i32> {
        match self {
            Self::UnknownType { .. } => Some(status::UNPACK_FAILURE),
            Self::Absent { .. } | Self::Argument { .. } => Some(status::BAD_PARAM),
            _ => None,
        }
    }
}
