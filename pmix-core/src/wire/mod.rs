//! Bytes <-> requests and replies. Everything that differs between the encodings of PMIx clients ends here.
//!
//! PMIx has no specification of its wire; the layouts were measured on clients of libpmix 3.2.5, 4.2.2 and 5.0. A payload is a
//! row of *groups*: a count, then that many items of one type, which is not said. Nearly every group has one item.

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

/// Encoding of numbers. A client names it in its handshake, and is answered alike.
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

/// Reason for which bytes cannot be read as PMIx.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The bytes end too early.
    #[error("{wanted} more bytes are announced, {left} are there")]
    Truncated {
        /// Number of bytes that must follow.
        wanted: u64,
        /// Number of bytes that do.
        left: usize,
    },
    /// A group or list does not have the number of items that belongs there.
    #[error("a group of {found} items where {expected} belong")]
    Count {
        /// The count seen.
        found: i64,
        /// The count that belongs there.
        expected: u64,
    },
    /// A number does not fit into what it counts or names.
    #[error("the number {found} is out of range for {what}")]
    Range {
        /// Meaning of the number.
        what: &'static str,
        /// The number.
        found: i64,
    },
    /// A text is not closed by a NUL, or holds one.
    #[error("a text of {len} bytes is not closed by its only NUL")]
    Text {
        /// Its length, as announced.
        len: usize,
    },
    /// A text is absent where one is needed.
    #[error("{what} is absent")]
    Absent {
        /// The text that is missing.
        what: &'static str,
    },
    /// An argument that was read, and that makes no sense.
    #[error("{what} cannot be {found}")]
    Argument {
        /// Meaning of the argument.
        what: &'static str,
        /// Its value.
        found: i64,
    },
    /// A value of a type whose layout is not known: nothing after it can be read.
    #[error("a value of type {code}, whose layout is not known")]
    UnknownType {
        /// The type code.
        code: u16,
    },
    /// A value of another type than the one that belongs there.
    #[error("{what} has type {found}")]
    WrongType {
        /// The value.
        what: &'static str,
        /// Its type code.
        found: u16,
    },
    /// Arrays in arrays, too deep.
    #[error("values are nested deeper than {max} levels", max = reader::DEPTH_MAX)]
    TooDeep,
}

impl WireError {
    /// Returns the status that a request is answered with which was cut well and asks for what makes no sense, or holds what nobody knows: a
    /// library passes on what its program says. `None` if the request breaks the protocol.
    pub(crate) fn status(&self) -> Option<i32> {
        match self {
            Self::UnknownType { .. } => Some(status::UNPACK_FAILURE),
            Self::Absent { .. } | Self::Argument { .. } => Some(status::BAD_PARAM),
            _ => None,
        }
    }
}
