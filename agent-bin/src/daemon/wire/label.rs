//! Labels of sessions: the state that an agent leaves to the next agent.

use bytes::Bytes;
use lattice_session::wire::{WireError, fabric};
use pmi_core::ids::NodeIndex;
use pmi_transport::proto::v1 as proto;
use pmi_transport::signature::Serial;
use prost::Message;
use zeroize::Zeroizing;

use super::super::fabric::FabricUse;
use super::launch_request::{Assignment, assignment};

/// Encodes the label of a session. It contains the key of the launch's links.
pub(in super::super) fn encode(of: &Assignment, uses: Option<&FabricUse>) -> Zeroizing<Vec<u8>> {
    let label = proto::SessionLabel {
        spec: of.spec.clone(),
        node_index: of.index.0,
        serial: of.serial.0,
        vni: uses.map_or(0, |uses| uses.vni.into()),
        services: uses.map_or_else(Vec::new, |uses| fabric::encode_services(&uses.services)),
    };
    Zeroizing::new(label.encode_to_vec())
}

/// Decodes the label of a session.
///
/// # Errors
/// Fails if the bytes are no label, or if its launch is invalid for this version.
pub(in super::super) fn decode(label: Vec<u8>) -> Result<(Assignment, Option<FabricUse>), WireError> {
    let label = proto::SessionLabel::decode(Bytes::from(label))?;
    let launch = proto::LaunchSpec::decode(label.spec.clone())?;
    let assignment = assignment(Serial(label.serial), launch, NodeIndex(label.node_index), label.spec)?;
    let uses = match label.vni {
        0 => None,
        vni => Some(FabricUse { vni: fabric::decode_vni(vni)?, services: fabric::decode_services(&label.services)? }),
    };
    Ok((assignment, uses))
}

#[cfg(test)]
mod tests {
    use cxi_fabric::Vni;
    use cxi_fabric::node::NicService;

    use super::super::launch_request::tests::plain_assignment;
    use super::*;

    #[test]
    fn the_next_agent_knows_of_a_session_what_the_one_before_knew() {
        let service = NicService { nic: "cxi0".to_owned(), svc_id: 11 };
        let uses = FabricUse { vni: Vni::new(1024).unwrap(), services: vec![service] };
        for uses in [None, Some(uses)] {
            let before = plain_assignment();
            let (after, told) = decode(encode(&before, uses.as_ref()).to_vec()).unwrap();
            assert_eq!(told, uses);
            assert_eq!((&after.launch_id, after.serial, after.uid), (&before.launch_id, before.serial, before.uid));
            assert_eq!((after.index, after.ranks, after.grace), (before.index, before.ranks, before.grace));
            assert_eq!((&after.members, &after.spec), (&before.members, &before.spec));
        }
    }

    /// A later version may add fields. A label with missing fields, or malformed, is refused.
    #[test]
    fn fields_of_a_later_version_are_passed_over_and_noise_is_refused() {
        let mut label = encode(&plain_assignment(), None).to_vec();
        // Field 100, a number.
        label.extend_from_slice(&[0xa0, 0x06, 7]);
        assert!(decode(label).is_ok());
        assert!(matches!(decode(vec![0xff; 9]), Err(WireError::Format(_))));
        assert!(decode(Vec::new()).is_err());
    }
}
