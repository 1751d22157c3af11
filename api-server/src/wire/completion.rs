//! Ends of launches in messages, in the spool and in the store.

use std::time::Duration;

use lattice_session::wire::{WireError, cause, event};
use pmi_transport::proto::v1 as proto;

use super::node::{decode_end, encode_end};
use crate::launch::event::Completion;

/// Encodes the end of a launch.
pub(crate) fn encode(completion: &Completion) -> proto::LaunchCompleteNotification {
    proto::LaunchCompleteNotification {
        launch_id: completion.launch_id.to_string(),
        allocation_id: completion.allocation_id.clone(),
        success: completion.cause.is_none(),
        ranks: completion.ends.iter().map(encode_end).collect(),
        error_message: completion.message.clone(),
        cause: completion.cause.as_ref().map(cause::encode),
        duration_us: microseconds(completion.duration),
        usage: completion.usage.map(event::encode_usage),
        least_used: completion.by_node.map(|range| event::encode_node_usage(range.least)),
        most_used: completion.by_node.map(|range| event::encode_node_usage(range.most)),
    }
}

/// Microseconds as encoded in messages.
pub(crate) fn microseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Decodes the end of a launch.
///
/// # Errors
/// Fails for a cause that this version does not support.
pub(super) fn decode(message: proto::LaunchCompleteNotification) -> Result<Completion, WireError> {
    Ok(Completion {
        launch_id: message.launch_id.into(),
        allocation_id: message.allocation_id,
        cause: message.cause.map(cause::decode).transpose()?,
        message: message.error_message,
        ends: message.ranks.iter().map(decode_end).collect(),
        duration: Duration::from_micros(message.duration_us),
        usage: message.usage.map(event::decode_usage),
        by_node: event::decode_usage_range(message.least_used, message.most_used),
    })
}
