//! Conversions between the messages of `lattice.v1` and the API server's own types, for which [`lattice_session::wire`] has no type.
//! Encoding cannot fail. Received messages are checked where they are decoded.

pub(crate) mod allocation;
pub(crate) mod client;
mod completion;
pub(crate) mod credentials;
pub(crate) mod ended;
pub(crate) mod entry;
pub(crate) mod launch;
pub(crate) mod node;
pub(crate) mod order;
pub(crate) mod record;
pub(crate) mod registry;
pub(crate) mod session_answer;
pub(crate) mod spec;
mod status;
pub(crate) mod summary;
