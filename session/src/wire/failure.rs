//! The failure of a launch, as its sessions tell each other of it.

use bytes::Bytes;
use pmi_transport::proto::v1 as proto;
use prost::Message;

use super::{WireError, cause};
use crate::cause::Cause;

/// Failure of a launch: what a session found, on its way to the root; what the root chose, on its way from there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchFailure {
    /// The cause.
    pub cause: Cause,
    /// Number of nodes, from the one after the receiver on, that are to be told by the receiver.
    pub below: u32,
    /// On its way to the root: the API server has not heard of it within the time that it is given, and need not be waited for again.
    pub api_is_silent: bool,
}

/// Encodes a failure.
pub fn encode(failure: &LaunchFailure) -> Bytes {
    let &LaunchFailure { ref cause, below, api_is_silent } = failure;
    proto::LaunchFailure { cause: Some(cause::encode(cause)), below, api_is_silent }.encode_to_vec().into()
}

/// Decodes a failure.
///
/// # Errors
/// Refuses bytes that are no message, and what [`cause::decode`] refuses.
pub fn decode(message: Bytes) -> Result<LaunchFailure, WireError> {
    let proto::LaunchFailure { cause, below, api_is_silent } = proto::LaunchFailure::decode(message)?;
    let cause = cause::decode(cause.ok_or(WireError::Missing { what: "cause" })?)?;
    Ok(LaunchFailure { cause, below, api_is_silent })
}
