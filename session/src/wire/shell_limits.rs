//! Limits of the user's shell.

use pmi_transport::proto::v1 as proto;
use rank_spawner::LimitedResource;

use super::{WireError, wrong};
use crate::shell_limits::{ShellLimits, SoftLimit, TooHigh};

pub(super) fn encode(limits: &ShellLimits) -> proto::ShellLimits {
    proto::ShellLimits {
        soft: limits.soft.iter().map(encode_soft).collect(),
        umask: limits.umask,
        tells_of_lowered: limits.too_high == TooHigh::Told,
    }
}

/// A launch without limits of a shell leaves them to the nodes.
///
/// # Errors
/// Refuses resources that this version does not know, and more limits than there are resources.
pub(super) fn decode(limits: Option<proto::ShellLimits>) -> Result<ShellLimits, WireError> {
    let Some(proto::ShellLimits { soft, umask, tells_of_lowered }) = limits else { return Ok(ShellLimits::default()) };
    let most = LimitedResource::ALL.len();
    if soft.len() > most {
        return Err(wrong("the number of limits", soft.len(), format!("at most {most}")));
    }
    Ok(ShellLimits {
        soft: soft.iter().map(decode_soft).collect::<Result<_, _>>()?,
        umask,
        too_high: if tells_of_lowered { TooHigh::Told } else { TooHigh::Lowered },
    })
}

pub(super) fn encode_soft(limit: &SoftLimit) -> proto::SoftLimit {
    proto::SoftLimit { resource: limit.resource.to_string(), value: limit.value }
}

pub(super) fn decode_soft(limit: &proto::SoftLimit) -> Result<SoftLimit, WireError> {
    Ok(SoftLimit { resource: limit.resource.parse()?, value: limit.value })
}
