//! Deaths of ranks in a launch that continues.

use pmi_core::deaths::{Death, DeathKind};
use pmi_core::ids::Rank;
use pmi_transport::proto::v1 as proto;

use super::{WireError, wrong};

/// Encodes deaths.
pub fn encode_all(deaths: &[Death]) -> proto::Deaths {
    proto::Deaths { deaths: deaths.iter().map(encode).collect() }
}

/// Decodes deaths.
///
/// # Errors
/// Fails like [`decode`].
pub fn decode_all(deaths: proto::Deaths) -> Result<Vec<Death>, WireError> {
    deaths.deaths.into_iter().map(decode).collect()
}

/// Encodes a death.
pub fn encode(death: &Death) -> proto::Death {
    let kind = match death.kind {
        DeathKind::Killed => proto::DeathKind::Killed,
        DeathKind::Exited => proto::DeathKind::ExitedBadly,
        DeathKind::NodeLost => proto::DeathKind::WithItsNode,
    };
    proto::Death { rank: death.rank.0, kind: kind.into() }
}

/// Decodes a death.
///
/// # Errors
/// Fails for an unknown kind.
pub fn decode(death: proto::Death) -> Result<Death, WireError> {
    let kind =
        proto::DeathKind::try_from(death.kind).map_err(|_| wrong("the kind of a death", death.kind, "0 to 2"))?;
    let kind = match kind {
        proto::DeathKind::Killed => DeathKind::Killed,
        proto::DeathKind::ExitedBadly => DeathKind::Exited,
        proto::DeathKind::WithItsNode => DeathKind::NodeLost,
    };
    Ok(Death { rank: Rank(death.rank), kind })
}
