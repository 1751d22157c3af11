//! Between the messages of `lattice.v1` and the API server's own types, for what [`lattice_session::wire`] has no type for. Encoding
//! cannot fail; what comes from others is checked where it is decoded.

pub(crate) mod client;
mod completion;
pub(crate) mod entry;
pub(crate) mod launch;
pub(crate) mod node;
pub(crate) mod record;
pub(crate) mod spec;
pub(crate) mod summary;
