//! Sizes of terminals.

use pmi_transport::proto::v1 as proto;

use crate::settings::TerminalSize;

/// Encodes a size.
pub fn encode_size(size: TerminalSize) -> proto::TerminalSize {
    proto::TerminalSize { rows: size.rows.into(), columns: size.columns.into() }
}

/// Decodes a size. Numbers over the limit count as the largest size, because programs only use it to format lines.
pub fn decode_size(size: &proto::TerminalSize) -> TerminalSize {
    let number = |number: u32| u16::try_from(number).unwrap_or(u16::MAX);
    TerminalSize { rows: number(size.rows), columns: number(size.columns) }
}
