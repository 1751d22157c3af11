//! Orders of launches in messages to nodes and users, and in records.

use std::num::NonZeroU32;

use bytes::Bytes;
use lattice_session::placed::{ClusterTerms, PlacedLaunch};
use lattice_session::request::Ownership;
use lattice_session::spec::LaunchSecret;
use lattice_session::wire::{WireError, placed};
use pmi_transport::proto::v1 as proto;
use prost::Message;

use crate::launch::summary::{Course, Summary};
use crate::order::Order;
use crate::store::LaunchRecord;

/// The spec that all nodes receive.
pub(crate) fn encode(order: &Order) -> proto::LaunchSpec {
    placed::encode(&order.launch, &order.terms)
}

/// The bytes of the spec that all nodes receive, and that are signed.
pub(crate) fn encode_bytes(order: &Order) -> Bytes {
    encode(order).encode_to_vec().into()
}

/// The spec that its user receives. The secret is for nodes and ranks only, and the key of its links for sessions only.
pub(crate) fn encode_for_user(order: &Order) -> proto::LaunchSpec {
    proto::LaunchSpec { secret: Bytes::new(), link_key: Bytes::new(), ..encode(order) }
}

/// Decodes the stored order of a running launch.
///
/// # Errors
/// Refuses a record that describes no launch, or lacks a part that its nodes received.
pub(crate) fn decode(record: &LaunchRecord) -> Result<Order, WireError> {
    let spec = record.spec.as_ref().ok_or(WireError::Missing { what: "spec" })?;
    let launch = placed::decode(spec.clone())?;
    let ownership = if record.detached { Ownership::Detached } else { Ownership::Client };
    Ok(Order { terms: decode_terms(spec, launch.hosts.len())?, launch, ownership })
}

/// Decodes the launch of a stored spec. The secret and the addresses are ignored.
///
/// # Errors
/// Refuses a spec that describes no launch.
pub(crate) fn decode_placed(spec: Option<&proto::LaunchSpec>) -> Result<PlacedLaunch, WireError> {
    placed::decode(spec.cloned().ok_or(WireError::Missing { what: "spec" })?)
}

impl LaunchRecord {
    /// The record of a launch that begins.
    pub(crate) fn begun(order: &Order, summary: &Summary, certificate: Bytes) -> Self {
        Self {
            summary: Some(super::summary::encode(summary)),
            spec: Some(encode(order)),
            detached: order.ownership == Ownership::Detached,
            complete: None,
            checkpoint: None,
            last_event: 0,
            certificate,
            course: Course::Unknown.into(),
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
        link_key: placed::link_key(&spec.link_key)?,
        set: placed::set(spec.set_id),
        barrier_fan_out: NonZeroU32::new(spec.barrier_fan_out),
        data_fan_out: NonZeroU32::new(spec.data_fan_out),
        output_window: spec.output_window,
        stdin_window: spec.stdin_window,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::tests::order;

    fn record(order: &Order) -> LaunchRecord {
        let detached = order.ownership == Ownership::Detached;
        LaunchRecord { spec: Some(encode(order)), detached, ..LaunchRecord::default() }
    }

    #[test]
    fn an_order_comes_back_from_its_record_with_all_its_terms() {
        for ownership in [Ownership::Client, Ownership::Detached] {
            let order = Order { ownership, ..order(3) };
            let kept = LaunchRecord::decode(&record(&order).encode_to_vec()[..]).unwrap();
            let read = decode(&kept).unwrap();
            assert_eq!((read.ownership, &read.terms), (ownership, &order.terms));
            assert_eq!(encode_bytes(&read), encode_bytes(&order), "its nodes would be told the same");
        }
    }

    #[test]
    fn a_user_is_told_neither_the_secret_nor_the_key_of_links() {
        let order = order(3);
        let told = encode_for_user(&order);
        assert!(told.secret.is_empty() && told.link_key.is_empty());
        let whole = encode(&order);
        let (secret, link_key) = (whole.secret.clone(), whole.link_key.clone());
        assert_eq!((secret.len(), link_key.len()), (16, 32));
        assert_eq!(proto::LaunchSpec { secret, link_key, ..told }, whole);
    }

    #[test]
    fn a_record_that_describes_no_order_is_refused_by_the_field_that_is_wrong() {
        let changed = |change: fn(&mut proto::LaunchSpec)| {
            let mut record = record(&order(3));
            change(record.spec.as_mut().unwrap());
            decode(&record).unwrap_err().to_string()
        };
        type Damage = fn(&mut proto::LaunchSpec);
        let cases: [(Damage, &str); 6] = [
            (|spec| spec.secret = Bytes::from_static(b"short"), "the length of the secret is 5; possible is 16 bytes"),
            (
                |spec| spec.link_key = Bytes::from_static(b"short"),
                "the length of the link key is 5; possible is 32 bytes, or none",
            ),
            (|spec| spec.addresses = "a:1".to_owned(), "the number of addresses is 1; possible is 3 as of nodes"),
            (|spec| spec.addresses = "a[".to_owned(), "the addresses: "),
            (|spec| spec.nodes = "a[".to_owned(), "the nodes: "),
            (|spec| spec.job = None, "the message has no job"),
        ];
        for (change, expected) in cases {
            let error = changed(change);
            assert!(error.starts_with(expected), "{error}");
        }
        assert_eq!(decode(&LaunchRecord::default()).unwrap_err().to_string(), "the message has no spec");
    }

    #[test]
    fn the_launch_of_a_spec_is_read_without_its_secret() {
        let order = order(3);
        let spec = encode_for_user(&order);
        assert!(decode(&LaunchRecord { spec: Some(spec.clone()), ..LaunchRecord::default() }).is_err());
        assert_eq!(decode_placed(Some(&spec)).unwrap().hosts, order.launch.hosts);
    }
}
