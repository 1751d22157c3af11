//! Conversions between the messages of `lattice.v1` and the types of the agent, where the session crate has none yet.

pub(super) mod ending;
pub(super) mod label;
pub(super) mod launch_request;
pub(super) mod refusal;
