//! Conversion between messages with fabric credentials and the types of `cxi-fabric`. Decoding copies keys into memory that is wiped.
//! Encoding borrows them from such memory. Copies in encryption, HTTP/2 and sockets are not under control of this module.

use bytes::Bytes;
use cxi_fabric::environment::Provider;
use cxi_fabric::node::{NicService, TrafficClasses};
use cxi_fabric::{Credentials, Secret, Vni};
use pmi_transport::proto::v1 as proto;
use prost::Message;

use super::{WireError, wrong};
use crate::fabric::{Claims, NodeFabric};

/// Limit of the length of a key, in bytes. Keys of fabric managers have some tens of bytes.
const KEY_MAX: usize = 4096;
/// Limit of the number of NICs of a node.
const NICS_MAX: usize = 64;
/// Limit of the length of a NIC name, in bytes.
const DEVICE_MAX: usize = 32;

/// Encodes a launch's credentials for its nodes, with the traffic classes that its services must allow. The key is wiped when the last copy
/// of the message is dropped.
pub fn encode(credentials: &Credentials, traffic_classes: TrafficClasses) -> proto::CxiCredentials {
    proto::CxiCredentials {
        vni: credentials.vni.into(),
        auth_key: credentials.auth_key.clone().map_or_else(Bytes::new, Bytes::from_owner),
        svc_id: credentials.svc_id,
        nics: Vec::new(),
        job_vni: credentials.job_vni.map_or(0, u32::from),
        traffic_classes: traffic_classes.bits().into(),
    }
}

/// Text that the API server signs, so that no relay can assign the VNI of another launch.
pub fn signed_text(launch_id: &str, credentials: &proto::CxiCredentials) -> Secret {
    let begin = b"fabric credentials\0";
    // The capacity is exact, because a growing vector leaves copies in freed memory.
    let mut text = Vec::with_capacity(begin.len() + launch_id.len() + 1 + credentials.encoded_len());
    text.extend_from_slice(begin);
    text.extend_from_slice(launch_id.as_bytes());
    text.push(0);
    credentials.encode_raw(&mut text);
    Secret::new(text)
}

/// Decodes credentials, including credentials in the design document's format.
///
/// # Errors
/// Fails for an invalid VNI, for a key or a list of NICs over the limits, and for an invalid NIC name.
pub fn decode(message: &proto::CxiCredentials) -> Result<Claims, WireError> {
    if message.auth_key.len() > KEY_MAX {
        return Err(wrong("the length of the fabric key", message.auth_key.len(), format!("at most {KEY_MAX} bytes")));
    }
    let classes = match message.traffic_classes {
        0 => TrafficClasses::default(),
        bits @ 1..=0xf => TrafficClasses::from_bits(bits as u8),
        bits => return Err(wrong("the traffic classes", bits, "a mask of four bits")),
    };
    Ok(Claims {
        credentials: Credentials {
            vni: decode_vni(message.vni)?,
            job_vni: (message.job_vni != 0).then(|| vni("the job's VNI", message.job_vni)).transpose()?,
            auth_key: (!message.auth_key.is_empty()).then(|| Secret::new(&message.auth_key[..])),
            svc_id: message.svc_id,
            lifetime: None,
        },
        services: decode_services(&message.nics)?,
        traffic_classes: classes,
    })
}

/// Decodes the number of a VNI.
///
/// # Errors
/// Fails for a number that is no VNI.
pub fn decode_vni(number: u32) -> Result<Vni, WireError> {
    vni("the VNI", number)
}

fn vni(what: &'static str, number: u32) -> Result<Vni, WireError> {
    Vni::new(number).map_err(|_| wrong(what, number, "1 to 65535"))
}

/// Encodes services on the NICs of a node.
pub fn encode_services(services: &[NicService]) -> Vec<proto::CxiNic> {
    let nic = |service: &NicService| proto::CxiNic { device: service.nic.clone(), svc_id: service.svc_id };
    services.iter().map(nic).collect()
}

/// Decodes services on the NICs of a node.
///
/// # Errors
/// Fails for a list over the limit, and for an invalid NIC name.
pub fn decode_services(nics: &[proto::CxiNic]) -> Result<Vec<NicService>, WireError> {
    if nics.len() > NICS_MAX {
        return Err(wrong("the number of NICs", nics.len(), format!("at most {NICS_MAX}")));
    }
    let service = |nic: &proto::CxiNic| match nic.device.strip_prefix("cxi") {
        Some(digits) if nic.device.len() <= DEVICE_MAX && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            Ok(NicService { nic: nic.device.clone(), svc_id: nic.svc_id })
        }
        _ => Err(wrong("a NIC", nic.device.chars().take(DEVICE_MAX).collect::<String>(), "cxi0, cxi1, ...")),
    };
    nics.iter().map(service).collect()
}

/// Encodes a node's fabric for its session; `None` if its ranks get no fabric settings.
pub fn encode_node(fabric: &NodeFabric) -> Option<proto::NodeFabric> {
    let credentials = |claims: &Claims| proto::CxiCredentials {
        nics: encode_services(&claims.services),
        ..encode(&claims.credentials, claims.traffic_classes)
    };
    let provider = fabric.provider?.name().to_owned();
    Some(proto::NodeFabric { provider, credentials: fabric.claims.as_ref().map(credentials) })
}

/// Decodes the fabric of a node that its agent has set up.
///
/// # Errors
/// Fails like [`decode`], and for a provider other than cxi and verbs.
pub fn decode_node(message: &proto::NodeFabric) -> Result<NodeFabric, WireError> {
    let provider = [Provider::Cxi, Provider::Verbs].into_iter().find(|provider| provider.name() == message.provider);
    Ok(NodeFabric {
        provider: Some(provider.ok_or_else(|| wrong("the provider", &message.provider, "cxi or verbs"))?),
        claims: message.credentials.as_ref().map(decode).transpose()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_design_documents_three_fields_are_enough() {
        let message = proto::CxiCredentials {
            vni: 1024,
            auth_key: Bytes::from_static(b"\xc0\xff\xee"),
            svc_id: 7,
            ..Default::default()
        };
        let claims = decode(&message).unwrap();
        assert_eq!(claims.credentials.auth_key, Secret::from_hex("c0ffee"));
        assert_eq!((claims.credentials.vni.get(), claims.credentials.svc_id), (1024, 7));
        assert_eq!(claims.traffic_classes, TrafficClasses::default());
        assert!(claims.services.is_empty() && claims.credentials.job_vni.is_none());
        let encoded = encode(&claims.credentials, claims.traffic_classes);
        assert_eq!(encoded, proto::CxiCredentials { traffic_classes: 0xa, ..message });
        let job_vni = Vni::new(2000).ok();
        let both = Credentials { job_vni, ..claims.credentials };
        assert_eq!(decode(&encode(&both, TrafficClasses::from_bits(4))).unwrap().credentials, both);
    }

    #[test]
    fn what_makes_no_sense_is_refused_without_the_key() {
        let check = |change: fn(&mut proto::CxiCredentials), expected: &str| {
            let auth_key = Bytes::from_static(b"canary");
            let mut message = proto::CxiCredentials { vni: 1, auth_key, ..Default::default() };
            change(&mut message);
            let error = decode(&message).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("canary"), "{error}");
        };
        check(|message| message.vni = 0, "the VNI is 0; possible is 1 to 65535");
        check(|message| message.job_vni = 65536, "the job's VNI is 65536");
        check(|message| message.auth_key = vec![0; 5000].into(), "the length of the fabric key is 5000");
        check(|message| message.traffic_classes = 16, "the traffic classes is 16");
        check(
            |message| message.nics.push(proto::CxiNic { device: "eth0".to_owned(), svc_id: 1 }),
            "a NIC is eth0; possible is cxi0",
        );
        let other = proto::NodeFabric { provider: "tcp".to_owned(), credentials: None };
        assert!(decode_node(&other).unwrap_err().to_string().contains("cxi or verbs"));
    }

    #[test]
    fn another_launch_or_another_vni_is_another_text() {
        let credentials = |vni| proto::CxiCredentials { vni, ..Default::default() };
        let text = signed_text("a", &credentials(1));
        assert_ne!(text, signed_text("b", &credentials(1)));
        assert_ne!(text, signed_text("a", &credentials(2)));
    }
}
