//! The order to start a session, from an agent to its fork server: a launch with the API server's signature. The fork server checks the
//! signature and a few fields. The session process receives the order unchanged, and decodes the launch after it has changed to the user.

use bytes::Bytes;
use pmi_core::ids::NodeIndex;
use pmi_transport::proto::v1 as proto;
use pmi_transport::signature::{Serial, Signature};
use prost::Message;
use zeroize::Zeroizing;

use super::{WireError, nics, placed};
use crate::nics::{NicsAnswer, NicsTask};

/// Order to start a session.
#[derive(Clone, Debug, PartialEq)]
pub struct StartOrder {
    /// Number under which the API server signed the launch.
    pub serial: Serial,
    /// Encoded launch. It contains the key of its links.
    pub spec: Bytes,
    /// This node in the launch.
    pub node: NodeIndex,
    /// The API server's signature; empty without authentication.
    pub signature: Signature,
    /// Work to run as root in place of a session.
    pub nics: Option<NicsTask>,
}

/// Fields of a launch that a fork server decodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Id of the launch.
    pub launch_id: String,
    /// User id of the ranks.
    pub uid: u32,
    /// Names of the launch's nodes.
    pub nodes: Vec<String>,
}

impl StartOrder {
    /// Returns an order for work without a launch.
    pub fn of_task(task: NicsTask) -> Self {
        let (spec, signature) = (Bytes::new(), Signature::default());
        Self { serial: Serial(0), spec, node: NodeIndex(0), signature, nics: Some(task) }
    }

    /// Encodes the order.
    pub fn encode(&self) -> Zeroizing<Vec<u8>> {
        let Self { serial, spec, node, signature: Signature { signature, signer }, nics } = self.clone();
        let nics = nics.as_ref().map(nics::encode);
        let order = proto::StartOrder { serial: serial.0, spec, node_index: node.0, signature, signer, nics };
        Zeroizing::new(order.encode_to_vec())
    }

    /// Decodes an order. Its memory is wiped when its last part is dropped.
    ///
    /// # Errors
    /// Fails for invalid bytes.
    pub fn decode(order: Vec<u8>) -> Result<Self, WireError> {
        let order = Bytes::from_owner(Zeroizing::new(order));
        let proto::StartOrder { serial, spec, node_index, signature, signer, nics } = proto::StartOrder::decode(order)?;
        let signature = Signature { signature, signer };
        let nics = nics.map(nics::decode).transpose()?;
        Ok(Self { serial: Serial(serial), spec, node: NodeIndex(node_index), signature, nics })
    }

    /// Decodes only the fields that identify the launch, its user and its nodes.
    ///
    /// # Errors
    /// Fails for bytes that are no launch.
    pub fn head(&self) -> Result<Head, WireError> {
        let proto::LaunchSpecHead { launch_id, uid, nodes } = proto::LaunchSpecHead::decode(self.spec.clone())?;
        Ok(Head { launch_id, uid, nodes: placed::nodes(&nodes)? })
    }
}

/// Encodes the answer of the process that runs an errand.
pub fn encode_nics_answer(answer: NicsAnswer) -> Vec<u8> {
    nics::encode_answer(answer).encode_to_vec()
}

/// Decodes the answer of the process that runs an errand.
///
/// # Errors
/// Fails for invalid bytes.
pub fn decode_nics_answer(answer: Vec<u8>) -> Result<NicsAnswer, WireError> {
    nics::decode_answer(proto::NicsAnswer::decode(Bytes::from(answer))?)
}

/// Decodes a fork server's answer to a challenge: the number of the last launch that the API server has signed.
///
/// # Errors
/// Fails for invalid bytes.
pub fn decode_last_serial(word: Vec<u8>) -> Result<(Serial, Signature), WireError> {
    let proto::SignedSerial { last_serial, signature } = proto::SignedSerial::decode(Bytes::from(word))?;
    let signature = signature.ok_or(WireError::Missing { what: "signature" })?;
    Ok((Serial(last_serial), Signature { signature: signature.signature, signer: signature.signer }))
}

/// Encodes a fork server's answer to a challenge.
pub fn encode_last_serial(last: Serial, signature: proto::SerialSignature) -> Vec<u8> {
    proto::SignedSerial { last_serial: last.0, signature: Some(signature) }.encode_to_vec()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cxi_fabric::Vni;
    use cxi_fabric::node::NicService;

    use super::*;
    use crate::cxi::CxiSurvey;
    use crate::wire::signed_credentials::SignedCredentials;

    fn order() -> StartOrder {
        let spec = proto::LaunchSpec {
            launch_id: "abc".to_owned(),
            uid: 1000,
            nodes: "node[0-2]".to_owned(),
            link_key: Bytes::from_static(&[7; 32]),
            ..Default::default()
        };
        let signature = Signature { signature: Bytes::from_static(b"sig"), signer: vec![Bytes::from_static(b"cert")] };
        let spec = spec.encode_to_vec().into();
        StartOrder { serial: Serial(9), spec, node: NodeIndex(2), signature, nics: None }
    }

    #[test]
    fn an_order_travels_and_its_head_says_whose_it_is() {
        let order = order();
        let got = StartOrder::decode(order.encode().to_vec()).unwrap();
        assert_eq!(got, order);
        let nodes = ["node0", "node1", "node2"].map(str::to_owned).to_vec();
        assert_eq!(got.head().unwrap(), Head { launch_id: "abc".to_owned(), uid: 1000, nodes });
    }

    #[test]
    fn work_on_services_travels() {
        let service = |nic: &str| NicService { nic: nic.to_owned(), svc_id: 11 };
        let vni = Vni::new(1024).unwrap();
        let message = proto::CxiCredentials { vni: 1024, ..Default::default() };
        let credentials = SignedCredentials::new(message, Bytes::from_static(b"sig"));
        for task in [
            NicsTask::Claim { credentials: credentials.clone(), ranks: 7, spared: Some(vec![service("cxi0")]) },
            NicsTask::Claim { credentials, ranks: 7, spared: None },
            NicsTask::Find(3),
            NicsTask::Release(vec![service("cxi0"), service("cxi1")]),
            NicsTask::Sweep { vni, spared: vec![service("cxi0")], within: Duration::from_secs(3) },
            NicsTask::Survey,
        ] {
            let order = StartOrder::of_task(task);
            assert_eq!(StartOrder::decode(order.encode().to_vec()).unwrap(), order);
        }
        let answer = NicsAnswer {
            services: vec![service("cxi1")],
            warnings: vec!["fewer".to_owned()],
            trouble: Some("no link".to_owned()),
            survey: CxiSurvey { backend: "paper".to_owned(), ..CxiSurvey::default() },
        };
        assert_eq!(nics::decode_answer(nics::encode_answer(answer.clone())).unwrap(), answer);
        let stranger = NicsTask::Release(vec![service("eth0")]);
        assert!(StartOrder::decode(StartOrder::of_task(stranger).encode().to_vec()).is_err());
    }

    #[test]
    fn what_is_no_order_is_refused() {
        assert!(matches!(StartOrder::decode(vec![0xff; 9]), Err(WireError::Format(_))));
        let noise = StartOrder { spec: Bytes::from_static(b"\xff\xff"), ..order() };
        assert!(matches!(noise.head(), Err(WireError::Format(_))));
        assert!(matches!(decode_last_serial(Vec::new()), Err(WireError::Missing { .. })));
    }
}
