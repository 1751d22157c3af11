//! The two text formats.

/// Text format of a message. It is decided for each message: a PMI-2 client begins with a PMI-1 line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Lines of `name=value` fields, separated by spaces.
    Pmi1,
    /// Length-prefixed messages of `name=value` fields that end with `;`.
    Pmi2,
}
