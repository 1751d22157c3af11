//! Failure of a launch, in messages between its sessions.

use bytes::Bytes;
use pmi_transport::proto::v1 as proto;
use prost::Message;

use super::{WireError, cause};
use crate::cause::Cause;

/// Failure of a launch. On the way to the root, it contains a session's cause. On the way from the root, it contains the selected first
/// cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchFailure {
    /// The cause.
    pub cause: Cause,
    /// Number of nodes after the receiver that the receiver must notify.
    pub below: u32,
    /// Only on the way to the root: the API server has not acknowledged the cause in time. The root need not wait for it again.
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
/// Fails for invalid bytes, and like [`cause::decode`].
pub fn decode(message: Bytes) -> Result<LaunchFailure, WireError> {
    let proto::LaunchFailure { cause, below, api_is_silent } = proto::LaunchFailure::decode(message)?;
    let cause = cause::decode(cause.ok_or(WireError::Missing { what: "cause" })?)?;
    Ok(LaunchFailure { cause, below, api_is_silent })
}
