//! Limits of the user's shell.

use pmi_transport::proto::v1 as proto;
use rank_spawner::{LimitedResource, Priority};

use super::{WireError, wrong};
use crate::shell_limits::{ShellLimits, SoftLimit, TooHigh};

pub(super) fn encode(limits: &ShellLimits) -> proto::ShellLimits {
    proto::ShellLimits {
        soft: limits.soft.iter().map(encode_soft).collect(),
        umask: limits.umask,
        niceness: limits.priority.niceness,
        oom_score_adjust: limits.priority.oom_score_adjust,
        tells_of_lowered: limits.too_high == TooHigh::Told,
    }
}

/// Decodes the limits. For a launch without shell limits, the nodes determine them.
///
/// # Errors
/// Fails for unknown resources, and for more limits than there are resources.
pub(super) fn decode(limits: Option<proto::ShellLimits>) -> Result<ShellLimits, WireError> {
    let Some(limits) = limits else { return Ok(ShellLimits::default()) };
    let proto::ShellLimits { soft, umask, tells_of_lowered, niceness, oom_score_adjust } = limits;
    let most = LimitedResource::ALL.len();
    if soft.len() > most {
        return Err(wrong("the number of limits", soft.len(), format!("at most {most}")));
    }
    if let Some(niceness) = niceness.filter(|niceness| !(-20..=19).contains(niceness)) {
        return Err(wrong("the niceness", niceness, "-20 to 19"));
    }
    if let Some(score) = oom_score_adjust.filter(|score| !(-1000..=1000).contains(score)) {
        return Err(wrong("the adjustment of the OOM score", score, "-1000 to 1000"));
    }
    Ok(ShellLimits {
        priority: Priority { niceness, oom_score_adjust },
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
