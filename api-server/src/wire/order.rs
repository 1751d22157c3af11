//! Orders of launches in messages to nodes and users, and in records.

use std::num::NonZeroU32;

use bytes::Bytes;
use lattice_session::placed::{ClusterTerms, PlacedLaunch};
use lattice_session::request::Ownership;
use lattice_session::spec::LaunchSecret;
use lattice_session::wire::{WireError, placed};
use pmi_transport::proto::v1 as proto;
use prost::Message;

use crate::launch::summary::Summary;
use crate::order::Order;
use crate::store::LaunchRecord;

/// The spec that all nodes are sent.
pub(crate) fn encode(order: &Order) -> proto::LaunchSpec {
    placed::encode(&order.launch, &order.terms)
}

/// The bytes of the spec that all nodes are sent, and that are signed.
pub(crate) fn encode_bytes(order: &Order) -> Bytes {
    encode(order).encode_to_vec().into()
}

/// The spec as its user is told of it: the secret is for nodes and ranks.
pub(crate) fn encode_for_user(order: &Order) -> proto::LaunchSpec {
    proto::LaunchSpec { secret: Bytes::new(), ..encode(order) }
}

/// The order of a launch that runs, as it was kept.
///
/// # Errors
/// Refuses a record that describes no launch, or not all that its nodes were told.
pub(crate) fn decode(record: &LaunchRecord) -> Result<Order, WireError> {
    let spec = record.spec.as_ref().ok_or(WireError::Missing { what: "spec" })?;
    let launch = placed::decode(spec.clone())?;
    let ownership = if record.detached { Ownership::Detached } else { Ownership::Client };
    Ok(Order { terms: decode_terms(spec, launch.hosts.len())?, launch, ownership })
}

/// The launch of a record, also of one that is over; secret and addresses are not looked at.
///
/// # Errors
/// Refuses a record that describes no launch.
pub(crate) fn decode_launch(record: &LaunchRecord) -> Result<PlacedLaunch, WireError> {
    placed::decode(record.spec.clone().ok_or(WireError::Missing { what: "spec" })?)
}

impl LaunchRecord {
    /// The record of a launch that begins.
    pub(crate) fn begun(order: &Order, summary: &Summary) -> Self {
        Self {
            summary: Some(super::summary::encode(summary)),
            spec: Some(encode(order)),
            detached: order.ownership == Ownership::Detached,
            complete: None,
            checkpoint: None,
            last_event: 0,
        }
    }
}

fn decode_terms(spec: &proto::LaunchSpec, nodes: usize) -> Result<ClusterTerms, WireError> {
    let secret = <[u8; LaunchSecret::LEN]>::try_from(&spec.secret[..]).map_err(|_| WireError::Value {
        what: "the length of the secret",
        seen: spec.secret.len().to_string(),
        possible: format!("{} bytes", LaunchSecret::LEN),
    })?;
    Ok(ClusterTerms {
        uid: spec.uid,
        addresses: placed::addresses(&spec.addresses, nodes)?,
        secret: LaunchSecret::from_bytes(secret),
        barrier_fan_out: NonZeroU32::new(spec.barrier_fan_out),
        data_fan_out: NonZeroU32::new(spec.data_fan_out),
        output_window: spec.output_window,
        stdin_window: spec.stdin_window,
    })
}
